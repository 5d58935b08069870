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
_LIMITS = np.minimum(np.tile(THRESHOLDS, len(AREAS)), 1 - 1e-10)
"""The threshold of each pair of a range of area and a threshold."""
_BITS = 1 << np.arange(len(_LIMITS))


class InstanceMetrics(SumMetric):
    """AP over IoU thresholds 0.5 to 0.95 and over classes, equal to that of pycocotools.

    Its state is not a sum, but a row for each prediction, with its score and its matches.

    Args:
        class_names: K names for the ``ap/<name>`` scores.
    """

    rows: list[Tensor]
    """int64 (N, 5): index of the image, class, bits of the float64 score, and for each of
    ``_LIMITS`` a bit that is 1 for true positives, and one that is 0 if ignored."""
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
        ids, values = classes[order].cpu().numpy(), scores[order].double().cpu().numpy()
        codes, size = encode_masks(masks[order]), [*masks.shape[1:]]
        for c in np.unique(ids):
            places = np.flatnonzero(ids == c)[:MOST]
            objects = [truth_object for truth_object in truth if truth_object.class_id == c]
            bits = (flags @ _BITS for flags in _match([codes[k] for k in places], objects, size))
            image_and_class = np.full((2, len(places)), [[index], [c]])
            rows = np.stack([*image_and_class, values[places].view(np.int64), *bits], axis=1)
            self.rows.append(torch.from_numpy(rows).to(self.truths.device))
        truths = torch.zeros(self.truths.shape, dtype=torch.int64)
        for class_id, _, is_crowd, area in truth:
            truths[class_id] += torch.from_numpy(_in_ranges([area])[:, 0] & (not is_crowd))
        self.truths = self.truths + truths.to(self.truths.device)

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
            ranks = ranked[rows[ranked, 1] == c]
            hits, counted = ((rows[ranks, column] & _BITS[:, None]) != 0 for column in (3, 4))
            places = np.flatnonzero(hits.any(axis=0))  # precision falls everywhere else
            classes.append((images[ranks], places, hits[:, places], counted))

        def scores(times: np.ndarray) -> dict[str, float]:
            curves = []
            numbers = np.tensordot(times, truths, 1).repeat(len(THRESHOLDS), axis=1)
            for (image, places, hits, counted), number in zip(classes, numbers, strict=True):
                weights = times[image]
                right = (hits * weights[places]).cumsum(axis=1)
                curves.append(_curve(right, (counted * weights).cumsum(axis=1)[:, places], number))
            return self._summary(torch.from_numpy(np.array(curves)))

        return scores

    def _summary(self, curves: Tensor) -> dict[str, float]:
        """The scores, from precision and recall (K, 2, ranges of area times thresholds)."""
        precision, recall = curves.unflatten(2, (len(AREAS), len(THRESHOLDS))).unbind(1)
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


def _in_ranges(areas: Sequence[float] | np.ndarray) -> np.ndarray:
    """Whether each area is in each range: bool (ranges of area, N)."""
    low, high = AREAS[..., None].swapaxes(0, 1)
    return (low <= np.asarray(areas)) & (np.asarray(areas) <= high)


def _match(
    predictions: Sequence[Any], truth: Sequence[ObjectMask], size: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each prediction is a true positive, and whether it counts, in the order of
    pycocotools: bool (N, ``_LIMITS``) each.

    Predictions by descending score take the free object with the largest IoU, or else an ignored
    one: out of the range of area, or a crowd, which many of them may take.
    """
    truth = truth[::-1]  # the last of equal objects is taken
    crowd = np.array([False, *(o.is_crowd for o in truth)])  # the first column is of no object
    ignored = crowd | ~_in_ranges([0.0, *(o.area for o in truth)]).repeat(len(THRESHOLDS), axis=0)
    outside = ~_in_ranges(coco.area(predictions)).repeat(len(THRESHOLDS), axis=0).T
    iou = np.full((len(predictions), len(crowd)), -1.0)
    if truth:
        masks = [{"size": size, "counts": o.counts.encode()} for o in truth]
        iou[:, 1:] = coco.iou(predictions, masks, crowd[1:].astype(np.uint8))
    free = np.ones(ignored.shape, bool)
    hits, counted = np.zeros((2, len(predictions), len(_LIMITS)), bool)
    for k, row in enumerate(iou):
        fits = (row >= _LIMITS[:, None]) & (free | crowd)
        value = np.where(fits, row + 2 * ~ignored, -1)  # of ignored objects at most 1
        best = value.max(axis=1)
        np.put_along_axis(free, value.argmax(axis=1)[:, None], best[:, None] < 0, axis=1)
        hits[k] = best >= 2
        counted[k] = hits[k] | ((best < 0) & ~outside[k])
    return hits, counted


def _curve(hits: np.ndarray, counted: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Mean precision over ``RECALLS``, and recall: (2, ``_LIMITS``).

    Args:
        hits, counted: sums to each prediction, by descending score: (``_LIMITS``, N).
        numbers: of true objects, (``_LIMITS``,). Where there is none, the result is NaN.
    """
    result = np.full((2, len(numbers)), np.nan)
    precision = np.pad(hits / np.maximum(counted, 1), ((0, 0), (0, 1)))  # 0 beyond all recalls
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    for k in np.flatnonzero(numbers):
        recall = hits[k] / numbers[k]
        places = np.searchsorted(recall, RECALLS)
        result[:, k] = precision[k, places].mean(), recall.max(initial=0)
    return result
