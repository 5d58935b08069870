"""Statistics of a data set: of its bands, by which images are normalised, its masks and depth."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.base import Dataset
from dpt.files import DataError
from dpt.process import log
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX

IMAGES = 64  # evenly spaced in the data set
_PIXELS = 2**14  # of each image, evenly spaced
_PERCENTILES = (1, 99)
_USUAL_NODATA = (-999, -9999, -99999, -32768, float(np.finfo(np.float32).min))

_MASKS = 64  # evenly spaced in the data set
_MASK_PIXELS = 40_000_000  # of all masks that are measured together
_GRID = 4  # cells along a side, in which the fractions of classes are compared


def class_weights(counts: Sequence[int], power: float = 0.25) -> list[float]:
    """Returns (fraction of the pixels)^-power divided by the mean; 1 for classes without pixels."""
    weights = np.array([count or np.nan for count in counts], float) ** -power
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def measure_bands(dataset: Dataset, *, images: int = IMAGES) -> Preprocessing | None:
    """Returns a preprocessing with mean and standard deviation of each band; None for RGB images.

    Values beyond the 1st and the 99th percentile count as these: a few saturated pixels, or some
    of an undeclared "no data", would change a plain deviation by orders of magnitude, and for other
    data the result is nearly the plain one. It depends on the data set alone.
    """
    rows: list[np.ndarray] = []
    for index in dataset.some_indices(images):
        with suppress(DataError):  # raised where training reads the file
            sample = dataset[index]
            dataset.check(sample)
            image = sample["image"]
            if image.dtype == np.uint8:
                return None
            step = max(1, round((image.shape[0] * image.shape[1] / _PIXELS) ** 0.5))
            rows.append(image[::step, ::step].reshape(-1, image.shape[2]))
    if not rows:
        return None
    counts = {values.shape[1] for values in rows}
    if len(counts) > 1:
        raise DataError(f"images have {sorted(counts)} bands: train on images of one kind")
    pixels = np.concatenate(rows)
    for value in _USUAL_NODATA:
        fraction = np.mean(pixels == value)
        if fraction > 0.001:
            text = "%.1f %% of the values of bands are %g: set data.nodata if that means no data"
            log.warning(text, 100 * fraction, value)
    mean, std = zip(*(_robust(values, k) for k, values in enumerate(pixels.T)), strict=True)
    return Preprocessing(mean=mean, std=std, pixels="bands")


def _robust(values: np.ndarray, band: int) -> tuple[float, float]:
    """Returns mean and standard deviation of a band, to six digits; 1 for a constant band."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not known.size:
        raise DataError(f"band {band} has no data: check data.nodata and data.bands")
    usual = known.clip(*np.percentile(known, _PERCENTILES))
    if usual.min() == usual.max():  # measured at few pixels, and one value at all others
        usual = known
    mean, std = float(f"{usual.mean():.6g}"), float(f"{usual.std():.6g}")
    return mean, std if std > 0 else 1.0


# ------------------------------------------------------------------------------- masks


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


def measure_labels(dataset: Dataset) -> LabelStatistics:
    """Returns the statistics of the masks of a data set."""
    return statistics_of(_label_maps(dataset), dataset.info.num_classes)


def _label_maps(dataset: Dataset) -> Iterable[np.ndarray]:
    """Yields the labels of evenly spaced samples, fewer if they are large."""
    pixels = 0
    for index in np.random.default_rng(0).permutation(dataset.some_indices(_MASKS)).tolist():
        with suppress(DataError):
            labels = dataset[index].get("labels")
            if labels is not None and pixels < _MASK_PIXELS:
                pixels += labels.size
                yield labels


def typical_depth(dataset: Dataset) -> float:
    """Returns the median in metres of the medians of evenly spaced depth maps."""
    samples = (dataset[index] for index in dataset.some_indices(_MASKS))
    maps = (s["depth"][s["valid"]] for s in samples if "depth" in s)
    return float(np.median([np.median(depths) for depths in maps if depths.size]))


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
            cells = mask.astype(np.float32)
            fractions[k] = cv2.resize(cells, (_GRID, _GRID), interpolation=cv2.INTER_AREA)
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
