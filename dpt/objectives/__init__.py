"""Objectives: for each head, its labels, losses, metrics, baselines and pictures."""

from importlib import import_module
from pkgutil import iter_modules

from dpt.objectives.base import OBJECTIVES, Objective
from dpt.objectives.clip import ClipObjective
from dpt.objectives.depth import DepthObjective
from dpt.objectives.image import (
    ClassificationObjective,
    FieldOfViewObjective,
    RegressionObjective,
)
from dpt.objectives.inpainting import InpaintingObjective
from dpt.objectives.masks import InstanceObjective, PanopticObjective
from dpt.objectives.normals import NormalsObjective
from dpt.objectives.segmentation import SegmentationObjective
from dpt.objectives.selfsupervised import ContrastiveObjective, DinoObjective

for _module in iter_modules(__path__):  # each adds its objectives to OBJECTIVES
    import_module(f"{__name__}.{_module.name}")
