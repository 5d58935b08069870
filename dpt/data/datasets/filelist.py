"""Photos and depth maps paired by text files, as BTS and its successors list NYUv2 and KITTI."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpt.data.base import Files
from dpt.data.datasets.files import existing, read_list
from dpt.data.datasets.folder import FolderDataset
from dpt.files import DataError
from dpt.types import Sample


@dataclass(kw_only=True, eq=False)
class FileListDataset(FolderDataset):
    """Depth pairs by lists: a line has the photo, its depth file, and perhaps a focal length.

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
            words = [word.lstrip("/") for word in line.split()[:2]]
            if len(words) < 2:
                fault = f"line {line!r} must be the path of a photo and that of its depth file"
                raise DataError(f"{path}: {fault}: correct it")
            if words[1] != "None":
                files.append(self.locate(words[0], words[1], path))
        return existing(files, source=path, remedy="check data.root, data.images and data.depth")

    def locate(self, image: str, depth: str, source: Path) -> Files:
        """The files of a line of ``source``."""
        photo = self.file_below(self.path_of(self.images), image, source)
        return Files(photo, depth=self.file_below(self.path_of(self.depth), depth, source))


@dataclass(kw_only=True, eq=False)
class KittiDataset(FileListDataset):
    """KITTI with the split of Eigen et al. 2014 and the ground truth of Uhrig et al. 2017.

    Images may be JPEG copies of the PNGs. Depth maps may be in the folders ``train`` and ``val`` in
    which they are published; Eigen's split mixes the two.

    Args:
        crop: ``kb`` keeps the 352×1216 pixels at the bottom and in the middle, as the depth
            benchmark and BTS do; None the whole frame.
    """

    crop: Literal["kb"] | None = None

    def locate(self, image: str, depth: str, source: Path) -> Files:
        files, maps = super().locate(image, depth, source), self.path_of(self.depth)
        others = [self.file_below(maps / part, depth, source) for part in ("train", "val")]
        return Files(
            _first(files.image, files.image.with_suffix(".jpg")),
            depth=_first(maps / depth, *others),
        )

    def read_sample(self, index: int) -> Sample:
        sample = super().read_sample(index)
        if self.crop is None:
            return sample
        (height, width), (rows, columns) = sample["image"].shape[:2], (352, 1216)
        if height < rows or width < columns:
            raise DataError(
                f"{sample['name']}: {width}x{height} is smaller than the crop of {columns}x{rows}: "
                "set data.crop=null"
            )
        top, left = height - rows, (width - columns) // 2
        for key in ("image", "depth", "valid"):
            if key in sample:
                sample[key] = sample[key][top:, left : left + columns]
        return sample


def _first(*paths: Path) -> Path:
    """The first path that exists, or else the first."""
    return next((path for path in paths if path.is_file()), paths[0])
