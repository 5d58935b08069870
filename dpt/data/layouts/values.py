"""What pairs of files become: the classes of masks, the unit of depth maps, sizes and bands."""

import csv
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import BeforeValidator, Field

from dpt.data.formats import io
from dpt.data.formats.bands import FilePart, read_bands
from dpt.data.formats.io import MAX_COLORS, MAX_RED_ID
from dpt.data.formats.pictures import exif_orientation, read_size
from dpt.data.formats.rules import (
    UNITS,
    DepthRule,
    LabelMap,
    LabelRule,
    are_normalised,
    likely_scale,
    name_of_class,
    top_of,
)
from dpt.data.layouts.base import Detected, Folder, Match, Row, in_threads
from dpt.data.layouts.splits import divide, rows_by_lists
from dpt.files import DataError, few, parse_json, plural, read_text
from dpt.geometry import aspects_agree
from dpt.run_log import tracked
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Plain, PlainMapping, validate

_MANY = 100  # masks, before whose reading a note is printed
_BACKGROUND = r"(?i)_*background_*|0|color_000000"


@dataclass(kw_only=True)
class PairMatch(Match):
    """Images with masks, depth maps or both."""

    lists: Sequence[str] = ()  # the tables that name the rows

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        title: str,
        key: str,
        files: Iterable[str] = (),
        lists: Sequence[str] = (),
    ) -> Self | None:
        """Returns the match of rows; None if none has labels.

        Args:
            files: label files besides those of the rows.
        """
        labelled = [row for row in rows if row.is_labelled]
        if not labelled:
            return None
        masks = sum(bool(row.labels) for row in labelled)
        maps = sum(bool(row.depth) for row in labelled)
        nouns = [plural(masks, "mask")] * bool(masks) + [plural(maps, "depth map")] * bool(maps)
        example = " with ".join(path for path in labelled[0][:3] if path)
        return cls(
            sentence=f"{' and '.join(nouns)}, {title}, such as {example}",
            key=key,
            rows=[*rows],
            labelled=len(labelled),
            lists=lists,
            files={*files, *(path for row in labelled for path in row[1:3] if path)},
        )

    def read(self, folder: Folder) -> Detected:
        lists, rows = self._labelled_rows(folder)
        settings = _settings_of_labels(folder, rows)
        has_objects = "objects" in settings
        bare = [row for row in self.rows if not row.is_labelled]
        rows, held_out = divide(folder, rows, lists, bare)
        task = "segmentation" if "depth" not in settings else "joint"
        task = task if "labels" in settings else "depth"
        other_tasks = ("panoptic", "instance") if has_objects else ()
        return Detected(task, rows, settings | held_out, folder.notes, other_tasks)

    def _labelled_rows(self, folder: Folder) -> tuple[list[str], list[Row]]:
        """Returns the lists that define the splits, and the rows with labels that they name."""
        labelled = [row for row in self.rows if row.is_labelled]
        lists, used = rows_by_lists(folder, labelled)
        folder.used |= {*lists, *self.lists, *(path for row in self.rows for path in row)}
        bare = [row.image for row in self.rows if not row.is_labelled]
        folder.leave_out(bare, " without labels, which data.unlabelled=DIR trains on", "image")
        unlisted = {row.image for row in labelled}.difference(row.image for row in used)
        folder.leave_out(sorted(unlisted), f" that {few(lists)} do not name", "image")
        return lists, used


def _settings_of_labels(folder: Folder, rows: Sequence[Row]) -> Plain:
    """Returns the settings of the masks, maps of objects and depth maps of rows."""
    masks = [folder.root / row.labels for row in rows if row.labels]
    maps = [folder.root / row.depth for row in rows if row.depth]
    settings: Plain = {}
    if "resize_labels" not in folder.given and _compare_sizes(folder, rows):
        settings["resize_labels"] = True
    if masks:
        settings |= _settings_of_masks(folder, masks, has_depth=bool(maps))
    if masks and all(row.objects for row in rows):
        settings |= _object_settings({**folder.given, **settings})
    if maps:
        settings |= {"depth": "depth", **depth_settings(folder, maps)}
    return settings


