"""SUN RGB-D (Song et al. 2015): 10335 frames of four depth cameras, 37 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, RawMaps, official_split
from dpt.data.formats import arrays
from dpt.data.formats.cameras import CameraFile
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.files import DataError, decoding, few, path_below, required_file
from dpt.plugins import register

_LISTS = "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat"
_MASKS = "SUNRGBDtoolbox/Metadata/SUNRGBD2Dseg.mat"
_FRAMES = "SUNRGBDtoolbox/Metadata/SUNRGBDMeta.mat"


def unrotated(raw: np.ndarray) -> np.ndarray:
    """Returns millimetres from the files' values, whose bits are rotated left by three."""
    if raw.dtype != np.uint16:
        raise DataError(f"depth of SUN RGB-D has 16 bits, found {raw.dtype}: unpack it again")
    return (raw >> 3) | (raw << 13)


@register("sunrgbd")
@dataclass(kw_only=True, eq=False)
class SunRgbdDataset(FileDataset):
    """The frames of the official split: 5285 for training, 5050 for testing.

    The split is read from the toolbox's ``allsplit.mat``. The class masks of all frames are in its
    ``SUNRGBD2Dseg.mat``, in the order of ``SUNRGBDMeta.mat``; one is read at a time. The camera is
    in ``intrinsics.txt`` of each frame's folder, which counts pixels from 0: its centre for frames
    of NYUv2 is that of the toolbox less 41 × 45 pixels, of which the crop cuts 40 × 44.

    Args:
        split: ``train``; ``val`` or ``test`` for the official test frames.
        depth: ``depth`` for the measured maps, ``depth_bfx`` for those that the authors filled.
        labels: also read 37 classes if the toolbox's ``Metadata`` exists.
    """

    depth: Literal["depth", "depth_bfx"] = "depth"
    labels: bool = True
    class_names: Sequence[str] = ()
    max_depth: float | None = 10.0

    depth_format = DepthRule(decode=unrotated)
    labels_remedy = "unpack the toolbox's Metadata into data.root"

    def make_label_rule(self) -> LabelRule | None:
        if self.labels and all((self.folder / name).is_file() for name in (_MASKS, _FRAMES)):
            return LabelRule(class_names=self.class_names, label_map="1-37")
        return None

    def list_files(self) -> list[Files]:
        remedy = "unpack SUNRGBDtoolbox.zip in data.root"
        lists = required_file(self.folder / _LISTS, remedy=remedy)
        cells = arrays.read_mat(lists, f"all{official_split(self.split)}").ravel()
        # the authors' absolute paths
        with decoding(lists, "a list of frames"):
            names = [str(np.ravel(cell)[0]).partition("/SUNRGBD/")[2].strip("/") for cell in cells]
        masks = {} if self.label_rule is None else self._find_masks(names)
        return [self._frame(name, masks.get(name)) for name in names]

    def _find_masks(self, names: Sequence[str]) -> dict[str, int]:
        """Returns the index of each frame's mask: its row in the toolbox's table."""
        entries = arrays.read_mat(self.folder / _FRAMES, "SUNRGBDMeta").ravel()
        with decoding(self.folder / _FRAMES, "a list of frames"):
            folders = [str(np.ravel(entry["sequenceName"])[0]) for entry in entries]
        numbers = {f.strip("/").removeprefix("SUNRGBD/"): i for i, f in enumerate(folders)}
        absent = [name for name in names if name not in numbers]
        if absent:
            fault = f"does not list {len(absent)} of {len(names)} frames ({few(absent)})"
            remedy = "download the toolbox again, or set data.labels=false"
            raise DataError(f"{self.folder / _FRAMES}: {fault}: {remedy}")
        return numbers

    def _frame(self, name: str, mask: int | None) -> Files:
        """Returns the one image and the one depth map of a frame's folder."""
        folder = path_below(self.folder, f"SUNRGBD/{name}", self.folder / _LISTS)
        images = [*(folder / "image").glob("*.jpg")]
        maps = [*(folder / self.depth).glob("*.png")]
        if len(images) != 1 or len(maps) != 1:
            fault = f"{len(images)} images in image/ and {len(maps)} maps in {self.depth}/"
            raise DataError(f"{folder}: holds {fault}, must be one each: unpack it again")
        return Files(images[0], depth=maps[0], extra=mask)

    def camera_source(self, index: int) -> CameraFile | None:
        path = self._files[index].image.parents[1] / "intrinsics.txt"
        return CameraFile(path) if path.is_file() else None

    def read_raw_maps(self, index: int) -> RawMaps:
        masks = self.folder / _MASKS
        raw = arrays.read_mat(masks, "SUNRGBD2Dseg/seglabel", index=self._files[index].extra)
        return RawMaps(raw.astype(np.uint16))
