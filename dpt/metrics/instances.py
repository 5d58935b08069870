"""Average precision of instance masks, as COCO defines it (Lin et al. 2014)."""

from collections.abc import Sequence

import numpy as np
import torch
from pycocotools import mask as coco
from scipy import ndimage
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from dpt.metrics.base import Rescore, SumMetric
from dpt.segments import Segments
from dpt.types.samples import ObjectMask, Rle

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
AREAS = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])
"""Smallest and largest area in pixels: of all objects, of small, medium and large ones."""
MAX_PREDICTIONS = 100
"""The number of predictions of an image and class that are scored, those with the best scores."""
_LIMITS = np.minimum(np.tile(THRESHOLDS, len(AREAS)), 1 - 1e-10)
"""The threshold of each pair of a range of area and a threshold."""
_BITS = 1 << np.arange(len(_LIMITS))


InstanceState = tuple[np.ndarray, np.ndarray]
"""What an image leaves in the metric: its ``num_objects`` and its ``rows``."""


class InstanceMetrics(SumMetric):
    """AP over IoU thresholds 0.5 to 0.95 and over classes, equal to that of pycocotools.

    Its state is not a sum, but a row for each prediction, with its score and its matches.

    Args:
        class_names: K names for the ``ap/<name>`` scores.
    """

    has_limits = True
    rows: list[Tensor]
    """int64 (N, 5): index of the image, class, bits of the float64 score, and for each of
    ``_LIMITS`` a bit that is 1 for true positives, and one that is 0 if ignored."""
    num_objects: Tensor
    """int64 (K, ranges of area): the true objects, without crowds."""

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__()
        self.class_names = tuple(class_names)
        self.add_state("rows", [], dist_reduce_fx="cat")
        self.add_count("num_objects", len(class_names), len(AREAS))
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
        ground_truth: Sequence[ObjectMask],
        index: int = 0,
    ) -> None:
        """Adds an image.

        Args:
            masks: bool (N, H, W), of predicted objects, which may overlap.
            classes, scores: (N,).
            ground_truth: the true objects, at the size (H, W).
            index: position of the image in the data set; predictions of equal score are ranked by
                it.
        """
        device = self.num_objects.device
        order = scores.argsort(descending=True, stable=True)
        class_ids = classes[order].cpu().numpy()
        score_bits = scores[order].double().cpu().numpy().view(np.int64)
        encoded = encode_masks(masks[order])
        for class_id in np.unique(class_ids):
            positions = np.flatnonzero(class_ids == class_id)[:MAX_PREDICTIONS]
            objects = [true for true in ground_truth if true.class_id == class_id]
            hits, counted = _match([encoded[k] for k in positions], objects)
            columns = (score_bits[positions], hits @ _BITS, counted @ _BITS)
            labels = np.full((2, len(positions)), [[index], [class_id]])
            self.rows.append(torch.from_numpy(np.stack([*labels, *columns], axis=1)).to(device))
        num_objects = torch.zeros(self.num_objects.shape, dtype=torch.int64)
        for true in ground_truth:
            if not true.is_crowd:
                num_objects[true.class_id] += torch.from_numpy(_in_ranges([true.area])[:, 0])
        self.num_objects = self.num_objects + num_objects.to(device)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1, means over the classes that occur.

        ``ap``, ``ap50``, ``ap75``, ``ap_small``, ``ap_medium``, ``ap_large``, ``recall`` (mean over
        thresholds, of up to 100 predictions of an image and class), and ``ap/<name>``.
        """
        scores = self.scores().items()
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in scores}

    def state(self) -> InstanceState:
        rows: np.ndarray = dim_zero_cat(self.rows).cpu().numpy()
        return self.num_objects.cpu().numpy(), rows[rows[:, 0].argsort(kind="stable")]

    def resampler(self, states: Sequence[InstanceState]) -> Rescore:
        num_objects = np.stack([numbers for numbers, _ in states])
        images = np.repeat(np.arange(len(states)), [len(rows) for _, rows in states])
        rows = np.concatenate([rows for _, rows in states])
        ranked = np.argsort(-rows[:, 2].copy().view(np.float64), kind="stable")
        classes = []
        for class_id in range(len(self.class_names)):
            ranks = ranked[rows[ranked, 1] == class_id]
            hits, counted = ((rows[ranks, column] & _BITS[:, None]) != 0 for column in (3, 4))
            steps = np.flatnonzero(hits.any(axis=0))  # precision falls everywhere else
            classes.append((images[ranks], steps, hits[:, steps], counted))

        def rescore(times: np.ndarray) -> dict[str, float]:
            curves = []
            numbers = np.tensordot(times, num_objects, 1).repeat(len(THRESHOLDS), axis=1)
            for (image, steps, hits, counted), number in zip(classes, numbers, strict=True):
                weights = times[image]
                num_hits = (hits * weights[steps]).cumsum(axis=1)
                num_counted = (counted * weights).cumsum(axis=1)[:, steps]
                curves.append(_curve(num_hits, num_counted, number))
            return self._summary(torch.from_numpy(np.array(curves)))

        return rescore

    def _summary(self, curves: Tensor) -> dict[str, float]:
        """Returns the scores.

        Args:
            curves: precision and recall, (K, 2, ranges of area times thresholds).
        """
        precision, recall = curves.unflatten(2, (len(AREAS), len(THRESHOLDS))).unbind(1)
        by_class = precision[:, 0].mean(1).tolist()
        whole, small, medium, large = precision.mean(2).nanmean(0).tolist()
        return {
            "ap": whole,
            "ap50": float(precision[:, 0, 0].nanmean()),
            "ap75": float(precision[:, 0, 5].nanmean()),
            "ap_small": small,
            "ap_medium": medium,
            "ap_large": large,
            "recall": float(recall[:, 0].mean(1).nanmean()),
            **{f"ap/{name}": ap for name, ap in zip(self.class_names, by_class, strict=True)},
        }


def encode_masks(masks: Tensor) -> list[Rle]:
    """Returns bool (N, H, W) as run lengths of pycocotools."""
    pixels = masks.permute(1, 2, 0).to("cpu", torch.uint8).numpy()
    encoded: list[Rle] = coco.encode(np.asfortranarray(pixels))
    return encoded


def objects_of(ground_truth: Segments) -> list[ObjectMask]:
    """Returns the segments of a map as objects; the crowds of one class are one crowd."""
    crowd_classes = ground_truth.crowds[ground_truth.crowds >= 0].unique()
    crowds = ground_truth.crowds == crowd_classes[:, None, None]
    encoded = encode_masks(torch.cat([ground_truth.masks, crowds]))
    classes = torch.cat([ground_truth.classes, crowd_classes]).tolist()
    is_crowd = [False] * len(ground_truth.classes) + [True] * len(crowd_classes)
    return [
        ObjectMask(class_id, code, crowd, float(coco.area(code)))
        for class_id, code, crowd in zip(classes, encoded, is_crowd, strict=True)
    ]


def connected_areas(probabilities: Tensor, things: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the connected areas of the most probable class of pixels as objects: masks bool
    (N, H, W), classes and scores (N,), the mean probabilities of the class in the areas.

    Args:
        probabilities: of classes (K, H, W).
        things: for each class, whether it has objects: of each, ``MAX_PREDICTIONS`` are returned.
    """
    best, ids = (values.cpu().numpy() for values in probabilities.max(0))
    masks, classes, scores = [np.zeros((0, *ids.shape), bool)], [], []
    for class_id in np.flatnonzero(things).tolist():
        numbers, count = ndimage.label(ids == class_id)
        means = ndimage.mean(best, numbers, np.arange(1, count + 1))
        kept = np.argsort(-np.array(means))[:MAX_PREDICTIONS]
        masks.append(numbers == 1 + kept[:, None, None])
        classes += [class_id] * len(kept)
        scores += [means[k] for k in kept]
    found = torch.from_numpy(np.concatenate(masks))
    return found, torch.tensor(classes, dtype=torch.long), torch.tensor(scores)


