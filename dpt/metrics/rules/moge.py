"""MoGe (Wang et al. 2025): depth as it is, up to scale, up to scale and shift, and disparity."""

from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules import base
from dpt.metrics.rules.base import DepthRule, Errors, Floats, Mask, Pixels

SIDE = 64
"""Fits read one pixel of each cell of a grid of 64 x 64."""


Indices = NDArray[np.int64]


@lru_cache(maxsize=4)
def _by_cell(height: int, width: int) -> tuple[Indices, Indices]:
    """Returns flat indices of pixels, ordered by cell and distance to its centre, and where each
    cell ends in this order.

    A pixel on the border of two cells belongs to the upper or left one.
    """
    cells, distances = [], []
    for size in (height, width):
        centres = np.arange(size) + 0.5
        cell = np.ceil(centres * SIDE / size).astype(np.int64) - 1
        cells.append(cell)
        distances.append((centres - (cell + 0.5) * size / SIDE) ** 2)
    cell_of_pixel = (cells[0][:, None] * SIDE + cells[1]).ravel()
    order = np.lexsort((np.add.outer(*distances).ravel(), cell_of_pixel))
    return order, np.bincount(cell_of_pixel, minlength=SIDE**2).cumsum()


def nearest_in_cells(valid: Mask) -> Indices:
    """Returns the flat index of the valid pixel nearest to the centre of each cell, (N,), N <= 64².

    Of pixels at the same distance the first one counts; cells without a valid pixel are left out.

    Args:
        valid: bool (H, W).
    """
    order, ends = _by_cell(*valid.shape)
    positions = np.append(np.flatnonzero(valid.ravel()[order]), len(order))
    first = positions[np.searchsorted(positions, np.append(0, ends[:-1]))]
    nearest: Indices = order[first[first < ends]]
    return nearest


class MogeMetric(DepthRule):
    """The scores ``depth_metric``."""

    name = "moge_metric"
    summary = "Fits nothing, clamps nothing, and has no largest depth."
    original = "microsoft/MoGe moge/test/metrics.py, moge/utils/alignment.py"
    min_depth = 0.0
    has_max_depth = False
    errors: ClassVar[Errors] = {"abs_rel": lambda m: m.moge_rel, "delta1": base.DELTAS["delta1"]}


class MogeScale(MogeMetric):
    """The scores ``depth_scale_invariant``."""

    name = "moge_scale"
    summary = "Fits the scale that minimises the sum of |d - g| / g, and has no largest depth."
    fitted = "scale (L1)"
    kinds = base.DEPTH_KINDS

    def predicted(self, pixels: Pixels) -> Floats:
        cells = nearest_in_cells(pixels.mask)
        maps = pixels.image
        return self.fitted_values(
            pixels.prediction, maps.prediction.flat[cells], maps.depth.flat[cells]
        )

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        """Returns ``values`` after the fit of ``prediction`` (N,) to ``depth`` (N,)."""
        return values * base.scale_l1(prediction, depth, 1 / depth)


class MogeAffine(MogeScale):
    """The scores ``depth_affine_invariant``.

    The original sums no error of the pixels whose prediction equals that of the pixel about which
    it turns a line, so that it misses the minimum where predictions are equal.
    """

    name = "moge_affine"
    summary = "As moge_scale, with a scale and a shift."
    fitted = "scale, shift (L1)"

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        scale, shift = base.line_l1(prediction, depth, 1 / depth)
        return values * scale + shift


class MogeDisparity(MogeMetric):
    """The scores ``disparity_affine_invariant``."""

    name = "moge_disparity"
    summary = "Fits scale and shift in inverse depth, and caps at the largest depth of the image."
    fitted = "scale, shift of 1/d"
    kinds = base.ALL_KINDS

    def predicted(self, pixels: Pixels) -> Floats:
        depth = pixels.depth
        disparity = base.in_depth(pixels.disparity, 1 / depth)
        floor = 1 / float(depth.max())
        return 1 / np.maximum(disparity, floor)
