"""Average precision of instance masks, as COCO defines it (Lin et al. 2014)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pycocotools import mask as coco
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from dpt.metrics.base import SumMetric
from dpt.segments import Segments
from dpt.types import ObjectMask

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
AREAS = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])
"""Smallest and largest area in pixels: of all objects, of small, medium and large ones."""
MOST = 100
"""The number of predictions of an image and class that are scored, those with the best scores."""
_BITS = (1 << np.arange(len(AREAS) * len(THRESHOLDS))).reshape(len(AREAS), -1)


class InstanceMetrics(SumMetric):
    """AP over IoU thresholds 0.5 to 0.95 and over classes, equal to that of pycocotools.

    Its state is not a sum, but a row for each prediction, with its score and its matches.

    Args:
        class_names: K names for the ``ap/<name>`` scores.
    """

    rows: list[Tensor]
    """int64 (N, 5): index of the image, class, bits of the float64 score, and for each range of
    area and each threshold a bit that is 1 for true positives, and one that is 0 if ignored."""
    truths: Tensor
    """int64 (K, ranges of area): the true objects, without crowds."""

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_count("truths", len(class_names), len(AREAS))
        self.reset()

    def reset(self) -> None:
        super().reset()
        # processes can only exchange states of one type, also those that saw no image
        self.rows = [torch.zeros((0, 5), dtype=torch.int64, device=self.device)]

    def update(
        self,
        masks: Tensor,
        classes: Tensor,
        scores: Tensor,
        truth: Sequence[ObjectMask],
        index: int = 0,
    ) -> None:
        """Adds an image.

        Args:
            masks: bool (N, H, W), of predicted objects, which may overlap.
            classes, scores: (N,).
            truth: the true objects, at the size (H, W).
            index: position of the image in the data set; predictions of equal score are ranked by
                it.
        """
        order = scores.argsort(descending=True, stable=True)
        ids, values = (each[order].cpu().numpy() for each in (classes, scores.double()))
        found = encode_masks(masks[order])
        rows = [np.zeros((0, 5), np.int64)]
        for c in np.unique(ids):
            places = np.flatnonzero(ids == c)[:MOST]
            objects = [each for each in truth if each.class_id == c]
            predictions = [found[place] for place in places]
            hits, counted = _match(predictions, objects, (masks.shape[1], masks.shape[2]))
            bits = ((flags * _BITS).sum((1, 2)) for flags in (hits, counted))
            both = np.full((2, len(places)), [[index], [c]])
            rows.append(np.stack([*both, values[places].view(np.int64), *bits], axis=1))
        device = self.truths.device
        self.rows.append(torch.from_numpy(np.concatenate(rows)).to(device))
        truths = torch.zeros(self.truths.shape, dtype=torch.int64)
        for each in truth:
            inside = (AREAS[:, 0] <= each.area) & (each.area <= AREAS[:, 1]) & (not each.is_crowd)
            truths[each.class_id] += torch.from_numpy(inside)
        self.truths = self.truths + truths.to(device)

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1, means over the classes that occur: ``ap``, ``ap50``, ``ap75``,
        ``ap_small``, ``ap_medium``, ``ap_large``, ``recall`` (mean over thresholds, of up to 100
        predictions of an image and class), and ``ap/<name>``."""
        values = self.scores().items()
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values}

    def state(self) -> tuple[np.ndarray, np.ndarray]:
        rows = dim_zero_cat(self.rows).cpu().numpy()
        return self.truths.cpu().numpy(), rows[rows[:, 0].argsort(kind="stable")]

    def resampler(self, states: Sequence[Any]) -> Callable[[np.ndarray], dict[str, float]]:
        truths = np.stack([truths for truths, _ in states])
        images = np.repeat(np.arange(len(states)), [len(rows) for _, rows in states])
        rows = np.concatenate([rows for _, rows in states])
        ranked = np.argsort(-rows[:, 2].copy().view(np.float64), kind="stable")
        classes = []
        for c in range(len(self.class_names)):
            own = ranked[rows[ranked, 1] == c]
            hits, counted = ((rows[own, column] & _BITS[..., None]) != 0 for column in (3, 4))
            places = np.flatnonzero(hits.any((0, 1)))  # precision falls everywhere else
            classes.append((images[own], places, hits[..., places], counted))

        def scores(times: np.ndarray) -> dict[str, float]:
            curves = []
            numbers = np.tensordot(times, truths, 1)
            for (own, places, hits, counted), number in zip(classes, numbers, strict=True):
                weights = times[own]
                right = (hits * weights[places]).cumsum(-1)
                curves.append(_curve(right, (counted * weights).cumsum(-1)[..., places], number))
            return self._summary(torch.from_numpy(np.array(curves)))

        return scores

    def _summary(self, curves: Tensor) -> dict[str, float]:
        """The scores, from precision and recall (K, 2, ranges of area, thresholds)."""
        precision, recall = curves.unbind(1)
        by_class = precision[:, 0].mean(1)
        ranges = ("ap", "ap_small", "ap_medium", "ap_large")
        by_range = dict(zip(ranges, precision.mean(2).nanmean(0).tolist(), strict=True))
        return {
            "ap": by_range.pop("ap"),
            "ap50": float(precision[:, 0, 0].nanmean()),
            "ap75": float(precision[:, 0, 5].nanmean()),
            **by_range,
            "recall": float(recall[:, 0].mean(1).nanmean()),
            **{f"ap/{k}": v for k, v in zip(self.class_names, by_class.tolist(), strict=True)},
        }


