"""What is trained: objectives (one a head)."""

from dpt.objectives.base import Objective
from dpt.objectives.depth import DepthObjective
from dpt.objectives.image import ClassificationObjective, RegressionObjective
from dpt.objectives.inpainting import InpaintingObjective
from dpt.objectives.segmentation import SegmentationObjective

OBJECTIVES: dict[str, type[Objective]] = {
    objective.head: objective
    for objective in (
        DepthObjective,
        SegmentationObjective,
        ClassificationObjective,
        RegressionObjective,
        InpaintingObjective,
    )
}

__all__ = [
    "OBJECTIVES",
    "ClassificationObjective",
    "DepthObjective",
    "InpaintingObjective",
    "Objective",
    "RegressionObjective",
    "SegmentationObjective",
]
