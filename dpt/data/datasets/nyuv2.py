"""NYU Depth v2, the 1449 labelled frames (Silberman et al. 2012): depth and 40 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, RawMaps, official_split
from dpt.data.formats import arrays
from dpt.data.formats.cameras import StatedCamera
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.files import decoding, required_file
from dpt.plugins import register

_MAT = "nyu_depth_v2_labeled.mat"
_MAPPING = "classMapping40.mat"
_INTRINSICS = (518.85790117450188, 519.46961112127485, 324.58244941119034, 252.73616633400465)
_CAMERA = StatedCamera.parse(_INTRINSICS, "NYUv2", (480, 640))
"""The colour camera of the toolbox's ``camera_params.m``. Its centre is less by 1, because
``rgb_plane2rgb_world.m`` of the toolbox counts pixels from 1."""
_SOURCE = "https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html"


@register("nyuv2")
@dataclass(kw_only=True, eq=False)
class NYUv2Dataset(FileDataset):
    """Reads ``nyu_depth_v2_labeled.mat`` frame by frame, as it was downloaded.

    The official split (795 for training, 654 for testing) is read from ``splits.mat``. The camera
    is the published one of the colour images.

    Args:
        split: ``train``; ``val`` or ``test`` for the test frames.
        depth: ``filled`` for the in-painted maps that benchmarks score, ``raw`` for the measured
            pixels alone.
        labels: also read 40 classes (Gupta et al. 2013) if ``classMapping40.mat`` exists; most of
            the frames' own 894 are too rare to train on.
    """

    depth: Literal["filled", "raw"] = "filled"
    labels: bool = True
    class_names: Sequence[str] = ()
    max_depth: float | None = 10.0

    depth_format = DepthRule(scale=1.0)
    labels_remedy = f"put {_MAPPING} into data.root; see .github/guide/datasets.md"

    def make_label_rule(self) -> LabelRule | None:
        mapping = self.folder / _MAPPING
        if not (self.labels and mapping.is_file()):
            return None
        class_of_id = arrays.read_mat(mapping, "mapClass").ravel()
        ids = [(np.flatnonzero(class_of_id == n) + 1).tolist() for n in range(1, 41)]
        return LabelRule(class_names=self.class_names, label_map=ids)

    def list_files(self) -> list[Files]:
        remedy = f"download it from {_SOURCE}"
        self._mat = required_file(self.folder / _MAT, remedy=remedy)
        splits = required_file(self.folder / "splits.mat", remedy=remedy)
        variable = f"{official_split(self.split)}Ndxs"
        with decoding(splits, "a list of frames"):  # which may hold NaN
            numbers = [int(n) for n in arrays.read_mat(splits, variable).ravel()]
        return [Files(Path(f"{self._mat}#{n:04}"), extra=n) for n in numbers]

    def camera_source(self, index: int) -> StatedCamera:
        return _CAMERA

    def files(self, index: int) -> None:
        return None

    def read_image(self, index: int, map_size: tuple[int, ...] | None = None) -> np.ndarray:
        return np.ascontiguousarray(self._array("images", index))

    def read_raw_maps(self, index: int) -> RawMaps:
        return RawMaps(self._array("labels", index))

    def read_raw_depth(self, index: int) -> np.ndarray:
        return self._array("depths" if self.depth == "filled" else "rawDepths", index)

    def _array(self, name: str, index: int) -> np.ndarray:
        return arrays.read_mat(self._mat, name, index=self._files[index].extra - 1)
