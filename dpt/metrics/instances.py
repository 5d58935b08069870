"""Average precision of instance masks, as COCO defines it (Lin et al. 2014)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import SumMetric, sum_dtype

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = torch.linspace(0, 1, 101, dtype=torch.float64)
BINS = 1000  # scores are rounded to 1 / BINS, so that the counts of images can be added


class InstanceMetrics(SumMetric):
    """AP over IoU thresholds 0.5 to 0.95 and over classes.

    Equal to pycocotools (all areas, at most 100 objects an image) up to the rounding of scores.

    Args:
        class_names: K names for the ``ap/<name>`` scores.
    """

    true_positives: Tensor
    found: Tensor
    truths: Tensor

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        shape = (len(class_names), len(THRESHOLDS), BINS + 1)
        self.add_count("true_positives", *shape)
        self.add_count("found", *shape)
        self.add_count("truths", len(class_names))

    def update(
        self,
        masks: Tensor,
        classes: Tensor,
        scores: Tensor,
        true_masks: Tensor,
        true_classes: Tensor,
        crowd: Tensor,
    ) -> None:
        """Adds an image.

        Args:
            masks: bool (N, H, W), of predicted objects, which may overlap.
            classes, scores: (N,); scores in 0..1.
            true_masks: bool (M, H, W).
            true_classes: (M,).
            crowd: bool (M,), True for a crowd; predictions that match it are not counted.
        """
        scores, order = scores.sort(descending=True, stable=True)
        order, scores = order[:100], scores[:100]
        own, true = masks[order].flatten(1).float(), true_masks.flatten(1).float()
        shared, areas = own @ true.T, own.sum(1)[:, None]
        union = torch.where(crowd, areas, areas + true.sum(1) - shared)
        iou = (shared / union.clamp(min=1)).cpu().numpy()
        bins = (scores * BINS).round().long().clamp(0, BINS).cpu().numpy()
        ids, true_ids = classes[order].cpu().numpy(), true_classes.cpu().numpy()
        ignored = crowd.cpu().numpy()
        true_positives, found = np.zeros((2, *self.true_positives.shape), np.int64)
        for c in np.union1d(ids, true_ids):
            rows, columns = np.flatnonzero(ids == c), np.flatnonzero(true_ids == c)
            for t, threshold in enumerate(THRESHOLDS):
                matches = _match(iou[np.ix_(rows, columns)], ignored[columns], threshold)
                for row, match in zip(rows, matches, strict=True):
                    if match < 0 or not ignored[columns[match]]:
                        found[c, t, bins[row]] += 1
                        true_positives[c, t, bins[row]] += match >= 0
        device = self.true_positives.device
        self.true_positives = self.true_positives + torch.from_numpy(true_positives).to(device)
        self.found = self.found + torch.from_numpy(found).to(device)
        counted = true_classes[~crowd].to(device)
        self.truths = self.truths + torch.bincount(counted, minlength=len(self.class_names))

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1, means over the classes that occur: ``ap``, ``ap50``, ``ap75``,
        ``recall`` (of up to 100 objects an image, mean over thresholds), and ``ap/<name>``."""
        kind = sum_dtype(self.true_positives.device)
        true_positives, found = (
            counts.flip(-1).cumsum(-1).to(kind) for counts in (self.true_positives, self.found)
        )
        truths = torch.where(self.truths > 0, self.truths, torch.nan).to(kind)[:, None]
        recall = true_positives / truths[..., None]
        precision = true_positives / found.clamp(min=1)
        precision = precision.flip(-1).cummax(-1).values.flip(-1)  # the best at this recall or more
        wanted = RECALLS.to(true_positives).expand(*recall.shape[:2], -1).contiguous()
        places = torch.searchsorted(recall.nan_to_num(-1).contiguous(), wanted - 1e-12)
        padded = torch.cat((precision, torch.zeros_like(precision[..., :1])), dim=-1)
        values = padded.gather(-1, places).mean(-1)
        values = torch.where(truths.isnan(), torch.nan, values)  # (K, T)
        each = values.mean(1)
        return {
            "ap": each.nanmean(),
            "ap50": values[:, 0].nanmean(),
            "ap75": values[:, 5].nanmean(),
            "recall": recall[..., -1].mean(1).nanmean(),
            **{f"ap/{k}": v for k, v in zip(self.class_names, each.unbind(), strict=True)},
        }


def _match(iou: np.ndarray, ignored: np.ndarray, threshold: float) -> list[int]:
    """The true object of each predicted one, or -1, in the order of pycocotools.

    Predictions by descending score take the free object with the largest IoU, or else a crowd,
    which many of them may take. Rows of ``iou`` are predictions, columns true objects.
    """
    free = ~ignored
    matches = []
    for row in iou:
        fits = row >= threshold
        candidates = np.flatnonzero(fits & free)
        if len(candidates) == 0:
            candidates = np.flatnonzero(fits & ignored)
        best = max(candidates, key=lambda k: (row[k], k), default=-1)  # the last of equal ones
        if best >= 0:
            free[best] = False
        matches.append(int(best))
    return matches
