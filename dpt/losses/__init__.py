"""Losses: masked, in float32 at least, averaged over each image and then over the images.

An image without any valid pixel contributes exactly 0, with zero gradient, and counts as an image:
two ranks with batch size 2 have the same gradient as one with batch size 4.
"""

from dpt.losses.contrastive import dino_loss, ibot_loss, nt_xent
from dpt.losses.depth import (
    AngularLoss,
    GradientMatchingLoss,
    LogVarianceLoss,
    ScaleInvariantLoss,
    ScaleShiftInvariantLoss,
    SILogLoss,
)
from dpt.losses.masks import SetLoss
from dpt.losses.segmentation import CombinedLoss, CrossEntropyLoss, DiceLoss, FocalLoss
