"""SUN RGB-D (Song et al. 2015): 10335 frames of four depth cameras, 37 classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.base import DataError, check_sample, data_root, few, missing_path
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.datasets.splits import DEFAULT_FRACTIONS, share_out
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule
from dpt.data.formats.metres import DepthRule
from dpt.types import Sample

SUNRGBD_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf",
    "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror",
    "floor_mat", "clothes", "ceiling", "books", "fridge", "tv", "paper", "towel", "shower_curtain",
    "box", "whiteboard", "person", "night_stand", "toilet", "sink", "lamp", "bathtub", "bag",
)  # fmt: skip
"""The toolbox's ``seg37list``; ids in files are 1..37 in this order, 0 is unlabelled."""

_LISTS = "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat"
_MASKS = "SUNRGBDtoolbox/Metadata/SUNRGBD2Dseg.mat"
_FRAMES = "SUNRGBDtoolbox/Metadata/SUNRGBDMeta.mat"


class SunRgbdDataset(PairedDataset):
    """Every folder below ``SUNRGBD/`` that holds ``image/`` and the depth folder is a frame.

    The official split (5285 for training, 5050 for testing) is read from the toolbox's
    ``allsplit.mat``; without the toolbox the frames are dealt out by ``fractions``. The class masks
    of all frames lie in its ``SUNRGBD2Dseg.mat``, in the order of ``SUNRGBDMeta.mat``; one is read
    at a time, however large the file is.

    Args:
        root: the folder of ``SUNRGBD`` and ``SUNRGBDtoolbox``.
        split: ``train``; ``val`` or ``test`` for the official test frames.
        depth: ``depth`` for what the cameras measured, ``depth_bfx`` for the maps that the authors
            filled from several frames.
        labels: also read the 37 classes, which needs the toolbox's ``Metadata``. None: if it is
            there.
        max_depth: largest depth that counts as valid, in metres.
        min_depth: smallest depth that counts as valid, in metres.
        fractions: each split's share where there is no toolbox.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        depth: Literal["depth", "depth_bfx"] = "depth",
        labels: bool | None = None,
        max_depth: float = 10.0,
        min_depth: float = 1e-3,
        fractions: Mapping[str, float] | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        lists = self.root / _LISTS
        if lists.is_file():
            names = _official_frames(lists, split)
        else:
            found = _find_frames(self.root / "SUNRGBD", depth)
            names = share_out(found, split=split, fractions=fractions or DEFAULT_FRACTIONS)
        files = [_frame(self.root / "SUNRGBD" / name, depth) for name in names]
        check_files(files, source=lists if lists.is_file() else self.root, remedy="check data.root")
        rule = DepthRule(encoding="sunrgbd", min_depth=min_depth, max_depth=max_depth)
        self._masks, numbers = self.root / _MASKS, self.root / _FRAMES
        self.remedies = {"labels": f"unpack the toolbox's Metadata into {self.root}"}
        if labels is None:
            labels = self._masks.is_file() and numbers.is_file()
        for path in (self._masks, numbers) if labels else ():
            if not path.is_file():
                remedy = "unpack SUNRGBDtoolbox.zip below data.root, or set data.labels=false"
                raise missing_path(path, what="file", remedy=remedy)
        self._numbers = _frame_numbers(numbers, names) if labels else []
        super().__init__(
            files,
            split=split,
            depth=rule,
            labels=LabelRule(class_names=SUNRGBD_CLASSES, label_map="1-37") if labels else None,
            cache=cache,
            cache_size=cache_size,
        )

    def _read(self, index: int) -> Sample:
        sample = super()._read(index)
        if self.label_rule is not None:
            raw = io.read_array(self._masks, "SUNRGBD2Dseg/seglabel", index=self._numbers[index])
            sample["labels"] = self.label_rule(raw.astype(np.uint16), source=self._masks)
            check_sample(sample, files={"labels": self._masks})
        return sample


def _official_frames(path: Path, split: str) -> list[str]:
    """The frames' folders below ``SUNRGBD``; the file has them by the authors' own paths."""
    name = {"train": "alltrain", "val": "alltest", "test": "alltest"}.get(split)
    if name is None:
        raise DataError(f"split {split}: SUN RGB-D has train and test (also called val)")
    cells = io.read_array(path, name).ravel()
    folders = [str(np.ravel(cell)[0]).partition("/SUNRGBD/")[2].strip("/") for cell in cells]
    wrong = [str(cell) for cell, f in zip(cells, folders, strict=True) if not f or ".." in f]
    if wrong:
        raise DataError(
            f"{path}: {name} must list folders below /SUNRGBD/, found {few(wrong)}: "
            "download the toolbox again"
        )
    return folders


def _frame_numbers(path: Path, names: Sequence[str]) -> list[int]:
    """Where each frame's mask is: the toolbox numbers frames by their place in its table."""
    entries = io.read_array(path, "SUNRGBDMeta").ravel()
    folders = [str(np.ravel(entry["sequenceName"])[0]) for entry in entries]
    numbers = {f.strip("/").removeprefix("SUNRGBD/"): i for i, f in enumerate(folders)}
    absent = [name for name in names if name not in numbers]
    if absent:
        raise DataError(
            f"{path}: does not list {len(absent)} of {len(names)} frames ({few(absent)}), whose "
            "masks are thus unknown: download the toolbox again, or set data.labels=false"
        )
    return [numbers[name] for name in names]


def _find_frames(folder: Path, depth: str) -> list[str]:
    found = []
    for parent, folders, _ in os.walk(folder):
        if "image" in folders and depth in folders:
            found.append(Path(parent).relative_to(folder).as_posix())
            folders.clear()  # frames hold no frames
    if not found:
        raise DataError(
            f"{folder}: no folder holds image/ and {depth}/: unpack SUNRGBD.zip below data.root"
        )
    return sorted(found)


def _frame(folder: Path, depth: str) -> Files:
    """The one photo and the one depth map of a frame's folder."""
    photos, maps = (sorted((folder / name).glob(f"*{suffix}"))
                    for name, suffix in (("image", ".jpg"), (depth, ".png")))  # fmt: skip
    if len(photos) != 1 or len(maps) != 1:
        raise DataError(
            f"{folder}: holds {len(photos)} photos in image/ and {len(maps)} maps in {depth}/, "
            "must be one each: unpack SUNRGBD.zip again"
        )
    return Files(photos[0], None, maps[0])
