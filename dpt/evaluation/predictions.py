"""Predictions that lie on disk, anyone's: which file belongs to which image, and what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dpt.data.base import check_sample
from dpt.data.errors import DataError
from dpt.data.formats import io
from dpt.data.loading import collate_eval
from dpt.metrics.protocols import KB_SIZE, kb_box
from dpt.types import Batch, Sample, Target

FOLDERS: dict[Target, tuple[str, ...]] = {
    "depth": ("depth_npy", "depth", "depth_exr"),
    "labels": ("labels_npy", "labels"),
}
"""Sub-folders in which predictions of one kind are looked for first, the exact ones in front."""
HEADS: dict[Target, str] = {"depth": "depth", "labels": "segmentation"}
SUFFIXES: dict[Target, tuple[str, ...]] = {"depth": io.DEPTH_SUFFIXES, "labels": io.LABEL_SUFFIXES}
TOLD = 3
"""Faults that are named."""


@dataclass(frozen=True, kw_only=True)
class DepthCoding:
    """What the numbers of a depth file mean: depth = value · scale + offset, in ``kind``'s unit."""

    scale: float
    offset: float = 0.0


class Manifest:
    """What ``dpt predict`` noted about the files it wrote; empty for anybody else's folder."""

    def __init__(self, folder: Path) -> None:
        self.codings: dict[Path, DepthCoding] = {}
        self.units: set[str] = set()
        journal = folder / "predictions.jsonl"
        if not journal.is_file():
            return
        for line in io.read_text(journal).splitlines():
            try:
                record = json.loads(line)
                depth = record.get("depth")
                files = [folder / name for name in record["files"]]
            except (ValueError, KeyError, AttributeError):
                continue  # cut short by a crash
            if depth:
                self.units.add(depth["unit"])
                coding = DepthCoding(scale=depth["scale"], offset=depth["offset"])
                self.codings |= {file: coding for file in files if file.suffix == ".png"}

    @property
    def kind(self) -> str | None:
        """``metric`` or ``relative``, if all files say the same."""
        if not self.units:
            return None
        return "metric" if self.units == {"metres"} else "relative"


class PredictionFolder:
    """The files of a folder that predict one kind of target, by the stem of their names.

    Args:
        folder: DIR itself, or one of its sub-folders of ``FOLDERS``.
        target: ``depth`` or ``labels``.
    """

    def __init__(self, folder: Path, *, target: Target) -> None:
        self.folder, self.target = folder, target
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
        """The file for the sample called ``name``, usually its image's path.

        Of several with its stem, the one that shares most folders with it. A sample inside a
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
        common = [_common_end(path.parent, sample.parent) for path in found]
        best = [p for p, c in zip(found, common, strict=True) if c == max(common)]
        if len(best) > 1:
            raise DataError(f"{name}: {best[0]} and {best[1]} both have its name")
        return best[0]


def _common_end(a: Path, b: Path) -> int:
    count = 0
    for x, y in zip(reversed(a.parts), reversed(b.parts), strict=False):
        if x != y:
            break
        count += 1
    return count


def find_folders(folder: Path, targets: tuple[Target, ...]) -> dict[Target, PredictionFolder]:
    """Where predictions of each target lie: sub-folders as ``dpt predict`` names them, or, for a
    data set with one kind of label, the folder itself."""
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
    """Samples and what was predicted for them, in place of a model.

    Args:
        dataset: raw samples.
        folders: by target.
        manifest: of ``dpt predict``.
        scale: of the depth files, in metres a unit; None where they say it themselves.
        kind: of the depth, ``metric`` or ``relative``.
        kb_crop: take depth maps of the KITTI benchmark's crop for whole ones.
    """

    def __init__(
        self,
        dataset: Any,
        folders: Mapping[Target, PredictionFolder],
        *,
        manifest: Manifest,
        scale: float | None,
        kind: str,
        kb_crop: bool,
    ) -> None:
        self.dataset, self.folders = dataset, folders
        self.manifest, self.scale, self.kind, self.kb_crop = manifest, scale, kind, kb_crop

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Sample, dict[str, np.ndarray], str]:
        """A sample, its predictions by head, and what is wrong with them."""
        sample = self.dataset[index]
        check_sample(sample)
        sample["index"] = index
        predictions = {}
        try:
            for target, folder in self.folders.items():
                predictions[HEADS[target]] = self._read(target, folder, sample)
        except DataError as error:
            return sample, {}, str(error)
        return sample, predictions, ""

    def _read(self, target: Target, folder: PredictionFolder, sample: Any) -> np.ndarray:
        if target not in sample:  # a picture without this kind of label: nothing will be scored
            shape = sample["image"].shape[:2]
            return np.zeros(shape, np.float32 if target == "depth" else np.uint8)
        path, truth = folder.find(sample["name"]), sample[target]
        if target == "depth":
            values = self._read_depth(path)
            if self.kb_crop and values.shape == KB_SIZE != truth.shape:
                values = _pasted(values, truth.shape)
        else:
            values = io.read_labels(path, colors=self.dataset.info.palette)
        if values.shape != truth.shape:
            raise DataError(
                f"{path}: {values.shape[1]}x{values.shape[0]} pixels (width x height), but its "
                f"truth has {truth.shape[1]}x{truth.shape[0]}"
            )
        return values

    def _read_depth(self, path: Path) -> np.ndarray:
        raw = io.read_raw_depth(path)
        coding = self.manifest.codings.get(path)
        if self.scale is not None:
            coding = DepthCoding(scale=self.scale)
        elif coding is None:
            if raw.dtype.kind != "f" and self.kind == "metric":
                raise DataError(
                    f"{path}: whole numbers: say how many metres one is, as "
                    "predictions_scale=0.001 for millimetres or 0.00390625 for KITTI's 1/256 m"
                )
            coding = DepthCoding(scale=1.0)
        return raw.astype(np.float32) * np.float32(coding.scale) + np.float32(coding.offset)


def _pasted(values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """A map of the KITTI benchmark's crop where it was cut from; what is around does not count."""
    top, bottom, left, right = kb_box(*shape)
    whole = np.zeros(shape, values.dtype)
    whole[top:bottom, left:right] = values
    return whole


def scored_pairs(
    pairs: Pairs, *, num_workers: int
) -> Iterator[tuple[dict[str, torch.Tensor], Batch]]:
    """Predictions, batch axis in front, and labels of each image, as a model and a loader give.

    Raises:
        DataError: files are missing or do not fit; the first few are named.
    """
    loader = DataLoader(pairs, batch_size=None, num_workers=num_workers, collate_fn=_as_it_is)
    faults: list[str] = []
    for sample, predictions, fault in loader:
        if fault:
            faults.append(fault)
            if len(faults) > TOLD:
                break
        elif not faults:
            outputs = {k: torch.from_numpy(_plain(v))[None] for k, v in predictions.items()}
            yield outputs, collate_eval([sample], targets=[*pairs.folders])
    if faults:
        more = "; and more" if len(faults) > TOLD else ""
        raise DataError("predictions that cannot be scored: " + "; ".join(faults[:TOLD]) + more)


def _plain(values: np.ndarray) -> np.ndarray:
    """Of a type that torch knows (no 16-bit and 32-bit ids)."""
    if values.dtype.kind == "u" and values.dtype != np.uint8:
        return values.astype(np.int64)
    return np.ascontiguousarray(values)


def _as_it_is(sample: Any) -> Any:
    return sample
