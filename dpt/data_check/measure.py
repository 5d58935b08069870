"""Numbers of one sample: small enough to send between processes and to keep for a whole data set.

Pure functions of arrays; :mod:`dpt.data_check.checks` and its neighbours judge the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.formats.depth_encoding import DepthRule
from dpt.types import IGNORE_INDEX

THUMBNAIL = 16
"""Side of the thumbnails that near duplicates are found by, in pixels."""
_SAMPLED = 20_000  # pixels that quantiles are taken from


@dataclass(frozen=True, slots=True)
class Photo:
    """Of a picture: ``size`` is (H, W); ``mean`` and ``std`` are grey levels, 0..255.

    ``digest`` stands for the decoded pixels, ``thumbnail`` is uint8 (16, 16), ``orientation`` the
    EXIF tag (1 is upright).
    """

    size: tuple[int, int]
    mean: float
    std: float
    grey: bool
    digest: bytes
    thumbnail: bytes
    orientation: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether it is nearly black, white, or of one colour."""
        return self.mean < 8 or self.mean > 247 or self.std < 3


@dataclass(frozen=True, slots=True)
class Labels:
    """Of a class mask.

    Attributes:
        counts: pixels of each id, ``IGNORE_INDEX`` for those without a class.
        outside: pixels of each value in the file that is neither a class nor ignored.
        slim: places where one pixel lies between two others and all three ids differ.
        between: those where the middle id lies between the other two: a third by chance, nearly
            all if a mask was resized smoothly.
    """

    counts: dict[int, int]
    outside: dict[int, int]
    slim: int
    between: int


@dataclass(frozen=True, slots=True)
class Extreme:
    """The largest, or the smallest, number of a file, if it stands apart."""

    value: float
    share: float  # of the measured pixels
    gap: float  # ratio to the next number, at least 1; infinity if there is no other


@dataclass(frozen=True, slots=True)
class Depth:
    """Of a depth map.

    Attributes:
        valid: share of pixels that count as valid.
        quantiles: 1 %, 50 % and 99 % of the valid depths in metres; zeros without any.
        constant: whether many pixels are valid and all have one depth.
        dtype: of the numbers in the file; of the map in memory where the file is not known.
        measured: share of pixels that are numbers above zero and not declared invalid.
        raw: 50 % and 99 % of the measured numbers, in the file's unit; zeros without any.
        beyond: share of the measured pixels that lie beyond ``max_depth``.
        top, bottom: the measured numbers' extremes, in the file's unit.
        reaches_last: whether ``top`` is the largest number that a file of its type can hold; it is
            then left out of ``raw`` and ``beyond``.
    """

    valid: float
    quantiles: tuple[float, float, float]
    constant: bool
    dtype: str
    measured: float
    raw: tuple[float, float]
    beyond: float
    top: Extreme | None
    bottom: Extreme | None
    reaches_last: bool


def measure_photo(image: np.ndarray, *, orientation: int = 1) -> Photo:
    """Numbers of a uint8 (H, W, 3) RGB picture."""
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean, std = (float(v[0, 0]) for v in cv2.meanStdDev(gray))
    few = image[::4, ::4]
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=16)
    digest.update(image.tobytes())
    side = (THUMBNAIL, THUMBNAIL)
    return Photo(
        size=image.shape[:2],
        mean=mean,
        std=std,
        grey=bool((few[..., 0] == few[..., 1]).all() and (few[..., 0] == few[..., 2]).all()),
        digest=digest.digest(),
        thumbnail=cv2.resize(gray, side, interpolation=cv2.INTER_AREA).tobytes(),
        orientation=orientation,
    )


def measure_labels(labels: np.ndarray, *, outside: dict[int, int]) -> Labels:
    """Numbers of a uint8 (H, W) map of ids.

    ``outside`` tells which values of the file are IGNORE_INDEX in it for want of a class.
    """
    counts = np.bincount(labels.ravel(), minlength=256)
    counts[IGNORE_INDEX] -= sum(outside.values())
    slim = between = 0
    for ids in (labels, labels.T):
        first, middle, last = ids[:, :-2], ids[:, 1:-1], ids[:, 2:]
        apart = (first != middle) & (middle != last) & (first != last)
        # of the few that are left: none of the three may be without a class
        first, middle, last = first[apart], middle[apart], last[apart]
        known = np.maximum(np.maximum(first, middle), last) != IGNORE_INDEX
        inside = (middle > np.minimum(first, last)) & (middle < np.maximum(first, last))
        slim += int(known.sum())
        between += int((inside & known).sum())
    present = {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    return Labels(counts=present, outside=outside, slim=slim, between=between)


def measure_depth(
    depth: np.ndarray,
    valid: np.ndarray,
    *,
    raw: np.ndarray | None,
    rule: DepthRule | None,
) -> Depth:
    """Numbers of a depth map.

    Args:
        depth: float32 (H, W), metres; ``valid``: bool (H, W).
        raw: the numbers in the file, or None to judge the metres instead.
        rule: how they became metres; used with ``raw`` alone.
    """
    metres = depth[valid]
    constant = metres.size >= 100 and metres.min() == metres.max()
    dtype, measured, limit = str(depth.dtype), metres, np.inf
    if raw is not None and rule is not None:
        dtype = str(raw.dtype)
        known = (raw > 0) & np.isfinite(raw) if raw.dtype.kind == "f" else raw > 0
        for value in rule.invalid:
            known &= raw != value
        measured = raw[known]
        limit = np.inf if rule.max_depth is None else rule.max_depth / rule.scale
    top, bottom = _extremes(measured)
    whole = measured.dtype.kind in "ui"
    reaches_last = whole and top is not None and top.value == np.iinfo(measured.dtype).max
    levels = measured[measured < top.value] if reaches_last and top else measured
    low, middle, high = _quantiles(metres, (0.01, 0.5, 0.99))
    raw_middle, raw_high = _quantiles(levels, (0.5, 0.99))
    return Depth(
        valid=metres.size / depth.size,
        quantiles=(low, middle, high),
        constant=bool(constant),
        dtype=dtype,
        measured=measured.size / depth.size,
        raw=(raw_middle, raw_high),
        beyond=float((levels > limit).mean()) if levels.size else 0.0,
        top=top,
        bottom=bottom,
        reaches_last=reaches_last,
    )


def _extremes(measured: np.ndarray) -> tuple[Extreme | None, Extreme | None]:
    """The largest and the smallest of some positive numbers."""
    if measured.size == 0:
        return None, None
    found = []
    for largest in (True, False):
        value = measured.max() if largest else measured.min()
        rest = measured[measured != value]
        gap = np.inf
        if rest.size:
            near = float(rest.max() if largest else rest.min())
            gap = float(value) / near if largest else near / float(value)
        found.append(Extreme(float(value), 1 - rest.size / measured.size, gap))
    return found[0], found[1]


def _quantiles(values: np.ndarray, shares: Sequence[float]) -> tuple[float, ...]:
    if values.size == 0:
        return (0.0,) * len(shares)
    few = values[:: max(1, values.size // _SAMPLED)].astype(np.float64)
    return tuple(float(v) for v in np.quantile(few, shares))
