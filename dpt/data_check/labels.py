"""What the masks of a data set say about how to train on them, for ``dpt fit``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.config.data import make_dataset
from dpt.data import DataError, Dataset
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import PlainMapping

_SAMPLES = 64
_PIXELS = 40_000_000  # of all samples that are measured together
_GRID = 4  # cells along a side, in which the fractions of classes are compared


@dataclass(frozen=True)
class LabelStatistics:
    """Measures of the masks of training images.

    Attributes:
        counts: number of pixels of each class.
        thickness: median over the classes, without the most frequent one, of the width of their
            parts, in pixels of the files; the longest side of the images if there is none.
        uprightness: how far the classes move under flips and quarter turns of the mean mask, from 0
            to about 1, as the upper end of what is likely; 1 if there is nothing to compare.
        images: number of masks that were measured.
    """

    counts: list[int]
    thickness: float
    uprightness: float
    images: int


def measure_labels(data: PlainMapping) -> LabelStatistics:
    """Returns the statistics of the training images of ``data``, plain data of a configuration."""
    dataset = make_dataset({**data, "cache": False}, "train")
    return statistics_of(_label_maps(dataset), dataset.info.num_classes)


def _label_maps(dataset: Dataset) -> Iterable[np.ndarray]:
    """Yields the labels of evenly spaced samples, fewer if they are large."""
    pixels = 0
    for index in np.random.default_rng(0).permutation(dataset.some_indices(_SAMPLES)).tolist():
        try:
            labels = dataset[index].get("labels")
        except DataError:
            continue
        if labels is not None and pixels < _PIXELS:
            pixels += labels.size
            yield labels


def statistics_of(maps: Iterable[np.ndarray], num_classes: int) -> LabelStatistics:
    """Returns the statistics of label maps, uint8 (H, W)."""
    counts = np.zeros(num_classes, np.int64)
    widths: list[list[float]] = [[] for _ in range(num_classes)]
    coarse = []
    longest = 1
    for labels in maps:
        longest = max(longest, *labels.shape)
        counts += np.bincount(labels.ravel(), minlength=IGNORE_INDEX + 1)[:num_classes]
        fractions = np.zeros((num_classes, _GRID, _GRID), np.float32)
        for k in np.unique(labels[labels != IGNORE_INDEX]).tolist():
            mask = labels == k
            widths[k].append(width_of(mask))
            area = cv2.resize(mask.astype(np.float32), (_GRID, _GRID), interpolation=cv2.INTER_AREA)
            fractions[k] = area
        coarse.append(fractions)
    present = [k for k, values in enumerate(widths) if values and k != counts.argmax()]
    can_compare = len(coarse) > 1 and len(present) > 0
    of_classes = [float(np.median(widths[k])) for k in present] or [float(longest)]
    return LabelStatistics(
        counts=counts.tolist(),
        thickness=float(np.median(of_classes)),
        uprightness=uprightness_of(np.array(coarse)[:, present]) if can_compare else 1.0,
        images=len(coarse),
    )


def width_of(mask: np.ndarray) -> float:
    """Returns the width in pixels of the parts of a mask (H, W) that is not empty.

    In a strip of width w, pixels have distances of 1 to w/2 from its outside, w/4 + 1/2 in the
    mean. A disc counts as two thirds of its diameter.
    """
    distance = cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5)
    return max(1.0, 4 * float(distance[mask].mean(dtype=np.float64)) - 2)


def uprightness_of(fractions: np.ndarray) -> float:
    """Returns the mean over classes of |a - b|^2 / (|a|^2 + |b|^2), where a is the mean mask of a
    class and b the same upside down, or turned by a quarter, whichever differs more.

    The difference that chance makes is subtracted, and two of its standard deviations are added.

    Args:
        fractions: of each class in the cells of a square grid, (N, K, G, G): N at least 2, K
            at least 1.
    """
    values = []
    for moved in (fractions[:, :, ::-1], np.rot90(fractions, axes=(2, 3))):
        difference = (fractions - moved).astype(np.float64)
        chance = difference.var(axis=0, ddof=1).sum((1, 2)) / len(fractions)
        norm = np.square(fractions.mean(axis=0)).sum((1, 2)) * 2
        deviation = chance * np.sqrt(2 / fractions[0, 0].size)
        excess = np.square(difference.mean(axis=0)).sum((1, 2)) - chance + 2 * deviation
        values.append(float((excess / norm).mean()))
    return max(0.0, *values)
