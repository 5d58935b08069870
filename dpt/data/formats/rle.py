"""Masks as run lengths (RLE) in COCO's form: from polygons, pixels and JSON, and back to polygons.

What comes from files is checked before pycocotools, which does not check it, allocates memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from pycocotools import mask as coco
from scipy import ndimage
from scipy.spatial import cKDTree

from dpt.types.samples import ObjectMask, Rle

_MOST_OUTLINE = 5_000_000
"""Largest length, in pixels, of the outlines of all polygons of an object."""


def encode_mask(segmentation: object, size: tuple[int, int]) -> Rle:
    """Returns polygons, or an RLE, as an RLE of pycocotools.

    Args:
        segmentation: as in a JSON file: a list of polygons [x, y, x, y, ...], or a mapping of
            ``size`` and ``counts``.
        size: (H, W) of the image.

    Raises:
        ValueError: it is neither, does not fit the image or would take too much memory.
    """
    if isinstance(segmentation, list):
        return encode_rings([np.asarray(polygon, float) for polygon in segmentation], size)
    code = segmentation if isinstance(segmentation, Mapping) else {}
    if [*map(float, code.get("size", ()))] != [*size]:
        raise ValueError(f"it is neither polygons nor an RLE of {size[0]}x{size[1]}")
    stored, area = code.get("counts"), size[0] * size[1]
    stored = stored.decode("latin-1") if isinstance(stored, bytes) else stored
    if not isinstance(stored, str | list) or len(stored) > 6 * (area + 1):
        raise ValueError(f"its counts are not those of {size[0]}x{size[1]} pixels")
    counts = rle_counts(stored) if isinstance(stored, str) else np.asarray(stored)
    is_whole = counts.dtype.kind == "i" and 0 <= counts.min() <= counts.max() <= area
    if not is_whole or counts.sum() != area:
        raise ValueError(f"its counts are not whole numbers with the sum {area}")
    return _from_counts(counts.tolist(), size)


def _from_counts(counts: Sequence[int], size: tuple[int, int]) -> Rle:
    """Returns run lengths that fit the size as pycocotools compresses them."""
    code: Rle = coco.frPyObjects({"size": [*size], "counts": counts}, *size)
    return code


def encode_rings(polygons: Sequence[np.ndarray], size: tuple[int, int]) -> Rle:
    """Returns the pixels of any of several polygons, float64 (2·N,) each: x, y, x, y, ...

    Raises:
        ValueError: see :func:`encode_mask`.
    """
    if not polygons or any(p.ndim != 1 or p.size < 6 or p.size % 2 for p in polygons):
        raise ValueError("a polygon needs x and y of three points or more")
    height, width = size
    inside: list[np.ndarray] = []
    outline = 0.0
    for polygon in polygons:
        ring = polygon.reshape(-1, 2)
        is_outside = (ring.max(axis=0) <= 0) | (ring.min(axis=0) >= (width, height))
        if is_outside.any():
            continue  # it has no pixel; NaN is not outside
        inside.append(ring)
        outline += np.abs(ring - np.roll(ring, 1, axis=0)).max(axis=1).sum() + len(ring)
    if not inside:
        return _from_counts([height * width], size)
    # pycocotools needs memory and time that grow with the outline, and checks neither
    corners, side = np.concatenate(inside), max(size)
    if not ((corners >= -side) & (corners <= 2 * side)).all() or outline > _MOST_OUTLINE:
        raise ValueError("the outline of a polygon is far outside the image, or too long")
    return merge_masks(coco.frPyObjects([ring.ravel().tolist() for ring in inside], *size))


def encode_relative(ring: np.ndarray, size: tuple[int, int]) -> Rle:
    """Returns a polygon (N, 2) whose corners are fractions of the image's width and height."""
    return encode_rings([(ring * (size[1], size[0])).ravel()], size)


def encode_pixels(mask: np.ndarray) -> Rle:
    """Returns a mask, bool (H, W), as an RLE."""
    # much faster than np.asfortranarray
    code: Rle = coco.encode(np.asfortranarray(cv2.transpose(mask.view(np.uint8)).T))
    return code


def encode_each(ids: np.ndarray) -> list[Rle]:
    """Returns the masks of the ids 1, 2, ... of a map, integers (H, W), each of which occurs."""
    codes: list[Rle] = []
    for number, window in enumerate(ndimage.find_objects(ids), 1):
        mask = np.zeros(ids.shape, np.uint8, order="F")
        mask[window] = ids[window] == number
        codes.append(coco.encode(mask))
    return codes