def _settings_of_masks(folder: Folder, paths: Sequence[Path], *, has_depth: bool) -> Plain:
    """Returns the settings of the classes of masks, and notes them."""
    if len(paths) > _MANY:
        folder.say(f"reading {len(paths)} masks, for the classes")
    try:
        file = read_class_file(folder)
        settings, notes = read_masks(paths, file, folder.given).settings()
    except DataError as error:  # the masks may be those of valid depth
        remedy = "; data.labels=null leaves all masks out" if has_depth else ""
        raise DataError(f"{error}{remedy}") from None
    if any(row.name in settings.get("class_names", ()) for row in file.rows):
        folder.used.add(file.path)
        folder.note(f"class names: {file.path}")
    folder.note(*notes)
    return {"labels": "labels", **settings}


def _object_settings(settings: Plain) -> Plain:
    """Returns the settings of maps of objects; all classes but the background have objects."""
    label_map = settings.get("label_map", range(settings.get("num_classes", 0)))
    names = settings.get("class_names") or [str(label) for label in label_map]
    things = [k for k, name in enumerate(names) if not re.fullmatch(_BACKGROUND, name)]
    of_objects: Plain = {"objects": "objects", "things": things}
    if not settings.get("class_names") and len(things) < len(names):
        of_objects["class_names"] = [
            f"class_{k}" if k in things else "background" for k in range(len(names))
        ]
    return of_objects


# ----------------------------------------------------------------------------- sizes and bands


def _compare_sizes(folder: Folder, rows: Iterable[Row]) -> bool:
    """Returns whether some labels have another size than their image, in its proportions.

    Raises:
        DataError: the proportions differ.
    """
    resized: list[str] = []
    wrong: list[str] = []
    sizes: Counter[str] = Counter()
    for row in rows:
        size = _size(folder.root / row.image)
        sizes[f"{size[1]}x{size[0]}" if size else "unknown"] += 1
        for path in filter(None, (row.labels, row.depth)):
            other = _size(folder.root / path)
            if size is None or other is None or _are_equal(other, size, folder.root / row.image):
                continue
            text = f"{path} {other[1]}x{other[0]} of {row.image} {size[1]}x{size[0]}"
            (resized if aspects_agree(other, size) else wrong).append(text)
    folder.note("sizes: " + few([f"{name} ({count})" for name, count in sizes.most_common()]))
    if wrong:
        fault = f"{len(wrong)} label files have other proportions than their image"
        remedy = "replace them, or take them out"
        raise DataError(f"{folder.root}: {fault} ({few(wrong)}): {remedy}")
    if resized:
        reason = f"{len(resized)} label files are not as large as their image ({few(resized)})"
        folder.note(f"sizes: data.resize_labels=true, as {reason}")
    return bool(resized)


def _are_equal(other: tuple[int, int], size: tuple[int, int], image: Path) -> bool:
    """Returns whether a map has the size of its image, as it is stored or upright."""
    return other == size or (other == size[::-1] and exif_orientation(image) > 4)


def _size(path: Path) -> tuple[int, int] | None:
    """Returns (H, W) of a picture or an array; None of what cannot be read as one."""
    with suppress(DataError):
        return read_size(path)
    return None


def band_settings(folder: Folder, image: str) -> Plain:
    """Returns ``bands=all`` if an image can be read so, and not as 8-bit grey or RGB."""
    path = folder.root / image
    if not folder.given.keys().isdisjoint(("bands", "image_max")):
        return {}
    with suppress(DataError):
        io.read_image(path)
        return {}
    with suppress(DataError):
        form = read_bands([path], FilePart(bands="all")).form
        folder.note(f"bands: data.bands=all, as {image} holds {form}; see also data.image_max")
        return {"bands": "all"}
    return {}


# ----------------------------------------------------------------------------- files of classes

_NAMES = r"class(es|_names|_dict\w*)?|names|palette|labelmap"
_CLASS_FILE = rf"(?i)(.*/)?(label)?_?({_NAMES})\.(txt|csv|json)"
MAX_VALUES = 256  # of masks: 255 classes, and one that means unlabelled
_NO_CLASS = r"(?i)_*(void|unlabell?ed|ignored?|undefined)_*"
"""Names that often mean unlabelled."""
_LARGEST_VALUES = {IGNORE_INDEX, *(2**bits - 1 for bits in (16, 31, 32, 63, 64))}
"""The largest values of types of pixels, which mean unlabelled."""
_MAX_BYTES = 1 << 17  # also the limit of csv.reader
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a list of names alone
_Byte = Annotated[int, Field(ge=0, le=255)]
_Color = tuple[_Byte, _Byte, _Byte]


