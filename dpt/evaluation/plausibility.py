"""Whether predictions from files mean what their scores assume: ids of classes, units of depth."""

import numpy as np
from scipy.sparse import csr_array
from torch import Tensor

from dpt.data.formats.labels import LabelRule
from dpt.files import few
from dpt.types import Batch

MAX_ID = 65536  # larger ids count as this one
UNITS = {1000.0: "millimetres", 100.0: "centimetres", 3.28: "feet", 5000.0: "1/5000 m, as TUM's",
         256.0: "1/256 m, as KITTI's"}  # fmt: skip
FACTOR = 2.5  # from truth to predictions: the unit is doubted beyond
CORRELATION = 0.3  # of the wrong sign: the kind of depth is doubted beyond


class LabelsCheck:
    """Counts predicted ids, from -1 on, at the labelled pixels of each class."""

    def __init__(self, num_classes: int, rule: LabelRule | None) -> None:
        self.num_classes = num_classes
        rows = (rule.ids_of_class if rule else None) or ()
        self.class_of_id = {value: k for k, values in enumerate(rows) for value in values}
        self.counts = csr_array((MAX_ID + 2, num_classes), dtype=np.int64)

    def add(self, prediction: Tensor, batch: Batch) -> None:
        """Args: prediction: integer (1, H, W); batch: of one image."""
        truth = batch["labels"][0].numpy()
        known = truth < self.num_classes
        rows = prediction[0].numpy()[known].clip(-1, MAX_ID) + 1
        ones = np.ones(len(rows), np.int64)
        self.counts += csr_array((ones, (rows, truth[known])), shape=self.counts.shape)

    def remarks(self) -> list[str]:
        """What is hardly meant; ValueError if no labelled pixel has the id of a class."""
        rows = np.flatnonzero(self.counts.sum(axis=1))
        ids, counts, largest = rows - 1, self.counts[rows].toarray(), self.num_classes - 1
        if not len(ids):
            return []
        total, outside = counts.sum(), (ids < 0) | (ids > largest)

        def right(classes: np.ndarray) -> float:
            """The fraction of right pixels if the ids mean these classes."""
            is_class = (classes >= 0) & (classes <= largest)
            return counts[is_class, classes[is_class]].sum() / total

        step = 255 // max(1, largest)
        of_files = np.array([self.class_of_id.get(i, -1) for i in ids.tolist()])
        meanings = {
            "one too high": ids - 1,
            "one too low": ids + 1,
            "those of the label files": of_files,
            f"multiplied by {step}": np.where(ids % step, -1, ids // step),
        }
        meaning = max(meanings, key=lambda name: right(meanings[name]))
        accuracy, other = right(ids), right(meanings[meaning])
        found = []
        if outside.any():
            fractions = counts[outside].sum(axis=1) / total
            shown = [f"{k} ({n:.2g})" for k, n in zip(ids[outside], fractions, strict=True)]
            found.append(f"ids outside 0..{largest} (fraction of the pixels): {few(shown, 5)}")
        if other > max(2 * accuracy, accuracy + 0.1):
            gain = f"{other:.2g} of the pixels would be right, not {accuracy:.2g}"
            found.append(f"ids are {meaning}? {gain}")
        elif len(ids) == 1 or not accuracy:
            every = few([str(k) for k in ids], 5)
            found.append(f"all predicted ids are {every}; {accuracy:.2g} of the pixels are right")
        if outside.all():
            raise ValueError(f"no predicted id is a class: {'; '.join(found)}")
        return found


class DepthCheck:
    """Compares each predicted map with its truth, before any alignment."""

    def __init__(self, *, is_relative: bool, has_unit: bool) -> None:
        self.is_relative, self.has_unit = is_relative, has_unit
        self.constant: list[str] = []  # names of images with one value in all pixels
        self.measures: list[tuple[float, float, float]] = []
        """Of each image: the fraction of pixels above 0, the median of prediction / truth, and the
        correlation of prediction and log truth."""

    @np.errstate(all="ignore")
    def add(self, prediction: Tensor, batch: Batch) -> None:
        """Args: prediction: float (1, H, W); batch: of one image."""
        known = (batch["valid"][0] & prediction[0].isfinite()).numpy()
        values, truth = prediction[0].numpy()[known], batch["depth"][0].numpy()[known]
        if not len(values):
            return
        if np.ptp(prediction.numpy()) == 0:
            self.constant.append(batch["name"][0])
        varies = np.ptp(values) > 0 and np.ptp(truth) > 0
        slope = np.corrcoef(values, np.log(truth))[0, 1] if varies else 0.0
        self.measures.append(((values > 0).mean(), np.median(values / truth), slope))

    def remarks(self) -> list[str]:
        """What is hardly meant; ValueError if no pixel has a depth above 0."""
        if not self.measures:
            return []
        positive, ratios, slopes = np.transpose(self.measures)
        found = []
        if self.constant:
            found.append(f"all pixels have one value in {few(self.constant)}")
        slope, kind = float(np.median(slopes)), "metric" if self.is_relative else "relative"
        if (slope if self.is_relative else -slope) > CORRELATION:
            found.append(f"near and far are exchanged: set predictions_kind={kind}?")
        if not self.has_unit:
            return found
        if not positive.any():
            raise ValueError("no predicted depth is above 0")
        if (fraction := 1 - float(positive.mean())) > 0:
            found.append(f"{fraction:.2g} of the pixels are 0 or negative, which is no depth")
        ratio = float(np.median(ratios))
        factor = max(ratio, 1 / ratio) if ratio > 0 else 1.0
        if factor > FACTOR:
            unit = min(UNITS, key=lambda unit: abs(np.log(unit / factor)))
            larger = "predictions" if ratio > 1 else "truth"
            likely = f"{larger} in {UNITS[unit]}?" if 0.7 < unit / factor < 1.4 else "another unit?"
            found.append(
                f"predictions are {ratio:.4g} times the truth (median): {likely} check "
                "predictions_scale and data.depth_scale"
            )
        return found