def encode_parts(mask: np.ndarray) -> list[Rle]:
    """Returns the connected parts of a mask, bool (H, W); pixels that touch at a corner are not."""
    return encode_each(ndimage.label(mask)[0])


def object_of(class_id: int, mask: Rle, *, is_crowd: bool = False) -> ObjectMask:
    """Returns an object with the area of its mask."""
    return ObjectMask(class_id, mask, is_crowd, float(coco.area(mask)))


def merge_masks(codes: Sequence[Rle]) -> Rle:
    """Returns the pixels of any of several masks of the same size."""
    while len(codes) > 1:  # in groups, as the time to merge N at once grows with N²
        codes = [coco.merge(codes[k : k + 8]) for k in range(0, len(codes), 8)]
    return codes[0]


def subtract_mask(code: Rle, other: Rle) -> Rle:
    """Returns the pixels of a mask that another mask of the same size does not have."""
    return encode_pixels(coco.decode(code) > coco.decode(other))


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


def overlay(
    codes: Sequence[Rle], size: tuple[int, int], order: Iterable[int] | None = None
) -> np.ndarray:
    """Returns 1 + position of the front mask of each pixel, int32 (H, W); 0 where there is none.

    Args:
        order: positions of the masks from back to front; by default their order.
    """
    positions = np.zeros(size[0] * size[1], np.int32)
    for k in range(len(codes)) if order is None else order:
        positions[pixels_of(codes[k])] = k + 1
    return np.ascontiguousarray(positions.reshape(size[::-1]).T)


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


class Outline(NamedTuple):
    """The rings, float64 (N, 2) of x and y, of a connected part of a mask."""

    outer: np.ndarray
    holes: list[np.ndarray]


def trace_code(code: Rle) -> list[Outline]:
    """Returns the parts of an encoded mask, see :func:`trace`."""
    left, top, width, height = map(int, coco.toBbox(code))
    return trace(coco.decode(code)[top : top + height, left : left + width], (left, top))


def trace(mask: np.ndarray, corner: tuple[int, int] = (0, 0)) -> list[Outline]:
    """Returns the outlines of the parts of a mask, along the edges of pixels.

    Pixels that touch only at a corner are in different parts. Rings have corners only where they
    turn.

    Args:
        mask: (H, W); pixels that are not 0 belong to the object.
        corner: x and y of its first pixel in the image.
    """
    labels = ndimage.label(mask)[0]
    outlines: list[Outline] = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), 1):
        part = (labels[rows, columns] == number).astype(np.uint8)
        doubled = part.repeat(2, axis=0).repeat(2, axis=1)
        contours = cv2.findContours(doubled, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)[0]
        start = np.add(corner, (columns.start, rows.start)).astype(float)
        outer, *holes = [_along_edges(contour[:, 0]) + start for contour in contours]
        outlines.append(Outline(outer, holes))
    return outlines


def _along_edges(contour: np.ndarray) -> np.ndarray:
    """Returns the corners of pixels, int (N, 2) of x and y, of a contour that OpenCV traced along
    the outermost pixels of a mask of twice the size."""
    corners = (contour + 1) // 2
    return corners[(corners != np.roll(corners, 1, axis=0)).any(axis=1)]


def one_ring(parts: Sequence[Outline]) -> np.ndarray:
    """Returns one ring, float (N, 2), with the pixels of all parts: bridges without width join
    their rings. A pixel is inside if an odd number of windings is around it.
    """
    return _join([_join([part.outer, *part.holes]) for part in parts])


def _join(rings: Sequence[np.ndarray]) -> np.ndarray:
    """Returns one ring: the longest of the rings, with a bridge to each of the others."""
    longest, *others = sorted(rings, key=len, reverse=True)
    if not others:
        return longest
    tree = cKDTree(longest)
    bridges: list[tuple[int, np.ndarray]] = []  # from a corner of the longest ring to a closed ring
    for ring in others:
        distances, nearest = tree.query(ring)
        start = int(distances.argmin())
        turned = np.roll(ring, -start, axis=0)
        bridges.append((int(nearest[start]), np.concatenate([turned, turned[:1]])))
    pieces: list[np.ndarray] = []
    done = 0
    for anchor, closed in sorted(bridges, key=lambda bridge: bridge[0]):
        pieces += [longest[done : anchor + 1], closed]
        done = anchor
    return np.concatenate([*pieces, longest[done:]])
