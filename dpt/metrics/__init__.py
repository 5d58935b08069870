"""Metrics whose states are sums over images, so that processes add up exactly."""

from dpt.metrics.base import SumMetric, confidence_intervals
from dpt.metrics.depth import DEPTH_ERRORS, DepthMetrics, depth_errors
from dpt.metrics.image import ClassificationMetrics, EmbeddingMetrics, RegressionMetrics
from dpt.metrics.protocols import Protocol
from dpt.metrics.segmentation import SegmentationMetrics, class_iou, confusion_matrix
