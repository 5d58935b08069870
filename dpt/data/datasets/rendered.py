"""Rendered sets with exact depth and classes: Hypersim and Virtual KITTI 2.

Hypersim (Roberts et al. 2021): rooms with the NYU-40 classes. Virtual KITTI 2 (Cabon et al. 2020):
five drives in ten variations.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, require_files
from dpt.data.formats.cameras import StatedCamera
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.files import DataError, decoding, few, read_list, read_table, required_file
from dpt.plugins import register

_TABLE = "metadata_images_split_scene_v1.csv"
_CAMERAS = "metadata_camera_parameters.csv"
_HYPERSIM_SIZE = (768, 1024)
_NOMINAL = StatedCamera.parse((886.81, 886.81, 511.5, 383.5), "Hypersim", _HYPERSIM_SIZE)
_COLUMNS = "scene_name camera_name frame_id included_in_public_release split_partition_name"


def camera_matrix(projection: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns K, float64 (3, 3), of a projection of OpenGL, (4, 4), for images of ``size`` (H, W).

    The image spans -1 to 1 in both directions, from edge to edge. The image plane of many scenes
    is tilted: then the camera is that whose optical axis is perpendicular to it, which an RQ
    decomposition finds (Hartley and Zisserman 2004, section 6.2.4).
    """
    from scipy.linalg import rq  # slow to import

    height, width = size
    screen = np.array([[width, 0, width - 1], [0, -height, height - 1], [0, 0, 2]]) / 2
    rays = projection[[0, 1, 3], :3] @ np.diag([1.0, -1, -1])  # y down and z forward
    K, _ = rq(screen @ rays)
    K *= np.sign(np.diag(K))
    return np.triu(K / K[2, 2])


