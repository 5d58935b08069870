"""UniDepth (Piccinelli et al. 2024)."""

from typing import ClassVar

from dpt.metrics.rules import fits
from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import COMMON, DELTAS, EIGEN, Errors
from dpt.metrics.rules.moments import Floats, Mask

_TAU: Errors = {"tau": lambda m: m.within3}


class UniDepth(DepthRule):
    """The rule of ``eval_depth``, without its ``d_auc`` and ``medianlog``."""

    name = "unidepth"
    summary = "Clamps nothing; silog is the unbiased standard deviation, tau a bound of 3 %."
    original = "lpiccinelli-eth/UniDepth unidepth/utils/evaluation_depth.py: eval_depth"
    errors: ClassVar[Errors] = {**EIGEN, "silog": lambda m: 100 * m.silog_unbiased(), **_TAU}

    def counted(self, image: DepthImage) -> Mask:
        return image.valid & (image.depth > 0) & (image.depth <= image.max_depth)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return image.prediction_at(counted)


class UniDepthSsi(UniDepth):
    """The scores that end in ``_ssi``."""

    name = "unidepth_ssi"
    summary = "As unidepth, after a fit of scale and shift in depth."
    fitted = "scale, shift"
    kinds = DEPTH_KINDS
    errors: ClassVar[Errors] = {"abs_rel": COMMON["abs_rel"], "delta1": DELTAS["delta1"], **_TAU}

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return fits.in_depth(image.prediction_at(counted), image.depth_at(counted))


class UniDepthSi(UniDepthSsi):
    """The scores that end in ``_si``."""

    name = "unidepth_si"
    summary = "As unidepth, after a fit of the median."
    fitted = "median"

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        values, depth = image.prediction_at(counted), image.depth_at(counted)
        return values * (image.median(depth) / image.median(values))
