"""Intersection over union and accuracies, from counts of pixels over the data set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.metrics.base import SumMetric, sum_dtype
from dpt.types import IGNORE_INDEX


def confusion_matrix(prediction: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Pixel counts, truth by row and prediction by column: int64 (K, K + 1).

    The last column counts labelled pixels whose prediction is no class (a 255 in a file of
    predictions): they are wrong, not left out. Pixels labelled 255 or outside [0, K) do not count.

    Args:
        prediction, labels: integer class ids, any shape.
        num_classes: K.
    """
    if prediction.shape != labels.shape:
        raise ValueError(
            "prediction and labels must have one shape, "
            f"got {tuple(prediction.shape)} and {tuple(labels.shape)}"
        )
    if prediction.is_floating_point():
        raise ValueError(f"prediction must hold integer class ids, got {prediction.dtype}")
    side = num_classes + 1
    found, truth = (_class_ids(ids.flatten(), num_classes) for ids in (prediction, labels))
    truth = torch.where(labels.flatten() == IGNORE_INDEX, num_classes, truth)
    counts = torch.bincount(torch.add(found, truth, alpha=side), minlength=side * side)
    return counts.view(side, side)[:num_classes]  # the last row is of pixels without a label


def class_iou(matrix: Tensor) -> Tensor:
    """Intersection over union of each class, (K,), from a (K, K) or (K, K + 1) confusion matrix.

    NaN for a class in neither truth nor prediction.
    """
    hits, truth, found = matrix.diagonal(), matrix.sum(1), matrix[:, : len(matrix)].sum(0)
    return boundary_iou(torch.stack([hits, truth, found]))


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


def boundary_counts(
    prediction: Tensor, labels: Tensor, num_classes: int, ratio: float = 0.02
) -> Tensor:
    """Pixels near the boundary of each class: int64 (3, K), in both, in truth, in prediction.

    With G and P a class in truth and prediction, and G_d and P_d their pixels within distance d of
    the outside: |G_d ∩ P_d|, |G_d|, |P_d| (Cheng et al. 2021, eq. 3), summed over a data set as
    for IoU. Pixels labelled 255 do not count and belong to no class in both.

    Args:
        prediction, labels: integer class ids (B, H, W).
        num_classes: K.
        ratio: d as a share of the diagonal (Cheng et al. 2021, section 4.2); d is at least a pixel.
    """
    truth = _class_ids(torch.where(labels == IGNORE_INDEX, -1, labels.int()), num_classes)
    known = truth < num_classes
    # a pixel without a label differs from one predicted as no class
    found = torch.where(known, _class_ids(prediction, num_classes), num_classes + 1)
    distance = max(1, round(ratio * math.hypot(*labels.shape[-2:])))
    near_truth, near_found = near_boundary(truth, distance), near_boundary(found, distance)

    def count(ids: Tensor, where: Tensor) -> Tensor:
        bins = torch.where(where, ids, num_classes).clamp(max=num_classes).flatten()
        return torch.bincount(bins, minlength=num_classes + 1)[:num_classes]

    both = near_truth & near_found & (truth == found)
    return torch.stack([count(truth, both), count(truth, near_truth), count(found, near_found)])


def boundary_iou(counts: Tensor) -> Tensor:
    """(K,) from (3, K) counts in both, truth and prediction; NaN for a class in neither."""
    both, truth, found = counts.to(sum_dtype(counts.device))
    return both / (truth + found - both)


def near_boundary(ids: Tensor, width: int) -> Tensor:
    """Pixels at most ``width`` pixels (Chebyshev distance) from another class or the border.

    Equal to what ``width`` erosions by 3 × 3 remove from each class, for all classes in one pass:
    a pixel is not near a boundary if all pairs of neighbours in its window are equal.

    Args:
        ids: integer (B, H, W), not negative.
        width: at least 1.

    Returns:
        bool (B, H, W).
    """
    padded = F.pad(ids, (width,) * 4, value=-1)  # unlike every class
    equal = padded[..., 1:] == padded[..., :-1]
    rows = _all_of(equal, 2 * width, dim=-1)  # each row of the window holds one class
    middle = padded[..., width:-width]
    column = _all_of(middle[:, 1:] == middle[:, :-1], 2 * width, dim=-2)
    return ~(_all_of(rows, 2 * width + 1, dim=-2) & column)


def _all_of(flags: Tensor, count: int, *, dim: int) -> Tensor:
    """Whether ``count`` consecutive flags are all set, from each position, in log₂(count) steps."""
    size = 1
    while size < count:
        step = min(size, count - size)
        length = flags.shape[dim] - step
        flags = flags.narrow(dim, 0, length) & flags.narrow(dim, step, length)
        size += step
    return flags


def _class_ids(ids: Tensor, num_classes: int) -> Tensor:
    """As int32, K for everything that is no class."""
    ids = ids.int()
    return torch.where((ids < 0) | (ids >= num_classes), num_classes, ids)


class SegmentationMetrics(SumMetric):
    """mIoU as benchmarks report it: one confusion matrix, then the mean over classes.

    Equal to torchmetrics' ``MulticlassJaccardIndex(average="macro")``; the mean of per-image IoUs
    (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` scores; empty for the class ids.
        boundary: width of boundaries as a share of the diagonal: adds ``boundary_miou`` and
            ``boundary_iou/<name>`` (Cheng et al. 2021); None leaves them out.
    """

    higher_is_better = True
    primary = "miou"
    confusion: Tensor
    boundary_pixels: Tensor

    def __init__(
        self, num_classes: int, class_names: Sequence[str] = (), *, boundary: float | None = None
    ) -> None:
        super().__init__()
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        if len(self.class_names) != num_classes:
            raise ValueError(f"{len(self.class_names)} class_names for {num_classes} classes")
        if boundary is not None and not 0 < boundary < 1:
            raise ValueError(f"boundary={boundary}: must be a share of the diagonal, as 0.02")
        self.num_classes = num_classes
        self.boundary = boundary
        self.add_count("confusion", num_classes, num_classes + 1)
        if boundary is not None:
            self.add_count("boundary_pixels", 3, num_classes)

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Args: prediction: integer class ids (H, W) or (B, H, W); labels: the same shape."""
        self.confusion = self.confusion + confusion_matrix(prediction, labels, self.num_classes)
        if self.boundary is not None:
            size = (-1, *labels.shape[-2:])
            counts = boundary_counts(
                prediction.view(size), labels.view(size), self.num_classes, self.boundary
            )
            self.boundary_pixels = self.boundary_pixels + counts

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
