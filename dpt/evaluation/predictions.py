"""Predictions on disk: the file of each image, its values, and whether they are plausible."""

import filecmp
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

import cv2
import numpy as np
import torch
from pydantic import FiniteFloat
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from torch import Tensor

from dpt.config.schema import EvaluateConfig
from dpt.data import Dataset
from dpt.data.formats import io, pictures, rules
from dpt.data.loading import collate_eval
from dpt.files import DataError, few, files_below, plain_name
from dpt.predict.records import JOURNALS, RECORDS_FILE, InputRecord, PredictionSettings
from dpt.segments import OBJECT_IDS
from dpt.types.outputs import DEPTH_UNITS, DepthKind, HeadOutput, HeadPrediction, OutputSpec
from dpt.types.samples import Batch, Sample, Target
from dpt.validation import Positive, validate

FOLDERS: dict[Target, tuple[str, ...]] = {
    "depth": ("depth_npy", "depth"),
    "labels": ("labels_npy", "labels"),
    "objects": ("panoptic_npy",),
}
"""Sub-folders with predictions of one target, by preference: exact values first."""
SUFFIXES: dict[Target, tuple[str, ...]] = {
    "depth": io.DEPTH_SUFFIXES,
    "labels": io.LABEL_SUFFIXES,
    "objects": (".npy",),
}


@dataclass(frozen=True)
class DepthCoding:
    """How ``dpt predict`` wrote depth into a PNG file: depth = value · scale + offset.

    ``beyond`` pixels, whose metres were too large, are 0 in the file.
    """

    scale: Positive
    offset: FiniteFloat
    unit: str
    beyond: int = 0

    @property
    def kind(self) -> DepthKind:
        if self.unit in ("m", "metres"):
            return "metric"
        return "up_to_scale" if self.unit == DEPTH_UNITS["up_to_scale"] else "relative"


@dataclass(frozen=True)
class PredictedFile:
    """A file of predictions, and what ``dpt predict`` wrote down about it."""

    path: Path
    source: Path | None = None
    """The image from which it was predicted; None if unknown."""
    coding: DepthCoding | None = None
    """How depth is coded in PNG files, also if this file has another suffix; None if unknown."""


def recorded_files(folder: Path) -> dict[Path, PredictedFile] | None:
    """Returns the files that ``dpt predict`` wrote last for each image; None without records."""
    if not (folder / RECORDS_FILE).is_file() and not (folder / JOURNALS).is_dir():
        return None
    files: dict[Path, PredictedFile] = {}
    for record in InputRecord.read_all(folder).values():
        coding: DepthCoding | None = None
        with suppress(ValueError):  # no depth, or damaged
            coding = validate(DepthCoding, record.facts.get("depth"), "depth")
        for path in (folder / name for name in record.files):
            files[path] = PredictedFile(path, Path(record.source), coding)
    return files


