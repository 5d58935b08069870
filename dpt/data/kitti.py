"""KITTI with the split of Eigen et al. 2014 and the improved ground truth of Uhrig et al. 2017."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from dpt.data import io
from dpt.data.base import DataError, missing_path
from dpt.data.metres import DepthRule
from dpt.data.paired import PairedDataset
from dpt.data.pairing import Files, few
from dpt.types import Sample

CROP_SIZE = (352, 1216)


class KittiDataset(PairedDataset):
    """Frames of KITTI's raw data with depth in metres.

    A line of a list names an image below ``images``, its depth map below ``depth`` and the focal
    length, which is not used:
    ``2011_09_26/2011_09_26_drive_0002_sync/image_02/data/0000000069.png
    2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/0000000069.png 721.5377``.
    Lines whose depth is ``None`` are dropped: 45 of the 697 test images have none. Where a line
    names an image alone, as Eigen's own lists do, its depth map has the place shown above, and
    lines for which there is no such file are dropped. That is the same rule: 652 are left.

    Args:
        root: the folder that the other paths start from.
        split: ``train``, ``val``, ...
        images: folder of the raw data, with a sub-folder for each date. JPEG copies are taken
            where the PNG is not there.
        depth: folder of the depth maps, with a sub-folder for each drive, or with the ``train``
            and ``val`` that they are published in; Eigen's split mixes the two.
        split_files: a list for each split.
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres.
        crop: ``kb`` keeps the 352×1216 pixels at the bottom and in the middle, as the depth
            benchmark and BTS do; None the whole frame.
        cache: keep decoded samples in memory.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        split_files: Mapping[str, str],
        images: str = "raw",
        depth: str = "data_depth_annotated",
        min_depth: float = 1e-3,
        max_depth: float = 80.0,
        crop: Literal["kb"] | None = None,
        cache: bool = False,
    ) -> None:
        self.root = Path(root).expanduser()
        self.crop = crop
        for option, folder in {"images": images, "depth": depth}.items():
            if not (self.root / folder).is_dir():
                raise missing_path(
                    self.root / folder, what="folder", remedy=f"check data.root and data.{option}"
                )
        if split not in split_files:
            raise DataError(
                f"data.split_files names no list for split {split} (it has "
                f"{', '.join(split_files)}): add it"
            )
        files = _listed(
            self.root / split_files[split], images=self.root / images, depth=self.root / depth
        )
        rule = DepthRule(scale=1 / 256, min_depth=min_depth, max_depth=max_depth)
        super().__init__(files, split=split, depth=rule, cache=cache)

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
            out[key] = sample[key][top : top + rows, left : left + columns]  # type: ignore[literal-required]
    return out


def _listed(path: Path, *, images: Path, depth: Path) -> list[Files]:
    """The samples that a list names and that have ground truth."""
    lines = [line.split() for line in io.read_text(path).splitlines() if line.strip()]
    roots = [depth, depth / "train", depth / "val"]
    found, absent = [], []
    for image_name, *rest in lines:
        if rest and rest[0] == "None":
            continue
        image = _first_file([images / image_name, (images / image_name).with_suffix(".jpg")])
        name = rest[0] if rest else _ground_truth(image_name, path)
        truth = _first_file([root / name for root in roots])
        if truth is None and not rest:
            continue
        if image is None or truth is None:
            absent.append(name if image else image_name)
        else:
            found.append(Files(image, None, truth))
    if absent:
        raise DataError(
            f"{path}: {len(absent)} of {len(lines)} lines name files that are not there "
            f"({few(absent)}): looked in {images} and {depth}"
        )
    if not found:
        raise DataError(f"{path}: no line has ground truth in {depth}: check data.depth")
    return found


def _ground_truth(image: str, source: Path) -> str:
    """Where the depth map of DATE/DRIVE/image_02/data/NUMBER.png is published."""
    parts = PurePosixPath(image).parts
    if len(parts) != 5:
        raise DataError(
            f"{source}: {image}: write DATE/DRIVE/image_02/data/NUMBER.png, the depth map after it"
        )
    _, drive, camera, _, name = parts
    return f"{drive}/proj_depth/groundtruth/{camera}/{Path(name).stem}.png"


def _first_file(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)
