"""MoGe (Wang et al. 2025): depth as it is, up to scale, up to scale and shift, and disparity."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import ALL_KINDS, DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import DELTAS, Errors
from dpt.metrics.rules.moments import Floats, Mask

SIDE = 64
"""Fits read one pixel of each cell of a grid of 64 x 64."""


def nearest_in_cells(valid: Mask) -> NDArray[np.int64]:
    """Returns the flat index of the valid pixel nearest to the centre of each cell, (N,), N <= 64².

    A pixel on the border of two cells belongs to the upper or left one. Of pixels at the same
    distance the first one counts; cells without a valid pixel are left out.

    Args:
        valid: bool (H, W).
    """
    index = np.flatnonzero(valid)
    cells, distance = np.zeros_like(index), np.zeros(len(index))
    for position, size in zip(np.divmod(index, valid.shape[1]), valid.shape, strict=True):
        centre = position + 0.5
        cell = np.ceil(centre * SIDE / size) - 1
        cells = cells * SIDE + cell.astype(np.int64)
        distance += (centre - (cell + 0.5) * size / SIDE) ** 2
    order = np.lexsort((distance, cells))  # stable: the first of equal distances stays first
    is_first = np.diff(cells[order], prepend=-1) > 0
    return index[order[is_first]]


class MogeMetric(DepthRule):
    """The scores ``depth_metric``."""

    name = "moge_metric"
    summary = "Fits nothing, clamps nothing, and has no largest depth."
    original = "microsoft/MoGe moge/test/metrics.py, moge/utils/alignment.py"
    resize = "bilinear"
    min_depth = 0.0
    errors: ClassVar[Errors] = {"abs_rel": lambda m: m.moge_rel, "delta1": DELTAS["delta1"]}

    def counted(self, image: DepthImage) -> Mask:
        return image.valid & (image.depth > 0)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return image.prediction[counted]


class MogeScale(MogeMetric):
    """The scores ``depth_scale_invariant``."""

    name = "moge_scale"
    summary = "Fits the scale that minimises the sum of |d - g| / g, and has no largest depth."
    fitted = "scale, by relative error"
    kinds = DEPTH_KINDS

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        cells = nearest_in_cells(counted)
        prediction, depth = image.prediction.flat[cells], image.depth.flat[cells]
        return self.fitted_values(image.prediction[counted], prediction, depth)

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        """Returns ``values`` after the fit of ``prediction`` (N,) to ``depth`` (N,)."""
        return values * fits.scale_l1(prediction, depth, 1 / depth)


class MogeAffine(MogeScale):
    """The scores ``depth_affine_invariant``.

    The original sums no error of the pixels whose prediction equals that of the pixel about which
    it turns a line, so that it misses the minimum where predictions are equal.
    """

    name = "moge_affine"
    summary = "As moge_scale, with a scale and a shift."
    fitted = "scale and shift, by relative error"

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        scale, shift = fits.line_l1(prediction, depth, 1 / depth)
        return values * scale + shift


class MogeDisparity(MogeMetric):
    """The scores ``disparity_affine_invariant``."""

    name = "moge_disparity"
    summary = "Fits scale and shift in inverse depth, and caps at the largest depth of the image."
    fitted = "scale and shift in inverse depth"
    kinds = ALL_KINDS

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        depth = image.depth[counted]
        disparity = fits.in_depth(image.disparity[counted], 1 / depth)
        floor = 1 / float(depth.max())
        return 1 / np.maximum(disparity, floor)
