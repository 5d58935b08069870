"""Predictions on disk: the file of each image, and its values."""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from dpt.data.base import check_sample
from dpt.data.errors import DataError
from dpt.data.formats import io
from dpt.data.loading import collate_eval
from dpt.files import parse_json
from dpt.metrics.protocols import PredictionKind
from dpt.types import Batch, OutputSpec, Target

FOLDERS: dict[Target, tuple[str, ...]] = {
    "depth": ("depth_npy", "depth"),
    "labels": ("labels_npy", "labels"),
}
"""Sub-folders with predictions of one target, by preference: exact values first."""
HEADS: dict[Target, str] = {"depth": "depth", "labels": "segmentation"}
SUFFIXES: dict[Target, tuple[str, ...]] = {"depth": io.DEPTH_SUFFIXES, "labels": io.LABEL_SUFFIXES}


def read_manifest(
    folder: Path,
) -> tuple[dict[Path, tuple[float, float]], PredictionKind | None, dict[Path, Path]]:
    """The notes of ``dpt predict`` on the files it wrote; nothing for other folders.

    Returns:
        Scale and offset of PNG files (depth = value · scale + offset), the kind of the depth if
        all files have one, and the image that each file was predicted from.
    """
    coding: dict[Path, tuple[float, float]] = {}
    sources: dict[Path, Path] = {}
    units: set[str] = set()
    path = folder / "predictions.jsonl"
    for line in io.read_text(path).splitlines() if path.is_file() else ():
        try:
            record = parse_json(line, path)
            depth, files = record.get("depth"), [folder / name for name in record["files"]]
            sources |= dict.fromkeys(files, Path(record.get("source", "")))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # cut short by a crash
        if depth:
            units.add(depth["unit"])
            coding |= {f: (depth["scale"], depth["offset"]) for f in files if f.suffix == ".png"}
    if not units:
        return coding, None, sources
    return coding, "metric" if units <= {"m", "metres"} else "relative", sources


class PredictionFolder:
    """The file of each sample in a folder with predictions of one target.

    A sample is known by the path of its image relative to the folder that holds all images of the
    split: ``frankfurt/7.png``. Its file has this whole path, with any suffix: ``frankfurt/7.npy``;
    or, with more folders of the image's path in front, ``val/frankfurt/7.npy``, if the predictions
    are of several splits. The same number of folders is in front of all. A sample inside a larger
    file, ``nyu.mat#12``, has a file of that number: ``12.png``, ``0012.png``.

    Args:
        folder: predictions=DIR, or one of its sub-folders in ``FOLDERS``.
        target: ``depth`` or ``labels``.
        names: of the samples, usually the paths of their images.

    Raises:
        DataError: no sample has a file, or some have two.
    """

    def __init__(self, folder: Path, *, target: Target, names: Sequence[str]) -> None:
        self.folder = folder
        files: dict[PurePath, list[Path]] = {}
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder).with_suffix("")
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in SUFFIXES[target] and not hidden:
                files.setdefault(place, []).append(path)
                if place.name.isdecimal():  # of nyu.mat#12
                    files.setdefault(place.with_name(f"#{int(place.name)}"), []).append(path)
        if not files:
            raise DataError(
                f"predictions={folder}: no file with a suffix of {' '.join(SUFFIXES[target])}"
            )
        self.names = list(names)
        root = PurePath(os.path.commonpath([PurePath(name).parent for name in names]))
        own = [_path_of(PurePath(name).relative_to(root)) for name in names]
        fronts = [PurePath(*root.parts[k:]) for k in range(len(root.parts), -1, -1)]
        found = {front: [_files_of(files, front / path) for path in own] for front in fronts}
        ranked = sorted(fronts, key=lambda f: sum(map(bool, found[f])), reverse=True)
        counts = [sum(map(bool, found[front])) for front in ranked]
        self.paths, self.expected = found[ranked[0]], [ranked[0] / path for path in own]
        if not counts[0]:
            forms = " or ".join(_shown(front / own[0]) for front in fronts[:2])
            raise DataError(
                f"predictions={folder}: no file has the name of an image of this split: "
                f"{self.names[0]} would have {forms}"
            )
        twice = next((paths for paths in self.paths if len(paths) > 1), None)
        if twice is None and len(counts) > 1 and counts[0] == counts[1]:
            k = next(i for i, paths in enumerate(self.paths) if paths)
            twice = [*self.paths[k], *(p for paths in found[ranked[1]] for p in paths)]
        if twice is not None:
            raise DataError(f"{twice[0]} and {twice[1]} are predictions of one image: remove one")

    def __getitem__(self, index: int) -> Path:
        if not self.paths[index]:
            missing = sum(not paths for paths in self.paths)
            raise DataError(
                f"{self.names[index]}: no file {_shown(self.expected[index])} in {self.folder} "
                f"({missing} of {len(self.paths)} images have none)"
            )
        return self.paths[index][0]