class PredictionFolder:
    """The file of each sample in a folder with predictions of one target.

    A file belongs to the sample whose name ends with the file's path in ``folder``, without
    suffixes: ``7.npy`` or ``val/b/7.npy`` to ``images/val/b/7.png``. Where several samples are
    called ``7``, their folders are needed too, below the one that all samples share. A sample
    inside a larger file, ``nyu.mat#12``, has a file of that number: ``12.png``, ``0012.png``.

    Args:
        files: those in ``folder``.
        names: of the samples, usually the paths of their images.
    """

    def __init__(self, folder: Path, files: Sequence[PredictedFile], names: Sequence[str]) -> None:
        self.folder, self.names = folder, names
        files_of: dict[tuple[str, ...], list[PredictedFile]] = {}
        for file in files:
            files_of.setdefault(_components(file.path.relative_to(folder)), []).append(file)
        samples = [_components(PurePath(name)) for name in names]
        if len(set(samples)) < len(set(names)):
            fault = "images of this data differ only in the suffix or in zeros before a number"
            raise DataError(f"predictions={folder}: {fault}: rename them")
        self.count = 1  # the fewest components by which the samples differ
        while len({components[-self.count :] for components in samples}) < len(set(samples)):
            self.count += 1
        shared = len(os.path.commonprefix(samples))  # noqa: RUF071, of tuples
        self.files: list[list[PredictedFile]] = []
        for components in samples:
            # the path below the folder that all share is enough, such as 7 beside b/7
            fewest = max(1, min(self.count, len(components) - shared))
            lengths = range(fewest, len(components) + 1)
            self.files.append([f for n in lengths for f in files_of.get(components[-n:], ())])

    def __getitem__(self, index: int) -> PredictedFile:
        """Returns the only file of a sample; DataError without one or with several."""
        files = self.files[index]
        if len(files) == 1:
            return files[0]
        if files:
            raise DataError(f"{files[0].path} and {files[1].path} are of one image: remove one")
        name, missing = self.names[index], self.files.count([])
        wanted = "/".join(_components(PurePath(name))[-self.count :])
        fault = f"no file {wanted}.* in {self.folder}"
        raise DataError(f"{name}: {fault} ({missing} of {len(self.files)} images have none)")


def _components(path: PurePath) -> tuple[str, ...]:
    """Returns folders and name, without suffixes; numbers, also of ``nyu.mat#0012``, without zeros.

    Names that differ only in the form of their letters in Unicode are one name.
    """
    number = re.search(r"#(\d+)$", path.name)
    stem = number[1] if number else path.stem
    if PurePath(stem).suffix.lower() in io.IMAGE_SUFFIXES:  # 7.jpg.npy
        stem = PurePath(stem).stem
    stem = str(int(stem)) if stem.isdecimal() else stem
    return tuple(plain_name(name) for name in (*path.parent.parts, stem))


def find_folders(
    folder: Path,
    targets: Sequence[Target],
    names: Sequence[str],
    recorded: Mapping[Path, PredictedFile] | None = None,
) -> dict[Target, PredictionFolder]:
    """Returns the folder of each target.

    These are sub-folders as ``dpt predict`` names them, or ``folder`` itself for a data set with
    either depth or labels.

    Args:
        names: as for :class:`PredictionFolder`.
        recorded: the files that count; None for all.
    """
    dense = [target for target in FOLDERS if target in targets]
    folders: dict[Target, PredictionFolder] = {}
    for target in dense:
        for name in reversed(FOLDERS[target]):  # the first one with files wins
            files = _files_in(folder / name, target, recorded)
            if files:
                folders[target] = PredictionFolder(folder / name, files, names)
    if not folders and recorded is None and len({*dense} - {"objects"}) == 1:
        files = _files_in(folder, dense[0], None)
        if files:
            folders[dense[0]] = PredictionFolder(folder, files, names)
    if not folders:
        allowed = ", ".join(name for target in dense for name in FOLDERS[target])
        source = folder if recorded is None else folder / RECORDS_FILE
        fault = f"no file in {allowed or 'a folder of maps'}, as this data needs"
        raise DataError(f"predictions={source}: {fault}: put them there, or predict again")
    return folders


def _files_in(
    folder: Path, target: Target, recorded: Mapping[Path, PredictedFile] | None
) -> list[PredictedFile]:
    """Returns the files of a folder that count; none if there is no such folder."""
    paths = files_below(folder, SUFFIXES[target]) if folder.is_dir() else []
    if recorded is None:
        return [PredictedFile(path) for path in paths]
    return [recorded[path] for path in paths if path in recorded]


