"""Intersection over union and accuracies, from counts of pixels over the data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpt.functional import sum_dtype
from dpt.metrics.base import SumMetric


def confusion_matrix(prediction: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Pixel counts, truth by row and prediction by column: int64 (K, K + 1).

    The last column counts labelled pixels whose prediction is no class (a 255 in a file of
    predictions): they are wrong, not left out. Labels outside [0, K), such as 255, do not count.

    Args:
        prediction, labels: integer class ids, any shape.
        num_classes: K, at most 255.
    """
    if prediction.shape != labels.shape:
        raise ValueError(
            "prediction and labels must have one shape, "
            f"got {tuple(prediction.shape)} and {tuple(labels.shape)}"
        )
    if prediction.is_floating_point():
        raise ValueError(f"prediction must hold integer class ids, got {prediction.dtype}")
    side = num_classes + 1
    found, truth = (
        torch.where((ids < 0) | (ids >= num_classes), num_classes, ids)
        for ids in (prediction.flatten().int(), labels.flatten().int())
    )
    counts = torch.bincount(torch.add(found, truth, alpha=side), minlength=side * side)
    return counts.view(side, side)[:num_classes]  # the last row is of pixels without a label


def class_iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, (K,), from a (K, K) or (K, K + 1) confusion matrix.

    NaN for a class in neither truth nor prediction.
    """
    counts = matrix.to(sum_dtype(matrix.device))
    hits, truth, found = counts.diagonal(), counts.sum(1), counts[:, : len(counts)].sum(0)
    return hits / (truth + found - hits)


class SegmentationMetrics(SumMetric):
    """mIoU as benchmarks report it: one confusion matrix, then the mean over classes.

    Equal to torchmetrics' ``MulticlassJaccardIndex(average="macro")``; the mean of per-image IoUs
    (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` scores; empty for the class ids.
    """

    confusion: Tensor

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        if len(self.class_names) != num_classes:
            raise ValueError(f"{len(self.class_names)} class_names for {num_classes} classes")
        self.add_count("confusion", num_classes, num_classes + 1)

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Args: prediction: integer class ids (H, W) or (B, H, W); labels: the same shape."""
        self.confusion = self.confusion + confusion_matrix(
            prediction, labels, len(self.class_names)
        )

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1, NaN if nothing was counted.

        ``miou`` averages the classes with a non-empty union, ``mean_accuracy`` (of recalls) the
        classes in the truth; ``pixel_accuracy``; ``iou/<name>``.
        """
        counts, iou = self.confusion.to(sum_dtype(self.confusion.device)), class_iou(self.confusion)
        hits, truth = counts.diagonal(), counts.sum(1)
        return {
            "miou": iou.nanmean(),
            "pixel_accuracy": hits.sum() / truth.sum(),
            "mean_accuracy": (hits / truth).nanmean(),
            **{f"iou/{k}": v for k, v in zip(self.class_names, iou.unbind(), strict=True)},
        }

    def confusion_of(self, states: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray]:
        counts = self.states_of(self.total(states))["confusion"]
        return self.class_names, counts.numpy().astype(np.int64)
