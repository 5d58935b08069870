"""Intersection over union and accuracies, from counts of pixels over the data set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import SumMetric, sum_dtype


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


def boundary_counts(
    prediction: Tensor, labels: Tensor, num_classes: int, ratio: float = 0.02
) -> Tensor:
    """Pixels near the boundary of each class: int64 (3, K), in both, in truth, in prediction.

    With G and P a class in truth and prediction, and G_d and P_d their pixels at most d from the
    outside: |G_d ∩ P_d|, |G_d|, |P_d| (Cheng et al. 2021, eq. 3). As in the official code
    (bowenc0221/boundary-iou-api), unlabelled pixels are no class in the truth and stay part of the
    prediction, whose boundary is found first; its pixels there do not count.

    Args:
        prediction, labels: integer class ids (H, W); labels outside [0, K) are unlabelled.
        num_classes: K.
        ratio: d as a share of the diagonal, rounded, at least one pixel.
    """
    found, truth = (ids.cpu().numpy().astype(np.int64) for ids in (prediction, labels))
    found, truth = (
        np.where((ids < 0) | (ids >= num_classes), num_classes, ids).astype(np.uint16)
        for ids in (found, truth)
    )
    kernel = np.ones((1 + 2 * max(1, round(ratio * math.hypot(*truth.shape))),) * 2, np.uint8)

    def is_near(ids: np.ndarray) -> np.ndarray:
        padded = np.pad(ids, 1, constant_values=num_classes + 1)  # unlike every class
        return (cv2.erode(padded, kernel) != cv2.dilate(padded, kernel))[1:-1, 1:-1]

    near_truth, near_found = is_near(truth), is_near(found)
    both = near_truth & near_found & (truth == found)
    pixels = truth[both], truth[near_truth], found[near_found & (truth < num_classes)]
    counts = [np.bincount(ids, minlength=num_classes + 1)[:num_classes] for ids in pixels]
    return torch.from_numpy(np.stack(counts))


class SegmentationMetrics(SumMetric):
    """mIoU as benchmarks report it: one confusion matrix, then the mean over classes.

    Equal to torchmetrics' ``MulticlassJaccardIndex(average="macro")``; the mean of per-image IoUs
    (``torchmetrics.segmentation.MeanIoU``) is another number.

    Args:
        num_classes: K.
        class_names: K names for the ``iou/<name>`` scores; empty for the class ids.
        boundary: width of boundaries as a share of the diagonal, 0.02 in Cheng et al. 2021: adds
            ``boundary_miou`` and ``boundary_iou/<name>`` from :func:`boundary_counts`, summed over
            images as for IoU. None leaves them out.
    """

    higher_is_better = True
    confusion: Tensor
    near: Tensor

    def __init__(
        self, num_classes: int, class_names: Sequence[str] = (), *, boundary: float | None = None
    ) -> None:
        super().__init__()
        self.boundary = boundary
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        if len(self.class_names) != num_classes:
            raise ValueError(f"{len(self.class_names)} class_names for {num_classes} classes")
        self.add_count("confusion", num_classes, num_classes + 1)
        if boundary is not None:
            self.add_count("near", 3, num_classes)

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        """Args: prediction: integer class ids (H, W) or (B, H, W); labels: the same shape."""
        self.confusion = self.confusion + confusion_matrix(
            prediction, labels, len(self.class_names)
        )
        if self.boundary is not None:
            size = (-1, *labels.shape[-2:])
            for ids, truth in zip(prediction.view(size), labels.view(size), strict=True):
                counts = boundary_counts(ids, truth, len(self.class_names), self.boundary)
                self.near = self.near + counts.to(self.near.device)

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1, NaN if nothing was counted.

        ``miou`` averages the classes with a non-empty union, ``mean_accuracy`` (of recalls) the
        classes in the truth; ``pixel_accuracy``; ``iou/<name>``.
        """
        counts, iou = self.confusion.to(sum_dtype(self.confusion.device)), class_iou(self.confusion)
        hits, truth = counts.diagonal(), counts.sum(1)
        scores = {
            "miou": iou.nanmean(),
            "pixel_accuracy": hits.sum() / truth.sum(),
            "mean_accuracy": (hits / truth).nanmean(),
            **{f"iou/{k}": v for k, v in zip(self.class_names, iou.unbind(), strict=True)},
        }
        if self.boundary is not None:
            both, truth, found = self.near.to(counts.dtype).unbind()
            near = both / (truth + found - both)
            scores["boundary_miou"] = near.nanmean()
            names = (f"boundary_iou/{name}" for name in self.class_names)
            scores |= dict(zip(names, near.unbind(), strict=True))
        return scores

    def confusion_of(self, vector: Tensor) -> tuple[tuple[str, ...], np.ndarray]:
        return self.class_names, self.states_of(vector)["confusion"].numpy().astype(np.int64)
