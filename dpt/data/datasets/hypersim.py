"""Hypersim (Roberts et al. 2021): rendered rooms with exact depth and the NYU-40 classes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, require_files
from dpt.data.formats.cameras import StatedCamera
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.files import DataError, decoding, read_table, required_file
from dpt.plugins import register

_TABLE = "metadata_images_split_scene_v1.csv"
_CAMERAS = "metadata_camera_parameters.csv"
_SIZE = (768, 1024)
_NOMINAL = StatedCamera.parse((886.81, 886.81, 511.5, 383.5), "Hypersim", _SIZE)
_COLUMNS = "scene_name camera_name frame_id included_in_public_release split_partition_name"


def camera_matrix(projection: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns K, float64 (3, 3), of a projection of OpenGL, (4, 4), for images of ``size`` (H, W).

    The image spans -1 to 1 in both directions, from edge to edge. The image plane of many scenes
    is tilted: then the camera is that whose optical axis is perpendicular to it, which an RQ
    decomposition finds (Hartley and Zisserman 2004, section 6.2.4).
    """
    from scipy.linalg import rq  # slow to import

    height, width = size
    screen = np.array(
        [[width / 2, 0, (width - 1) / 2], [0, -height / 2, (height - 1) / 2], [0, 0, 1]]
    )
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
        if not files:
            fault = f"none of the scenes of split {self.listed_split} is in {self.folder}"
            raise DataError(f"{table}: {fault}: download some, or check data.root")
        return require_files(files, source=table, remedy="complete or remove their scenes")

    def _read_cameras(self) -> dict[str, StatedCamera]:
        """Returns the camera of each scene in the table; empty if there is none."""
        path = self.folder / _CAMERAS
        cameras: dict[str, StatedCamera] = {}
        if not path.is_file():
            return cameras
        entries = [f"M_proj_{row}{column}" for row in range(4) for column in range(4)]
        for where, (scene, *texts) in read_table(
            path, ["scene_name", *entries], remedy="download it again"
        ):
            with decoding(where, "a projection"):
                K = camera_matrix(np.array(texts, float).reshape(4, 4), _SIZE)
            cameras[scene] = StatedCamera.parse(K, where, _SIZE)
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
