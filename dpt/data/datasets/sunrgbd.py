"""SUN RGB-D (Song et al. 2015): 10335 frames of four depth cameras, 37 classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, share_out
from dpt.data.errors import DataError, few
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelRule

_LISTS = "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat"
_MASKS = "SUNRGBDtoolbox/Metadata/SUNRGBD2Dseg.mat"
_FRAMES = "SUNRGBDtoolbox/Metadata/SUNRGBDMeta.mat"


def unrotated(raw: np.ndarray) -> np.ndarray:
    """Millimetres from the files' values, whose bits are rotated left by three."""
    if raw.dtype != np.uint16:
        raise DataError(f"depth of SUN RGB-D has 16 bits, found {raw.dtype}: unpack it again")
    return (raw >> 3) | (raw << 13)


@dataclass(kw_only=True, eq=False)
class SunRgbdDataset(FileDataset):
    """Every folder below ``SUNRGBD/`` that holds ``image/`` and the depth folder is a frame.

    The official split (5285 for training, 5050 for testing) is read from the toolbox's
    ``allsplit.mat``; without the toolbox the frames are shared out by ``fractions``. The class
    masks of all frames are in its ``SUNRGBD2Dseg.mat``, in the order of ``SUNRGBDMeta.mat``; one is
    read at a time.

    Args:
        root: the folder of ``SUNRGBD`` and ``SUNRGBDtoolbox``.
        split: ``train``; ``val`` or ``test`` for the official test frames.
        depth: ``depth`` for the measured maps, ``depth_bfx`` for those that the authors filled.
        labels: also read 37 classes if the toolbox's ``Metadata`` exists.
        class_names: of the 37 classes, the toolbox's ``seg37list``.
        fractions: each split's share where there is no toolbox.
    """

    depth: Literal["depth", "depth_bfx"] = "depth"
    labels: bool = True
    class_names: Sequence[str] = ()
    max_depth: float | None = 10.0
    fractions: Mapping[str, float] | None = None

    depth_format = DepthRule(decode=unrotated)

    def make_label_rule(self) -> LabelRule | None:
        self.remedies = {"labels": f"unpack the toolbox's Metadata into {self.folder}"}
        if self.labels and all((self.folder / name).is_file() for name in (_MASKS, _FRAMES)):
            return LabelRule(class_names=self.class_names, label_map="1-37")
        return None

    def list_files(self) -> list[Files]:
        lists = self.folder / _LISTS
        if lists.is_file():
            names = _official_frames(lists, self.split)
        else:
            images = (self.folder / "SUNRGBD").rglob("image")
            frames = [path.parent for path in images if (path.parent / self.depth).is_dir()]
            if not frames:
                raise DataError(
                    f"{self.folder / 'SUNRGBD'}: no folder holds image/ and {self.depth}/: unpack "
                    "SUNRGBD.zip below data.root"
                )
            found = [path.relative_to(self.folder / "SUNRGBD").as_posix() for path in frames]
            names = share_out(found, split=self.split, fractions=self.fractions)
        if self.label_rule is not None:
            self._numbers = _frame_numbers(self.folder / _FRAMES, names)
        return [_frame(self.folder / "SUNRGBD" / name, self.depth) for name in names]

    def read_raw_labels(self, index: int) -> np.ndarray:
        masks = self.folder / _MASKS
        raw = io.read_mat(masks, "SUNRGBD2Dseg/seglabel", index=self._numbers[index])
        return raw.astype(np.uint16)


def _official_frames(path: Path, split: str) -> list[str]:
    """The frames' folders below ``SUNRGBD``, from the authors' absolute paths."""
    name = {"train": "alltrain", "val": "alltest", "test": "alltest"}.get(split)
    if name is None:
        raise DataError(f"split {split}: SUN RGB-D has train and test (also called val)")
    cells = io.read_mat(path, name).ravel()
    return [str(np.ravel(cell)[0]).partition("/SUNRGBD/")[2].strip("/") for cell in cells]


def _frame_numbers(path: Path, names: Sequence[str]) -> list[int]:
    """The index of each frame's mask: its place in the toolbox's table."""
    entries = io.read_mat(path, "SUNRGBDMeta").ravel()
    folders = [str(np.ravel(entry["sequenceName"])[0]) for entry in entries]
    numbers = {f.strip("/").removeprefix("SUNRGBD/"): i for i, f in enumerate(folders)}
    absent = [name for name in names if name not in numbers]
    if absent:
        raise DataError(
            f"{path}: does not list {len(absent)} of {len(names)} frames ({few(absent)}), so their "
            "masks cannot be found: download the toolbox again, or set data.labels=false"
        )
    return [numbers[name] for name in names]


def _frame(folder: Path, depth: str) -> Files:
    """The one photo and the one depth map of a frame's folder."""
    photos = [*(folder / "image").glob("*.jpg")]
    maps = [*(folder / depth).glob("*.png")]
    if len(photos) != 1 or len(maps) != 1:
        raise DataError(
            f"{folder}: holds {len(photos)} photos in image/ and {len(maps)} maps in {depth}/, "
            "must be one each: unpack SUNRGBD.zip again"
        )
    return Files(photos[0], depth=maps[0])
