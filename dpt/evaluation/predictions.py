"""Predictions on disk: the file of each image, and its values."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
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


def read_manifest(folder: Path) -> tuple[dict[Path, tuple[float, float]], PredictionKind | None]:
    """The notes of ``dpt predict`` on the files it wrote; nothing for other folders.

    Returns:
        Scale and offset of PNG files (depth = value · scale + offset), and the kind of the depth
        if all files have one.
    """
    coding: dict[Path, tuple[float, float]] = {}
    units: set[str] = set()
    path = folder / "predictions.jsonl"
    for line in io.read_text(path).splitlines() if path.is_file() else ():
        try:
            record = parse_json(line, path)
            depth, files = record.get("depth"), [folder / name for name in record["files"]]
        except (ValueError, KeyError, AttributeError):
            continue  # cut short by a crash
        if depth:
            units.add(depth["unit"])
            coding |= {f: (depth["scale"], depth["offset"]) for f in files if f.suffix == ".png"}
    if not units:
        return coding, None
    return coding, "metric" if units <= {"m", "metres"} else "relative"


class PredictionFolder:
    """The files of a folder with predictions of one target, by the stem of their names.

    Args:
        folder: predictions=DIR, or one of its sub-folders in ``FOLDERS``.
        target: ``depth`` or ``labels``.
    """

    def __init__(self, folder: Path, *, target: Target) -> None:
        self.folder = folder
        self.by_stem: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in SUFFIXES[target] and not hidden:
                self.by_stem.setdefault(path.stem, []).append(path)
        if not self.by_stem:
            raise DataError(
                f"predictions={folder}: no file with a suffix of {' '.join(SUFFIXES[target])}"
            )

    def find(self, name: str) -> Path:
        """The file of the sample called ``name``, usually its image's path.

        Of several with its stem, the one with most parent folders in common. A sample inside a
        larger file, ``nyu.mat#12``, has a file of that number: ``12.png``, ``0012.png``.
        """
        sample = Path(name)
        if number := re.search(r"#(\d+)$", name):
            sample = sample.parent / number[1]
            numbers = {int(s): p for s, p in self.by_stem.items() if s.isdigit()}
            found = numbers.get(int(number[1]), [])
        else:
            found = self.by_stem.get(sample.stem) or self.by_stem.get(sample.name) or []
        if not found:
            raise DataError(f"{name}: no file {sample.stem}.* in {self.folder}")

        def common_parents(path: Path) -> int:
            pairs = zip(reversed(path.parent.parts), reversed(sample.parent.parts), strict=False)
            return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

        best, *others = sorted(found, key=common_parents, reverse=True)
        if others and common_parents(others[0]) == common_parents(best):
            raise DataError(f"{name}: {best} and {others[0]} both have its name")
        return best


def find_folders(folder: Path, targets: tuple[Target, ...]) -> dict[Target, PredictionFolder]:
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
            found[target] = PredictionFolder(inside[0], target=target)
    if not found and len(dense) > 1:
        raise DataError(
            f"predictions={folder}: this data has depth and labels: put predicted depth into "
            f"{folder / 'depth'} and class ids into {folder / 'labels'}"
        )
    return found or {dense[0]: PredictionFolder(folder, target=dense[0])}


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
        self.folders = find_folders(folder, dataset.info.targets)
        self.coding, found = read_manifest(folder)
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
        path, truth = self.folders[target].find(sample["name"]), sample[target]
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
