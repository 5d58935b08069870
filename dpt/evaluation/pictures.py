"""A row of pictures for one image and one dense head: photo, truth, prediction, error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.objectives import DepthObjective, InpaintingObjective, Objective, SegmentationObjective
from dpt.types import IGNORE_INDEX, Batch
from dpt.viz import depth_panel, inpainting_panel, segmentation_panel


def panel_row(
    objective: Objective,
    photo: np.ndarray,
    outputs: Mapping[str, Tensor],
    labels: Batch,
    palette: Any,
) -> np.ndarray | None:
    """What was scored, at the label's resolution: uint8 RGB, or None for a head that is no map.

    Depth is shown aligned and clamped, where it counts.

    Args:
        objective: that scores the head.
        photo: uint8 (H, W, 3) RGB.
        outputs: of this image alone, batch axis kept.
        labels: of this image alone, as a batch of evaluation.
        palette: colours of the classes, or None.
    """
    if isinstance(objective, DepthObjective):
        truth, valid = labels["depth"][0], labels["valid"][0]
        prediction = objective.predict(outputs["depth"], _size(truth))
        metres, counted = objective.metrics.in_metres(prediction, truth[None], valid[None])
        return depth_panel(photo, _array(truth), _array(counted[0]), _array(metres[0]))
    if isinstance(objective, SegmentationObjective):
        truth = labels["labels"][0]
        ids = objective.predict(outputs["segmentation"], _size(truth))[0]
        ids = torch.where(ids < objective.num_classes, ids, IGNORE_INDEX)  # of files: any number
        return segmentation_panel(photo, _array(truth), _array(ids).astype(np.uint8), palette)
    if isinstance(objective, InpaintingObjective):
        hidden = labels["hidden"][0]
        picture = objective.predict(outputs["inpainting"], _size(hidden))[0]
        return inpainting_panel(photo, _array(hidden), _array(picture.permute(1, 2, 0)))
    return None


def shrink(rgb: np.ndarray, width: int) -> np.ndarray:
    """A uint8 (H, W, 3) picture, no wider than ``width`` pixels."""
    if rgb.shape[1] <= width:
        return rgb
    height = max(1, round(rgb.shape[0] * width / rgb.shape[1]))
    return cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA)


def _size(tensor: Tensor) -> tuple[int, int]:
    return tensor.shape[-2], tensor.shape[-1]


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
