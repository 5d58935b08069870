"""Rules for the classes of pixels."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules.base import Floats, Mask, Rule

Ids = NDArray[np.integer]


class Areas(NamedTuple):
    """Pixels of each of K classes, (K,), from the confusion matrix of all images."""

    hits: Floats
    labelled: Floats
    predicted: Floats
    """On pixels with a label."""

    @property
    def union(self) -> Floats:
        return self.labelled + self.predicted - self.hits


def mean_of_known(values: Floats) -> float:
    """Returns the mean of the values that are not NaN, NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


Measures = Mapping[str, Callable[[Areas], float]]

IOU: Measures = {"miou": lambda a: mean_of_known(a.hits / a.union)}
IOU_AND_ACCURACIES: Measures = {
    **IOU,
    "mean_accuracy": lambda a: mean_of_known(a.hits / a.labelled),
    "pixel_accuracy": lambda a: float(a.hits.sum() / a.labelled.sum()),
}

SEGMENTATION_RULES: dict[str, "SegmentationRule"] = {}
"""Rules by name."""


class SegmentationRule(Rule):
    """A rule for the classes of pixels; pixels without a label count in none.

    Attributes:
        measures: the scores by name, each from the areas of the classes.
        absent: what becomes of a class in neither ground truth nor prediction.
        no_class: what a labelled pixel is whose prediction is no class.
        columns: the number of sums of each class that :meth:`sums` leaves.
    """

    measures: ClassVar[Measures]
    columns: ClassVar[int] = 0
    absent: ClassVar[str] = "left out"
    no_class: ClassVar[str] = "wrong"

    def __init_subclass__(cls) -> None:
        cls.scores = tuple(cls.measures)
        SEGMENTATION_RULES[cls.name] = cls()

    def sums(self, prediction: Ids, labels: Ids, num_classes: int) -> Floats:
        """Returns what one image adds to the total beside its confusion matrix, (K, columns).

        Args:
            prediction, labels: class ids (H, W); ids outside [0, K) are no class.
            num_classes: K.
        """
        return np.zeros((num_classes, self.columns))

    def areas(self, total: Floats) -> Areas:
        """Returns the pixels of each class, from what :meth:`finish` is given."""
        inside = total[:, :-1]
        return Areas(inside.diagonal(), total.sum(1), inside.sum(0))

    def finish(self, total: Floats) -> Floats:
        """Returns the scores (S,), in 0..1.

        Args:
            total: the confusion matrix (K, K + 1), and after it the columns of :meth:`sums`.
        """
        with np.errstate(all="ignore"):
            areas = self.areas(total)
            return np.array([measure(areas) for measure in self.measures.values()])


class MMSegmentation(SegmentationRule):
    """The rule of ``IoUMetric``, whose aAcc, mIoU and mAcc are rounded to two places of percent.

    Original: mmsegmentation 1.2.2 mmseg/evaluation/metrics/iou_metric.py:164, 203: IoUMetric
    """

    name = "mmsegmentation"
    summary = "Averages IoU over the classes in ground truth or prediction."
    measures = IOU_AND_ACCURACIES


class Evaluate(SegmentationRule):
    """The rule of ``mean_iou`` with ``ignore_index=255``.

    The example of transformers (``run_semantic_segmentation.py``) passes 0 instead: pixels of class
    0 do not count, and predictions on pixels without a label (255) enlarge the unions.

    Original: huggingface/evaluate metrics/mean_iou/mean_iou.py:96, 210: mean_iou
    """

    name = "evaluate"
    summary = "As mmsegmentation: nan_to_num changes the scores of single classes, not their mean."
    measures = IOU_AND_ACCURACIES


class Cityscapes(SegmentationRule):
    """The class average of the benchmark's script; not its scores of categories and instances.

    Original: mcordts/cityscapesScripts evaluation/evalPixelLevelSemanticLabeling.py:228, 285
    """

    name = "cityscapes"
    summary = "As mmsegmentation: void pixels do not count, but a prediction of void is wrong."
    measures = IOU


class TorchMetrics(SegmentationRule):
    """The rule of ``MulticlassJaccardIndex(K, average="macro", ignore_index=255)``.

    Original: torchmetrics 1.9.0 functional/classification/jaccard.py:38: _jaccard_index_reduce
    """

    name = "torchmetrics"
    summary = "As mmsegmentation, without a score if a labelled pixel is predicted as no class."
    measures = IOU
    no_class = "refused"

    def finish(self, total: Floats) -> Floats:
        return np.array([np.nan]) if total[:, -1].any() else super().finish(total)


TINY = np.spacing(1)


class PyTorchEncoding(SegmentationRule):
    """The rule of ``SegmentationMetric``.

    Original: zhanghang1989/PyTorch-Encoding encoding/utils/metrics.py:35, 108
    """

    name = "pytorch_encoding"
    summary = "Averages IoU over all classes: those in neither ground truth nor prediction are 0."
    absent = "0"
    measures: ClassVar[Measures] = {
        "miou": lambda a: float((a.hits / (TINY + a.union)).mean()),
        "pixel_accuracy": lambda a: float(a.hits.sum() / (TINY + a.labelled.sum())),
    }


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

    Original: bowenc0221/boundary-iou-api boundary_iou/utils/boundary_utils.py: mask_to_boundary
    """

    name = "boundary_iou"
    summary = (
        "Averages the IoU of the pixels of each class within 2 % of the diagonal (at least one "
        "pixel) of its boundary or the border of the image."
    )
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

    def areas(self, total: Floats) -> Areas:
        return Areas(*total[:, -self.columns :].T)
