"""Depth Anything V2, metric (Yang et al. 2024)."""

from collections.abc import Mapping
from typing import ClassVar

from dpt.metrics.rules.base import DepthImage, DepthRule
from dpt.metrics.rules.errors import EIGEN, Errors
from dpt.metrics.rules.moments import Floats, Mask


class DepthAnythingMetric(DepthRule):
    """The rule of ``eval_depth`` and of the loop in ``train.py`` around it."""

    name = "depth_anything_metric"
    summary = (
        "Clamps nothing, leaves out images with fewer than 10 pixels, and halves the second term "
        "of silog."
    )
    original = "DepthAnything/Depth-Anything-V2 metric_depth/util/metric.py: eval_depth"
    min_pixels = 10
    errors: ClassVar[Errors] = {**EIGEN, "silog": lambda m: m.silog(weight=0.5)}
    factors: ClassVar[Mapping[str, float]] = {"silog": 100.0}

    def counted(self, image: DepthImage) -> Mask:
        depth = image.depth
        return image.valid & (depth >= self.min_depth) & (depth <= image.max_depth)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return image.prediction_at(counted)
