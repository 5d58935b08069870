"""Data sets with one label an image: a folder for each class, or a table of numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, few, missing_path, validate_samples
from dpt.data.datasets.splits import DEFAULT_FRACTIONS, share_out
from dpt.data.formats import io
from dpt.types import DatasetInfo, Sample


class ImageFolderDataset:
    """ImageNet's layout: ``root/<split>/<class>/...`` with any image files below.

    Classes are numbered in the sorted order of the train split's folders, on every split.

    Args:
        root: the folder that holds the splits.
        split: ``train``, ``val``, ...
        class_names: the class folders in the order of their ids; None takes those of ``train``.
        split_names: what a split is called on disk, where it is not its name.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        class_names: Sequence[str] | None = None,
        split_names: Mapping[str, str] | None = None,
    ) -> None:
        self.root = Path(root).expanduser()
        names_on_disk = split_names or {}
        folder = self.root / names_on_disk.get(split, split)
        if not folder.is_dir():
            raise missing_path(folder, what="folder", remedy="check data.root and the split's name")
        if class_names is None:
            train = self.root / names_on_disk.get("train", "train")
            if not train.is_dir():
                remedy = "classes are taken from it; make it, or set data.class_names"
                raise missing_path(train, what="folder", remedy=remedy)
            class_names = _folders(train)
        if not class_names:
            raise DataError(f"{self.root}: no class folders: expected train/<class>/<image>")
        unknown = sorted(set(_folders(folder)) - set(class_names))
        if unknown:
            raise DataError(
                f"{folder}: class folders {few(unknown)} are not among the {len(class_names)} "
                "classes of the train split: remove them, or set data.class_names"
            )
        self.info = DatasetInfo(targets=("class_id",), class_names=tuple(class_names))
        self._items: list[tuple[Path, int]] = []
        for class_id, name in enumerate(class_names):
            if (folder / name).is_dir() and any((folder / name).iterdir()):
                found = _scan_images(folder / name)
                self._items.extend((path, class_id) for path in found)
        if not self._items:
            raise DataError(f"{folder}: no image in any class folder: put images there")

    @property
    def class_id_names(self) -> tuple[str, ...]:
        """The name of every ``class_id``."""
        return self.info.class_names

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sample:
        path, class_id = self._items[index]
        image = io.read_image(path)
        return {"image": image, "class_id": class_id, "index": index, "name": str(path)}

    def validate(self, *, limit: int = 16, seed: int = 0) -> list[str]:
        """Reads some samples and raises DataError for what would spoil a run."""
        return validate_samples(self, limit=limit, seed=seed)


class ImageTableDataset:
    """Images named in a CSV table, with one number each (``task=regression``).

    Args:
        root: the folder that table and images are in.
        split: ``train``, ``val``, ...
        table: the CSV file, with a header line. ``%split`` stands for the split; without it the
            splits share one table, by ``fractions``.
        images: folder that the names in the table start from; may hold ``%split``.
        image_column: header of the image names.
        value_column: header of the numbers.
        fractions: each split's share of a table without ``%split``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        table: str = "labels_%split.csv",
        images: str = ".",
        image_column: str = "image",
        value_column: str = "value",
        fractions: Mapping[str, float] | None = None,
    ) -> None:
        self.root = Path(root).expanduser()
        path = self.root / table.replace("%split", split)
        if not path.is_file():
            raise missing_path(path, what="table", remedy="check data.root and data.table")
        values = _read_values(path, image_column=image_column, value_column=value_column)
        if "%split" not in table:
            keys = share_out(values, split=split, fractions=fractions or DEFAULT_FRACTIONS)
            values = {key: values[key] for key in keys}
        folder = self.root / images.replace("%split", split)
        self._items = [(folder / name, value) for name, value in values.items()]
        absent = [str(image) for image, _ in self._items if not image.is_file()]
        if absent:
            raise DataError(
                f"{path}: {len(absent)} of {len(self._items)} images do not exist "
                f"({few(absent)}): check data.images and the names in the table"
            )
        self.info = DatasetInfo(targets=("value",))

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sample:
        path, value = self._items[index]
        return {"image": io.read_image(path), "value": value, "index": index, "name": str(path)}

    def validate(self, *, limit: int = 16, seed: int = 0) -> list[str]:
        """Reads some samples and raises DataError for what would spoil a run."""
        return validate_samples(self, limit=limit, seed=seed)


def _folders(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _scan_images(folder: Path) -> list[Path]:
    images = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in io.IMAGE_SUFFIXES and not path.name.startswith(".")
    )
    return sorted(images)


def _read_values(path: Path, *, image_column: str, value_column: str) -> dict[str, float]:
    """The numbers of a CSV table by image name."""
    rows = csv.DictReader(io.read_text(path).splitlines(), skipinitialspace=True)
    header = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = header
    options = {image_column: "data.image_column", value_column: "data.value_column"}
    for column, option in options.items():
        if column not in header:
            raise DataError(
                f"{path}: no column {column!r} in the header ({', '.join(header)}): set {option}"
            )
    values: dict[str, float] = {}
    for row in rows:
        name, text = (row[image_column] or "").strip(), row[value_column]
        try:
            value = float(text)
        except (TypeError, ValueError):
            value = math.nan
        if not name or not math.isfinite(value):
            raise DataError(
                f"{path}: line {rows.line_num} has image {name!r} and value {text!r}: "
                "each line needs a name and a number; complete or remove it"
            )
        if name in values:
            raise DataError(f"{path}: line {rows.line_num} names {name} again: remove one")
        values[name] = value
    if not values:
        raise DataError(f"{path}: the table has no lines: add some")
    return values