def _rgb(color: object) -> object:
    """Returns ``[80, 227, 194]`` for Supervisely's ``#50E3C2``, and other values as they are."""
    if isinstance(color, str) and re.fullmatch("#[0-9a-fA-F]{6}", color):
        return list(bytes.fromhex(color[1:]))
    return color


@dataclass(frozen=True)
class ClassRow:
    """A class in a file of class names; None is what the file does not say."""

    name: str
    id: int | None = None
    color: Annotated[_Color, BeforeValidator(_rgb)] | None = None


@dataclass
class ClassFile:
    """The classes that a file names; without one there are no rows."""

    path: str = ""  # below the root
    rows: list[ClassRow] = field(default_factory=list)


_RawRow = dict[str, object]
"""The fields of a ``ClassRow``, not checked yet."""


def read_class_file(folder: Folder) -> ClassFile:
    """Reads the first file of the folder whose name is one of class names."""
    path = next((path for path in folder.paths if re.fullmatch(_CLASS_FILE, path)), "")
    if not path:
        return ClassFile()
    source = folder.root / path
    text = read_text(source, limit=_MAX_BYTES)
    is_json = path.lower().endswith(".json")
    raw_rows = _rows_of_json(text, source) if is_json else _rows_of_lines(text)
    if len(raw_rows) > MAX_VALUES:
        raise DataError(f"{source}: {len(raw_rows)} classes, at most {MAX_VALUES - 1}")
    rows = [validate(ClassRow, row, f"{source}: class") for row in raw_rows]
    rows = [replace(row, name=name_of_class(row.name, source)) for row in rows if _is_class(row)]
    if not _CHOICES & folder.given.keys() and len({row.name for row in rows}) < len(rows):
        raise DataError(f"{path}: two classes have one name: give each its own")
    return ClassFile(path, rows)


def _is_class(row: ClassRow) -> bool:
    """Returns whether a row does not mean unlabelled, as labelme's first one does."""
    if row.id is None:
        return row.name != "__ignore__" or row.color is not None
    is_void = re.fullmatch(_NO_CLASS, row.name)
    return not is_void or (row.id >= 0 and row.id not in _LARGEST_VALUES)


def _rows_of_json(text: str, source: Path) -> list[_RawRow]:
    """Returns the classes of a list of names, or of objects with a name or title, and perhaps an
    id and a colour; the list may stand below ``classes``."""
    classes = parse_json(text, source)
    if isinstance(classes, dict):
        classes = classes.get("classes")
    if not isinstance(classes, list) or not classes:
        raise DataError(f"{source}: no names of classes: write a list of names")
    rows: list[_RawRow] = [row if isinstance(row, dict) else {"name": row} for row in classes]
    return [
        {"name": row.get("name", row.get("title")), "id": row.get("id"), "color": row.get("color")}
        for row in rows
    ]


