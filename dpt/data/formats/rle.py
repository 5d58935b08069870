"""Masks as polygons and run lengths (RLE) in COCO's form, checked before pycocotools reads them."""

from collections.abc import Mapping, Sequence

import numpy as np
from pycocotools import mask as coco

from dpt.types.samples import Rle

_MOST_OUTLINE = 5_000_000
"""Largest length, in pixels, of the outlines of all polygons of an object."""


def encode_mask(segmentation: object, size: tuple[int, int]) -> Rle:
    """Returns polygons, or an RLE, as an RLE of pycocotools, which does not check them.

    Args:
        segmentation: as in a JSON file: a list of polygons [x, y, x, y, ...], or a mapping of
            ``size`` and ``counts``.
        size: (H, W) of the image.

    Raises:
        ValueError: it is neither, does not fit the image or would take too much memory.
    """
    height, width = size
    if isinstance(segmentation, list):
        polygons = [np.asarray(polygon, float) for polygon in segmentation]
        if not polygons or any(p.ndim != 1 or p.size < 6 or p.size % 2 for p in polygons):
            raise ValueError("a polygon needs x and y of three points or more")
        inside = [p for p in polygons if not _is_outside(p.reshape(-1, 2), height, width)]
        if not inside:
            return coco.frPyObjects({"size": [height, width], "counts": [height * width]}, *size)
        _check_polygons(inside, height, width)
        return merge_masks(coco.frPyObjects([p.tolist() for p in inside], height, width))
    code = segmentation if isinstance(segmentation, Mapping) else {}
    if [*map(float, code.get("size", ()))] != [height, width]:
        raise ValueError(f"it is neither polygons nor an RLE of {height}x{width}")
    stored = code.get("counts")
    stored = stored.decode("latin-1") if isinstance(stored, bytes) else stored
    if not isinstance(stored, str | list):
        raise ValueError("its counts are neither a text nor a list")
    if len(stored) > (height * width + 1) * (6 if isinstance(stored, str) else 1):
        raise ValueError(f"it has more counts than {height}x{width} pixels")
    counts = rle_counts(stored) if isinstance(stored, str) else np.asarray(stored)
    if counts.dtype.kind != "i" or counts.min() < 0 or counts.max() > height * width:
        raise ValueError(f"its counts are not whole numbers up to {height * width}")
    if counts.sum() != height * width:
        raise ValueError(f"its counts sum to {counts.sum()}, not {height * width}")
    return coco.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)


def encode_pixels(mask: np.ndarray) -> Rle:
    """Returns a mask, bool (H, W), as an RLE."""
    return coco.encode(np.asfortranarray(mask, np.uint8))


def merge_masks(codes: Sequence[Rle]) -> Rle:
    """Returns the pixels of any of several masks of the same size."""
    while len(codes) > 1:  # in groups, as the time to merge N at once grows with N²
        codes = [coco.merge(codes[k : k + 8]) for k in range(0, len(codes), 8)]
    return codes[0]


def subtract_mask(code: Rle, other: Rle) -> Rle:
    """Returns the pixels of a mask that another mask of the same size does not have."""
    common = coco.merge([code, other], intersect=True)
    # the borders of runs of an exclusive or are those that one of the two has
    borders = np.concatenate([rle_counts(c["counts"].decode()).cumsum() for c in (code, common)])
    borders, times = np.unique(borders, return_counts=True)
    height, width = code["size"]
    ends = np.append(borders[times == 1], height * width)
    counts = np.diff(ends, prepend=0).tolist()
    return coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)


def areas_of(codes: Sequence[Rle]) -> np.ndarray:
    """Returns the number of pixels of each mask, int64 (N,)."""
    return np.array([coco.area(code) for code in codes], np.int64)


def pixels_of(code: Rle) -> np.ndarray:
    """Returns the pixels of a mask, int64 (N,), as ascending positions column by column."""
    ends = rle_counts(code["counts"].decode()).cumsum()
    stops = ends[1::2]
    starts = ends[: 2 * len(stops) : 2]
    lengths = stops - starts
    before = lengths.cumsum() - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _is_outside(corners: np.ndarray, height: int, width: int) -> bool:
    """Returns whether a polygon has no pixel in the image, wherever it is; NaN is not outside."""
    return bool((corners.max(axis=0) <= 0).any() or (corners.min(axis=0) >= (width, height)).any())


def _check_polygons(polygons: Sequence[np.ndarray], height: int, width: int) -> None:
    """Raises ValueError for polygons for which pycocotools would need too much memory or time.

    Both grow with the length of the outline, and it does not check that memory is given.
    """
    side = max(height, width)
    outline = 0.0
    for polygon in polygons:
        corners = polygon.reshape(-1, 2)
        if not ((corners >= -side) & (corners <= 2 * side)).all():  # NaN too
            raise ValueError(f"a polygon is far outside the image of {height}x{width}")
        steps = np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1)
        outline += steps.sum() + len(corners)
    if outline > _MOST_OUTLINE:
        raise ValueError(f"its outline has {outline:.3g} pixels, more than {_MOST_OUTLINE}")


def rle_counts(text: str) -> np.ndarray:
    """Returns the run lengths of COCO's compressed RLE.

    A character has 5 bits of a number; from the fourth number on, differences are stored.
    pycocotools does not check that they fit the image.
    """
    digits = np.frombuffer(text.encode(), np.uint8).astype(np.int64) - 48
    is_last = digits & 32 == 0  # of the digits of a number, from low to high
    starts = np.flatnonzero(np.append(True, is_last))[:-1]
    positions = np.arange(len(digits)) - np.repeat(starts, np.diff(starts, append=len(digits)))
    if not is_last[-1:].any() or digits.min() < 0 or digits.max() > 63 or positions.max() > 8:
        raise ValueError("its counts are not a valid RLE")
    counts = np.add.reduceat((digits & 31) << 5 * positions, starts)
    is_negative = digits[is_last] & 16 > 0
    counts -= is_negative.astype(np.int64) << 5 * (positions[is_last] + 1)
    counts[1::2] = counts[1::2].cumsum()  # of masks
    counts[2::2] = counts[2::2].cumsum()  # of what lies between
    return counts
