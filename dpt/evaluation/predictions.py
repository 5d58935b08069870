"""Predictions on disk: the file of each image, and its values."""

import filecmp
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import numpy as np
import torch
from pydantic import FiniteFloat

from dpt.data import Dataset
from dpt.data.formats import io, pictures
from dpt.data.loading import collate_eval
from dpt.files import DataError, files_below, plain_name
from dpt.predict.records import JOURNALS, RECORDS_FILE, InputRecord, PredictionSettings
from dpt.segments import OBJECT_IDS
from dpt.types.outputs import DEPTH_UNITS, DepthKind, HeadOutput, OutputSpec
from dpt.types.samples import Batch, Sample, Target
from dpt.validation import Positive, validate

DepthEncoding = Literal["disparity", "log"]
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
    """How ``dpt predict`` wrote depth into a PNG file: depth = value · scale + offset."""

    scale: Positive
    offset: FiniteFloat
    unit: str

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
        names: of the samples, usually the paths of their images.
        recorded: the files that count; None for all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: Target,
        names: Sequence[str],
        recorded: Mapping[Path, PredictedFile] | None = None,
    ) -> None:
        self.folder, self.names = folder, names
        files: dict[tuple[str, ...], list[PredictedFile]] = {}
        for path in files_below(folder, SUFFIXES[target]):
            file = PredictedFile(path) if recorded is None else recorded.get(path)
            if file is not None:
                files.setdefault(_components(path.relative_to(folder)), []).append(file)
        if not files:
            raise DataError(
                f"predictions={folder}: no file with a suffix of {' '.join(SUFFIXES[target])}"
            )
        samples = [_components(PurePath(name)) for name in names]
        if len(set(samples)) < len(set(names)):
            raise DataError(
                f"predictions={folder}: images of this data differ only in the suffix or in zeros "
                "before a number, so that predictions cannot be told apart: rename them"
            )
        self.count = 1  # the fewest components by which the samples differ
        while len({components[-self.count :] for components in samples}) < len(set(samples)):
            self.count += 1
        shared = len(os.path.commonprefix(samples))  # noqa: RUF071, of tuples
        self.files: list[list[PredictedFile]] = []
        for components in samples:
            # the path below the folder that all share is enough, such as 7 beside b/7
            fewest = max(1, min(self.count, len(components) - shared))
            lengths = range(fewest, len(components) + 1)
            self.files.append([f for n in lengths for f in files.get(components[-n:], ())])

    def __getitem__(self, index: int) -> PredictedFile:
        """Returns the only file of a sample; DataError without one or with several."""
        files = self.files[index]
        if not files:
            name, missing = self.names[index], self.files.count([])
            raise DataError(
                f"{name}: no file {'/'.join(_components(PurePath(name))[-self.count :])}.* in "
                f"{self.folder} ({missing} of {len(self.files)} images have none)"
            )
        if len(files) > 1:
            first, second = files[0].path, files[1].path
            raise DataError(f"{first} and {second} are predictions of one image: remove one")
        return files[0]


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
    recorded: Mapping[Path, PredictedFile] | None,
) -> dict[Target, PredictionFolder]:
    """Returns the folder of each target.

    These are sub-folders as ``dpt predict`` names them, or ``folder`` itself for a data set with
    either depth or labels.

    Args:
        names, recorded: as for :class:`PredictionFolder`.
    """
    if not folder.is_dir():
        raise DataError(f"predictions={folder}: no such folder")
    dense = [target for target in FOLDERS if target in targets]
    paths = {target: _folder_of(folder, target, recorded) for target in dense}
    folders = {
        target: PredictionFolder(path, target=target, names=names, recorded=recorded)
        for target, path in paths.items()
        if path is not None
    }
    maps = [target for target in dense if target != "objects"]
    if not folders and recorded is None and len(maps) == 1:
        folders[maps[0]] = PredictionFolder(folder, target=maps[0], names=names)
    if not folders:
        raise _missing_files(folder if recorded is None else folder / RECORDS_FILE, dense)
    return folders