class Predicted(ABC):
    """Samples with their predictions from files.

    Attributes:
        outputs: what the files hold, by head.
        kind: of the depth.
        scale_to_change: by which depth is multiplied, 1 if it is not; None if it cannot be changed.
    """

    kind: DepthKind = "metric"
    scale_to_change: float | None = None

    def __init__(self, dataset: Dataset, declared: Mapping[Target, OutputSpec]) -> None:
        self.dataset = dataset
        self.heads = {target: output.name for target, output in declared.items()}
        self.outputs = {output.name: output for output in declared.values()}

    def read(self, index: int) -> tuple[dict[str, HeadOutput], Batch]:
        """Returns predictions by head, and labels as an evaluation batch."""
        sample = self.dataset[index]
        self.dataset.check(sample)
        sample["index"] = index
        outputs = {
            h: HeadOutput(self.prediction(target, sample)) for target, h in self.heads.items()
        }
        return outputs, collate_eval([sample], targets=[*self.heads])

    @abstractmethod
    def prediction(self, target: Target, sample: Sample) -> HeadPrediction:
        """Returns the prediction of one target of a sample, (1, H, W) or objects."""


class PredictedDataset(Predicted):
    """Samples with one file of predictions for each target.

    Args:
        config: with ``predictions_scale`` of the depth files, in metres for each unit, if the files
            do not define it, and ``predictions_kind`` of the depth, if it is not ``metric``. If the
            records state the kind, both must be None.
    """

    def __init__(self, dataset: Dataset, folder: Path, config: EvaluateConfig) -> None:
        self.scale, kind = config.predictions_scale, config.predictions_kind
        recorded = recorded_files(folder)
        names = [dataset.name(index) for index in range(len(dataset))]
        self.folders = find_folders(folder, dataset.info.targets, names, recorded)
        kinds: set[DepthKind] = {f.coding.kind for f in (recorded or {}).values() if f.coding}
        given = {"predictions_kind": kind, "predictions_scale": self.scale}
        keys = [key for key, value in given.items() if value is not None]
        if "depth" in self.folders and kinds and len(kinds) + len(keys) > 1:
            fault = f"{folder / RECORDS_FILE} states the unit ({' and '.join(sorted(kinds))})"
            remedy = f"leave out {' and '.join(keys) or 'images of all units but one'}"
            raise DataError(f"{fault}: {remedy}")
        self.kind = next(iter(kinds), kind or "metric")
        if not kinds:
            self.scale_to_change = 1.0 if self.scale is None else self.scale
        declared = self._declared(dataset, PredictionSettings.read(folder))
        super().__init__(dataset, {target: declared[target] for target in self.folders})

    def _declared(
        self, dataset: Dataset, settings: PredictionSettings | None
    ) -> dict[Target, OutputSpec]:
        """Returns what the files of each target hold."""
        names_of = settings.classes if settings else {}
        labels, segments = (tuple(names_of.get(key, ())) for key in ("labels", "panoptic"))
        info, unit = dataset.info, DEPTH_UNITS[self.kind]
        count = len(labels) or info.num_classes
        return {
            "depth": OutputSpec("depth", "depth", unit=unit),
            "labels": OutputSpec("segmentation", "logits", channels=count, class_names=labels),
            "objects": OutputSpec("panoptic", "masks", things=info.things, class_names=segments),
        }

    def prediction(self, target: Target, sample: Sample) -> Tensor:
        if target not in sample:  # no label: nothing is scored
            dtype = torch.float32 if target == "depth" else torch.int64
            return torch.zeros(1, *sample["image"].shape[:2], dtype=dtype)
        file, info = self.folders[target][sample["index"]], self.dataset.info
        self._check_source(file, Path(sample["name"]))
        if target == "depth":
            values, size = self._read_depth(file), sample["depth"].shape
        elif target == "objects":
            values, size = self._read_objects(file), sample["objects"].shape
        else:
            values = io.read_classes(file.path, info.num_classes, colors=info.palette)
            values, size = values.astype(np.int64), sample["labels"].shape
        image_size = sample["image"].shape[:2]
        if values.shape != size and not (self.dataset.resize_labels and values.shape == image_size):
            fault = f"{values.shape[1]}x{values.shape[0]} pixels (width x height), but its ground"
            remedy = f"truth has {size[1]}x{size[0]}: resize it as your project does"
            raise DataError(f"{file.path}: {fault} {remedy}")
        if target == "depth" and values.shape == size:  # of the sky there is none
            values = np.where(sample["valid"] | np.isfinite(values), values, np.float32(0))
        return torch.from_numpy(values)[None]

    def _check_source(self, file: PredictedFile, image: Path) -> None:
        """Raises DataError if the prediction is of another image, or of a turned one."""
        if file.source is None:
            return
        present = image if image.is_file() else file.source
        if self.dataset.exif != "apply" and pictures.exif_orientation(present) != 1:
            fault = "dpt predict turned it by its EXIF orientation"
            remedy = "set data.exif=apply if labels are upright, or save it upright and predict it"
            raise DataError(f"{present}: {fault}: {remedy}")
        has_both = file.source != image and os.path.isfile(file.source) and image.is_file()
        if has_both and not filecmp.cmp(file.source, image, shallow=False):
            raise DataError(f"{file.path}: was predicted from {file.source}, which is not {image}")

    def _read_objects(self, file: PredictedFile) -> np.ndarray:
        codes = io.read_objects(file.path)
        if codes.min() < -1 or codes.max() >= len(self.dataset.info.things) * OBJECT_IDS:
            remedy = f"codes are class · {OBJECT_IDS} + number, or -1 for no segment"
            raise DataError(f"{file.path}: holds a class that the data lacks: {remedy}")
        return codes

    def _read_depth(self, file: PredictedFile) -> np.ndarray:
        raw = io.read_raw_depth(file.path)
        coding = file.coding if file.path.suffix == ".png" else None
        if self.scale is not None:
            coding = DepthCoding(self.scale, 0.0, "")
        if coding is None and raw.dtype.kind != "f" and self.kind == "metric":
            remedy = "set predictions_scale=0.001 for millimetres, 0.00390625 for KITTI's 1/256 m"
            raise DataError(f"{file.path}: whole numbers without a unit: {remedy}")
        values = raw.astype(np.float32)
        if coding is not None:
            values = values * np.float32(coding.scale) + np.float32(coding.offset)
            if coding.kind != "relative":
                values[raw == 0] = np.nan  # not finite, or metres that did not fit into 16 bits
        return values


