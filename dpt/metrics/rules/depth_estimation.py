"""The package depth-estimation."""

from typing import ClassVar

import numpy as np

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import DELTAS, Errors
from dpt.metrics.rules.moments import Floats, Mask

LEAST = 1e-6
"""Metres; smaller depths are clamped."""


class DepthEstimation(DepthRule):
    """The rule of its ``evaluate`` for models of relative depth: ``Evaluator``."""

    name = "depth_estimation"
    summary = "Fits scale and shift in depth, and pools the pixels of all images."
    original = "depth-estimation 0.1.3 evaluation/metrics.py: Evaluator"
    fitted = "scale, shift"
    kinds = DEPTH_KINDS
    errors: ClassVar[Errors] = {  # the roots are taken of the means over all images
        "rmse": lambda m: m.square,
        "rmse_log": lambda m: m.log_square,
        "abs_rel": lambda m: m.abs_rel,
        "sq_rel": lambda m: m.sq_rel,
        **DELTAS,
    }

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        prediction, depth = image.prediction_at(counted), image.depth_at(counted)
        if len(depth) > 1:
            prediction = fits.in_depth(prediction, depth)
        return prediction.clip(min=LEAST)

    def weight(self, pixels: int) -> float:
        return float(pixels)

    def finish(self, total: Floats) -> Floats:
        means = super().finish(total)
        return np.append(np.sqrt(means[:2]), means[2:])
