"""How the numbers of a label file become classes: one rule for every data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from dpt.data.errors import DataError, few
from dpt.data.formats import io
from dpt.types import IGNORE_INDEX

LabelMap = Sequence[int | Sequence[int]] | str
"""The file's ids of each class, in the order of the classes: ``[7, 8, [11, 12]]`` makes 7 the
class 0, 8 the class 1, and both 11 and 12 the class 2. ``"1-150"`` is short for 1, 2, ..., 150.
Ids that are not named are ignored."""

_LARGEST_ID = 65535


class LabelRule:
    """From the ids in label files to class ids 0..num_classes-1, 255 where no class applies.

    Args:
        num_classes: how many there are, at most 255. None: as many as ``label_map`` has rows, or
            else as ``class_names`` has names.
        class_names: one for each class; ``class_0``, ... if left out.
        ignore_index: the value, or values, that mean "unlabelled" in the files. Other values
            outside the classes are an error. Not used with ``label_map``.
        label_map: the file's ids of each class, see ``LabelMap``; all others are ignored. None:
            the ids in the files are the classes.
        colors: an RGB row for each id *in the files*: the palette of pictures, and the key to RGB
            label files. Rows after the last class are for ignored ids.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        class_names: Sequence[str] = (),
        ignore_index: int | Sequence[int] | None = IGNORE_INDEX,
        label_map: LabelMap | None = None,
        colors: Sequence[Sequence[int]] = (),
    ) -> None:
        ignored = [ignore_index] if isinstance(ignore_index, int) else ignore_index or ()
        self.ignore_index = tuple(int(v) for v in ignored)
        self.ids_of_class = None if label_map is None else _rows(label_map)
        if num_classes is None and self.ids_of_class is not None:
            num_classes = len(self.ids_of_class)
        self.class_names = _class_names(num_classes, class_names)
        self.colors = tuple((int(r), int(g), int(b)) for r, g, b in colors)
        self._table = None if self.ids_of_class is None else self._make_table(self.ids_of_class)
        first_ids = [ids[0] for ids in self.ids_of_class or ()] or range(self.num_classes)
        if self.colors and len(self.colors) <= max(first_ids):
            raise DataError(
                f"data.label_colors has {len(self.colors)} rows for "
                f"{self.num_classes} classes: give one [r,g,b] for each id of the files, "
                f"0..{max(first_ids)}"
            )
        self.palette = tuple(self.colors[i] for i in first_ids) if self.colors else ()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def read(self, path: str | Path) -> np.ndarray:
        """The classes of a label file, uint8 (H, W)."""
        return self(io.read_labels(path, colors=self.colors), source=path)

    def __call__(self, raw: np.ndarray, *, source: str | Path) -> np.ndarray:
        """Ids of any integer type, (H, W), as classes, uint8 (H, W).

        Args:
            raw: what the file holds.
            source: the file, for messages.
        """
        if self._table is not None:
            if raw.dtype == np.uint8:
                return cv2.LUT(raw, self._table[:256])  # several times as fast
            if raw.dtype != np.uint16:  # below 0 and beyond the table: ignored
                raw = np.where((raw < 0) | (raw > _LARGEST_ID), _LARGEST_ID + 1, raw)
            return self._table.take(raw)
        count = self.num_classes
        ignored = raw == self.ignore_index[0] if self.ignore_index else np.zeros(raw.shape, bool)
        for value in self.ignore_index[1:]:
            ignored |= raw == value
        outside = (raw >= count) | (raw < 0) if raw.dtype.kind == "i" else raw >= count
        if (outside & ~ignored).any():
            raise self._out_of_range(source, np.unique(raw[outside & ~ignored]).tolist())
        if raw.dtype == np.uint8 and self.ignore_index in ((), (IGNORE_INDEX,)):
            return raw
        labels = raw.astype(np.uint8)
        labels[ignored] = IGNORE_INDEX
        return labels

    def _make_table(self, ids_of_class: tuple[tuple[int, ...], ...]) -> np.ndarray:
        """The class of each id up to the largest of two bytes, and one ignored place more."""
        if len(ids_of_class) != self.num_classes:
            raise DataError(
                f"data.label_map has {len(ids_of_class)} rows for {self.num_classes} classes: "
                "give the ids of each class, in their order"
            )
        ids = [i for row in ids_of_class for i in row]
        twice = [str(i) for i in dict.fromkeys(ids) if ids.count(i) > 1]
        if twice or min(ids) < 0 or max(ids) > _LARGEST_ID:
            fault = f"names {few(twice)} twice" if twice else f"has ids outside 0..{_LARGEST_ID}"
            raise DataError(f"data.label_map {fault}: give each id of the files to one class")
        table = np.full(_LARGEST_ID + 2, IGNORE_INDEX, np.uint8)
        for class_id, row in enumerate(ids_of_class):
            table[list(row)] = class_id
        return table

    def _out_of_range(self, path: str | Path, values: list[int]) -> DataError:
        count = self.num_classes
        listed = list(self.ignore_index)
        ignored = listed[0] if len(listed) == 1 else listed
        if values == [count]:
            hint = (
                f"if {count} marks unlabelled pixels, set data.ignore_index={count}; if ids count "
                f"from 1, set data.label_map=1-{count}; if it is a class, set "
                f"data.num_classes={count + 1}"
            )
        elif values == [IGNORE_INDEX]:
            hint = f"if 255 marks unlabelled pixels, add it to data.ignore_index={ignored}"
        else:
            hint = (
                "set data.num_classes, data.ignore_index for values that mean unlabelled, or "
                "data.label_map for the ids of each class"
            )
        return DataError(
            f"{path}: class ids {few([str(v) for v in values], 8)} are outside 0..{count - 1} "
            f"(data.num_classes={count}) and not data.ignore_index={ignored}: {hint}"
        )


def _rows(label_map: LabelMap) -> tuple[tuple[int, ...], ...]:
    if isinstance(label_map, str):
        first, dash, last = label_map.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
            raise DataError(
                f"data.label_map={label_map}: must be a range of ids such as 1-150, or a list of "
                "the ids of each class, such as [7,8,[11,12]]"
            )
        label_map = range(int(first), int(last) + 1)
    rows = tuple((row,) if isinstance(row, int) else tuple(row) for row in label_map)
    if not rows or not all(rows):
        raise DataError("data.label_map has an empty row: every class needs an id of the files")
    return rows


def _class_names(num_classes: int | None, class_names: Sequence[str]) -> tuple[str, ...]:
    count = len(class_names) if num_classes is None else num_classes
    if count == 0 and num_classes is None:
        raise DataError("data.num_classes is needed with data.labels: how many classes there are")
    if not 1 <= count <= 255:
        raise DataError(f"data.num_classes={count} must lie in 1..255 (255 is the ignored id)")
    if class_names and len(class_names) != count:
        raise DataError(
            f"data.class_names has {len(class_names)} names for data.num_classes={count}: "
            "give one for each class"
        )
    return tuple(class_names) or tuple(f"class_{i}" for i in range(count))
