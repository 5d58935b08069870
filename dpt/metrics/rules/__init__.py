"""Rules of scoring: how other projects compute the scores that they publish.

A file for each project; a class with a ``name`` is added to ``RULES``, outside this package too.
"""

from dpt.metrics.rules import (
    bts,
    depth_anything,
    depth_estimation,
    dino,
    kitti,
    marigold,
    metric3d,
    midas,
    moge,
    ultralytics,
    unidepth,
)
from dpt.metrics.rules.base import RULES, DepthImage, DepthRule, Rule

__all__ = ["RULES", "DepthImage", "DepthRule", "Rule"]
