"""Predictions on disk: the file of each image, and its values."""

import filecmp
import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from dpt.data.formats import io, pictures
from dpt.data.loading import collate_eval
from dpt.files import DataError, files_below, plain_name
from dpt.metrics.protocols import PredictionKind
from dpt.predict.records import RECORDS_FILE, InputRecord, PredictionSettings
from dpt.segments import OBJECT_IDS
from dpt.types import Batch, HeadOutput, OutputSpec, Target

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
class Manifest:
    """What ``dpt predict`` wrote down about its files; empty for other folders."""

    coding: dict[Path, tuple[float, float]]
    """Scale and offset of PNG files: depth = value · scale + offset."""
    kind: PredictionKind | None  # of the depth
    sources: dict[Path, Path] | None
    """The image from which each file was predicted; None without records: any file counts."""
    classes: dict[str, tuple[str, ...]]  # names, by the folder of the PNG files; empty if unknown


def read_manifest(folder: Path) -> Manifest:
    """The records of ``dpt predict`` about the files that it wrote last for each image."""
    coding: dict[Path, tuple[float, float]] = {}
    sources: dict[Path, Path] = {}
    units: set[str] = set()
    for record in InputRecord.read_all(folder).values():
        files = [folder / name for name in record.files]
        sources |= dict.fromkeys(files, Path(record.source))
        with suppress(ValueError, KeyError, TypeError, OverflowError):  # no depth, or damaged
            depth = record.facts["depth"]
            code = float(depth["scale"]), float(depth["offset"])
            if not (code[0] > 0 and np.isfinite(code).all()):
                raise ValueError(f"scale and offset {code}")
            units.add(str(depth["unit"]))
            coding |= {file: code for file in files if file.suffix == ".png"}
    kind: PredictionKind | None = None
    if units:
        kind = "metric" if units <= {"m", "metres"} else "relative"
    classes: dict[str, tuple[str, ...]] = {}
    with suppress(ValueError, TypeError):  # none, or damaged
        settings = PredictionSettings.read(folder)
        named = dict(settings.classes) if settings else {}
        classes = {k: tuple(map(str, v)) for k, v in named.items() if isinstance(v, list)}
    has_records = (folder / RECORDS_FILE).is_file()
    return Manifest(coding, kind, sources if has_records else None, classes)


