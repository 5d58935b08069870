"""The benchmark of Cityscapes (Cordts et al. 2016)."""

from dpt.metrics.rules.classes import IOU, SegmentationRule


class Cityscapes(SegmentationRule):
    """The class average of the benchmark's script; not its scores of categories and instances."""

    name = "cityscapes"
    summary = (
        "Averages IoU over the classes in ground truth or prediction; predictions on void pixels "
        "do not count, void predictions are wrong."
    )
    original = (
        "mcordts/cityscapesScripts cityscapesscripts/evaluation/evalPixelLevelSemanticLabeling.py"
        ":228, 285"
    )
    measures = IOU
