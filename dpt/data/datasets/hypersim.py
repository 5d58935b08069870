"""Hypersim (Roberts et al. 2021): rendered rooms with exact depth and the NYU-40 classes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from dpt.data.base import DataError, data_root, missing_path
from dpt.data.datasets.nyuv2 import NYU40_CLASSES
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule
from dpt.data.formats.metres import DepthRule

_TABLE = "metadata_images_split_scene_v1.csv"
_COLUMNS = ("scene_name", "camera_name", "frame_id", "included_in_public_release",
            "split_partition_name")  # fmt: skip


class HypersimDataset(PairedDataset):
    """The frames of the official split whose scenes are on disk, as the archives unpack.

    ``depth_meters`` files hold the distance to the camera's centre; samples hold depth along the
    optical axis, as every other data set does.

    Args:
        root: the folder of the scenes (``ai_001_001``, ...) and of the split table.
        split: ``train``, ``val`` or ``test``.
        labels: also read the 40 classes of NYUv2 from the ``semantic`` files.
        max_depth: largest depth that counts as valid, in metres.
        min_depth: smallest depth that counts as valid, in metres.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        labels: bool = False,
        max_depth: float = 20.0,
        min_depth: float = 1e-3,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        self.remedies = {"labels": "set data.labels=true"}
        table = self.root / _TABLE
        if not table.is_file():
            remedy = "copy it from evermotion_dataset/analysis of github.com/apple/ml-hypersim"
            raise missing_path(table, what="table", remedy=remedy)
        files = _listed_frames(table, split=split, with_labels=labels)
        check_files(files, source=table, remedy="complete or remove their scenes")
        super().__init__(
            files,
            split=split,
            depth=DepthRule(
                encoding="hypersim", scale=1.0, min_depth=min_depth, max_depth=max_depth
            ),
            labels=LabelRule(class_names=NYU40_CLASSES, label_map="1-40") if labels else None,
            cache=cache,
            cache_size=cache_size,
        )


def _listed_frames(table: Path, *, split: str, with_labels: bool) -> list[Files]:
    """The released frames of a split, of the scenes that are there."""
    rows = csv.DictReader(io.read_text(table).splitlines())
    absent = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if absent:
        raise DataError(f"{table}: has no column {', '.join(absent)}: copy or download it again")
    files: list[Files] = []
    there: dict[str, bool] = {}
    for row in rows:
        released = (row["included_in_public_release"] or "").strip().lower() == "true"
        if row["split_partition_name"] != split or not released:
            continue
        scene = row["scene_name"]
        if scene not in there:
            there[scene] = (table.parent / scene / "images").is_dir()
        if there[scene]:
            camera = table.parent / scene / "images" / f"scene_{row['camera_name']}"
            frame = f"frame.{row['frame_id'].zfill(4)}"
            files.append(
                Files(
                    Path(f"{camera}_final_preview/{frame}.tonemap.jpg"),
                    Path(f"{camera}_geometry_hdf5/{frame}.semantic.hdf5") if with_labels else None,
                    Path(f"{camera}_geometry_hdf5/{frame}.depth_meters.hdf5"),
                )
            )
    if not files:
        raise DataError(
            f"{table}: none of its {len(there)} scenes of split {split} lies in {table.parent}: "
            "download some, or check data.root"
        )
    return files