def _rows_of_lines(text: str) -> list[_RawRow]:
    """Returns the classes of lines with a name, and perhaps an id and a colour, below a header if
    there is one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [row for row in map(_row_of_line, lines) if row["name"]]
    if not rows:
        return []
    has_numbers = [row["id"] is not None or row["color"] is not None for row in rows]
    others_have_numbers = len(rows) > 1 and all(has_numbers[1:])
    is_named = str(rows[0]["name"]).lower() in _HEADERS
    is_header = not has_numbers[0] and (others_have_numbers or is_named)
    return rows[is_header:]


def _row_of_line(line: str) -> _RawRow:
    """Returns the class of a line; spaces separate its parts if nothing else does."""
    (cells,) = csv.reader([re.sub(r"[;:\t]", ",", line)], skipinitialspace=True)
    words = [cell.strip() for cell in cells if cell.strip()]
    color = None
    if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
        words, color = words[:-3], words[-3:]
    spaced = re.fullmatch(r"(-?\d+)\s+(.+)", words[0]) if len(words) == 1 else None
    words = [*spaced.groups()] if spaced else words
    ids = [word for word in words if re.fullmatch(r"-?\d+", word)] if len(words) > 1 else []
    name = " ".join(word for word in words if word not in ids)
    return {"name": name, "id": ids[0] if ids else None, "color": color}


# ---------------------------------------------------------------------------- classes of masks

Value = tuple[int, ...]
"""An id ``(i,)`` or a colour ``(r, g, b)`` of mask files."""
Values = Counter[Value]
"""Pixels of each value."""

_BLACK = (0, 0, 0)
_MAX_PADDING = 0.01  # fraction of the pixels
_MIN_COLORS = 3
_MANY_COLORS = 64  # of masks that hold mixed colours
_SHOWN_COLORS = 8
_CHOICES = {"num_classes", "label_map"}  # keys of data that choose the classes of numbers


@dataclass(frozen=True, kw_only=True)
class Masks(ABC):
    """The values of masks, and what a file of class names and the user say of them.

    A class has a number: its id, or the row of its colour in ``label_colors``.
    """

    paths: Sequence[Path]
    values: Values
    file: ClassFile
    given: PlainMapping  # keys of data, which decide before the file and the values

    def settings(self) -> tuple[Plain, list[str]]:
        """Returns the settings of the masks, and what was recognised or assumed.

        Raises:
            DataError: the masks have no classes, or can be read in two ways.
        """
        ignored = ignored_ids(self.given)
        names = self.names(ignored)
        chosen = _chosen_classes(self.given)
        classes = chosen or [(k,) for k in names if k not in ignored]
        settings = self.settings_of_colors()
        if not chosen:
            numbers = [row[0] for row in classes]
            is_range = numbers == [*range(len(numbers))]
            settings |= {"num_classes": len(numbers)} if is_range else {"label_map": numbers}
        used = {*chain(*classes)}
        settings["ignore_index"] = sorted({*ignored, *self.unlabelled(used), IGNORE_INDEX})
        class_names = [names.get(row[0], "") for row in classes]
        notes = self._notes({k: names.get(k, "") for k in used})
        if all(class_names) and "class_names" not in self.given:
            settings["class_names"] = class_names
            notes += _notes_of_void(class_names)
        return settings, notes

    def counts(self, settings: PlainMapping) -> list[int]:
        """Returns the pixels of each class of ``settings``."""
        numbers = settings.get("label_map", range(settings.get("num_classes", 0)))
        return [self.values[self.value_of(k)] for k in numbers]

    @abstractmethod
    def names(self, ignored: Collection[int]) -> dict[int, str]:
        """Returns the numbers that are classes, and their names, "" where they are unknown."""

    @abstractmethod
    def unlabelled(self, used: Collection[int]) -> set[int]:
        """Returns the numbers, besides those of the user, that mean unlabelled."""

    @abstractmethod
    def value_of(self, number: int) -> Value:
        """Returns the value that has a number."""

    def settings_of_colors(self) -> Plain:
        """Returns the settings that turn colours into numbers."""
        return {}

    def _notes(self, names: Mapping[int, str]) -> list[str]:
        """Returns lines about the values that are classes, and those that are none."""
        name_of = {self.value_of(k): name for k, name in names.items()}
        total = self.values.total()
        texts: dict[bool, list[str]] = {True: [], False: []}
        for value in [*name_of, *(v for v, _ in self.values.most_common() if v not in name_of)]:
            code = ("#{:02x}{:02x}{:02x}" if len(value) == 3 else "{}").format(*value)
            text = f"{name_of.get(value, '')} {code} ({self.values[value] / total:.2%})"
            texts[value in name_of].append(text.strip())
        lines = [f"masks: {len(self.paths)} files with the classes {few(texts[True], 40)}"]
        if texts[False]:
            hint = "data.color_distance=32 gives colours the nearest class within 32"
            lines.append(f"unlabelled: {few(texts[False], 6)} of the pixels; {hint}")
        if not self.file.rows and not _CHOICES & self.given.keys():
            lines.append(
                "each value is a class; if one is none, set data.ignore_index or label_map"
            )
        return lines

    def _fault(self, text: str) -> DataError:
        return DataError(f"{self.paths[0].parent}: {text}")


def _notes_of_void(class_names: Sequence[str]) -> list[str]:
    """Returns a note of the classes that may mean unlabelled, if there are some."""
    void = [name for name in class_names if re.fullmatch(_NO_CLASS, name)]
    hint = "if it means unlabelled, set data.ignore_index to its number, counted from 0"
    return [f"{few(void)}: trained as a class; {hint}"] if void else []


def ignored_ids(given: PlainMapping) -> set[int]:
    """Returns the numbers that mean unlabelled, as the user says."""
    setting = given.get("ignore_index", ())
    return {setting} if isinstance(setting, int) else {*(setting or ())}


def _chosen_classes(given: PlainMapping) -> list[tuple[int, ...]]:
    """Returns the numbers of each class that the user has chosen; none if the user has not."""
    if not _CHOICES & given.keys():
        return []
    label_map = validate(LabelMap | None, given.get("label_map"), "data.label_map")
    count = validate(int | None, given.get("num_classes"), "data.num_classes")
    rule = LabelRule(label_map=label_map, num_classes=count)
    return list(rule.ids_of_class or [(k,) for k in range(rule.num_classes)])


@dataclass(frozen=True, kw_only=True)
class IdMasks(Masks):
    """Masks that hold class ids."""

    are_mixed: bool = False  # whether no file holds both 1 and 255

    def value_of(self, number: int) -> Value:
        return (number,)

    def unlabelled(self, used: Collection[int]) -> set[int]:
        return {i for (i,) in self.values if i < 0 or i in _LARGEST_VALUES}

    def names(self, ignored: Collection[int]) -> dict[int, str]:
        if len(self.values) > MAX_VALUES:
            remedy = "save class ids without interpolation, or set data.label_map (or data.depth)"
            raise self._fault(f"masks of more than {MAX_VALUES} values: {remedy}")
        ids = sorted(i for (i,) in self.values if i not in ignored and i >= 0)
        rows = self.file.rows
        numbers = self._numbers(ids)
        names = [row.name for row in rows] if len(rows) == len(numbers) else [""] * len(numbers)
        return dict(zip(numbers, names, strict=True))

    def _numbers(self, ids: Sequence[int]) -> list[int]:
        """Returns the ids of the classes: as the user or the file says, or all that occur."""
        rows, chosen = self.file.rows, _chosen_classes(self.given)
        if chosen:
            has_ids = bool(rows) and all(row.id is not None for row in rows)
            return [row.id or 0 for row in rows] if has_ids else [row[0] for row in chosen]
        if rows:
            return _ids_of_names(self.file, ids)
        self._refuse_doubtful(ids)
        return _ids_of_classes(ids)

    def _refuse_doubtful(self, ids: Sequence[int]) -> None:
        """Raises DataError for ids without names that can be read in two ways."""
        (first, first_pixels), (second, second_pixels) = (self.values.most_common(2) * 2)[:2]
        is_most = first_pixels + second_pixels > 0.9 * self.values.total()
        if len(ids) > 8 and abs(first[0] - second[0]) > 100 and is_most:
            fault = "nearly all pixels have two values, as in masks of two after interpolation"
            raise self._fault(f"{fault}: save them as PNG, or set data.label_map")
        if [*ids] == [0, 1, IGNORE_INDEX] and self.are_mixed:
            choices = "[0,[1,255]] if both are a class, or [0,1] if 255 means unlabelled"
            raise self._fault(f"no mask holds both 1 and 255: set data.label_map={choices}")
        classes = [i for i in ids if i != IGNORE_INDEX]
        if IGNORE_INDEX in ids and len(classes) > 1 and classes[-1] > 100:
            keys = [f"data.label_map={choice}".replace(" ", "") for choice in (ids, classes)]
            raise self._fault(f"255 may be a class or mean unlabelled: set {keys[0]} or {keys[1]}")


def _ids_of_classes(ids: Sequence[int]) -> list[int]:
    """Returns the ids that are classes, of ascending ones that occur, with rare gaps filled."""
    classes = [i for i in ids if i not in _LARGEST_VALUES]
    if len(classes) < 2:  # the largest value is a class, too, where only one other id occurs
        classes = [*ids]
    has_few_gaps = classes[0] == 0 and classes[-1] < 2 * len(classes)
    return [*range(classes[-1] + 1)] if has_few_gaps else classes


def _ids_of_names(file: ClassFile, ids: Sequence[int]) -> list[int]:
    """Returns the id of each name in a file, for masks that hold ``ids``.

    Raises:
        DataError: the first name without an id may belong to 0, 1 or a value that means unlabelled,
            or an id has no name.
    """
    count, first = len(file.rows), file.rows[0]
    classes = {*ids} - _LARGEST_VALUES
    if len(classes) < 2:  # 255 is a class, too, where only one other id occurs
        classes = {*ids}
        if len(ids) == count and all(row.id is None for row in file.rows):
            return [*ids]
    start = _start_of_names(file, ids, classes) if first.id is None and classes else 0
    numbers = [k + start if row.id is None else row.id for k, row in enumerate(file.rows)]
    unnamed = [str(i) for i in sorted(classes - {*numbers})]
    if unnamed:
        fault = f"no name for the ids {few(unnamed)} of the masks"
        raise DataError(f"{file.path}: {fault}: add them, or set data.label_map")
    return numbers


def _start_of_names(file: ClassFile, ids: Sequence[int], classes: set[int]) -> int:
    """Returns the id of the first name; DataError if it may be several.

    Args:
        classes: those of ``ids`` that do not mean unlabelled.
    """
    count, first = len(file.rows), file.rows[0].name
    starts = [0, 1, -1] if classes < {*ids} and re.fullmatch(_NO_CLASS, first) else [0, 1]
    possible = [k for k in starts if classes <= {*range(k, k + count)}]
    if len(possible) > 1 or (not possible and classes <= {*range(count + 1)}):
        held = f"{count} names, and the masks hold the ids {few([*map(str, ids)], 12)}"
        choices = (
            f"data.num_classes={count} if {first} is the name of 0, "
            f"data.label_map=1-{count} if it is that of 1, or data.ignore_index={count} if "
            f"{count} means unlabelled; or remove the name if it means unlabelled"
        )
        raise DataError(f"{file.path}: {held}: set {choices}")
    return possible[0] if possible else 0


@dataclass(frozen=True, kw_only=True)
class ColorMasks(Masks):
    """Masks whose colours are classes."""

    table: Sequence[_Color] = ()  # colours of the user or of the file
    use_palette: bool = False  # whether colours of palettes count, not their indices

    @cached_property
    def colors(self) -> Sequence[Value]:
        """The colours of the numbers: those of the table, or those in the masks."""
        if self.table:
            return self.table
        if self.given.get("class_names"):
            raise self._fault("data.class_names needs data.label_colors, the colour of each class")
        is_rare = 0 < self.values[_BLACK] < _MAX_PADDING * self.values.total()
        padding = {_BLACK} if is_rare and len(self.values) > _MIN_COLORS else set()
        colors = sorted(self.values.keys() - padding)
        if not 1 < len(colors) <= _MANY_COLORS:
            frequent = [[*color] for color, _ in self.values.most_common(_SHOWN_COLORS)]
            keys = f"data.label_colors={frequent} data.color_distance=0".replace(", ", ",")
            fault = f"{len(self.values)} colours, as borders mix them"
            raise self._fault(f"{fault}: set those that are classes, such as {keys}")
        return colors

    def value_of(self, number: int) -> Value:
        return self.colors[number] if number < len(self.colors) else (-1,)

    def names(self, ignored: Collection[int]) -> dict[int, str]:
        name_of: dict[Value | None, str] = {row.color: row.name for row in self.file.rows}
        default = "" if self.table else "color_{:02x}{:02x}{:02x}"
        return {
            k: name_of.get(color) or default.format(*color) for k, color in enumerate(self.colors)
        }

    def unlabelled(self, used: Collection[int]) -> set[int]:
        return {*range(len(self.colors))}.difference(used) if self.table else set()

    def settings_of_colors(self) -> Plain:
        settings: Plain = {"label_colors": [list(color) for color in self.colors]}
        unknown = [str(color) for color in self.values if color not in self.colors]
        if "color_distance" in self.given:
            return settings
        if unknown and self.given.get("label_colors"):
            remedy = "add each (and its number to data.ignore_index), or set data.color_distance"
            fault = f"the masks hold {few(unknown)}, which data.label_colors lacks"
            raise self._fault(f"{fault}: {remedy}")
        return settings | ({"color_distance": 0} if unknown or self.use_palette else {})


def _part_of(data: PlainMapping) -> FilePart:
    """Returns what keys of ``data`` choose of files that hold more than one map."""
    return FilePart(key=data.get("array_key"))


def read_masks(paths: Sequence[Path], file: ClassFile, given: PlainMapping) -> Masks:
    """Reads the values of all masks: all ids, or all colours, which are also those of palettes
    where other masks are pictures of colours or the palettes disagree.

    Args:
        file: names of the classes; not used if most pixels have other colours than its, and most of
            its colours do not occur.
        given: keys of ``data`` that the user has set.

    Raises:
        DataError: a mask cannot be read, all hold one value, or some ids and others colours.
    """
    colors = validate(list[_Color], given.get("label_colors") or [], "data.label_colors")
    table = colors or [row.color for row in file.rows if row.color]
    for use_palette in _uses_of_palette(paths, given):
        values, are_mixed = _count_values(paths, given, use_palette=use_palette)
        if any(len(value) == 3 and value not in table for value in values):
            values = _with_ids(values)
        if len(values) < 2:
            fault = "all masks hold one value, and transparent pixels mean unlabelled"
            remedy = "save each class as an id or an opaque colour"
            raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
        examples = {len(value): value for value in values}
        if 3 not in examples:
            return IdMasks(paths=paths, values=values, file=file, given=given, are_mixed=are_mixed)
        if 1 not in examples:
            masks = ColorMasks(paths=paths, values=values, file=file, given=given, table=table)
            masks = replace(masks, use_palette=use_palette)
            return masks if colors else _without_other_colors(masks)
    both = f"some masks hold ids, such as {examples[1][0]}, others colours, such as {examples[3]}"
    raise DataError(f"{paths[0].parent}: {both}: save all as ids, or all as colours")


def _uses_of_palette(paths: Sequence[Path], given: PlainMapping) -> Sequence[bool]:
    """Returns whether to read palettes: only so where they disagree, else where indices fail."""
    if not _CHOICES & given.keys() and io.palettes_disagree(paths, _part_of(given)):
        return (True,)
    return False, True


def _without_other_colors(masks: ColorMasks) -> ColorMasks:
    """Returns masks without the table of a file if most pixels have other colours, and most of its
    colours do not occur."""
    counts = [masks.values[color] for color in masks.table]
    occur = 2 * sum(count > 0 for count in counts) >= len(counts)
    if not occur and 2 * sum(counts) < masks.values.total():
        return replace(masks, table=(), file=ClassFile())
    return masks


def _count_values(
    paths: Sequence[Path], given: PlainMapping, *, use_palette: bool
) -> tuple[Values, bool]:
    """Returns the pixels of each value, and whether no mask holds both 1 and 255."""
    values, are_mixed = Values(), True
    count = partial(io.label_values, part=_part_of(given), use_palette=use_palette)
    counted = tracked(in_threads(count, paths), len(paths), title="reading masks")
    for path, counts in zip(paths, counted, strict=True):
        values.update(counts)
        are_mixed = are_mixed and not {1, IGNORE_INDEX} <= {value[0] for value in counts}
        if len(values) > MAX_COLORS:
            raise DataError(f"{path}: pictures of more than {MAX_COLORS} colours, not masks")
    return values, are_mixed


def _with_ids(values: Values) -> Values:
    """Returns the values, with ids in place of colours if all are grey, or dark red as ids in R."""
    colors = [value for value in values if len(value) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > MAX_RED_ID for r, g, b in colors):
        return values
    ids = Values()
    for value, count in values.items():
        ids[value[:1]] += count
    return ids


# --------------------------------------------------------------------------------- depth maps

_MAX_MAPS = 48  # from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_NEAR_ROOM = 2.5  # metres: rooms mostly reach farther, so that the unit may be another
_SPARSE = 0.3  # fraction of measured pixels: laser scanners measure fewer
_NOT_MEASURED = (65.535, 65535.0, 65504.0, 1e10)
"""What means "not measured" in floats: the end of 16 bits, also of halves, and Blender's sky."""
_DISPARITY = r"(?i)(^|[-_. /])disp(s|arity|arities)?([-_. /0-9]|$)"


