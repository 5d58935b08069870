"""Metrics whose states are sums over images, so that processes add up exactly."""

from dpt.metrics.base import Confusion, SumMetric
from dpt.metrics.depth import DEPTH_ERRORS, DepthMetrics, NormalMetrics, depth_errors
from dpt.metrics.image import (
    ClassificationMetrics,
    EmbeddingMetrics,
    RegressionMetrics,
    RetrievalMetrics,
)
from dpt.metrics.intervals import Interval, LeftOut, confidence_intervals, left_out
from dpt.metrics.protocols import Protocol
from dpt.metrics.segmentation import SegmentationMetrics, class_iou, confusion_matrix
