"""Boundary IoU (Cheng et al. 2021)."""

import math
from typing import ClassVar

import numpy as np

from dpt.metrics.rules.classes import Areas, Ids, Measures, SegmentationRule, mean_of_known
from dpt.metrics.rules.moments import Floats, Mask


def boundaries(ids: Ids, distance: int) -> Mask:
    """Returns where a map (H, W) of ids is a boundary of its class, of all classes at once.

    These are the pixels that ``distance`` erosions by 3 x 3 pixels take from the mask of their
    class: in the square of that radius there is another id, or the border of the image.
    """
    lowest = highest = np.pad(ids, distance, constant_values=-1)
    width, side = 1, 2 * distance + 1
    while width < side:  # squares of this width become wider by a step
        step = min(width, side - width)
        lowest = np.minimum(lowest[step:], lowest[:-step])
        lowest = np.minimum(lowest[:, step:], lowest[:, :-step])
        highest = np.maximum(highest[step:], highest[:-step])
        highest = np.maximum(highest[:, step:], highest[:, :-step])
        width += step
    is_boundary: Mask = lowest != highest
    return is_boundary


class BoundaryIou(SegmentationRule):
    """The mean over classes, whose boundary regions are summed over all images.

    The original scores segments of instance and panoptic segmentation; here the class's pixels in
    an image are one mask.
    """

    name = "boundary_iou"
    summary = (
        "Averages the IoU of the pixels of each class within 2 % of the diagonal (at least one "
        "pixel) of its boundary or the border of the image."
    )
    original = "bowenc0221/boundary-iou-api boundary_iou/utils/boundary_utils.py: mask_to_boundary"
    columns = 3
    measures: ClassVar[Measures] = {"boundary_iou": lambda a: mean_of_known(a.hits / a.union)}

    def sums(self, prediction: Ids, labels: Ids, num_classes: int) -> Floats:
        height, width = labels.shape
        distance = max(1, round(0.02 * math.sqrt(height**2 + width**2)))
        predicted, true = (
            np.where((ids >= 0) & (ids < num_classes), ids, num_classes).astype(np.int16)
            for ids in (prediction, labels)
        )
        counted = true < num_classes
        in_predicted = boundaries(predicted, distance) & counted
        in_true = boundaries(true, distance) & counted
        in_both = in_predicted & in_true & (predicted == true)
        regions = true[in_both], true[in_true], predicted[in_predicted]
        counts = [np.bincount(ids, minlength=num_classes)[:num_classes] for ids in regions]
        return np.stack(counts, axis=1).astype(np.float64)

    def finish(self, total: Floats) -> Floats:
        areas = Areas(*total[:, -self.columns :].T)
        with np.errstate(all="ignore"):
            return np.array([measure(areas) for measure in self.measures.values()])
