"""Rules of scoring: how other projects compute the scores that they publish.

A file for each project; a class with a ``name`` is added to ``RULES``, outside this package too.
"""

from dpt.metrics.rules import (
    boundary,
    boundary_iou,
    bts,
    cityscapes,
    depth_anything,
    depth_estimation,
    dino,
    huggingface,
    kitti,
    marigold,
    metric3d,
    midas,
    mmsegmentation,
    moge,
    pytorch_encoding,
    torchmetrics,
    ultralytics,
    unidepth,
    whdr,
)
from dpt.metrics.rules.base import RULES, DepthImage, DepthRule, Rule
from dpt.metrics.rules.classes import SEGMENTATION_RULES, SegmentationRule

__all__ = [
    "RULES",
    "SEGMENTATION_RULES",
    "DepthImage",
    "DepthRule",
    "Rule",
    "SegmentationRule",
]