@dataclass(frozen=True)
class _DepthValues:
    """The values of depth files.

    Attributes:
        typical, high: the median and the 99 % quantile of what is measured.
        farthest: the largest measured value.
        fraction: of the pixels that are measured.
    """

    dtype: np.dtype
    typical: float
    high: float
    farthest: float
    fraction: float


def depth_settings(folder_of_maps: Folder, paths: Sequence[Path]) -> Plain:
    """Returns the settings of depth maps, and notes them.

    Raises:
        DataError: disparity, maps scaled to their own range, or an unknown unit.
    """
    given, folder = folder_of_maps.given, paths[0].parent
    if re.search(_DISPARITY, str(paths[0])):
        remedy = "convert it, metres = focal length x baseline / disparity, and rename the files"
        raise DataError(f"{folder}: disparity, not depth: {remedy}")
    key = given.get("depth_key", given.get("array_key"))
    places = np.linspace(0, len(paths) - 1, min(len(paths), _MAX_MAPS)).astype(int)
    maps = [io.read_raw_depth(paths[i], key=key) for i in places]
    _refuse_mixed(maps, folder, given)
    invalid = given.get("invalid_depth", [0, *_missing_values(maps)])
    values = _measured(maps, invalid, folder)
    scale = given.get("depth_scale") or _scale(folder, values)
    limit = next((limit for limit in _RANGES if limit >= scale * values.farthest), None)
    max_depth = limit or float(np.ceil(scale * values.farthest))
    unit = f"{UNITS.get(scale, scale)}, {values.typical * scale:.2g} m typically"
    declared = few([str(value) for value in invalid])
    text = f"{len(paths)} files of {values.dtype} in {unit}; {declared} and NaN: not measured"
    folder_of_maps.note(f"depth: {text}")
    return {"depth_scale": scale, "invalid_depth": invalid, "max_depth": max_depth}