# --- checks: ids of classes, and the kind and unit of depth ------------------------------------

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

    lowest_id = -1
    """Smaller ids are not compared."""
    codes_of_class = 1
    """A code divided by it is an id."""

    def __init__(self, class_names: Sequence[str], rule: rules.LabelRule | None = None) -> None:
        self.class_names = class_names
        file_ids = (rule and rule.ids_of_class) or ()
        self.class_of_file_id = {i: k for k, row in enumerate(file_ids) for i in row}
        self.counts = csr_array((MAX_ID + 2, len(class_names)), dtype=np.int64)
        self.regions: list[tuple[int, int, int, int]] = []
        """:func:`_regions` of prediction and labels, of the first images."""

    def add(self, prediction: Tensor, batch: Batch) -> None:
        """Adds an image.

        Args:
            prediction: integer (1, H, W).
            batch: its labels.
        """
        predicted, expected = prediction[0].numpy(), self.codes(batch).numpy()
        ids, labels = predicted // self.codes_of_class, expected // self.codes_of_class
        is_labelled = labels < len(self.class_names)
        if len(self.regions) < 20:
            labelled = np.where(is_labelled, expected, -1)
            self.regions.append(_regions(predicted) + _regions(labelled))
        is_compared = is_labelled & (ids >= self.lowest_id)
        positions = ids[is_compared].clip(-1, MAX_ID) + 1, labels[is_compared]
        self.counts += csr_array((np.ones_like(positions[0]), positions), shape=self.counts.shape)

    def codes(self, batch: Batch) -> Tensor:
        """Returns the labels of an image, int64 (H, W), as predictions are coded."""
        return batch["labels"][0].long()

    def remarks(self) -> list[str]:
        """Returns what is hardly meant; ValueError if no labelled pixel has the id of a class."""
        rows = np.flatnonzero(self.counts.sum(1))
        if not len(rows):
            return []
        ids, counts = (rows - 1).tolist(), self.counts[rows].toarray()
        largest = len(self.class_names) - 1
        remarks = []
        outside = [i for i in ids if not 0 <= i <= largest]
        if outside:
            fractions = dict(zip(ids, counts.sum(1) / counts.sum(), strict=True))
            shown = few([f"{i} ({fractions[i]:.2g})" for i in outside], 5)
            remarks.append(f"ids outside 0..{largest} (fraction of the pixels): {shown}")
        recalls = counts / counts.sum(0).clip(1)
        accuracy = recalls[np.equal.outer(ids, range(largest + 1))].sum() / counts.any(0).sum()
        likely = self._other_order(ids, recalls, accuracy)
        if likely:
            remarks.append(f"{likely} (the mean accuracy is {accuracy:.2g})")
        elif (len(ids) == 1 and largest) or not accuracy:
            shown = few([str(i) for i in ids], 5)
            remarks.append(f"all predicted ids are {shown}: the mean accuracy is {accuracy:.2g}")
        boxes, regions, true_boxes, true_regions = np.sum(self.regions, axis=0)
        if 2 * boxes > regions and 4 * true_boxes < true_regions:
            remarks.append("most predicted regions are rectangles, but not the labels: boxes?")
        if outside == ids:
            raise ValueError(f"no predicted id is a class: {'; '.join(remarks)}")
        return remarks

    def _other_order(self, ids: Sequence[int], recalls: np.ndarray, accuracy: float) -> str:
        """Returns which classes the ids mean if these are not the data's, or an empty string.

        Args:
            recalls: fraction of the pixels of each class that have each id, (N, K).
            accuracy: the mean accuracy of the ids as they are.
        """
        rows, columns = linear_sum_assignment(recalls, maximize=True)
        best = recalls[rows, columns]
        pairs = zip(rows[best > 0.6], columns[best > 0.6], strict=True)
        class_of_id = {ids[row]: int(k) for row, k in pairs}
        moved = {i: k for i, k in class_of_id.items() if i != k}
        names = dict(enumerate(self.class_names))
        is_sure = len(moved) > 1 or (moved.keys() - names.keys() and len(ids) > 1)
        if not is_sure or best.sum() / recalls.any(0).sum() < accuracy + 0.1:
            return ""
        shown = few([f"{names.get(i, i)} on {names[k]}" for i, k in moved.items()])
        if class_of_id.items() <= self.class_of_file_id.items():
            return f"predicted {shown}: ids of the label files?"
        offsets = {i - k for i, k in class_of_id.items()}
        cause = {(1,): "ids one too high", (-1,): "ids one too low"}.get((*offsets,))
        return f"predicted {shown}: {cause or 'classes in another order'}?"


class SegmentsCheck(LabelsCheck):
    """Counts predicted classes where there are segments, coded as :attr:`SegmentMap.codes`."""

    lowest_id = 0
    codes_of_class = OBJECT_IDS

    def codes(self, batch: Batch) -> Tensor:
        return super().codes(batch) * OBJECT_IDS + batch["objects"][0].clamp(min=0)


def _regions(codes: np.ndarray) -> tuple[int, int]:
    """Returns how many connected regions of one code are rectangles, and how many there are.

    Codes below 0, regions below 64 pixels and one that fills the image do not count.
    """
    present, pixels = np.unique(codes[codes >= 0], return_counts=True)
    masks = ((codes == code).astype(np.uint8) for code in present[pixels >= 64])  # one at a time
    stats = [cv2.connectedComponentsWithStats(mask)[2][1:] for mask in masks]
    _, _, width, height, area = np.concatenate([*stats, np.zeros((0, 5), int)]).T
    counts = (area >= 64) & (area < codes.size)
    return int((counts & (area == width * height)).sum()), int(counts.sum())


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