def along_axis(distance: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Converts distance (H, W) to the camera's centre, in metres, as depth along the optical axis.

    Rays pass through pixel centres, see :class:`dpt.geometry.Camera`.
    """
    height, width = distance.shape
    y = (np.arange(height)[:, None] - K[1, 2]) / K[1, 1]
    x = (np.arange(width) - K[0, 2] - K[0, 1] * y) / K[0, 0]
    return (distance / np.sqrt(x**2 + y**2 + 1)).astype(np.float32)


@register("hypersim")
@dataclass(kw_only=True, eq=False)
class HypersimDataset(FileDataset):
    """The released frames of the official split whose scenes are on disk.

    ``depth_meters`` files hold the distance to the camera's centre; samples hold depth along the
    optical axis. The camera is that of the scene in ``metadata_camera_parameters.csv`` (from
    contrib/mikeroberts3000 of github.com/apple/ml-hypersim) if this table is in ``root``, and
    otherwise the nominal one, of which half of the scenes differ.

    Args:
        root: the folder of the scenes (``ai_001_001``, ...) and of the split table.
        labels: also read the 40 classes of NYUv2 from the ``semantic`` files.
    """

    labels: bool = False
    class_names: Sequence[str] = ()
    max_depth: float | None = 20.0

    depth_format = DepthRule(scale=1.0)
    labels_remedy = "set data.labels=true"

    def make_label_rule(self) -> LabelRule | None:
        return LabelRule(class_names=self.class_names, label_map="1-40") if self.labels else None

    def list_files(self) -> list[Files]:
        remedy = "copy it from evermotion_dataset/analysis of github.com/apple/ml-hypersim"
        table = required_file(self.folder / _TABLE, what="table", remedy=remedy)
        self._cameras = self._read_cameras()
        if not self._cameras:
            self.notes = [f"{_CAMERAS} is absent: every scene gets the nominal camera"]
        on_disk = {path.parent.name for path in self.folder.glob("*/images")}
        files: list[Files] = []
        rows = read_table(table, _COLUMNS.split(), remedy="download it again")
        for _, (scene, camera, frame, released, split) in rows:
            if split == self.listed_split and released.lower() == "true" and scene in on_disk:
                images = self.folder / scene / "images"
                if not re.fullmatch(r"cam_\w+", camera) or not frame.isdecimal():
                    raise DataError(f"{table}: camera {camera!r}, frame {frame!r}: correct it")
                maps = images / f"scene_{camera}_geometry_hdf5"
                name = f"frame.{frame.zfill(4)}"
                image = images / f"scene_{camera}_final_preview/{name}.tonemap.jpg"
                labels = maps / f"{name}.semantic.hdf5" if self.labels else None
                files.append(Files(image, labels, maps / f"{name}.depth_meters.hdf5"))
        remedy = f"download scenes of the split {self.listed_split}, complete or remove them"
        return require_files(files, source=table, remedy=remedy)

    def _read_cameras(self) -> dict[str, StatedCamera]:
        """Returns the camera of each scene in the table; empty if there is none."""
        path = self.folder / _CAMERAS
        cameras: dict[str, StatedCamera] = {}
        if not path.is_file():
            return cameras
        entries = [f"M_proj_{row}{column}" for row in range(4) for column in range(4)]
        rows = read_table(path, ["scene_name", *entries], remedy="download it again")
        for where, (scene, *texts) in rows:
            with decoding(where, "a projection"):
                K = camera_matrix(np.array(texts, float).reshape(4, 4), _HYPERSIM_SIZE)
            cameras[scene] = StatedCamera.parse(K, where, _HYPERSIM_SIZE)
        return cameras

    def camera_source(self, index: int) -> StatedCamera:
        scene = self._files[index].image.relative_to(self.folder).parts[0]
        if self._cameras and scene not in self._cameras:
            raise DataError(f"{self.folder / _CAMERAS}: lists no {scene}: download it again")
        return self._cameras.get(scene, _NOMINAL)

    def read_raw_depth(self, index: int) -> np.ndarray | None:
        distance = super().read_raw_depth(index)
        assert distance is not None
        size = distance.shape[0], distance.shape[1]
        return along_axis(distance, self.camera_source(index).camera(self.name(index), size).K)


_VKITTI_MASKS = "classSegmentation"
_VKITTI_SIZE = (375, 1242)


@register("vkitti2")
@dataclass(kw_only=True, eq=False)
class VirtualKitti2Dataset(FileDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth,classSegmentation}/Camera_N/`` as in the archives.

    The cameras are in ``SceneXX/VARIATION/intrinsic.txt``, if that archive was unpacked.

    Args:
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
        labels: also read the 14 classes if their archive was unpacked.
        class_names, label_colors: the 14 classes, and their colours and that of undefined pixels.
    """

    scenes: Mapping[str, Sequence[str]]
    variations: Sequence[str] | None = None
    cameras: Sequence[str] = ("Camera_0",)
    labels: bool = True
    max_depth: float | None = 80.0
    class_names: Sequence[str] = ()
    label_colors: Sequence[Sequence[int]] = ()

    depth_format = DepthRule(scale=0.01, invalid=(0, 65535))  # the sky is stored as 655.35 m
    labels_remedy = f"unpack the {_VKITTI_MASKS} archive into data.root"

    def make_label_rule(self) -> LabelRule | None:
        if not (self.labels and any(self.folder.glob(f"Scene*/*/frames/{_VKITTI_MASKS}"))):
            return None
        return LabelRule(
            class_names=self.class_names,
            colors=self.label_colors,
            ignore_index=len(self.class_names),
        )

    def camera_source(self, index: int) -> StatedCamera | None:
        image = self._files[index].image
        path = image.parents[3] / "intrinsic.txt"
        if not path.is_file():
            return None
        row = image.stem.removeprefix("rgb_").lstrip("0") or "0", image.parent.name[-1]
        with decoding(path, "intrinsics of Virtual KITTI 2"):
            return _read_intrinsics(path)[row]

    def list_files(self) -> list[Files]:
        files: list[Files] = []
        for scene in self.scenes.get(self.listed_split, ()):
            on_disk = sorted(path.parent.name for path in self.folder.glob(f"{scene}/*/frames"))
            variations = on_disk if self.variations is None else self.variations
            if not on_disk or not set(variations) <= set(on_disk):
                fault = f"{self.folder / scene} holds {few(on_disk, 10) or 'nothing'}"
                remedy = f"check data.scenes.{self.listed_split} and data.variations"
                raise DataError(f"{fault}: {remedy}")
            for variation, camera in product(variations, self.cameras):
                folder = self.folder / scene / variation / "frames"
                for image in sorted((folder / "rgb" / camera).glob("rgb_*.jpg")):
                    number = image.stem.removeprefix("rgb_")
                    mask = folder / _VKITTI_MASKS / camera / f"classgt_{number}.png"
                    depth = folder / "depth" / camera / f"depth_{number}.png"
                    files.append(Files(image, mask if self.label_rule else None, depth))
        remedy = f"unpack the rgb, depth and {_VKITTI_MASKS} archives, or set data.labels=false"
        return require_files(files, source=self.folder, remedy=remedy)


@lru_cache(maxsize=64)
def _read_intrinsics(path: Path) -> dict[tuple[str, str], StatedCamera]:
    """Returns the cameras by the texts of frame and camera."""
    rows = (line.split() for line in read_list(path)[1:])
    return {(row[0], row[1]): StatedCamera.parse(row[2:6], path, _VKITTI_SIZE) for row in rows}
