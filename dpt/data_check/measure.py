"""Measurements of one sample: small enough to send between processes and keep for a data set.

Pure functions of arrays. The checks in :mod:`dpt.data_check.checks` judge the measurements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.formats.depth_encoding import DepthRule
from dpt.types import IGNORE_INDEX

THUMBNAIL = 16  # side in pixels of the thumbnails that near duplicates are found by
_QUANTILE_PIXELS = 20_000  # quantiles are taken from about so many pixels


@dataclass(frozen=True, slots=True)
class Photo:
    """Measurements of a photo."""

    size: tuple[int, int]  # (H, W)
    mean: float  # of the grey levels, 0..255
    std: float
    grey: bool  # whether the three channels are equal
    digest: bytes  # hash of the decoded pixels
    thumbnail: bytes  # uint8 (16, 16) grey levels
    orientation: int = 1  # the EXIF tag; 1 is upright

    @property
    def is_empty(self) -> bool:
        """Whether it is nearly black, white, or of one colour."""
        return self.mean < 8 or self.mean > 247 or self.std < 3


@dataclass(frozen=True, slots=True)
class Labels:
    """Measurements of a class mask.

    The middle id of ordered triples lies between the other two: by chance in a third of all
    triples, in nearly all if a mask was resized by interpolation.
    """

    counts: dict[int, int]  # pixels of each id, IGNORE_INDEX for those without a class
    outside: dict[int, int]  # pixels of each value in the file that is no class and not ignored
    triples: int  # runs of three neighbouring pixels whose ids all differ
    ordered: int


@dataclass(frozen=True, slots=True)
class Spike:
    """A value of a depth file that is apart from all others."""

    value: float  # in the file's unit
    share: float  # of the measured pixels
    is_last: bool  # whether it is the largest value of the file's integer type


@dataclass(frozen=True, slots=True)
class Depth:
    """Measurements of a depth map.

    Measured pixels are finite, above zero and not declared invalid; valid pixels lie within
    ``min_depth`` and ``max_depth`` too. Quantiles are zeros where there are no pixels.
    """

    valid: float  # share of valid pixels
    quantiles: tuple[float, ...]  # 1 %, 50 % and 99 % of the valid depths in metres
    constant: bool  # whether at least 100 pixels are valid and all have one depth
    dtype: str  # of the file; of the map in memory if the file is unknown
    measured: float  # share of measured pixels
    raw: tuple[float, ...]  # 50 % and 99 % of the measured values in the file's unit *
    beyond: float  # share of the measured pixels that lie beyond max_depth *
    spikes: tuple[Spike, ...]  # extreme values that are probably no depth
    # * without the largest value of the file's integer type


def measure_photo(image: np.ndarray, *, orientation: int = 1) -> Photo:
    """Measures a uint8 (H, W, 3) RGB picture."""
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean, std = cv2.meanStdDev(gray)
    few = image[::4, ::4]
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(image.tobytes())
    thumbnail = cv2.resize(gray, (THUMBNAIL, THUMBNAIL), interpolation=cv2.INTER_AREA)
    return Photo(
        size=image.shape[:2],
        mean=mean.item(),
        std=std.item(),
        grey=bool((few == few[..., :1]).all()),
        digest=digest.digest(),
        thumbnail=thumbnail.tobytes(),
        orientation=orientation,
    )


def measure_labels(labels: np.ndarray, *, outside: dict[int, int]) -> Labels:
    """Measures a uint8 (H, W) map of class ids.

    ``outside`` counts the values of the file that are no class; in ``labels`` they are
    IGNORE_INDEX.
    """
    counts = np.bincount(labels.ravel(), minlength=256)
    counts[IGNORE_INDEX] -= sum(outside.values())
    triples = ordered = 0
    for ids in (labels, labels.T):
        first, middle, last = ids[:, :-2], ids[:, 1:-1], ids[:, 2:]
        differ = (first != middle) & (middle != last) & (first != last)
        first, middle, last = first[differ], middle[differ], last[differ]
        low, high = np.minimum(first, last), np.maximum(first, last)
        known = np.maximum(high, middle) != IGNORE_INDEX
        triples += int(known.sum())
        ordered += int((known & (low < middle) & (middle < high)).sum())
    present = {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    return Labels(counts=present, outside=outside, triples=triples, ordered=ordered)


def measure_depth(
    depth: np.ndarray, valid: np.ndarray, *, raw: np.ndarray | None, rule: DepthRule | None
) -> Depth:
    """Measures a depth map, float32 (H, W), metres, with ``valid``, bool (H, W).

    ``raw`` are the values in the file, which ``rule`` made metres of; None to judge the metres.
    """
    metres = depth[valid]
    dtype, measured, limit = str(depth.dtype), metres, np.inf
    if raw is not None and rule is not None:
        known = (raw > 0) & np.isfinite(raw)
        for value in rule.invalid:
            known &= raw != value
        dtype, measured = str(raw.dtype), raw[known]
        limit = np.inf if rule.max_depth is None else rule.max_depth / rule.scale
    constant = bool(metres.size >= 100 and metres.min() == metres.max())
    last = np.iinfo(measured.dtype).max if measured.dtype.kind in "ui" else np.inf
    levels = measured[measured < last]
    return Depth(
        valid=metres.size / depth.size,
        quantiles=_quantiles(metres, (0.01, 0.5, 0.99)),
        constant=constant,
        dtype=dtype,
        measured=measured.size / depth.size,
        raw=_quantiles(levels, (0.5, 0.99)),
        beyond=float((levels > limit).mean()) if levels.size else 0.0,
        spikes=() if constant else _spikes(measured, last),
    )


def _spikes(measured: np.ndarray, last: float) -> tuple[Spike, ...]:
    """The largest and the smallest of positive values, if they are frequent or far off."""
    found = []
    for value in {float(measured.min()), float(measured.max())} if measured.size else ():
        rest = measured[measured != value]
        share = 1 - rest.size / measured.size
        gap = np.inf  # ratio to the next value
        if rest.size:
            near = float(rest.max() if value > rest[0] else rest.min())
            gap = max(value / near, near / value)
        if value == last or share > 0.05 or (share > 0.002 and gap > 1.25):
            found.append(Spike(value, share, value == last))
    return tuple(found)


def _quantiles(values: np.ndarray, shares: Sequence[float]) -> tuple[float, ...]:
    if values.size == 0:
        return (0.0,) * len(shares)
    few = values[:: max(1, values.size // _QUANTILE_PIXELS)].astype(np.float64)
    return tuple(np.quantile(few, shares).tolist())
