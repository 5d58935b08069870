"""The KITTI depth prediction benchmark (Uhrig et al. 2017)."""

import math
from typing import ClassVar

import numpy as np

from dpt.metrics.rules.base import DepthImage, DepthRule
from dpt.metrics.rules.errors import Errors
from dpt.metrics.rules.moments import Floats, Mask


class KittiOfficial(DepthRule):
    """The rule of ``depthError``, after ``interpolateBackground``; errors of 1/depth are per km."""

    name = "kitti_official"
    summary = (
        "Fills the holes of the prediction from their row and has no largest depth; sq_rel is "
        "divided by the squared depth."
    )
    original = "KITTI depth devkit cpp/evaluate_depth.cpp: depthError"
    errors: ClassVar[Errors] = {
        "silog": lambda m: 100 * m.silog(),
        "sq_rel_percent": lambda m: 100 * m.sq_rel_squared,
        "abs_rel_percent": lambda m: 100 * m.abs_rel,
        "irmse_per_km": lambda m: 1000 * math.sqrt(m.inverse_square),
        "imae_per_km": lambda m: 1000 * m.inverse,
        "mae": lambda m: m.absolute,
        "rmse": lambda m: math.sqrt(m.square),
        "log_mae": lambda m: m.log_absolute,
        "rmse_log": lambda m: math.sqrt(m.log_square),
    }

    def counted(self, image: DepthImage) -> Mask:
        return image.valid & (image.depth > 0)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return filled(image.prediction)[counted]


def filled(depth: Floats) -> Floats:
    """Returns depth (H, W) whose holes, values not above 0, are filled from their row.

    A hole gets the smaller of its two neighbours in the row, or the only one. Rows of holes get the
    first row with a value below them, or the last one above them; between two rows with values they
    are -1, as in the original.
    """
    is_known = depth > 0
    if is_known.all() or not is_known.any():
        return np.where(is_known, depth, -1.0)
    last = depth.shape[1] - 1
    columns = np.broadcast_to(np.arange(last + 1), depth.shape)
    before = np.maximum.accumulate(np.where(is_known, columns, -1), axis=1)
    after = np.where(is_known, columns, last + 1)[:, ::-1]
    after = np.minimum.accumulate(after, axis=1)[:, ::-1]
    left = np.take_along_axis(depth, before.clip(min=0), 1)
    right = np.take_along_axis(depth, after.clip(max=last), 1)
    left, right = np.where(before < 0, np.inf, left), np.where(after > last, np.inf, right)
    result: Floats = np.where(is_known, depth, np.minimum(left, right))
    rows = np.flatnonzero(is_known.any(1))
    result[~is_known.any(1)] = -1.0
    extended: Floats = result[np.arange(len(depth)).clip(rows[0], rows[-1])]
    return extended
