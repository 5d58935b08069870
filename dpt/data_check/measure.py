"""Measurements of one sample, small enough to keep for a whole data set, and units of depth."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.formats.rules import DepthRule, top_of
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX

_QUANTILE_PIXELS = 20_000  # approximate number of pixels from which quantiles are computed
_FEW_TRIPLES = 200  # with fewer, the check is skipped
_LINES = 1024  # approximate number of rows and columns that are used of larger maps
_FARTHER = 1.1  # ratio of typical depths
_ORDERED = 0.75  # fraction of ordered triples in interpolated masks; by chance a third


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Measurements of an image."""

    size: tuple[int, int]  # (H, W)
    is_empty: bool  # nearly black, white, or of one colour
    digest: bytes  # hash of the decoded pixels
    orientation: int = 1  # the EXIF tag; 1 is upright


@dataclass(frozen=True, slots=True)
class LabelStats:
    """Measurements of a mask."""

    counts: dict[int, int]  # pixels of each id, IGNORE_INDEX for those without a class
    outside: dict[int, int]  # pixels of each value in the file that is no class and not ignored
    unlabelled: dict[int, float]  # fraction of each ignored value in the file; empty: unknown
    is_interpolated: bool  # whether the ids along borders lie between those of both sides

    @property
    def classes(self) -> set[int]:
        return self.counts.keys() - {IGNORE_INDEX}


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """Measurements of object ids."""

    counts: dict[int, int]  # objects of each class of things
    segments: int  # objects, and classes of stuff that occur
    without_class: int  # objects without a pixel of a class of things
    of_several_classes: int


@dataclass(frozen=True, slots=True)
class DepthStats:
    """Measurements of a depth map.

    Measured pixels are finite, above zero and not declared invalid; valid pixels lie within
    ``min_depth`` and ``max_depth`` too. Quantiles are zeros where there are no pixels.
    """

    valid: float  # fraction of valid pixels
    quantiles: tuple[float, ...]  # 1 %, 50 % and 99 % of the valid depths in metres
    is_constant: bool  # whether at least 100 pixels are valid and all have one depth
    dtype: np.dtype  # of the file; of the map in memory if the file is unknown
    measured: float  # fraction of measured pixels
    raw: tuple[float, ...]  # 50 % and 99 % quantiles of measured values in the file's unit *
    beyond: float  # fraction of the measured pixels that lie beyond max_depth *
    has_type_maximum: bool  # whether a valid pixel has the largest value of the file's integer type
    negative: float  # fraction of values below 0 that are not declared invalid
    top: tuple[float, float, float]  # see top_of; of the values in the file
    grows_down: bool  # whether the lower half is typically farther than the upper half
    # * without the largest value of the file's integer type


