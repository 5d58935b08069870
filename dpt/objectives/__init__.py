"""Objectives: for each head, its labels, losses, metrics, baselines and pictures."""

from dpt.objectives.base import OBJECTIVES, Objective
from dpt.objectives.depth import DepthObjective, NormalsObjective
from dpt.objectives.image import (
    ClassificationObjective,
    ClipObjective,
    FieldOfViewObjective,
    RegressionObjective,
)
from dpt.objectives.segmentation import InstanceObjective, PanopticObjective, SegmentationObjective
from dpt.objectives.selfsupervised import ContrastiveObjective, DinoObjective, InpaintingObjective
