"""Objectives: for each head, its labels, losses, metrics, baselines and pictures."""

from dpt.objectives.base import OBJECTIVES, Objective
from dpt.objectives.depth import DepthObjective
from dpt.objectives.image import ClassificationObjective, RegressionObjective
from dpt.objectives.inpainting import InpaintingObjective
from dpt.objectives.segmentation import SegmentationObjective
