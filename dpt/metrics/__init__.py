"""Metrics: sums over the data set as states, so that processes add up exactly.

Update with what one step saw, ``compute`` once an epoch; the results are dictionaries of scalars.
"""

from dpt.metrics.depth import DEPTH_ERRORS, DepthMetrics, depth_errors
from dpt.metrics.image import ClassificationMetrics, RegressionMetrics
from dpt.metrics.segmentation import (
    SegmentationMetrics,
    class_iou,
    confusion_matrix,
    segmentation_scores,
)

__all__ = [
    "DEPTH_ERRORS",
    "ClassificationMetrics",
    "DepthMetrics",
    "RegressionMetrics",
    "SegmentationMetrics",
    "class_iou",
    "confusion_matrix",
    "depth_errors",
    "segmentation_scores",
]
