"""Rules of scoring: how other projects compute the scores that they publish.

A class with a ``name`` is added to ``RULES`` or ``SEGMENTATION_RULES``, outside this package too.
"""

from dpt.metrics.rules import boundaries, depth
from dpt.metrics.rules.base import RULES, DepthImage, DepthRule, Rule
from dpt.metrics.rules.segmentation import SEGMENTATION_RULES, SegmentationRule
