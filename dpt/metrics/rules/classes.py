"""The base class of rules for segmentation, and what they share."""

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules.base import Rule
from dpt.metrics.rules.moments import Floats

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

    def finish(self, total: Floats) -> Floats:
        """Returns the scores (S,), in 0..1.

        Args:
            total: the confusion matrix (K, K + 1), and after it the columns of :meth:`sums`.
        """
        inside = total[:, :-1]
        areas = Areas(inside.diagonal(), total.sum(1), inside.sum(0))
        with np.errstate(all="ignore"):
            return np.array([measure(areas) for measure in self.measures.values()])
