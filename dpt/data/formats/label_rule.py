"""Conversion of the values of a label file to class ids."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpt.data.formats import io
from dpt.data.formats.rgb_labels import OTHER_COLOR
from dpt.files import DataError, few, plain_name
from dpt.types import IGNORE_INDEX

LabelMap = Sequence[int | Sequence[int]] | str
"""The file's ids of each class, in the order of the classes: ``[7, 8, [11, 12]]`` makes 7 the
class 0, 8 the class 1, and both 11 and 12 the class 2. ``"1-150"`` is short for 1, 2, ..., 150.
All other ids are ignored."""

_LARGEST_ID = 65535


def name_of_class(text: str, source: str | Path) -> str:
    """Returns the name of a class in a file as one line of printable characters, letters composed.

    Raises:
        DataError: nothing is left of it, it is long, or a spreadsheet would take it for a formula.
    """
    joiners = "\u200c\u200d"  # which are part of words in Persian and Hindi
    letters = [c if c.isprintable() or c in joiners else " " for c in plain_name(text)]
    name = " ".join("".join(letters).split())
    if not 0 < len(name) <= 200 or re.match(r"[=@]|[-+].*[(|!]", name):
        raise DataError(f"{source}: {name[:40]!r} cannot be the name of a class: rename it")
    return name


class LabelRule:
    """Converts ids in label files to class ids 0..num_classes-1, 255 where no class applies.

    Args:
        num_classes: at most 255. None: the number of rows of ``label_map`` or ``class_names``.
        class_names: one for each class; by default ``class_0``, ...
        ignore_index: the value, or values, that mean "unlabelled" in the files. Other values
            outside the classes are an error. Not used with ``label_map``.
        label_map: the file's ids of each class, see ``LabelMap``. None: the ids in the files are
            the classes.
        colors: an RGB row for each id *in the files*: the palette of pictures, and the classes of
            RGB label files. Rows after the last class are for ignored ids.
        color_distance: a colour that ``colors`` lacks has the id of the nearest row if no channel
            differs by more than this, and is unlabelled otherwise. Palettes, and black and white,
            then are colours, too. None: such a colour is an error.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        class_names: Sequence[str] = (),
        ignore_index: int | Sequence[int] | None = IGNORE_INDEX,
        label_map: LabelMap | None = None,
        colors: Sequence[Sequence[int]] = (),
        color_distance: int | None = None,
    ) -> None:
        ignored = [ignore_index] if isinstance(ignore_index, int) else ignore_index or ()
        self.ignore_index = tuple(int(value) for value in ignored)
        if color_distance is not None:
            self.ignore_index += (OTHER_COLOR,)
        self.color_distance = color_distance
        rows = self.ids_of_class = None if label_map is None else _rows(label_map)
        if num_classes is None:
            num_classes = len(class_names if rows is None else rows)
            if num_classes == 0:
                raise DataError("data.num_classes is needed (dpt data check proposes it)")
        if not 1 <= num_classes <= 255:
            raise DataError(f"data.num_classes={num_classes} must lie in 1..255 (255 is ignored)")
        for option, values in (("label_map", rows), ("class_names", class_names)):
            if values and len(values) != num_classes:
                fault = f"has {len(values)} rows for {num_classes} classes"
                raise DataError(f"data.{option} {fault}: give one for each class, in their order")
        self.num_classes = num_classes
        self.class_names = tuple(class_names) or tuple(f"class_{i}" for i in range(num_classes))
        first_ids = range(num_classes) if rows is None else [ids[0] for ids in rows]
        self.colors = _color_table(colors, max(first_ids))
        self.palette = tuple(self.colors[i] for i in first_ids) if self.colors else ()
        # the first and last entries are for ids below 0 and above two bytes, which are ignored
        self._table = np.full(_LARGEST_ID + 3, IGNORE_INDEX, np.uint8)
        for class_id, ids in enumerate(rows or ()):
            self._table[np.array(ids) + 1] = class_id

    def read(self, path: str | Path, part: io.FilePart) -> np.ndarray:
        """Returns ids of a label file as stored, or of its colours, an integer array (H, W)."""
        return io.read_labels(path, colors=self.colors, distance=self.color_distance, part=part)

    def __call__(self, raw: np.ndarray, *, source: str | Path) -> np.ndarray:
        """Converts ids of any integer type, (H, W), to classes, uint8 (H, W), of ``source``."""
        if self.ids_of_class is not None:
            return self._table.take(raw.astype(np.int64) + 1, mode="clip")
        outside, count = self.is_outside(raw), self.num_classes
        if outside.any():
            ids = few([str(value) for value in np.unique(raw[outside])], 8)
            remedy = f"set data.ignore_index=[{ids}], data.num_classes or data.label_map=1-{count}"
            raise DataError(f"{source}: class ids {ids} are outside 0..{count - 1}: {remedy}")
        ignored = (raw < 0) | (raw >= count) | np.isin(raw, self.ignore_index)
        return np.where(ignored, np.uint8(IGNORE_INDEX), raw).astype(np.uint8)

    def is_outside(self, raw: np.ndarray) -> np.ndarray:
        """Returns which ids are no class and do not mean unlabelled either, bool (H, W)."""
        if self.ids_of_class is not None:
            return np.zeros(raw.shape, bool)
        allowed = (*self.ignore_index, io.TRANSPARENT)
        return ((raw < 0) | (raw >= self.num_classes)) & ~np.isin(raw, allowed)


def _color_table(colors: Sequence[Sequence[int]], last_id: int) -> tuple[tuple[int, int, int], ...]:
    """Returns RGB rows; DataError if they are none, or too few for ids up to ``last_id``."""
    if any(len(row) != 3 or min(row) < 0 or max(row) > 255 for row in colors):
        raise DataError("data.label_colors must have rows [r,g,b] of numbers in 0..255")
    if colors and len(colors) <= last_id:
        fault = f"has {len(colors)} rows, not one for each id 0..{last_id}"
        raise DataError(f"data.label_colors {fault}: give an [r,g,b] for each")
    return tuple((int(r), int(g), int(b)) for r, g, b in colors)


def _rows(label_map: LabelMap) -> tuple[tuple[int, ...], ...]:
    """Returns the file's ids of each class."""
    if isinstance(label_map, str):
        ends = re.fullmatch(r"(\d{1,5})-(\d{1,5})", label_map)
        first, last = [int(end) for end in ends.groups()] if ends else [0, 0]
        if not first < last:
            raise DataError(f"data.label_map={label_map[:80]}: must be as 1-150 or [7,8,[11,12]]")
        label_map = range(first, last + 1)
    rows = tuple((row,) if isinstance(row, int) else tuple(row) for row in label_map)
    if not rows or not all(rows):
        raise DataError("data.label_map has an empty row: every class needs an id of the files")
    ids = [i for row in rows for i in row]
    repeated = [str(i) for i, count in Counter(ids).items() if count > 1]
    if repeated or min(ids) < 0 or max(ids) > _LARGEST_ID:
        fault = f"names {few(repeated)} twice" if repeated else f"has ids outside 0..{_LARGEST_ID}"
        raise DataError(f"data.label_map {fault}: give each id of the files to one class")
    return rows
