"""Intersection over union and accuracies, from one confusion matrix over the data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import SumMetric, sum_dtype
from dpt.metrics.boundary import boundary_counts, boundary_iou


def confusion_matrix(
    prediction: Tensor, labels: Tensor, num_classes: int, ignore_index: int = 255
) -> Tensor:
    """Pixel counts, truth by row and prediction by column: int64 (K, K + 1).

    The last column counts labelled pixels whose prediction is no class (a 255 in a file of
    predictions): they are wrong, not left out. Pixels labelled ``ignore_index`` or outside [0, K)
    do not count.

    Args:
        prediction: integer class ids, any shape.
        labels: integer class ids, the same shape.
        num_classes: K.
        ignore_index: label of pixels that do not count.
    """
    if prediction.shape != labels.shape:
        raise ValueError(
            "prediction and labels must have one shape, "
            f"got {tuple(prediction.shape)} and {tuple(labels.shape)}"
        )
    if prediction.is_floating_point():
        raise ValueError(f"prediction must hold integer class ids, got {prediction.dtype}")
    side = num_classes + 1
    found, truth = (ids.flatten().int() for ids in (prediction, labels))
    found = torch.where((found < 0) | (found >= num_classes), num_classes, found)
    ignored = (truth < 0) | (truth >= num_classes) | (truth == ignore_index)
    truth = torch.where(ignored, num_classes, truth)  # one more row, cut off below
    counts = torch.bincount(torch.add(found, truth, alpha=side), minlength=side * side)
    return counts.view(side, side)[:num_classes]


def class_iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, (K,), from a (K, K) or (K, K + 1) confusion matrix.

    NaN for a class in neither truth nor prediction.
    """
    counts = matrix.to(sum_dtype(matrix.device))
    hits = counts.diagonal()
    return hits / (counts.sum(1) + counts[:, : len(counts)].sum(0) - hits)


def segmentation_scores(matrix: Tensor) -> dict[str, Tensor]:
    """``miou``, ``pixel_accuracy`` and ``mean_accuracy`` in 0..1; NaN if nothing was counted.

    ``miou`` averages the classes with a non-empty union, ``mean_accuracy`` (of recalls) the
    classes in the truth.
    """
    counts = matrix.to(sum_dtype(matrix.device))
    hits, truth = counts.diagonal(), counts.sum(1)
    return {
        "miou": class_iou(matrix).nanmean(),
        "pixel_accuracy": hits.sum() / truth.sum(),
        "mean_accuracy": (hits / truth).nanmean(),
    }


class SegmentationMetrics(SumMetric):
    """mIoU as benchmarks report it: one confusion matrix, then the mean over classes.

    Equal to torchmetrics' ``MulticlassJaccardIndex(average="macro")``; the mean of per-image IoUs
    (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` scores; empty for the class ids.
        ignore_index: label of pixels that do not count.
        boundary: width of boundaries as a share of the diagonal: adds ``boundary_miou`` and
            ``boundary_iou/<name>`` (Cheng et al. 2021); None leaves them out.
    """

    higher_is_better = True
    primary = "miou"
    confusion: Tensor
    boundary_pixels: Tensor

    def __init__(
        self,
        num_classes: int,
        class_names: Sequence[str] = (),
        *,
        ignore_index: int = 255,
        boundary: float | None = None,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        if len(self.class_names) != num_classes:
            raise ValueError(f"{len(self.class_names)} class_names for {num_classes} classes")
        if boundary is not None and not 0 < boundary < 1:
            raise ValueError(f"boundary={boundary}: must be a share of the diagonal, as 0.02")
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.boundary = boundary
        self.add_count("confusion", num_classes, num_classes + 1)
        if boundary is not None:
            self.add_count("boundary_pixels", 3, num_classes)

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Args: prediction: integer class ids (H, W) or (B, H, W); labels: the same shape."""
        self.confusion = self.confusion + confusion_matrix(
            prediction, labels, self.num_classes, self.ignore_index
        )
        if self.boundary is not None:
            size = labels.shape[-2:]
            self.boundary_pixels = self.boundary_pixels + boundary_counts(
                prediction.view(-1, *size),
                labels.view(-1, *size),
                self.num_classes,
                self.ignore_index,
                self.boundary,
            )

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1: ``miou``, ``pixel_accuracy``, ``mean_accuracy``, ``iou/<name>``."""
        scores = segmentation_scores(self.confusion)
        classes = {"iou": class_iou(self.confusion)}
        if self.boundary is not None:
            classes["boundary_iou"] = boundary_iou(self.boundary_pixels)
            scores["boundary_miou"] = classes["boundary_iou"].nanmean()
        for key, values in classes.items():
            named = zip(self.class_names, values.unbind(), strict=True)
            scores |= {f"{key}/{name}": value for name, value in named}
        return scores

    def confusion_of(self, vector: Tensor) -> tuple[tuple[str, ...], np.ndarray]:
        return self.class_names, self.states_of(vector)["confusion"].numpy().astype(np.int64)
