"""Ultralytics: ``yolo depth val``."""

from typing import ClassVar

import numpy as np

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import COMMON, DELTAS, Errors
from dpt.metrics.rules.moments import Floats, Mask


class Ultralytics(DepthRule):
    """The rule of ``DepthMetrics`` with ``align="median"``, its default."""

    name = "ultralytics"
    summary = (
        "Multiplies each prediction by the quotient of the medians, and leaves out images with "
        "fewer than 10 pixels."
    )
    original = "ultralytics 8.4.190 utils/metrics.py:1908: DepthMetrics"
    fitted = "median"
    kinds = DEPTH_KINDS
    min_pixels = 10
    errors: ClassVar[Errors] = {
        **DELTAS,
        **{name: COMMON[name] for name in ("abs_rel", "rmse", "silog")},
    }

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        low, high = self.min_depth, min(image.max_depth, np.finfo(float).max)
        values, depth = image.prediction_at(counted), image.depth_at(counted)
        finite = np.isfinite(values)
        if finite.all():
            values = values * (image.median(depth) / max(image.median(values), low))
        elif finite.any():
            median = max(fits.lower_median(values[finite]), low)
            values = values * (fits.lower_median(depth[finite]) / median)
        return np.nan_to_num(values, nan=high, posinf=high, neginf=low).clip(low, high)
