"""Intersection over union and accuracies, from counts of pixels over the data set."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from dpt.functional import sum_dtype
from dpt.metrics.base import Confusion, SumMetric, class_labels, require_one_shape


def confusion_matrix(prediction: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Returns pixel counts, ground truth by row and prediction by column: int64 (K, K + 1).

    The last column counts labelled pixels whose prediction is no class (a 255 in a file of
    predictions): they are wrong, not left out. Labels outside [0, K), such as 255, do not count.

    Args:
        prediction, labels: integer class ids, any shape.
        num_classes: K, at most 255.
    """
    require_one_shape(prediction=prediction, labels=labels)
    if prediction.is_floating_point():
        raise ValueError(f"prediction must hold integer class ids, got {prediction.dtype}")
    side = num_classes + 1
    columns, rows = (
        torch.where((ids < 0) | (ids >= num_classes), num_classes, ids)
        for ids in (prediction.flatten().int(), labels.flatten().int())
    )
    counts = torch.bincount(torch.add(columns, rows, alpha=side), minlength=side * side)
    return counts.view(side, side)[:num_classes]  # the last row is of pixels without a label


def class_iou(matrix: Tensor) -> Tensor:
    """Returns each class's intersection over union, (K,), from a (K, K) or (K, K + 1) matrix.

    NaN for a class in neither ground truth nor prediction.
    """
    counts = matrix.to(sum_dtype(matrix.device))
    intersection = counts.diagonal()
    return intersection / (counts.sum(1) + counts[:, : len(counts)].sum(0) - intersection)


class SegmentationMetrics(SumMetric):
    """mIoU as benchmarks report it: one confusion matrix, then the mean over classes.

    Equal to torchmetrics' ``MulticlassJaccardIndex(average="macro")``; the mean of per-image IoUs
    (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` scores; empty for the class ids.
    """

    has_limits = True
    confusion: Tensor

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.class_names = class_labels(class_names, num_classes)
        self.add_count("confusion", num_classes, num_classes + 1)

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Adds images.

        Args:
            prediction: integer class ids (H, W) or (B, H, W).
            labels: the same shape.
        """
        counts = confusion_matrix(prediction, labels, len(self.class_names))
        self.confusion = self.confusion + counts

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1, NaN if nothing was counted.

        ``miou`` averages the classes with a non-empty union, ``mean_accuracy`` (of recalls) the
        classes in the ground truth; ``pixel_accuracy``; ``iou/<name>``.
        """
        counts = self.confusion.to(sum_dtype(self.confusion.device))
        iou = class_iou(self.confusion)
        hits = counts.diagonal()
        labelled = counts.sum(1)
        return {
            "miou": iou.nanmean(),
            "pixel_accuracy": hits.sum() / labelled.sum(),
            "mean_accuracy": (hits / labelled).nanmean(),
            **{f"iou/{k}": v for k, v in zip(self.class_names, iou.unbind(), strict=True)},
        }

    def confusion_of(self, states: Sequence[csr_array]) -> Confusion:
        total = np.asarray(vstack(states).sum(axis=0)).ravel()
        counts = total[: self.confusion.numel()].reshape(self.confusion.shape)  # its first state
        return Confusion(self.class_names, counts.astype(np.int64))