def _measured(maps: Sequence[np.ndarray], invalid: Sequence[float], folder: Path) -> _DepthValues:
    """Returns what maps hold; DataError if nothing is measured."""
    rule = DepthRule(invalid=invalid)
    measured = [values[rule.is_measured(values)] for values in maps]
    fraction = sum(values.size for values in measured) / sum(values.size for values in maps)
    measured = [values for values in measured if values.size]
    if not measured:
        raise DataError(f"{folder}: no depth map holds a measured depth: check the files")
    return _DepthValues(
        maps[0].dtype,
        typical=float(np.median([np.median(values) for values in measured])),
        high=float(np.median([np.quantile(values, 0.99) for values in measured])),
        farthest=max(float(values.max()) for values in measured),
        fraction=fraction,
    )


def _refuse_mixed(maps: Sequence[np.ndarray], folder: Path, given: PlainMapping) -> None:
    """Raises DataError if maps have no unit in common."""
    if len({values.dtype.kind == "f" for values in maps}) > 1:
        types = sorted({str(values.dtype) for values in maps})
        raise DataError(f"{folder}: depth maps of {few(types)}: save all in one unit and type")
    if "depth_scale" not in given and are_normalised([top_of(values) for values in maps]):
        fault = f"all depth maps end at {maps[0].max():g}, as if each was scaled to its own range"
        raise DataError(f"{folder}: {fault}: save metres, or set data.depth_scale if they share it")


