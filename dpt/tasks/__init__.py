"""What is trained: objectives (one a head) and the LightningModule that runs them."""

from dpt.tasks.base import Objective, Task
from dpt.tasks.depth import DepthObjective
from dpt.tasks.image import ClassificationObjective, RegressionObjective
from dpt.tasks.inpainting import InpaintingObjective
from dpt.tasks.segmentation import SegmentationObjective
from dpt.tasks.teacher import Teacher

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
    "Task",
    "Teacher",
]