def encode_masks(masks: Tensor) -> list[dict[str, Any]]:
    """bool (N, H, W) as run lengths of pycocotools."""
    pixels = masks.permute(1, 2, 0).to("cpu", torch.uint8).numpy()
    return coco.encode(np.asfortranarray(pixels))


def objects_of(truth: Segments) -> list[ObjectMask]:
    """The segments of a map as objects; the crowds of one class are one crowd."""
    crowd_classes = truth.crowds[truth.crowds >= 0].unique()
    crowds = truth.crowds == crowd_classes[:, None, None]
    codes = encode_masks(torch.cat([truth.masks, crowds]))
    classes = torch.cat([truth.classes, crowd_classes]).tolist()
    return [
        ObjectMask(c, code["counts"].decode(), k >= len(truth.classes), float(coco.area(code)))
        for k, (c, code) in enumerate(zip(classes, codes, strict=True))
    ]


def _match(
    predictions: Sequence[Any], truth: Sequence[ObjectMask], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each prediction is a true positive, and whether it counts, in the order of
    pycocotools: bool (N, ranges of area, thresholds) each.

    Predictions by descending score take the free object with the largest IoU, or else an ignored
    one: out of the range of area, or a crowd, which many of them may take.
    """
    crowd = np.array([*(each.is_crowd for each in truth), False])
    areas = np.array([*(each.area for each in truth), 0.0])
    low, high = AREAS[..., None].swapaxes(0, 1)
    ignored = crowd | (areas < low) | (areas > high)
    areas = coco.area(list(predictions))
    outside = (areas < low) | (areas > high)
    iou = np.full((len(predictions), len(crowd)), -1.0)  # the last column is of no object
    if truth:
        masks = [{"size": list(size), "counts": each.counts.encode()} for each in truth]
        iou[:, :-1] = coco.iou(list(predictions), masks, crowd[:-1].astype(np.uint8))
    limits = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]
    free = np.ones((len(AREAS), len(THRESHOLDS), len(crowd)), bool)
    hits, counted = np.zeros((2, len(predictions), len(AREAS), len(THRESHOLDS)), bool)
    for k, row in enumerate(iou):
        fits = (row >= limits) & (free | crowd)
        right = fits & ~ignored[:, None]
        hits[k] = right.any(-1)
        candidates = np.where(hits[k][..., None], right, fits)
        last = np.where(candidates, row, -1)[..., ::-1].argmax(-1)  # the last of equal ones
        free &= ~candidates | (np.arange(len(row))[::-1] != last[..., None])
        counted[k] = hits[k] | ~(fits.any(-1) | outside[:, k, None])
    return hits, counted


def _curve(hits: np.ndarray, counted: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Mean precision over ``RECALLS``, and recall: (2, ranges of area, thresholds).

    Args:
        hits, counted: sums to each prediction, by descending score: (ranges, thresholds, N).
        numbers: of true objects, (ranges,). Where there is none, the result is NaN.
    """
    result = np.full((2, *hits.shape[:2]), np.nan)
    precision = np.zeros((*hits.shape[:2], hits.shape[2] + 1))  # 0 beyond the largest recall
    precision[..., :-1] = hits / np.maximum(counted, 1)
    precision = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    for a, t in np.ndindex(result.shape[1:]):
        if numbers[a]:
            recall = hits[a, t] / numbers[a]
            places = np.searchsorted(recall, RECALLS)
            result[:, a, t] = precision[a, t, places].mean(), recall.max(initial=0)
    return result