def _missing_files(place: Path, dense: Sequence[Target]) -> DataError:
    """Returns the error for a place without predictions of any target."""
    names = [name for target in dense for name in FOLDERS[target]]
    return DataError(
        f"predictions={place}: no file in {', '.join(names) or 'a folder of maps'}, as predictions "
        "for this data need: put them there, or predict again with --format npy"
    )


def _folder_of(
    folder: Path, target: Target, recorded: Mapping[Path, PredictedFile] | None
) -> Path | None:
    """Returns the first sub-folder that holds predictions of a target; None without one."""
    paths = [folder / name for name in FOLDERS[target] if (folder / name).is_dir()]
    if recorded is not None:
        used = {parent for path in recorded for parent in path.parents}
        paths = [path for path in paths if path in used]
    return next(iter(paths), None)


class PredictedDataset:
    """Samples with their predictions from files.

    Args:
        scale: of the depth files, in metres for each unit; None if the files define it.
        kind: of the depth; None for that of the records, or ``metric``. If the records state it,
            both must be None.
        encoding: of metric depth, if the files hold no depth: ``disparity``, of which ``scale`` is
            focal length times baseline (pixels · metres): depth = scale / value; or ``log``:
            depth = scale · exp(value).

    Attributes:
        scale_to_change: ``scale``, 1 if there is none; None if the records state the unit.
    """

    def __init__(
        self,
        dataset: Dataset,
        folder: Path,
        *,
        scale: float | None = None,
        kind: DepthKind | None = None,
        encoding: DepthEncoding | None = None,
    ) -> None:
        self.dataset, self.scale, self.encoding = dataset, scale, encoding
        if encoding is not None and kind == "relative":
            raise ValueError(f"predictions_encoding={encoding}: is of metres, not predictions_kind")
        if encoding == "disparity" and scale is None:
            remedy = "set predictions_scale to focal length · baseline (pixels · metres)"
            raise ValueError(f"predictions_encoding=disparity: {remedy}")
        recorded = recorded_files(folder)
        names = [dataset.name(index) for index in range(len(dataset))]
        self.folders = find_folders(folder, dataset.info.targets, names, recorded)
        kinds: set[DepthKind] = {f.coding.kind for f in (recorded or {}).values() if f.coding}
        if "depth" in self.folders:
            given = {"kind": kind, "scale": scale, "encoding": encoding}
            _require_one_unit(folder / RECORDS_FILE, kinds, given)
        self.kind: DepthKind = next(iter(kinds), kind or "metric")
        self.scale_to_change = None if kinds else 1.0 if scale is None else scale
        declared = self._declared(PredictionSettings.read(folder))
        self.heads = {target: declared[target].name for target in self.folders}
        self.outputs = {name: declared[target] for target, name in self.heads.items()}

    def _declared(self, settings: PredictionSettings | None) -> dict[Target, OutputSpec]:
        """Returns what the files of each target hold."""
        class_names = settings.classes if settings else {}
        labels = tuple(class_names.get("labels", ()))
        dataset = self.dataset
        return {
            "depth": OutputSpec("depth", "depth", unit=DEPTH_UNITS[self.kind]),
            "labels": OutputSpec(
                "segmentation",
                "logits",
                channels=len(labels) or dataset.info.num_classes,
                class_names=labels,
            ),
            "objects": OutputSpec(
                "panoptic",
                "masks",
                things=dataset.info.things,
                class_names=tuple(class_names.get("panoptic", ())),
            ),
        }

    def read(self, index: int) -> tuple[dict[str, HeadOutput], Batch]:
        """Returns predictions (1, H, W) by head, and labels as an evaluation batch."""
        sample = self.dataset[index]
        self.dataset.check(sample)
        sample["index"] = index
        outputs = {}
        for target, head in self.heads.items():
            outputs[head] = HeadOutput(torch.from_numpy(self._read(target, sample))[None])
        return outputs, collate_eval([sample], targets=[*self.folders])

    def _read(self, target: Target, sample: Sample) -> np.ndarray:
        if target not in sample:  # no label: nothing is scored
            dtype = np.float32 if target == "depth" else np.int64
            return np.zeros(sample["image"].shape[:2], dtype)
        file = self.folders[target][sample["index"]]
        self._check_source(file, Path(sample["name"]))
        if target == "depth":
            values, size = self._read_depth(file), sample["depth"].shape
        elif target == "objects":
            values, size = self._read_objects(file), sample["objects"].shape
        else:
            palette = self.dataset.info.palette
            classes = self.dataset.info.num_classes
            values = io.read_classes(file.path, classes, colors=palette).astype(np.int64)
            size = sample["labels"].shape
        image_size = sample["image"].shape[:2]
        if values.shape != size and not (self.dataset.resize_labels and values.shape == image_size):
            raise DataError(
                f"{file.path}: {values.shape[1]}x{values.shape[0]} pixels (width x height), but "
                f"its ground truth has {size[1]}x{size[0]}: resize it as your project does"
            )
        if target == "depth" and values.shape == size:  # of the sky there is none
            values = np.where(sample["valid"] | np.isfinite(values), values, np.float32(0))
        return values

    def _check_source(self, file: PredictedFile, image: Path) -> None:
        """Raises DataError if the prediction is of another image, or of a turned one."""
        if file.source is None:
            return
        present = image if image.is_file() else file.source
        orientation = pictures.exif_orientation(present)
        if orientation != 1 and self.dataset.exif != "apply":
            raise DataError(
                f"{present}: has the EXIF orientation {orientation}, by which dpt predict turned "
                "it: set data.exif=apply if the labels are upright too, or save the image upright "
                "and predict it again"
            )
        has_both = file.source != image and os.path.isfile(file.source) and image.is_file()
        if has_both and not filecmp.cmp(file.source, image, shallow=False):
            raise DataError(f"{file.path}: was predicted from {file.source}, which is not {image}")

    def _read_objects(self, file: PredictedFile) -> np.ndarray:
        codes = io.read_objects(file.path)
        if codes.min() < -1 or codes.max() >= len(self.dataset.info.things) * OBJECT_IDS:
            raise DataError(
                f"{file.path}: holds a class that the data lacks: codes are class · {OBJECT_IDS} + "
                "number, or -1 for no segment"
            )
        return codes

    def _read_depth(self, file: PredictedFile) -> np.ndarray:
        raw = io.read_raw_depth(file.path)
        if self.encoding is not None:
            return self._decoded(raw.astype(np.float32))
        coding = file.coding if file.path.suffix == ".png" else None
        if self.scale is not None:
            coding = DepthCoding(self.scale, 0.0, "")
        if coding is None and raw.dtype.kind != "f" and self.kind == "metric":
            raise DataError(
                f"{file.path}: whole numbers without a unit: set predictions_scale=0.001 for "
                "millimetres or 0.00390625 for KITTI's 1/256 m"
            )
        values = raw.astype(np.float32)
        if coding is not None:
            values = values * np.float32(coding.scale) + np.float32(coding.offset)
            if coding.kind != "relative":
                values[raw == 0] = np.nan  # not finite, or metres that did not fit into 16 bits
        return values

    @np.errstate(divide="ignore", over="ignore")
    def _decoded(self, values: np.ndarray) -> np.ndarray:
        """Returns metres of disparities, NaN where they are not above 0, or of logarithms."""
        scale = np.float32(1 if self.scale is None else self.scale)
        if self.encoding == "log":
            return scale * np.exp(values)
        return np.where(values > 0, scale / values, np.float32(np.nan))


def _require_one_unit(
    records: Path, kinds: Collection[DepthKind], given: Mapping[str, object]
) -> None:
    """Raises ValueError if records state several units, or one that is ``given`` as well."""
    if len(kinds) > 1:
        raise DataError(
            f"{records}: holds depth of the kinds {' and '.join(sorted(kinds))}: predict again so "
            "that all images have one, as with cameras for all or none"
        )
    keys = [f"predictions_{key}" for key, value in given.items() if value is not None]
    if kinds and keys:
        raise ValueError(f"{', '.join(keys)}: {records} states the unit")