def measure_image(image: np.ndarray, picture: np.ndarray, orientation: int) -> ImageStats:
    """Measures an image, uint8 RGB (H, W, 3) or float32 (H, W, C), shown as ``picture``."""
    mean, std = cv2.meanStdDev(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
    is_empty = mean.item() < 8 or mean.item() > 247 or std.item() < 3
    digest = hashlib.blake2b(repr(image.shape).encode() + image.tobytes(), digest_size=16).digest()
    return ImageStats(image.shape[:2], is_empty, digest, orientation)


def shown(image: np.ndarray) -> np.ndarray:
    """Returns an image as uint8 RGB; bands are stretched by their statistics in this image."""
    if image.dtype == np.uint8:
        return image
    values = np.nan_to_num(image.reshape(-1, image.shape[2]))
    mean, std = values.mean(axis=0), values.std(axis=0)
    scale = tuple(np.where(std > 0, std, 1.0).tolist())
    preprocessing = Preprocessing(mean=tuple(mean.tolist()), std=scale, pixels="bands")
    return preprocessing.picture(image.transpose(2, 0, 1))


def measure_labels(
    labels: np.ndarray, *, outside: dict[int, int], unlabelled: dict[int, float]
) -> LabelStats:
    """Measures a uint8 (H, W) map of class ids.

    ``outside`` counts the pixels whose value in the file is no class; here they are IGNORE_INDEX.
    """
    counts = np.bincount(labels.ravel(), minlength=256)
    counts[IGNORE_INDEX] -= sum(outside.values())
    triples = ordered = 0  # neighbours whose ids all differ; those with the middle id between
    step = 1 + max(labels.shape) // _LINES
    for ids in (labels[::step], labels.T[::step]):
        first, middle, last = ids[:, :-2], ids[:, 1:-1], ids[:, 2:]
        low, high = np.minimum(first, last), np.maximum(first, last)
        differ = (first != middle) & (middle != last) & (first != last)
        differ &= np.maximum(high, middle) != IGNORE_INDEX
        triples += int(differ.sum())
        ordered += int((differ & (low < middle) & (middle < high)).sum())
    present = {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    is_interpolated = triples >= _FEW_TRIPLES and ordered > _ORDERED * triples
    return LabelStats(present, outside, unlabelled, is_interpolated)


def measure_objects(labels: np.ndarray, objects: np.ndarray, things: Sequence[bool]) -> ObjectStats:
    """Measures object ids (H, W), 0 where there is none, with class ids (H, W)."""
    is_object = objects > 0
    pairs = np.unique(np.stack([objects[is_object], labels[is_object]]), axis=1)
    numbers, classes = pairs[:, pairs[1] != IGNORE_INDEX]
    is_thing = np.isin(classes, np.flatnonzero(things))
    ids, counts = np.unique(classes[is_thing], return_counts=True)
    stuff = np.setdiff1d(labels, [*np.flatnonzero(things), IGNORE_INDEX])
    return ObjectStats(
        dict(zip(ids.tolist(), counts.tolist(), strict=True)),
        segments=int(counts.sum()) + len(stuff),
        without_class=len(np.unique(pairs[0])) - len(np.unique(numbers[is_thing])),
        of_several_classes=int((np.unique(numbers, return_counts=True)[1] > 1).sum()),
    )


def measure_depth(
    depth: np.ndarray, valid: np.ndarray, *, raw: np.ndarray | None, rule: DepthRule | None
) -> DepthStats:
    """Measures a depth map, float32 (H, W), metres, with ``valid``, bool (H, W).

    ``raw`` are the file's values, before ``rule`` converted them; None: the metres are measured.
    """
    metres, limit, negative = depth[valid], np.inf, 0.0
    measured, values = metres, depth
    if raw is not None and rule is not None:
        negative = float(((raw < 0) & rule.is_declared_valid(raw)).mean())
        measured, values = raw[rule.is_measured(raw)], raw
        limit = np.inf if rule.max_depth is None else rule.max_depth / rule.scale
    is_constant = bool(metres.size >= 100 and metres.min() == metres.max())
    last = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else np.inf
    levels = measured[measured < last]
    middle = (len(depth) + 1) // 2
    (upper,) = _quantiles(depth[:middle][valid[:middle]], (0.5,))
    (lower,) = _quantiles(depth[middle:][valid[middle:]], (0.5,))
    return DepthStats(
        valid=metres.size / depth.size,
        quantiles=_quantiles(metres, (0.01, 0.5, 0.99)),
        is_constant=is_constant,
        dtype=values.dtype,
        measured=measured.size / values.size,
        raw=_quantiles(levels, (0.5, 0.99)),
        beyond=float((levels > limit).mean()) if levels.size else 0.0,
        has_type_maximum=not is_constant and last <= limit and bool((measured == last).any()),
        negative=negative,
        top=top_of(values),
        grows_down=lower > _FARTHER * upper > 0,
    )


def _quantiles(values: np.ndarray, fractions: Sequence[float]) -> tuple[float, ...]:
    if values.size == 0:
        return (0.0,) * len(fractions)
    some = values[:: max(1, values.size // _QUANTILE_PIXELS)].astype(np.float64)
    return tuple(np.quantile(some, fractions).tolist())
