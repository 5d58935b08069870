"""Metric3D v2 (Hu et al. 2024): three columns for one prediction."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from dpt.metrics.rules.base import COMMON, DEPTH_KINDS, DepthRule, Errors, Moments, Pixels
from dpt.metrics.rules.fits import Floats, least_squares, lower_median

LARGEST = 300.0
"""Metres; predictions that are not between 0 and this become 0."""
EPSILON = 1e-10
"""Added to both depths, so that a ratio of exactly 1.25 is within."""


class Metric3D(DepthRule):
    """The rule of ``MetricAverageMeter``, and of ``postprocess_per_image`` before it: no fit.

    The logarithms of ``silog`` and ``rmse_log`` are to base 10. Invalid pixels are also counted as
    good where the prediction is not above 0, so that δ can exceed 1.
    """

    name = "metric3d"
    summary = (
        "Sets predictions beyond 300 m to 0, has no largest depth, takes logarithms to base 10, "
        "and counts invalid pixels with a prediction of 0 as good."
    )
    original = "YvanYin/Metric3D mono/utils/avg_meter.py, do_test.py"
    min_depth = 1e-8
    has_max_depth = False
    errors: ClassVar[Errors] = {
        **COMMON,  # δ stand last
        "silog": lambda m: m.silog() / math.log(10),
        "rmse_log": lambda m: math.sqrt(m.log_square) / math.log(10),
    }
    factors: ClassVar[Mapping[str, float]] = {"silog": 100 * math.log(10)}

    def aligned(self, pixels: Pixels) -> Floats:
        """Returns the whole map (H, W) after the fit of this column."""
        prediction = pixels.image.prediction
        return (prediction > 0) * (prediction < LARGEST) * prediction

    def values(self, pixels: Pixels) -> Floats:
        aligned = self.aligned(pixels)
        moments = Moments.of(aligned[pixels.mask] + EPSILON, pixels.depth + EPSILON)
        values = np.array([error(moments) for error in self.errors.values()])
        outside = aligned[~pixels.mask]
        values[-3:] += np.count_nonzero(outside < 1.25 * EPSILON) / len(pixels.depth)
        return values


class Metric3DMedian(Metric3D):
    """The column ``median match``."""

    name = "metric3d_median"
    summary = "As metric3d, after a fit of the median."
    fitted = "median"
    kinds = DEPTH_KINDS

    def aligned(self, pixels: Pixels) -> Floats:
        prediction = super().aligned(pixels)
        median = lower_median(prediction[pixels.mask])
        return prediction * pixels.median_depth / median


class Metric3DGlobal(Metric3D):
    """The column ``global match``: ``align_scale_shift``, for more than 10 pixels."""

    name = "metric3d_global"
    summary = "As metric3d, after a fit of scale and shift; of the median if the scale is negative."
    fitted = "scale, shift"
    kinds = DEPTH_KINDS

    def aligned(self, pixels: Pixels) -> Floats:
        prediction = super().aligned(pixels)
        values = prediction[pixels.mask]
        if len(values) <= 10:
            return prediction
        scale, shift = least_squares(values, pixels.depth)
        if scale >= 0:
            return prediction * scale + shift
        return prediction * pixels.median_depth / (lower_median(values) + 1e-8)
