"""Data sets with one label per image: a folder for each class, or a table."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpt.data.base import Files
from dpt.data.datasets.files import PICTURES, FileDataset, require_files
from dpt.data.formats.rules import name_of_class
from dpt.files import DataError, few, files_below, missing_path, parse_number, read_table
from dpt.plugins import register
from dpt.types.samples import DatasetInfo


@register("imagefolder")
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
        folder = self.folder / self.split_on_disk
        train = self.folder / (self.split_names or {}).get("train", "train")
        folder_names = _folder_names(folder)
        names = self.class_names or _folder_names(train)
        unknown = sorted({*folder_names}.difference(names))
        if unknown or not names:
            fault = f"class folders {few(unknown)} are not among the {len(names)} classes of train"
            raise DataError(f"{folder}: {fault}: expected train/CLASS/IMAGE, or data.class_names")
        self.class_id_names = tuple(name_of_class(name, train) for name in names)
        files = self.without_unread(
            Files(path, class_id=class_id)
            for class_id, name in enumerate(names)
            for path in files_below(folder / name, PICTURES)
        )
        if not files:  # their existence is known
            raise DataError(f"{folder}: no image found: put images into its class folders")
        return files

    def make_info(self) -> DatasetInfo:
        return DatasetInfo(targets=("class_id",), class_names=self.class_id_names)


@register("imagetable")
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

    def list_files(self) -> list[Files]:
        path = self.path_of(self.table)
        folder = self.path_of(self.images)
        remedy = "check data.image_column, data.value_column and data.caption_column"
        columns = (self.image_column, self.caption_column or self.value_column)
        records: dict[str, Files] = {}
        for where, (name, text) in read_table(path, columns, remedy=remedy):
            value = None if self.caption_column else _number(text)
            caption = text if self.caption_column else None
            if not name or name in records or (value is None and not caption):
                fault = f"image {name!r} and {columns[1]} {text[:80]!r}"
                raise DataError(f"{where}: {fault}: give a unique name and a number, or a caption")
            image = self.file_below(folder, name, path)
            records[name] = Files(image, value=value, caption=caption)
        files = [*records.values()] if "%split" in self.table else self._divided(records)
        return require_files(files, source=path, remedy="check data.images and the names in it")

    def _divided(self, records: Mapping[str, Files]) -> list[Files]:
        """Returns the records of the split, of a table of all splits."""
        names = [*records] if self.folds else sorted(records)
        chosen = self.divide(names, [records[name].image for name in names])
        return [records[names[i]] for i in chosen]

    def make_info(self) -> DatasetInfo:
        return DatasetInfo(targets=("caption",) if self.caption_column else ("value",))


def _number(text: str) -> float | None:
    """Returns the finite number that a text is; None if it is none."""
    with suppress(ValueError):
        number = parse_number(text)
        return number if math.isfinite(number) else None
    return None


def _folder_names(path: Path) -> list[str]:
    if not path.is_dir():
        raise missing_path(path, what="folder", remedy="expected train/CLASS/IMAGE in data.root")
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
