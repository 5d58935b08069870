"""Marigold (Ke et al. 2024): depth up to scale and shift."""

import math
from typing import ClassVar

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import EIGEN, Errors
from dpt.metrics.rules.moments import Floats, Mask


class Marigold(DepthRule):
    """The rule of ``script/depth/eval.py`` with ``--alignment least_square``."""

    name = "marigold"
    summary = "Fits scale and shift in depth, then clamps to the range of the data."
    original = "prs-eth/Marigold src/util/metric.py, src/util/alignment.py"
    fitted = "scale, shift"
    kinds = DEPTH_KINDS
    errors: ClassVar[Errors] = {**EIGEN, "i_rmse": lambda m: math.sqrt(m.inverse_square)}

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        prediction = fits.in_depth(image.prediction_at(counted), image.depth_at(counted))
        return prediction.clip(self.min_depth, image.max_depth)
