"""MiDaS and DPT, zero-shot (Ranftl et al. 2020, 2021), and Depth Anything's relative depth."""

from typing import ClassVar

import numpy as np

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import ALL_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import COMMON, DELTAS, Errors
from dpt.metrics.rules.moments import Floats, Mask


class Midas(DepthRule):
    """The rule of ``BadPixelMetric``; predictions of depth are inverted first."""

    name = "midas"
    summary = (
        "Fits scale and shift in inverse depth, caps depth, and reports percent of bad pixels."
    )
    original = "gist ranftlr/a1c7a24e: BadPixelMetric"
    fitted = "scale, shift of 1/d"
    kinds = ALL_KINDS
    min_depth = 0.0
    errors: ClassVar[Errors] = {"bad_pixels": lambda m: 100 * (1 - m.at_most)}

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        disparity, depth = image.disparity[counted], image.depth_at(counted)
        if np.isfinite(disparity).all():
            disparity = fits.in_depth(disparity, 1 / depth)
        else:  # as the original, whose equations have no solution then
            disparity = disparity * 0.0
        return 1 / np.maximum(disparity, 1 / image.max_depth)


class DepthAnythingRelative(Midas):
    """The zero-shot table of Depth Anything V1 and V2: MiDaS's fit, other numbers.

    The authors publish no script for it (Yang et al. 2024, table 2: AbsRel and δ1).
    """

    name = "depth_anything_relative"
    summary = "Fits and caps as MiDaS, and reports abs_rel and the fraction of good pixels."
    original = "none published: fit of MiDaS's gist, formulas of metric_depth/util/metric.py"
    errors: ClassVar[Errors] = {"abs_rel": COMMON["abs_rel"], **DELTAS}
