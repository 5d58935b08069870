"""Scores of classes and of segments, from sums over the data set."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from dpt.functional import sum_dtype
from dpt.metrics.base import Confusion, SumMetric, class_labels, require_one_shape
from dpt.segments import NO_SEGMENT, SegmentMap, Segments


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


class PanopticMetrics(SumMetric):
    """PQ = SQ · RQ of each class, then the mean over classes, as panopticapi computes it.

    A predicted and a true segment of the same class match if their IoU is above 0.5 (Kirillov et
    al. 2019, Panoptic Segmentation). The IoU leaves out unlabelled pixels, but not crowds; a
    predicted segment without a match is ignored if more than half of it is unlabelled or in crowds
    of its class.

    Args:
        things: for each class, whether it is a thing; the others are stuff.
        class_names: K names for the ``pq/<name>`` scores; empty for the class ids.
    """

    has_limits = True
    iou: Tensor
    counts: Tensor
    """int64 (3, K): true positives, false positives and false negatives."""

    def __init__(self, things: Sequence[bool], class_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.things = tuple(things)
        self.class_names = class_labels(class_names, len(things))
        self.add_sum("iou", len(things))
        self.add_count("counts", 3, len(things))

    def update(self, prediction: SegmentMap, ground_truth: Segments) -> None:
        """Adds an image, whose prediction and ground truth have the same size."""
        num_predicted = 1 + len(prediction.classes)
        num_true = 1 + len(ground_truth.classes)
        # row 0 and column 0 are of pixels without a segment
        rows = prediction.ids - NO_SEGMENT
        columns = ground_truth.map.ids - NO_SEGMENT
        is_labelled = ground_truth.compared | (ground_truth.crowds >= 0)
        pairs = (rows * num_true + columns)[is_labelled]
        counts = torch.bincount(pairs, minlength=num_predicted * num_true)
        counts = counts.view(num_predicted, num_true).to(sum_dtype(rows.device))
        intersection = counts[1:, 1:]
        labelled_areas = counts[1:].sum(1)
        areas = torch.bincount(rows.flatten(), minlength=num_predicted)[1:]
        union = labelled_areas[:, None] + counts[:, 1:].sum(0) - intersection
        iou = intersection / union.clamp(min=1)
        is_match = (iou > 0.5) & (prediction.classes[:, None] == ground_truth.classes)
        predicted_classes = torch.cat([prediction.classes.new_zeros(1), prediction.classes])[rows]
        in_crowd = predicted_classes == ground_truth.crowds
        crowd_areas = torch.bincount(rows[in_crowd], minlength=num_predicted)[1:]
        is_ignored = 2 * (labelled_areas - crowd_areas) < areas
        matched = ground_truth.classes.expand_as(is_match)[is_match]
        unmatched = prediction.classes[~is_match.any(1) & ~is_ignored]
        missed = ground_truth.classes[~is_match.any(0)]
        self.iou = self.iou.index_add(0, matched, iou[is_match].to(self.iou.dtype))
        kinds = matched, unmatched, missed
        by_class = [torch.bincount(classes, minlength=len(self.things)) for classes in kinds]
        self.counts = self.counts + torch.stack(by_class)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1; NaN where no class was seen or predicted.

        ``pq``, ``sq`` and ``rq`` are means over the classes that occur, ``pq_things`` and
        ``pq_stuff`` over things and stuff among them; ``pq/<name>`` is that of a class.
        """
        hits, unmatched, missed = self.counts.to(self.iou.dtype)
        total = hits + (unmatched + missed) / 2
        occurs = total > 0
        quality = torch.where(occurs, self.iou / total, torch.nan)
        segmentation = torch.where(occurs, self.iou / hits.clamp(min=1), torch.nan)
        recognition = torch.where(occurs, hits / total, torch.nan)
        things = torch.tensor(self.things, device=quality.device)
        return {
            "pq": quality.nanmean(),
            "sq": segmentation.nanmean(),
            "rq": recognition.nanmean(),
            "pq_things": quality[things].nanmean(),
            "pq_stuff": quality[~things].nanmean(),
            **{f"pq/{k}": v for k, v in zip(self.class_names, quality.unbind(), strict=True)},
        }
