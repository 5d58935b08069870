"""DINOv3's depth heads (Siméoni et al. 2025); DINOv2's formulas are the same, without ``mae``."""

import math
from typing import ClassVar

import numpy as np

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import EIGEN, Errors
from dpt.metrics.rules.moments import Floats, Mask


class DinoV3(DepthRule):
    """The rule of ``dinov3/eval/depth`` with ``config-nyu.yaml``."""

    name = "dinov3"
    summary = "Scores inside Eigen's crop of NYU, scaled to the size of the map, and clamps metres."
    original = "facebookresearch/dinov3 dinov3/eval/depth: metrics.py, eval.py"
    errors: ClassVar[Errors] = {
        **EIGEN,
        "silog": lambda m: 0.0 if math.isnan(m.log) else 100 * m.silog(),  # as the original
        "mae": lambda m: m.absolute,
    }

    def counted(self, image: DepthImage) -> Mask:
        (height, width), is_inside = image.valid.shape, np.zeros_like(image.valid)
        rows = slice(int(45 / 480 * height), int(471 / 480 * height))
        is_inside[rows, int(41 / 640 * width) : int(601 / 640 * width)] = True
        return super().counted(image) & is_inside

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return image.prediction_at(counted).clip(self.min_depth, image.max_depth)


class DinoV3Aligned(DinoV3):
    """The same with ``align_least_squares``, as ``config-nyu-synthmix-dpt-inference.yaml``."""

    name = "dinov3_aligned"
    summary = "As dinov3, after a fit of scale and shift in depth."
    fitted = "scale, shift"
    kinds = DEPTH_KINDS

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        prediction = fits.in_depth(image.prediction_at(counted), image.depth_at(counted))
        return prediction.clip(self.min_depth, image.max_depth)
