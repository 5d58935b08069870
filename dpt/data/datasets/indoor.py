"""Indoor sets of depth cameras: NYU Depth v2, SUN RGB-D and TUM RGB-D.

NYU Depth v2 (Silberman et al. 2012): the 1449 labelled frames with depth and 40 classes. SUN RGB-D
(Song et al. 2015): 10335 frames of four depth cameras, 37 classes. TUM RGB-D (Sturm et al. 2012):
sequences of images and depth maps that are paired by their time stamps.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, RawMaps, official_split, require_files
from dpt.data.formats import arrays
from dpt.data.formats.cameras import CameraFile, StatedCamera
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.data.splits import DEFAULT_FRACTIONS
from dpt.files import DataError, decoding, few, path_below, read_list, required_file
from dpt.plugins import register

_MAT = "nyu_depth_v2_labeled.mat"
_MAPPING = "classMapping40.mat"
_INTRINSICS = (518.85790117450188, 519.46961112127485, 324.58244941119034, 252.73616633400465)
_NYU_CAMERA = StatedCamera.parse(_INTRINSICS, "NYUv2", (480, 640))
"""The colour camera of the toolbox's ``camera_params.m``. Its centre is less by 1, because
``rgb_plane2rgb_world.m`` of the toolbox counts pixels from 1."""
_NYU_SOURCE = "https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html"


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
        remedy = f"download it from {_NYU_SOURCE}"
        self._mat = required_file(self.folder / _MAT, remedy=remedy)
        splits = required_file(self.folder / "splits.mat", remedy=remedy)
        variable = f"{official_split(self.listed_split)}Ndxs"
        with decoding(splits, "a list of frames"):  # which may hold NaN
            numbers = [int(n) for n in arrays.read_mat(splits, variable).ravel()]
        return [Files(Path(f"{self._mat}#{n:04}"), extra=n) for n in numbers]

    def camera_source(self, index: int) -> StatedCamera:
        return _NYU_CAMERA

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
        cells = arrays.read_mat(lists, f"all{official_split(self.listed_split)}").ravel()
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
            fault = f"{self.folder / _FRAMES}: lacks {len(absent)} frames ({few(absent)})"
            raise DataError(f"{fault}: get it again or set data.labels=false")
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


MAX_DIFFERENCE = 0.02
"""Seconds by which an image and its map may differ, as in the benchmark's ``associate.py``."""
_TUM_CAMERAS = {
    "freiburg1": (517.3, 516.5, 318.6, 255.3),
    "freiburg2": (520.9, 521.0, 325.1, 249.7),
    "freiburg3": (535.4, 539.2, 320.1, 247.6),
}
"""The calibrated colour cameras of the benchmark's page. Images of the first two are distorted."""


@register("tum")
@dataclass(kw_only=True, eq=False)
class TumDataset(FileDataset):
    """Every folder below ``root`` with ``rgb.txt`` and ``depth.txt`` is a sequence.

    Cameras are known for folders with ``freiburg1``, ``freiburg2`` or ``freiburg3`` in their names.

    Args:
        sequences: the sequences of each split. Those that no split names are divided by
            ``fractions`` among the splits that name none.
    """

    sequences: Mapping[str, Sequence[str] | None] | None = None
    max_depth: float | None = 10.0

    depth_format = DepthRule(scale=1 / 5000)

    def list_files(self) -> list[Files]:
        files: list[Files] = []
        for folder in (self.folder / name for name in self._sequences_of_split()):
            files += [Files(folder / image, depth=folder / m) for image, m in stamped_pairs(folder)]
        return require_files(files, source=self.folder, remedy="unpack the sequences again")

    def camera_source(self, index: int) -> StatedCamera | None:
        sequence = self._files[index].image.relative_to(self.folder).parts[0]
        cameras = [numbers for name, numbers in _TUM_CAMERAS.items() if name in sequence]
        return StatedCamera.parse(cameras[0], "TUM RGB-D", (480, 640)) if cameras else None

    def _sequences_of_split(self) -> Sequence[str]:
        on_disk = sorted(path.parent.name for path in self.folder.glob("*/rgb.txt"))
        chosen = {split: names for split, names in (self.sequences or {}).items() if names}
        of_split = chosen.get(self.listed_split, ())
        if not {*of_split} <= {*on_disk}:
            fault = f"holds the sequences {few(on_disk, 8) or '(none)'}"
            raise DataError(f"{self.folder} {fault}: check data.sequences.{self.listed_split}")
        if of_split:
            return of_split
        rest = sorted({*on_disk}.difference(*chosen.values()))
        fractions = self.fractions or DEFAULT_FRACTIONS
        others = {split: value for split, value in fractions.items() if split not in chosen}
        factor = sum(fractions.values()) / (sum(others.values()) or 1.0)
        self.fractions = {split: value * factor for split, value in others.items()}
        return [rest[i] for i in self.divide(rest, [self.folder / name for name in rest])]


def stamped_pairs(folder: Path) -> list[tuple[str, str]]:
    """Returns the paths of images and of their depth maps below the folder of a sequence.

    Raises:
        DataError: a list cannot be read, or no image has a depth map.
    """
    times, images = _read_stamps(folder / "rgb.txt")
    map_times, maps = _read_stamps(folder / "depth.txt")
    pairs = associate(times, map_times)
    if not pairs:
        raise DataError(f"{folder}: no image within {MAX_DIFFERENCE} s of a map: mend rgb.txt")
    return [(images[i], maps[j]) for i, j in pairs]


def associate(images: Sequence[float], maps: Sequence[float]) -> list[tuple[int, int]]:
    """Returns index pairs of times (seconds, ascending) less than ``MAX_DIFFERENCE`` apart.

    The closest pair comes first; each time is used once.
    """
    candidates: list[tuple[float, int, int]] = []
    for i, time in enumerate(images):
        first, last = (bisect_left(maps, time + side * MAX_DIFFERENCE) for side in (-2, 2))
        candidates += [(abs(time - maps[j]), i, j) for j in range(first, last)]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for difference, i, j in sorted(candidates):
        if difference < MAX_DIFFERENCE and i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    return sorted(partner.items())


def _read_stamps(path: Path) -> tuple[list[float], list[str]]:
    """Returns the times and the file names of a list, in ascending order of the times."""
    stamps: list[tuple[float, str]] = []
    for line in read_list(path):
        match = re.match(r"([0-9]+(?:\.[0-9]*)?)\s+(?!/|.*\.\.)(\S+)", line)
        if match is None:
            raise DataError(f"{path}: line {line!r} must be a time and a file name: mend it")
        stamps.append((float(match[1]), match[2]))
    stamps.sort()
    return [time for time, _ in stamps], [name for _, name in stamps]
