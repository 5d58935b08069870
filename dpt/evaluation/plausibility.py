"""Checks of predictions from files: ids of classes, and the kind and unit of depth."""

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from dpt.data.formats.rules import LabelRule
from dpt.files import few
from dpt.types.samples import Batch

MAX_ID = 65536  # larger ids count as this one
UNITS = {  # how many of each are a metre
    "metres": 1,
    "millimetres": 1000,
    "centimetres": 100,
    "feet": 3.28,
    "1/5000 m, as TUM's": 5000,
    "1/256 m, as KITTI's": 256,
}
FACTOR = 2.5  # from ground truth to predictions: the unit is doubted beyond
CORRELATION = 0.3  # of the wrong sign: the kind of depth is doubted beyond


class LabelsCheck:
    """Counts predicted ids, from -1 on, at the labelled pixels of each class."""

    def __init__(self, num_classes: int, rule: LabelRule | None) -> None:
        self.num_classes = num_classes
        self.ids_of_class = (rule and rule.ids_of_class) or ()
        self.counts = csr_array((MAX_ID + 2, num_classes), dtype=np.int64)

    def add(self, prediction: Tensor, batch: Batch) -> None:
        """Adds an image.

        Args:
            prediction: integer (1, H, W).
            batch: its labels.
        """
        labels = batch["labels"][0].numpy()
        is_labelled = labels < self.num_classes
        rows = prediction[0].numpy()[is_labelled].clip(-1, MAX_ID) + 1
        positions = rows, labels[is_labelled]
        self.counts += csr_array((np.ones_like(rows), positions), shape=self.counts.shape)

    def remarks(self) -> list[str]:
        """Returns what is hardly meant; ValueError if no labelled pixel has the id of a class."""
        table = self.counts.tocoo()
        if not table.nnz:
            return []
        ids, labels = table.row - 1, table.col
        fractions = table.data / table.data.sum()
        fraction_of_id = np.bincount(table.row, fractions)
        largest = self.num_classes - 1
        step = 255 // max(1, largest)
        class_of_id = {i: k for k, row in enumerate(self.ids_of_class) for i in row}
        meanings = {  # the class that each id would mean
            "classes": ids,
            "one too high": ids - 1,
            "one too low": ids + 1,
            "those of the label files": np.array([class_of_id.get(i) for i in ids.tolist()]),
            f"multiplied by {step}": ids / step,
        }
        accuracies = {k: fractions[classes == labels].sum() for k, classes in meanings.items()}
        accuracy = accuracies["classes"]
        likely = max(accuracies, key=lambda name: accuracies[name])
        predicted = np.unique(ids).tolist()
        remarks = []
        outside = [i for i in predicted if not 0 <= i <= largest]
        if outside:
            shown = few([f"{i} ({fraction_of_id[i + 1]:.2g})" for i in outside], 5)
            remarks.append(f"ids outside 0..{largest} (fraction of the pixels): {shown}")
        if accuracies[likely] > max(2 * accuracy, accuracy + 0.1):
            gain = f"{accuracies[likely]:.2g} of the pixels would be right, not {accuracy:.2g}"
            remarks.append(f"ids are {likely}? {gain}")
        elif len(predicted) == 1 or not accuracy:
            shown = few([str(i) for i in predicted], 5)
            remarks.append(f"all predicted ids are {shown}; {accuracy:.2g} of the pixels are right")
        if outside == predicted:
            raise ValueError(f"no predicted id is a class: {'; '.join(remarks)}")
        return remarks


class DepthCheck:
    """Compares each predicted map with its ground truth, before any alignment.

    Args:
        is_inverse: whether the predictions are relative inverse depth.
        has_unit: whether predictions are scored in metres.
        scale: ``predictions_scale``, by which the values were multiplied; None if it cannot tell
            the unit.
    """

    def __init__(self, is_inverse: bool, has_unit: bool, scale: float | None = 1.0) -> None:
        self.is_inverse, self.has_unit, self.scale = is_inverse, has_unit, scale
        self.constant: list[str] = []  # names of images with one value in all pixels
        self.measures: list[tuple[float, float, float]] = []
        """Three numbers an image: the fraction of pixels not above 0, the median of prediction /
        depth, and the correlation of prediction and log depth."""

    @np.errstate(all="ignore")
    def add(self, prediction: Tensor, batch: Batch) -> None:
        """Adds an image.

        Args:
            prediction: float (1, H, W).
            batch: its labels.
        """
        is_compared = (batch["valid"][0] & prediction[0].isfinite()).numpy()
        values = prediction[0].numpy()[is_compared]
        depth = batch["depth"][0].numpy()[is_compared]
        if not len(values):
            return
        if np.ptp(prediction.numpy()) == 0:
            self.constant.append(batch["name"][0])
        varies = np.ptp(values) > 0 and np.ptp(depth) > 0
        correlation = np.corrcoef(values, np.log(depth))[0, 1] if varies else 0.0
        self.measures.append(((values <= 0).mean(), np.median(values / depth), correlation))

    def remarks(self) -> list[str]:
        """Returns what is hardly meant; ValueError if no pixel has a depth above 0."""
        if not self.measures:
            return []
        not_positive, ratios, correlations = np.transpose(self.measures)
        sign, other_kind = (1, "metric or up_to_scale") if self.is_inverse else (-1, "relative")
        remarks = []
        if self.constant:
            remarks.append(f"all pixels have one value in {few(self.constant)}")
        if sign * np.median(correlations) > CORRELATION:
            remarks.append(f"near and far are exchanged: set predictions_kind={other_kind}?")
        if not self.has_unit:
            return remarks
        if (not_positive == 1).all():
            raise ValueError("no predicted depth is above 0")
        if not_positive.any():
            fraction = f"{not_positive.mean():.2g} of the pixels"
            remarks.append(f"{fraction} are 0 or negative, which is no depth")
        ratio = float(np.median(ratios))
        if ratio > 0 and max(ratio, 1 / ratio) > FACTOR:
            fault = f"predictions are {ratio:.4g} times the ground truth (median)"
            remarks.append(f"{fault}: {self._likely_unit(ratio)} check data.depth_scale")
        return remarks

    def _likely_unit(self, ratio: float) -> str:
        """Returns which unit is likely for a median of prediction / depth, and what to set."""
        for name, size in UNITS.items():
            if self.scale is not None and 0.7 < size * self.scale / ratio < 1.4:
                return f"predictions in {name}? set predictions_scale={1 / size:.4g}, or"
            if 0.7 < size * ratio < 1.4:
                return f"ground truth in {name}?"
        return "another unit?"