class PredictionFolder:
    """The file of each sample in a folder with predictions of one target.

    A file belongs to the sample whose name ends with the file's path in ``folder``, without
    suffixes: ``7.npy`` or ``val/b/7.npy`` to ``images/val/b/7.png``. Where several samples are
    called ``7``, their folders are needed too. A sample inside a larger file, ``nyu.mat#12``, has a
    file of that number: ``12.png``, ``0012.png``.

    ``names`` are those of the samples, usually the paths of their images; ``listed`` are the files
    that count, None for all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        target: Target,
        names: Sequence[str],
        listed: Collection[Path] | None = None,
    ) -> None:
        self.folder, self.names = folder, names
        files: dict[tuple[str, ...], list[Path]] = {}
        for path in files_below(folder, SUFFIXES[target]):
            if listed is None or path in listed:
                files.setdefault(_parts(path.relative_to(folder)), []).append(path)
        if not files:
            raise DataError(
                f"predictions={folder}: no file with a suffix of {' '.join(SUFFIXES[target])}"
            )
        samples = [_parts(PurePath(name)) for name in names]
        if len(set(samples)) < len(set(names)):
            raise DataError(
                f"predictions={folder}: images of this data differ only in the suffix or in zeros "
                "before a number, so that predictions cannot be told apart: rename them"
            )
        self.count = 1  # the fewest parts by which the samples differ
        while len({parts[-self.count :] for parts in samples}) < len(set(samples)):
            self.count += 1
        self.found = [
            [path for n in range(self.count, len(parts) + 1) for path in files.get(parts[-n:], ())]
            for parts in samples
        ]

    def __getitem__(self, index: int) -> Path:
        """The only file of a sample; DataError without one or with several."""
        found = self.found[index]
        if not found:
            name, missing = self.names[index], self.found.count([])
            raise DataError(
                f"{name}: no file {'/'.join(_parts(PurePath(name))[-self.count :])}.* in "
                f"{self.folder} ({missing} of {len(self.found)} images have none)"
            )
        if len(found) > 1:
            raise DataError(f"{found[0]} and {found[1]} are predictions of one image: remove one")
        return found[0]


def _parts(path: PurePath) -> tuple[str, ...]:
    """Folders and name, without suffixes; numbers, also of ``nyu.mat#0012``, without zeros.

    Names that differ only in the form of their letters in Unicode are one name.
    """
    number = re.search(r"#(\d+)$", path.name)
    stem = number[1] if number else path.stem
    if PurePath(stem).suffix.lower() in io.IMAGE_SUFFIXES:  # 7.jpg.npy
        stem = PurePath(stem).stem
    stem = str(int(stem)) if stem.isdecimal() else stem
    return tuple(plain_name(part) for part in (*path.parent.parts, stem))


def find_folders(
    folder: Path,
    targets: Sequence[Target],
    names: Sequence[str],
    listed: Collection[Path] | None = None,
) -> dict[Target, PredictionFolder]:
    """The folder of each target: sub-folders as ``dpt predict`` names them, or, for a data set with
    either depth or labels, the folder itself. ``listed`` are the files that count, None for all."""
    if not folder.is_dir():
        raise DataError(f"predictions={folder}: no such folder")
    dense = [t for t in FOLDERS if t in targets]
    if not dense:
        raise DataError("predictions=DIR scores depth maps and class masks: this data has neither")
    folders = {}
    used = {parent for file in listed or () for parent in file.parents}
    for target in dense:
        inside = [folder / name for name in FOLDERS[target] if (folder / name).is_dir()]
        if inside := [place for place in inside if listed is None or place in used]:
            folders[target] = PredictionFolder(inside[0], target=target, names=names, listed=listed)
    if folders:
        return folders
    if (folder / "instance_npy").is_dir():
        raise DataError(f"predictions={folder}: instances are scored with checkpoint= alone")
    if listed is not None:
        places = ", ".join(name for target in dense for name in FOLDERS[target])
        raise DataError(
            f"{folder / RECORDS_FILE}: names no file in {places}: predict again with --format npy"
        )
    maps = [target for target in dense if target != "objects"]
    if len(maps) > 1:
        raise DataError(
            f"predictions={folder}: this data has depth and labels: put predicted depth into "
            f"{folder / 'depth'} and class ids into {folder / 'labels'}"
        )
    if not maps:
        raise DataError(f"predictions={folder}: has no panoptic_npy, as dpt predict writes it")
    return {maps[0]: PredictionFolder(folder, target=maps[0], names=names)}


class Pairs:
    """Samples with their predictions from files.

    Args:
        scale: of the depth files, in metres for each unit; None if the files define it.
        kind: of the depth; None for the manifest's, or ``metric``. If the manifest states it,
            both must be None.
    """

    def __init__(
        self,
        dataset: Any,
        folder: Path,
        *,
        scale: float | None = None,
        kind: PredictionKind | None = None,
    ) -> None:
        self.dataset, self.scale = dataset, scale
        self.manifest = read_manifest(folder)
        names = [dataset.name(index) for index in range(len(dataset))]
        self.folders = find_folders(folder, dataset.info.targets, names, self.manifest.sources)
        for key, value in (("predictions_kind", kind), ("predictions_scale", scale)):
            if value is not None and self.manifest.kind and "depth" in self.folders:
                raise ValueError(
                    f"{key}={value}: {folder / RECORDS_FILE} states the unit: leave it out"
                )
        self.kind: PredictionKind = kind or self.manifest.kind or "metric"
        unit = "m" if self.kind == "metric" else "relative inverse depth"
        classes = self.manifest.classes.get("labels", ())
        declared: dict[Target, OutputSpec] = {
            "depth": OutputSpec("depth", "depth", unit=unit),
            "labels": OutputSpec(
                "segmentation",
                "logits",
                channels=len(classes) or dataset.info.num_classes,
                class_names=classes,
            ),
            "objects": OutputSpec(
                "panoptic",
                "masks",
                things=dataset.info.things,
                class_names=self.manifest.classes.get("panoptic", ()),
            ),
        }
        self.heads = {target: declared[target].name for target in self.folders}
        self.outputs = {name: declared[target] for target, name in self.heads.items()}

    def read(self, index: int) -> tuple[dict[str, HeadOutput], Batch]:
        """Returns predictions (1, H, W) by head, and labels as an evaluation batch."""
        sample = self.dataset[index]
        self.dataset.check(sample)
        sample["index"] = index
        arrays = {head: self._read(target, sample) for target, head in self.heads.items()}
        outputs = {
            head: HeadOutput(torch.from_numpy(values)[None]) for head, values in arrays.items()
        }
        return outputs, collate_eval([sample], targets=[*self.folders])

    def _read(self, target: Target, sample: Any) -> np.ndarray:
        if target not in sample:  # no label: nothing is scored
            dtype = np.float32 if target == "depth" else np.int64
            return np.zeros(sample["image"].shape[:2], dtype)
        path, truth = self.folders[target][sample["index"]], sample[target]
        image = Path(sample["name"])
        source = (self.manifest.sources or {}).get(path, image)
        photo = image if image.is_file() else source
        turn = pictures.exif_orientation(photo) if self.manifest.sources else 1
        if turn != 1 and self.dataset.exif != "apply":
            raise DataError(
                f"{photo}: has the EXIF orientation {turn}, by which dpt predict turned it: set "
                "data.exif=apply if the labels are upright too, or save the photo upright and "
                "predict it again"
            )
        differ = source != image and os.path.isfile(source) and image.is_file()
        if differ and not filecmp.cmp(source, image, shallow=False):
            raise DataError(f"{path}: was predicted from {source}, which is not {image}")
        if target == "depth":
            values = self._read_depth(path)
        elif target == "objects":
            values = io.read_objects(path)
            if values.min() < -1 or values.max() >= len(self.dataset.info.things) * OBJECT_IDS:
                raise DataError(
                    f"{path}: holds a class that the data lacks: codes are class · {OBJECT_IDS} + "
                    "number, or -1 for no segment"
                )
        else:
            values = io.read_labels(path, colors=self.dataset.info.palette).astype(np.int64)
        if values.shape != truth.shape:
            raise DataError(
                f"{path}: {values.shape[1]}x{values.shape[0]} pixels (width x height), but its "
                f"truth has {truth.shape[1]}x{truth.shape[0]}"
            )
        return values

    def _read_depth(self, path: Path) -> np.ndarray:
        raw = io.read_raw_depth(path)
        coded = self.manifest.coding.get(path, (None, 0.0))
        scale, offset = (self.scale, 0.0) if self.scale else coded
        if scale is None and raw.dtype.kind != "f" and self.kind == "metric":
            raise DataError(
                f"{path}: whole numbers without a unit: set predictions_scale=0.001 for "
                "millimetres or 0.00390625 for KITTI's 1/256 m"
            )
        values = raw.astype(np.float32) * np.float32(scale or 1.0) + np.float32(offset)
        if path in self.manifest.coding and self.manifest.kind == "metric":
            values[raw == 0] = np.nan  # metres that did not fit into 16 bits
        return values
