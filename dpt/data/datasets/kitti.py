"""KITTI with the split of Eigen et al. 2014 and the improved ground truth of Uhrig et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from dpt.data.base import DataError, data_root
from dpt.data.datasets.filelist import read_list
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.formats import io
from dpt.data.formats.metres import DepthRule
from dpt.types import Sample

CROP_SIZE = (352, 1216)


class KittiDataset(PairedDataset):
    """Frames of KITTI's raw data with depth in metres.

    A line of a list names an image below ``images``, its depth map below ``depth`` and the focal
    length, which is not used:
    ``2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png
    2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/0000000069.png 721.5377``.
    Lines whose depth is ``None`` are left out: 45 of the 697 test images have none. Where the
    lines name images alone, as Eigen's own lists do, the depth maps have the places shown above,
    and images for which there is no such file are left out. That is the same rule: 652 stay.

    Args:
        root: the folder that the other paths start from.
        split: ``train``, ``val``, ...
        lists: the text file of each split.
        images: folder of the raw data, with a sub-folder for each date. JPEG copies are taken
            where the PNG is not there.
        depth: folder of the depth maps, with a sub-folder for each drive, or with the ``train``
            and ``val`` that they are published in; Eigen's split mixes the two.
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres.
        crop: ``kb`` keeps the 352×1216 pixels at the bottom and in the middle, as the depth
            benchmark and BTS do; None the whole frame.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        lists: Mapping[str, str],
        images: str = "raw",
        depth: str = "data_depth_annotated",
        min_depth: float = 1e-3,
        max_depth: float = 80.0,
        crop: Literal["kb"] | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        self.crop = crop
        if split not in lists:
            raise DataError(
                f"data.lists names no file for split {split} (it has {', '.join(lists)}): add it"
            )
        path = self.root / lists[split]
        files = _frames(path, images=self.root / images, depth=self.root / depth)
        check_files(files, source=path, remedy="check data.images and data.depth")
        super().__init__(
            files,
            split=split,
            depth=DepthRule(scale=1 / 256, min_depth=min_depth, max_depth=max_depth),
            cache=cache,
            cache_size=cache_size,
        )

    def _read(self, index: int) -> Sample:
        sample = super()._read(index)
        return kb_crop(sample) if self.crop == "kb" else sample


def kb_crop(sample: Sample) -> Sample:
    """The part of a KITTI frame that its depth benchmark uses: 352×1216, bottom and middle."""
    height, width = sample["image"].shape[:2]
    rows, columns = CROP_SIZE
    if height < rows or width < columns:
        raise DataError(
            f"{sample.get('name')}: {width}x{height} is smaller than the crop of {columns}x{rows}: "
            "set data.crop=null"
        )
    top, left = height - rows, int((width - columns) / 2)
    out = sample.copy()
    for key in ("image", "depth", "valid"):
        if key in sample:
            out[key] = sample[key][top : top + rows, left : left + columns]
    return out


def _frames(path: Path, *, images: Path, depth: Path) -> list[Files]:
    """The samples that a list names and that have ground truth."""
    lines = [line.split() for line in io.read_text(path).splitlines() if line.strip()]
    if all(len(words) == 1 for words in lines):
        frames = [
            Files(images / name, None, _first(_places(depth, _ground_truth(name, path))))
            for (name,) in lines
        ]
        frames = [frame for frame in frames if frame.depth is not None and frame.depth.is_file()]
    else:
        frames = [
            frame._replace(depth=_first(_places(depth, frame.depth.relative_to(depth))))
            for frame in read_list(path, images=images, depth=depth)
            if frame.depth is not None
        ]
    return [f._replace(image=_first([f.image, f.image.with_suffix(".jpg")])) for f in frames]


def _ground_truth(image: str, source: Path) -> Path:
    """Where the depth map of DATE/DRIVE/image_02/data/NUMBER.png is published."""
    parts = PurePosixPath(image).parts
    if len(parts) != 5:
        raise DataError(
            f"{source}: {image}: write DATE/DRIVE/image_02/data/NUMBER.png, the depth map after it"
        )
    _, drive, camera, _, name = parts
    return Path(drive, "proj_depth", "groundtruth", camera, name).with_suffix(".png")


def _places(depth: Path, name: Path) -> list[Path]:
    return [depth / name, depth / "train" / name, depth / "val" / name]


def _first(paths: Sequence[Path]) -> Path:
    """The first that exists; if none does, the first."""
    return next((path for path in paths if path.is_file()), paths[0])