def _missing_values(maps: Sequence[np.ndarray]) -> list[float]:
    """Returns the values in maps that mean "not measured", besides 0."""
    dtype = maps[0].dtype
    largest = [] if dtype.kind == "f" else [np.iinfo(dtype).max]
    candidates = dict.fromkeys([*largest, *_NOT_MEASURED])
    wide = [values.astype(np.promote_types(values.dtype, np.float32)) for values in maps]
    return [value for value in candidates if any((values == value).any() for values in wide)]


def _scale(folder: Path, values: _DepthValues) -> float:
    """Returns the metres of a unit; DataError if several units are likely, or none."""
    is_whole = values.dtype.kind != "f"
    scale = likely_scale(values.typical, values.high, max_depth=None, scale=np.inf)
    if is_whole and values.typical >= 250:
        scale = 0.001
    if scale is None or values.dtype.itemsize == 1:
        fault = "maps of 8 bits have no usual unit" if scale else "no usual unit is plausible"
        remedy = (
            f"a typical depth of {values.typical:.4g}: set data.depth_scale to metres of a unit"
        )
        raise DataError(f"{folder}: {fault}, with {remedy}")
    units = dict.fromkeys([scale, *_other_scales(values, scale)])
    if scale != 1.0 and len(units) > 1:
        choices = ", ".join(
            f"{values.typical * unit:.2g} m with data.depth_scale={unit:.9g}" for unit in units
        )
        raise DataError(
            f"{folder}: the typical depth {values.typical:.4g} may be {choices}: set it"
        )
    return scale


def _other_scales(values: _DepthValues, scale: float) -> list[float]:
    """Returns the metres of other units that depth cameras and laser scanners use."""
    is_whole = values.dtype.kind != "f"
    if is_whole and values.fraction < _SPARSE:
        return [1 / 256]
    if is_whole and values.high * scale > _ROOM:
        return [0.0002]
    if is_whole and values.high * scale < _NEAR_ROOM:
        return [0.01 if scale == 0.001 else 0.001, 1 / 256, 1 / 512]
    return [0.001]