def _path_of(name: PurePath) -> PurePath:
    """``nyu.mat#0012`` as ``#12``; other names as they are."""
    number = re.search(r"#(\d+)$", name.name)
    return name.with_name(f"#{int(number[1])}") if number else name


def _shown(path: PurePath) -> str:
    return str(path.with_suffix(".*")).replace("#", "")


def _files_of(files: Mapping[PurePath, list[Path]], place: PurePath) -> list[Path]:
    # dpt predict keeps the suffix of images that differ in nothing else
    return files.get(place.with_suffix("")) or files.get(place) or []


def find_folders(
    folder: Path, targets: Sequence[Target], names: Sequence[str]
) -> dict[Target, PredictionFolder]:
    """The folder of each target: sub-folders as ``dpt predict`` names them, or, for a data set with
    one kind of label, the folder itself."""
    if not folder.is_dir():
        raise DataError(f"predictions={folder}: no such folder")
    dense = [t for t in FOLDERS if t in targets]
    if not dense:
        raise DataError(
            "predictions=DIR scores depth maps and class masks, and this data has neither"
        )
    found = {}
    for target in dense:
        inside = [folder / name for name in FOLDERS[target] if (folder / name).is_dir()]
        if inside:
            found[target] = PredictionFolder(inside[0], target=target, names=names)
    if not found and len(dense) > 1:
        raise DataError(
            f"predictions={folder}: this data has depth and labels: put predicted depth into "
            f"{folder / 'depth'} and class ids into {folder / 'labels'}"
        )
    return found or {dense[0]: PredictionFolder(folder, target=dense[0], names=names)}


class Pairs(Dataset):
    """Samples with their predictions from files.

    Args:
        dataset: raw samples.
        folder: of the predictions.
        scale: of the depth files, in metres for each unit; None if the files define it.
        kind: of the depth; None for the manifest's, or ``metric``.
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
        self.coding, found, self.sources = read_manifest(folder)
        names = [dataset.name(index) for index in range(len(dataset))]
        self.folders = find_folders(folder, dataset.info.targets, names)
        self.kind: PredictionKind = kind or found or "metric"

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """Declarations of the predictions, by head."""
        unit = "m" if self.kind == "metric" else "relative inverse depth"
        classes = self.dataset.info.num_classes
        declared: dict[Target, OutputSpec] = {
            "depth": OutputSpec("depth", "depth", unit=unit),
            "labels": OutputSpec("segmentation", "logits", channels=classes),
        }
        return {HEADS[target]: declared[target] for target in self.folders}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], Batch]:
        """Predictions (1, H, W) by head, and labels as an evaluation batch.

        Raises:
            DataError: a file is missing or does not fit.
        """
        sample = self.dataset[index]
        check_sample(sample)
        sample["index"] = index
        arrays = {HEADS[target]: self._read(target, sample) for target in self.folders}
        outputs = {head: torch.from_numpy(values)[None] for head, values in arrays.items()}
        return outputs, collate_eval([sample], targets=[*self.folders])

    def _read(self, target: Target, sample: Any) -> np.ndarray:
        if target not in sample:  # no label: nothing is scored
            dtype = np.float32 if target == "depth" else np.int64
            return np.zeros(sample["image"].shape[:2], dtype)
        path, truth = self.folders[target][sample["index"]], sample[target]
        source, image = self.sources.get(path, Path()), Path(sample["name"])
        if source.is_file() and image.is_file() and not filecmp.cmp(source, image, shallow=False):
            raise DataError(f"{path}: was predicted from {source}, which is not {image}")
        if target == "depth":
            values = self._read_depth(path)
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
        scale, offset = (self.scale, 0.0) if self.scale else self.coding.get(path, (None, 0.0))
        if scale is None and raw.dtype.kind != "f" and self.kind == "metric":
            raise DataError(
                f"{path}: whole numbers without a unit: set predictions_scale=0.001 for "
                "millimetres or 0.00390625 for KITTI's 1/256 m"
            )
        return raw.astype(np.float32) * np.float32(scale or 1.0) + np.float32(offset)
