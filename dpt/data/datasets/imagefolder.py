"""Data sets with one label per image: a folder for each class, or a table."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing
from dpt.data.formats import io
from dpt.data.formats.labels import name_of_class
from dpt.files import DataError, few, files_below, missing_path, required_file
from dpt.types import DatasetInfo


@dataclass(kw_only=True, eq=False)
class ImageFolderDataset(FileDataset):
    """ImageNet's layout: ``root/<split>/<class>/...`` with any image files below.

    Classes are numbered in the sorted order of the train split's folders, on every split.

    Args:
        class_names: the class folders in the order of their ids; None takes those of ``train``.
        split_names: the splits' names on disk, where they differ.
    """

    class_names: Sequence[str] | None = None
    split_names: Mapping[str, str] | None = None

    def list_files(self) -> list[Files]:
        on_disk = self.split_names or {}
        folder, train = (self.folder / on_disk.get(s, s) for s in (self.split, "train"))
        for path in (folder,) if self.class_names else (folder, train):
            if not path.is_dir():
                remedy = "train/CLASS/IMAGE and val/CLASS/IMAGE are expected: check data.root"
                raise missing_path(path, what="folder", remedy=remedy)
        names = self.class_names or _folders(train)
        if not names:
            raise DataError(f"{self.folder}: no class folders: expected train/<class>/<image>")
        if unknown := sorted(set(_folders(folder)) - set(names)):
            raise DataError(
                f"{folder}: class folders {few(unknown)} are not among the {len(names)} classes of "
                "the train split: remove them, or set data.class_names"
            )
        self.class_id_names = tuple(name_of_class(name, train) for name in names)
        files = [
            Files(path, class_id=class_id)
            for class_id, name in enumerate(names)
            for path in files_below(folder / name, io.IMAGE_SUFFIXES)
        ]
        if not files:
            raise DataError(f"{folder}: no image in any class folder: put images there")
        return files

    def make_info(self) -> DatasetInfo:
        return DatasetInfo(targets=("class_id",), class_names=self.class_id_names)


@dataclass(kw_only=True, eq=False)
class ImageTableDataset(FileDataset):
    """Images named in a CSV table, with a number (``task=regression``) or a caption each.

    Args:
        table: the CSV file, with a header line. ``%split`` stands for the split; without it the
            splits share one table, by ``fractions``.
        images: folder of the images in the table; ``%split`` stands for the split.
        caption_column: header of the captions (``task=clip``), which replace the numbers.
    """

    table: str = "labels_%split.csv"
    images: str = "."
    image_column: str = "image"
    value_column: str = "value"
    caption_column: str | None = None
    fractions: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unused(self.fractions)

    def list_files(self) -> list[Files]:
        path = self.path_of(self.table)
        required_file(path, what="table", remedy="check data.root and data.table")
        target = "caption" if self.caption_column else "value"
        columns = (self.image_column, self.caption_column or self.value_column)
        remedy = f"set data.image_column and data.{target}_column"
        found: dict[str, Any] = {}
        for place, (name, text) in io.read_table(path, columns, remedy=remedy):
            label = text if self.caption_column else _number(text)
            if not name or name in found or (not label and label != 0):
                raise DataError(
                    f"{place} has image {name!r} and {target} {text[:80]!r}: each line needs a "
                    f"name of its own and a {'caption' if self.caption_column else 'number'}; "
                    "correct or remove it"
                )
            found[name] = label
        folder = self.path_of(self.images)
        photos = {name: self.file_below(folder, name, path) for name in found}
        names = [*found] if "%split" in self.table else self.divide(photos, self.fractions)
        files = [Files(photos[name])._replace(**{target: found[name]}) for name in names]
        return existing(files, source=path, remedy="check data.images and the names in the table")

    def make_info(self) -> DatasetInfo:
        return DatasetInfo(targets=("caption",) if self.caption_column else ("value",))


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return number if math.isfinite(number := io.parse_number(text)) else None
    return None


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