def _in_ranges(areas: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns whether each area is in each range: bool (ranges of area, N)."""
    values = np.asarray(areas)
    is_inside: np.ndarray = (AREAS[:, :1] <= values) & (values <= AREAS[:, 1:])
    return is_inside


def _match(
    predictions: Sequence[Rle], ground_truth: Sequence[ObjectMask]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns whether each prediction is a true positive, and whether it counts.

    Both are bool (N, ``_LIMITS``), in the order of pycocotools. Predictions by descending score
    take the free object with the largest IoU, and without one an ignored object: an object out of
    the range of area, or a crowd, which many predictions may take.
    """
    objects = ground_truth[::-1]  # the last of equal objects is taken
    is_crowd = np.array([False, *(o.is_crowd for o in objects)])  # the first column is of no object
    in_range = _in_ranges([0.0, *(o.area for o in objects)]).repeat(len(THRESHOLDS), axis=0)
    is_ignored = is_crowd | ~in_range
    is_outside = ~_in_ranges(coco.area(predictions)).repeat(len(THRESHOLDS), axis=0).T
    iou = np.full((len(predictions), len(is_crowd)), -1.0)
    if objects:
        iou[:, 1:] = coco.iou(predictions, [o.mask for o in objects], is_crowd[1:].astype(np.uint8))
    is_free = np.ones(is_ignored.shape, bool)
    hits, counted = np.zeros((2, len(predictions), len(_LIMITS)), bool)
    for k, row in enumerate(iou):
        fits = (row >= _LIMITS[:, None]) & (is_free | is_crowd)
        value = np.where(fits, row + 2 * ~is_ignored, -1)  # of ignored objects at most 1
        best = value.max(axis=1)
        np.put_along_axis(is_free, value.argmax(axis=1)[:, None], best[:, None] < 0, axis=1)
        hits[k] = best >= 2
        counted[k] = hits[k] | ((best < 0) & ~is_outside[k])
    return hits, counted


def _curve(num_hits: np.ndarray, num_counted: np.ndarray, num_objects: np.ndarray) -> np.ndarray:
    """Returns mean precision over ``RECALLS``, and recall: (2, ``_LIMITS``).

    Args:
        num_hits, num_counted: sums to each prediction, by descending score: (``_LIMITS``, N).
        num_objects: (``_LIMITS``,), of true objects. Where there is none, the result is NaN.
    """
    result = np.full((2, len(num_objects)), np.nan)
    precision = np.pad(num_hits / np.maximum(num_counted, 1), ((0, 0), (0, 1)))  # 0 at the end
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    for k in np.flatnonzero(num_objects):
        recall = num_hits[k] / num_objects[k]
        positions = np.searchsorted(recall, RECALLS)
        result[:, k] = precision[k, positions].mean(), recall.max(initial=0)
    return result
