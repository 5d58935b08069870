"""The benchmark of Cityscapes (Cordts et al. 2016)."""

from dpt.metrics.rules.classes import IOU, SegmentationRule


class Cityscapes(SegmentationRule):
    """The class average of the benchmark's script; not its scores of categories and instances."""

    name = "cityscapes"
    summary = "As mmsegmentation: void pixels do not count, but a prediction of void is wrong."
    original = "mcordts/cityscapesScripts evaluation/evalPixelLevelSemanticLabeling.py:228, 285"
    measures = IOU
