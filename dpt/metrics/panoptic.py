"""Panoptic quality, from sums over images (Kirillov et al. 2019, Panoptic Segmentation)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpt.functional import sum_dtype
from dpt.metrics.base import SumMetric
from dpt.segments import NO_SEGMENT, SegmentMap, Segments


class PanopticMetrics(SumMetric):
    """PQ = SQ · RQ of each class, then the mean over classes, as panopticapi computes it.

    A predicted and a true segment of the same class match if their IoU is above 0.5. The IoU leaves
    out unlabelled pixels, but not crowds; a predicted segment without a match is ignored if more
    than half of it is unlabelled or in crowds of its class.

    Args:
        things: for each class, whether it is a thing; the others are stuff.
        class_names: K names for the ``pq/<name>`` scores; empty for the class ids.
    """

    iou: Tensor
    true_positives: Tensor
    false_positives: Tensor
    false_negatives: Tensor

    def __init__(self, things: Sequence[bool], class_names: Sequence[str] = ()) -> None:
        super().__init__()
        self.things = tuple(things)
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(len(things)))
        if len(self.class_names) != len(things):
            raise ValueError(f"{len(self.class_names)} class_names for {len(things)} classes")
        self.add_sum("iou", len(things))
        for name in ("true_positives", "false_positives", "false_negatives"):
            self.add_count(name, len(things))

    def update(self, prediction: SegmentMap, truth: Segments) -> None:
        """Adds an image; prediction and truth have the same size."""
        found, true = 1 + len(prediction.classes), 1 + len(truth.classes)
        # row 0 and column 0 are of pixels without a segment
        rows, columns = prediction.ids - NO_SEGMENT, truth.map.ids - NO_SEGMENT
        labelled = truth.known | (truth.crowds >= 0)
        counts = torch.bincount((rows * true + columns)[labelled], minlength=found * true)
        counts = counts.view(found, true).to(sum_dtype(rows.device))
        shared, known_areas = counts[1:, 1:], counts[1:].sum(1)
        areas = torch.bincount(rows.flatten(), minlength=found)[1:]
        union = known_areas[:, None] + counts[:, 1:].sum(0) - shared
        iou = shared / union.clamp(min=1)
        matched = (iou > 0.5) & (prediction.classes[:, None] == truth.classes)
        classes = torch.cat([prediction.classes.new_zeros(1), prediction.classes])[rows]
        crowds = torch.bincount(rows[classes == truth.crowds], minlength=found)[1:]
        ignored = 2 * (known_areas - crowds) < areas
        unmatched = prediction.classes[~matched.any(1) & ~ignored]
        classes = truth.classes.expand_as(matched)[matched]
        self.iou = self.iou.index_add(0, classes, iou[matched].to(self.iou.dtype))
        self.true_positives = self.true_positives + self._count(classes)
        self.false_positives = self.false_positives + self._count(unmatched)
        self.false_negatives = self.false_negatives + self._count(truth.classes[~matched.any(0)])

    def _count(self, classes: Tensor) -> Tensor:
        return torch.bincount(classes, minlength=len(self.things))

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN where no class was seen or predicted.

        ``pq``, ``sq`` and ``rq`` are means over the classes that occur, ``pq_things`` and
        ``pq_stuff`` over things and stuff among them; ``pq/<name>`` is that of a class.
        """
        true_positives = self.true_positives.to(self.iou.dtype)
        total = (
            true_positives
            + (self.false_positives + self.false_negatives).to(true_positives.dtype) / 2
        )
        occurs = total > 0
        quality = torch.where(occurs, self.iou / total, torch.nan)
        segmentation = torch.where(occurs, self.iou / true_positives.clamp(min=1), torch.nan)
        recognition = torch.where(occurs, true_positives / total, torch.nan)
        things = torch.tensor(self.things, device=quality.device)
        return {
            "pq": quality.nanmean(),
            "sq": segmentation.nanmean(),
            "rq": recognition.nanmean(),
            "pq_things": quality[things].nanmean(),
            "pq_stuff": quality[~things].nanmean(),
            **{f"pq/{k}": v for k, v in zip(self.class_names, quality.unbind(), strict=True)},
        }
