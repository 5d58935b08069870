"""Images and depth maps paired by text files, as BTS and its successors list NYUv2 and KITTI."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dpt.data.base import Files
from dpt.data.datasets.files import require_files
from dpt.data.datasets.folder import FolderDataset
from dpt.data.formats.cameras import CameraSource, StatedCamera
from dpt.files import DataError, decoding, read_list
from dpt.plugins import register
from dpt.types.samples import Sample

_CROP = (352, 1216)
"""(H, W) of the crop of KITTI's depth benchmark."""


@register("filelist")
@dataclass(kw_only=True, eq=False)
class FileListDataset(FolderDataset):
    """Depth pairs by lists: a line has the image, its depth file, and perhaps a focal length.

    ``kitchen_0028b/rgb_00045.jpg kitchen_0028b/sync_depth_00045.png 518.8579``; a line whose depth
    is ``None`` is left out, as the KITTI Eigen protocol does. A leading ``/`` has no meaning.

    The lists are ``split_files``; their paths lie below ``images`` and ``depth``, where ``%split``
    stands for the split. The base class's options of depth apply, those of labels and names do not.
    """

    depth: str = "."

    def list_files(self) -> list[Files]:
        path = self.list_file()
        files: list[Files] = []
        for line in read_list(path):
            names = [word.lstrip("/") for word in line.split()[:2]]
            if len(names) < 2:
                raise DataError(f"{path}: line {line!r} must name an image and its depth: mend it")
            image, depth = names
            if depth != "None":
                photo = self.find_file(self.images, image, path)
                files.append(Files(photo, depth=self.find_file(self.depth, depth, path)))
        remedy = "check data.root, data.images and data.depth"
        return require_files(files, source=path, remedy=remedy)

    def find_file(self, template: str, name: str, source: Path) -> Path:
        """Returns the file below a folder that a line of ``source`` names."""
        return self.file_below(self.path_of(template), name, source)


@register("kitti")
@dataclass(kw_only=True, eq=False)
class KittiDataset(FileListDataset):
    """KITTI with the split of Eigen et al. 2014 and the ground truth of Uhrig et al. 2017.

    Images may be JPEG copies of the PNGs. Depth maps may be in the folders ``train`` and ``val`` in
    which they are published; Eigen's split mixes the two. The cameras are those of the rectified
    images (``P_rect``) in ``DATE/calib_cam_to_cam.txt`` of the raw data, if it is there.

    Args:
        crop: ``kb`` keeps the 352×1216 pixels at the bottom and in the middle, as the depth
            benchmark and BTS do; None the whole frame.
    """

    crop: Literal["kb"] | None = None

    def find_file(self, template: str, name: str, source: Path) -> Path:
        folder = self.path_of(template)
        folders = (folder, folder / "train", folder / "val")
        paths = [self.file_below(folder, name, source) for folder in folders]
        paths += [path.with_suffix(".jpg") for path in paths]
        return next((path for path in paths if path.is_file()), paths[0])

    def camera_source(self, index: int) -> CameraSource | None:
        chosen = super().camera_source(index)
        image = self._files[index].image.absolute()
        path = image.parents[3] / "calib_cam_to_cam.txt"
        if chosen is not None or not path.is_file():
            return chosen
        return _rectified_camera(path, image.parents[1].name[-2:])

    def read_sample(self, index: int) -> Sample:
        sample = super().read_sample(index)
        if self.crop is None:
            return sample
        self.check(sample)  # maps of another size can have one size after the crop
        height, width = sample["image"].shape[:2]
        has_other_size = "depth" in sample and sample["depth"].shape != (height, width)
        if has_other_size or height < _CROP[0] or width < _CROP[1]:
            fault = f"{width}x{height} is smaller than the crop, or depth has another size"
            raise DataError(f"{sample['name']}: {fault}: set data.crop=null")
        top, left = height - _CROP[0], (width - _CROP[1]) // 2
        for key in ("image", "depth", "valid"):
            if key in sample:
                sample[key] = sample[key][top:, left : left + _CROP[1]]
        if "K" in sample:
            sample["K"] = sample["K"] - [[0, 0, left], [0, 0, top], [0, 0, 0]]
        return sample


@lru_cache(maxsize=64)
def _rectified_camera(path: Path, number: str) -> StatedCamera:
    """Returns the camera of the rectified images of a KITTI camera, ``02`` (left) or ``03``."""
    with decoding(path, "a calibration of KITTI"):
        values = dict(line.split(":", 1) for line in read_list(path))
        width, height = (int(float(side)) for side in values[f"S_rect_{number}"].split())
        projection = values[f"P_rect_{number}"].split()
    return StatedCamera.parse(projection, path, (height, width))
