"""KITTI with the split of Eigen et al. 2014 and the improved ground truth of Uhrig et al. 2017."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpt.data.base import Files
from dpt.data.datasets.filelist import FileListDataset
from dpt.data.errors import DataError
from dpt.types import Sample

CROP_SIZE = (352, 1216)


@dataclass(kw_only=True, eq=False)
class KittiDataset(FileListDataset):
    """Frames of KITTI's raw data with depth in metres.

    A line of a list names an image below ``images``, its depth map below ``depth`` and the focal
    length, which is not used:
    ``2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png
    2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/0000000069.png 721.5377``.
    Lines whose depth is ``None`` are left out: 45 of the 697 test images have none.

    Images may be JPEG copies of the PNGs. Depth maps may be in the folders ``train`` and ``val`` in
    which they are published; Eigen's split mixes the two.

    Args:
        crop: ``kb`` keeps the 352×1216 pixels at the bottom and in the middle, as the depth
            benchmark and BTS do; None the whole frame.
    """

    images: str = "raw"
    depth: str = "data_depth_annotated"
    depth_scale: float = 1 / 256
    max_depth: float = 80.0
    crop: Literal["kb"] | None = None

    def locate(self, image: str, depth: str) -> Files:
        maps = self.folder / self.depth
        photo = self.folder / self.images / image
        return Files(
            _first(photo, photo.with_suffix(".jpg")),
            depth=_first(maps / depth, maps / "train" / depth, maps / "val" / depth),
        )

    def read_sample(self, index: int) -> Sample:
        sample = super().read_sample(index)
        if self.crop is None:
            return sample
        (height, width), (rows, columns) = sample["image"].shape[:2], CROP_SIZE
        if height < rows or width < columns:
            raise DataError(
                f"{sample['name']}: {width}x{height} is smaller than the crop of {columns}x{rows}: "
                "set data.crop=null"
            )
        top, left = height - rows, (width - columns) // 2
        for key in ("image", "depth", "valid"):
            sample[key] = sample[key][top:, left : left + columns]
        return sample


def _first(*paths: Path) -> Path:
    """The first path that exists, or else the first."""
    return next((path for path in paths if path.is_file()), paths[0])
