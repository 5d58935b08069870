"""Metrics: sums over the data set as states, so that processes add up exactly.

Update with what one step saw, ``compute`` once an epoch; the results are dictionaries of scalars.
"""

from dpt.metrics.base import SumMetric
from dpt.metrics.bootstrap import confidence_intervals
from dpt.metrics.boundary import boundary_counts, boundary_iou
from dpt.metrics.depth import DEPTH_ERRORS, DepthMetrics, depth_errors
from dpt.metrics.image import ClassificationMetrics, RegressionMetrics
from dpt.metrics.protocols import DEPTH_PROTOCOLS, DepthProtocol
from dpt.metrics.segmentation import (
    SegmentationMetrics,
    class_iou,
    confusion_matrix,
    segmentation_scores,
)

__all__ = [
    "DEPTH_ERRORS",
    "DEPTH_PROTOCOLS",
    "ClassificationMetrics",
    "DepthMetrics",
    "DepthProtocol",
    "RegressionMetrics",
    "SegmentationMetrics",
    "SumMetric",
    "boundary_counts",
    "boundary_iou",
    "class_iou",
    "confidence_intervals",
    "confusion_matrix",
    "depth_errors",
    "segmentation_scores",
]
