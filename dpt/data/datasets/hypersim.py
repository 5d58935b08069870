"""Hypersim (Roberts et al. 2021): rendered rooms with exact depth and the NYU-40 classes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, require_files
from dpt.data.formats.depth_rule import DepthRule
from dpt.data.formats.label_rule import LabelRule
from dpt.data.formats.tables import read_table
from dpt.files import DataError, required_file

_TABLE = "metadata_images_split_scene_v1.csv"
_COLUMNS = "scene_name camera_name frame_id included_in_public_release split_partition_name"


def along_axis(distance: np.ndarray) -> np.ndarray:
    """Converts distance (H, W) to the camera's centre, in metres, as depth along the optical axis.

    The images are 1024 pixels wide with a focal length of 886.81 pixels; rays pass through pixel
    centres, and the principal point is in the middle.
    """
    height, width = distance.shape
    focal = 886.81 * width / 1024
    x = np.arange(width) - (width - 1) / 2
    y = np.arange(height) - (height - 1) / 2
    ray = np.sqrt(x[None, :] ** 2 + y[:, None] ** 2 + focal**2)
    return (distance * (focal / ray)).astype(np.float32)


@dataclass(kw_only=True, eq=False)
class HypersimDataset(FileDataset):
    """The released frames of the official split whose scenes are on disk.

    ``depth_meters`` files hold the distance to the camera's centre; samples hold depth along the
    optical axis.

    Args:
        root: the folder of the scenes (``ai_001_001``, ...) and of the split table.
        labels: also read the 40 classes of NYUv2 from the ``semantic`` files.
    """

    labels: bool = False
    class_names: Sequence[str] = ()
    max_depth: float | None = 20.0

    depth_format = DepthRule(decode=along_axis, scale=1.0)
    labels_remedy = "set data.labels=true"

    def make_label_rule(self) -> LabelRule | None:
        return LabelRule(class_names=self.class_names, label_map="1-40") if self.labels else None

    def list_files(self) -> list[Files]:
        remedy = "copy it from evermotion_dataset/analysis of github.com/apple/ml-hypersim"
        table = required_file(self.folder / _TABLE, what="table", remedy=remedy)
        on_disk = {path.parent.name for path in self.folder.glob("*/images")}
        files: list[Files] = []
        rows = read_table(table, _COLUMNS.split(), remedy="download it again")
        for _, (scene, camera, frame, released, split) in rows:
            if split == self.split and released.lower() == "true" and scene in on_disk:
                images = self.folder / scene / "images"
                if not re.fullmatch(r"cam_\w+", camera) or not frame.isdecimal():
                    raise DataError(f"{table}: camera {camera!r}, frame {frame!r}: correct it")
                maps = images / f"scene_{camera}_geometry_hdf5"
                name = f"frame.{frame.zfill(4)}"
                image = images / f"scene_{camera}_final_preview/{name}.tonemap.jpg"
                labels = maps / f"{name}.semantic.hdf5" if self.labels else None
                files.append(Files(image, labels, maps / f"{name}.depth_meters.hdf5"))
        if not files:
            fault = f"none of the scenes of split {self.split} is in {self.folder}"
            raise DataError(f"{table}: {fault}: download some, or check data.root")
        return require_files(files, source=table, remedy="complete or remove their scenes")
