"""From masks to polygons along the edges of pixels, which have exactly the pixels of the mask."""

from collections.abc import Sequence

import cv2
import numpy as np
from pycocotools import mask as coco
from scipy.spatial import cKDTree

from dpt.data.annotations.base import Polygons
from dpt.types.samples import Rle


def trace_code(code: Rle) -> list[Polygons]:
    """Returns the parts of an encoded mask, see :func:`trace`."""
    left, top, width, height = map(int, coco.toBbox(code))
    return trace(coco.decode(code)[top : top + height, left : left + width], (left, top))


def trace(mask: np.ndarray, corner: tuple[int, int] = (0, 0)) -> list[Polygons]:
    """Returns the parts of a mask, each with one outer ring and its holes.

    Pixels that touch only at a corner are in different parts. Rings have corners only where they
    turn, clockwise from the topmost.

    Args:
        mask: (H, W); pixels that are not 0 belong to the object.
        corner: x and y of its first pixel in the image.
    """
    filled = np.pad(mask != 0, 1)
    corners = _corners(filled)
    part_of_pixel = cv2.connectedComponents(filled.astype(np.uint8), connectivity=4)[1]
    outer: dict[int, np.ndarray] = {}
    holes: dict[int, list[np.ndarray]] = {}
    for ring in _rings(*corners):
        x, y = ring[0]
        is_outer = bool(filled[y + 1, x + 1])  # the pixel below the first edge, which is at the top
        part = int(part_of_pixel[y + is_outer, x + 1])
        points = ring + np.array(corner, float)
        if is_outer:
            outer[part] = points
        else:
            holes.setdefault(part, []).append(points)
    return [Polygons([ring], holes.get(part, ())) for part, ring in outer.items()]


def _corners(filled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corners of the rings of a mask with a margin of one pixel, in two orders.

    Where two pixels touch at a corner there are two corners, one for each pixel.

    Returns:
        The corners, int (N, 2) of x and y, in the order of rows; corners 0 and 1, 2 and 3, ... are
        the ends of horizontal edges. And their order by columns, in which consecutive pairs are the
        ends of vertical edges.
    """
    upper_left, upper_right = filled[:-1, :-1], filled[:-1, 1:]
    lower_left, lower_right = filled[1:, :-1], filled[1:, 1:]
    is_odd = upper_left ^ upper_right ^ lower_left ^ lower_right
    is_double = (upper_left == lower_right) & (upper_left ^ upper_right) & ~is_odd
    y, x = np.nonzero(is_odd | is_double)
    copies = 1 + is_double[y, x]
    is_second = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies) == 1
    y, x = np.repeat(y, copies), np.repeat(x, copies)
    # of a double corner, the first ends an edge from the left, the second one from the right
    is_below = is_second ^ (is_double[y, x] & upper_right[y, x])  # its vertical edge leads down
    return np.stack([x, y], axis=1), np.lexsort((is_below, y, x))


def _rings(corners: np.ndarray, order_by_columns: np.ndarray) -> list[np.ndarray]:
    """Returns the rings, int (N, 2) each, that alternate horizontal and vertical edges."""
    other_end = np.empty(len(corners), int)
    other_end[order_by_columns[0::2]] = order_by_columns[1::2]
    other_end[order_by_columns[1::2]] = order_by_columns[0::2]
    vertical = other_end.tolist()
    is_visited = [False] * len(vertical)
    rings = []
    for start in range(0, len(vertical), 2):
        if is_visited[start]:
            continue
        ring = []
        corner = start
        while not is_visited[corner]:
            neighbour = corner ^ 1
            is_visited[corner] = is_visited[neighbour] = True
            ring += [corner, neighbour]
            corner = vertical[neighbour]
        rings.append(corners[ring])
    return rings


def one_ring(parts: Sequence[Polygons]) -> np.ndarray:
    """Returns one ring, float (N, 2), with the pixels of all parts: bridges without width join
    their rings. A pixel is inside if an odd number of windings is around it.
    """
    return _join([_join([*part.outer, *part.holes]) for part in parts])


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
