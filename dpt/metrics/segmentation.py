"""Intersection over union and accuracies from one confusion matrix over the whole data set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpt.metrics.base import SumMetric, sum_dtype
from dpt.metrics.boundary import boundary_counts, boundary_iou

_IN_CACHE = 1 << 18  # pixels that a CPU counts at a time: faster than all at once


def confusion_matrix(
    prediction: Tensor, labels: Tensor, num_classes: int, ignore_index: int = 255
) -> Tensor:
    """Pixel counts, truth by row and prediction by column: int64 (K, K + 1).

    The last column counts labelled pixels whose prediction is no class at all (a 255 read from a
    file, say): wrong, not skipped. Pixels labelled ``ignore_index`` or outside [0, K) count
    nowhere; that labels are legal is the data set's to check, see :func:`check_labels`.

    Pixels that do not count go into one extra row, where boolean indexing would make CUDA wait for
    the size of the result.

    Args:
        prediction: integer class ids, any shape.
        labels: integer class ids, the same shape.
        num_classes: K.
        ignore_index: label of pixels that do not count.
    """
    if prediction.shape != labels.shape:
        raise ValueError(
            "prediction and labels must share one shape, "
            f"got {tuple(prediction.shape)} and {tuple(labels.shape)}"
        )
    if prediction.is_floating_point():
        raise ValueError(f"prediction must hold integer class ids, got {prediction.dtype}")
    side = num_classes + 1
    counts = torch.zeros(side * side, dtype=torch.int64, device=labels.device)
    on_cpu = labels.device.type == "cpu"
    size = _IN_CACHE if on_cpu else max(labels.numel(), 1)
    pieces = zip(prediction.flatten().split(size), labels.flatten().split(size), strict=True)
    for found, truth in pieces:
        rows = _ids(truth, num_classes, ignore_index)
        bins = torch.add(_ids(found, num_classes), rows, alpha=side)
        if on_cpu:
            counts += torch.bincount(bins, minlength=side * side)
        else:  # bincount would wait for the largest bin
            counts.scatter_add_(0, bins.long(), torch.ones_like(bins, dtype=torch.int64))
    return counts.view(side, side)[:num_classes]


def _ids(ids: Tensor, num_classes: int, ignore_index: int = -1) -> Tensor:
    """(N,) int32 in 0..K, where K stands for what is no class; uint8 is five times as fast."""
    ignores_a_class = 0 <= ignore_index < num_classes
    if ids.dtype is torch.uint8 and num_classes < 255 and not ignores_a_class:
        return ids.clamp(max=num_classes).int()
    ids = ids.long()  # in which every bound can be written
    outside = (ids < 0) | (ids >= num_classes) | (ids == ignore_index)
    return torch.where(outside, num_classes, ids.int())


def check_labels(labels: Tensor, num_classes: int, ignore_index: int = 255) -> None:
    """Raises ``ValueError`` naming labels outside [0, K); waits for the device: for debugging."""
    found = labels.unique().tolist()
    if wrong := [v for v in found if v != ignore_index and not 0 <= v < num_classes]:
        raise ValueError(
            f"labels {wrong} found; allowed are 0..{num_classes - 1} and {ignore_index} (ignored)"
        )


def class_iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, (K,), from a (K, K) or (K, K + 1) confusion matrix.

    NaN for a class that neither truth nor prediction holds.
    """
    counts = matrix.to(sum_dtype(matrix.device))
    hits = counts.diagonal()
    return hits / (counts.sum(1) + counts[:, : len(counts)].sum(0) - hits)


def segmentation_scores(matrix: Tensor) -> dict[str, Tensor]:
    """``miou``, ``pixel_accuracy`` and ``mean_accuracy`` in 0..1; NaN if nothing was counted.

    ``miou`` averages the classes with a non-empty union, ``mean_accuracy`` (of recalls) those
    that the truth holds.
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

    Equals torchmetrics' ``MulticlassJaccardIndex(average="macro")``, at a fraction of its time; a
    mean of per-image IoUs (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` results; empty for the class ids.
        ignore_index: label of pixels that do not count.
        boundary: width of boundaries as a share of the diagonal: also ``boundary_miou`` and
            ``boundary_iou/<name>`` (Cheng et al. 2021); None saves their time.
    """

    higher_is_better = True
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
        names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        if len(names) != num_classes:
            raise ValueError(f"{len(names)} class_names for {num_classes} classes")
        self.num_classes = num_classes
        self.class_names = names
        if boundary is not None and not 0 < boundary < 1:
            raise ValueError(f"boundary={boundary}: must be a share of the diagonal, as 0.02")
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
            height, width = labels.shape[-2:]
            self.boundary_pixels = self.boundary_pixels + boundary_counts(
                prediction.view(-1, height, width),
                labels.view(-1, height, width),
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
