"""SUN RGB-D (Song et al. 2015): 10335 frames of four depth cameras."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data import io
from dpt.data.base import DataError, data_root, few
from dpt.data.metres import DepthRule
from dpt.data.paired import PairedDataset, check_files
from dpt.data.pairing import Files
from dpt.data.splits import DEFAULT_FRACTIONS, share_out

_LISTS = "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat"


class SunRgbdDataset(PairedDataset):
    """Every folder below ``SUNRGBD/`` that holds ``image/`` and the depth folder is a frame.

    The official split (5285 for training, 5050 for testing) is read from the toolbox's
    ``allsplit.mat``; without the toolbox the frames are dealt out by ``fractions``.

    Args:
        root: the folder of ``SUNRGBD`` and ``SUNRGBDtoolbox``.
        split: ``train``; ``val`` or ``test`` for the official test frames.
        depth: ``depth`` for what the cameras measured, ``depth_bfx`` for the maps that the authors
            filled from several frames.
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
        super().__init__(files, split=split, depth=rule, cache=cache, cache_size=cache_size)


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
