"""Losses: masked, at least float32, averaged per image first and then over the images.

An image without any valid pixel contributes exactly 0, with zero gradient, and still counts as an
image: two processes with batch 2 follow the same gradient as one process with batch 4.
"""

from dpt.losses.combined import CombinedLoss
from dpt.losses.depth import GradientMatchingLoss, ScaleShiftInvariantLoss, SILogLoss
from dpt.losses.segmentation import CrossEntropyLoss, DiceLoss, FocalLoss, LovaszSoftmaxLoss

__all__ = [
    "CombinedLoss",
    "CrossEntropyLoss",
    "DiceLoss",
    "FocalLoss",
    "GradientMatchingLoss",
    "LovaszSoftmaxLoss",
    "SILogLoss",
    "ScaleShiftInvariantLoss",
]
