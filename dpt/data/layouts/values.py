"""What pairs of files become: the classes of masks, the unit of depth maps, sizes and bands."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import AliasChoices, BeforeValidator, Field

from dpt.data.formats import io, rules
from dpt.data.formats.bands import FilePart, read_bands
from dpt.data.formats.pictures import header_of
from dpt.data.layouts.base import Detected, Folder, Match, Row
from dpt.data.layouts.splits import divide, rows_by_lists
from dpt.files import DataError, few, parse_json, plural, read_text
from dpt.geometry import aspects_agree
from dpt.run_log import tracked
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Plain, PlainMapping, validate


@dataclass(kw_only=True)
class PairMatch(Match):
    """Images with masks, depth maps or both."""

    lists: Sequence[str]  # the tables that name the rows

    @classmethod
    def of(
        cls, rows: Sequence[Row], *, title: str, key: str, lists: Sequence[str] = ()
    ) -> Self | None:
        """Returns the match of rows; None if none has labels."""
        labelled = [row for row in rows if row.maps]
        if not labelled:
            return None
        example = " with ".join([labelled[0].image, *labelled[0].maps])
        noun = "mask" if any(row.labels for row in labelled) else "depth map"
        return cls(
            sentence=f"{plural(len(labelled), noun)}, {title}, such as {example}",
            key=key,
            rows=labelled,
            bare=[row for row in rows if not row.maps],
            lists=lists,
            files={path for row in labelled for path in row.maps},
        )

    def read(self, folder: Folder) -> Detected:
        lists, rows = rows_by_lists(folder, self.rows)
        folder.used |= {*lists, *self.lists, *(path for row in self.rows for path in row)}
        without = " without labels, which data.unlabelled=DIR trains on"
        folder.leave_out([row.image for row in self.bare], without)
        listed = {row.image for row in rows}
        unlisted = [row.image for row in self.rows if row.image not in listed]
        folder.leave_out(unlisted, f" that {few(lists)} do not name")
        if folder.given.get("label_code"):
            rows = [row._replace(objects=row.objects or row.labels) for row in rows]
        rows = _without_byte_depth(folder, rows)
        settings = _settings_of_labels(folder, rows)
        rows = divide(folder, rows, lists, self.bare)
        task = "segmentation" if "depth" not in settings else "joint"
        task = task if "labels" in settings else "depth"
        other_tasks = ("panoptic", "instance") if "objects" in settings else ()
        return Detected(task, rows, settings, folder.notes, other_tasks)


def _without_byte_depth(folder: Folder, rows: list[Row]) -> list[Row]:
    """Returns rows without depth maps of 8 bits, whose unit is unknown, if there are masks, and the
    user says nothing of depth."""
    masks = [row for row in rows if row.labels]
    maps = [row.depth for row in rows if row.depth]
    keys = {"depth", "depth_scale", "depth_kind", "disparity"}
    is_open = masks and maps and keys.isdisjoint(folder.given)
    if is_open and io.read_raw_depth(folder.root / maps[0]).itemsize == 1:
        remedy = "data.depth_scale=METRES of a unit uses it, or data.depth_kind=inverse"
        folder.leave_out(maps, f" of 8 bits; {remedy}", "depth map")
        return [row._replace(depth="") for row in masks]
    return rows


def _settings_of_labels(folder: Folder, rows: Sequence[Row]) -> Plain:
    """Returns the settings of the masks, maps of objects and depth maps of rows."""
    masks = [folder.root / row.labels for row in rows if row.labels]
    maps = [folder.root / row.depth for row in rows if row.depth]
    settings: Plain = {}
    if "resize_labels" not in folder.given and _have_other_sizes(folder, rows):
        settings["resize_labels"] = True
    if masks:
        settings |= _settings_of_masks(folder, masks)
    if masks and all(row.objects for row in rows):
        settings |= _object_settings({**folder.given, **settings})
    if maps:
        settings |= {"depth": "depth", **depth_settings(folder, maps)}
    return settings


def _settings_of_masks(folder: Folder, paths: Sequence[Path]) -> Plain:
    """Returns the settings of the classes of masks, and notes them."""
    file = read_class_file(folder)
    masks = read_masks(paths, file, folder.given)
    settings, notes = masks.binary_settings() or masks.settings()
    if any(row.name in settings.get("class_names", ()) for row in file.rows):
        folder.used.add(file.path)
        folder.note(f"class names: {file.path}")
    folder.note(*notes)
    for group in rules.alike_names(settings.get("class_names", ())):
        folder.note(f"classes {few(group)} may be one: data.label_map joins ids, as in [0,[1,2]]")
    return {"labels": "labels", **settings}


def _object_settings(settings: Plain) -> Plain:
    """Returns the settings of maps of objects, with names of classes that have none."""
    of_objects: Plain = {"objects": "objects"}
    if settings.get("label_code") == "class1000":  # smaller values are classes alone
        of_objects["first_object"] = 1000
    if not settings.get("class_names"):  # pixels of 0 have no object
        labels = enumerate(row[0] for row in _chosen_classes(settings))
        of_objects["class_names"] = [f"class_{k}" if i else "background" for k, i in labels]
    return of_objects


def _have_other_sizes(folder: Folder, rows: Sequence[Row]) -> bool:
    """Returns whether some labels have another size than their image, in its proportions; DataError
    if the proportions differ."""
    resized: list[str] = []
    wrong: list[str] = []
    for row in rows:
        image = header_of(folder.root / row.image)
        for path in row.maps:
            labels = header_of(folder.root / path)
            # turned by 90 degrees, they may fit the upright image
            if image and labels and labels.size not in (image.size, image.size[::-1]):
                is_resized = aspects_agree(labels.size, image.size)
                (resized if is_resized else wrong).append(f"{path} of {row.image}")
    if wrong:
        fault = f"{len(wrong)} label files have other proportions than their image"
        raise DataError(f"{folder.root}: {fault} ({few(wrong)}): replace them, or take them out")
    if resized:
        files = f"{len(resized)} label files are not as large as their image ({few(resized)})"
        folder.note(f"sizes: data.resize_labels=true, as {files}")
    return bool(resized)


def band_settings(folder: Folder, image: str) -> Plain:
    """Returns ``bands=all`` if an image can be read so, and not as 8-bit grey or RGB."""
    path = folder.root / image
    if not folder.given.keys().isdisjoint(("bands", "image_max")):
        return {}
    with suppress(DataError):
        io.read_image(path)
        return {}
    with suppress(DataError):
        form = read_bands(path, FilePart(bands="all")).form
        folder.note(f"bands: data.bands=all, as {image} holds {form}; see also data.image_max")
        return {"bands": "all"}
    return {}


# ----------------------------------------------------------------------------- files of classes

_NAMES = r"class(es|_names|_dict\w*)?|names|palette|labelmap"
_CLASS_FILE = rf"(?i)(.*/)?(label)?_?({_NAMES})\.(txt|csv|json)"
_MAX_VALUES = 256  # of masks: 255 classes, and one that means unlabelled
_NO_CLASS = r"(?i)_*(void|unlabell?ed|ignored?|undefined)_*"
"""Names that often mean unlabelled."""
_LARGEST_VALUES = {IGNORE_INDEX, *(2**bits - 1 for bits in (16, 31, 32, 63, 64))}
"""The largest values of types of pixels, which mean unlabelled."""
_MAX_BYTES = 1 << 17  # also the limit of csv.reader
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a list of names alone
_NAME_COLUMNS = ("name", "classname", "labelname", "categoryname", "title", "category", *_HEADERS)
_ID_COLUMNS = ("id", "classid", "labelid", "categoryid", "value", "index", "class", "label")
_COLOR_COLUMNS = ("r", "red", "g", "green", "b", "blue")
_RGB_COLUMNS = ("color", "colour", "rgb", "colorrgb", "hex")
_Byte = Annotated[int, Field(ge=0, le=255)]
_Color = tuple[_Byte, _Byte, _Byte]


def _rgb(color: object) -> object:
    """Returns ``[80, 227, 194]`` for Supervisely's ``#50E3C2``, the numbers of other text, None
    without one, and other values as they are."""
    if not isinstance(color, str):
        return color
    if re.fullmatch("#[0-9a-fA-F]{6}", color):
        return list(bytes.fromhex(color[1:]))
    return re.findall(r"\d+", color) or None


@dataclass(frozen=True)
class ClassRow:
    """A class in a file of class names; None is what the file does not say."""

    name: Annotated[str, Field(validation_alias=AliasChoices("name", "title"))]
    id: int | None = None
    color: Annotated[_Color | None, BeforeValidator(_rgb)] = None


@dataclass
class ClassFile:
    """The classes that a file names; without one there are no rows."""

    path: str = ""  # below the root
    rows: list[ClassRow] = field(default_factory=list)


def read_class_file(folder: Folder) -> ClassFile:
    """Reads the first file of the folder whose name is one of class names.

    A JSON file has a list of names, or of objects with ``name`` or ``title`` and perhaps ``id`` and
    ``color``; the list may stand below ``classes``.
    """
    path = next((path for path in folder.paths if re.fullmatch(_CLASS_FILE, path)), "")
    if not path:
        return ClassFile()
    source = folder.root / path
    text = read_text(source, limit=_MAX_BYTES)
    if path.lower().endswith(".json"):
        content = parse_json(text, source)
        content = content.get("classes") if isinstance(content, dict) else content
        raw_rows = validate(list[Plain | str], content, f"{source}: classes")
        raw_rows = [{"name": row} if isinstance(row, str) else row for row in raw_rows]
    else:
        raw_rows = _rows_of_lines(text)
    rows = validate(list[ClassRow], raw_rows, f"{source}: class")
    rows = [replace(row, name=rules.name_of_class(row.name, source)) for row in rows]
    return ClassFile(path, [row for row in rows if not _is_void(row)])


def _is_void(row: ClassRow) -> bool:
    """Returns whether a row means unlabelled, as labelme's first one and ids below 0 do."""
    if row.id is None:
        return row.name == "__ignore__" and row.color is None
    return row.id < 0 or bool(re.fullmatch(_NO_CLASS, row.name) and row.id in _LARGEST_VALUES)


def _rows_of_lines(text: str) -> list[Plain]:
    """Returns the classes of lines with a name, and perhaps an id and a colour, below a header if
    there is one."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [row for row in map(_row_of_line, lines) if row["name"]]
    with_numbers = [len(row) > 1 for row in rows]
    is_named = bool(rows) and rows[0]["name"].lower() in _HEADERS
    is_header = not all(with_numbers[:1]) and (is_named or all([*with_numbers[1:], len(rows) > 1]))
    return _rows_of_table(lines) or rows[is_header:]


def _rows_of_table(lines: Sequence[str]) -> list[Plain]:
    """Returns the classes of lines below a header that names the columns; none if there is none."""
    separator = max(",;\t", key="".join(lines[:1]).count)
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    table = zip_longest(*rows, fillvalue="")
    columns = {re.sub(r"[\W_]+", "", header).lower(): cells for header, *cells in table}
    numeric = {k: c for k, c in columns.items() if re.fullmatch(r"[-\d\s]*", "".join(c))}
    names = _present(_NAME_COLUMNS, {k: columns[k] for k in columns.keys() - numeric.keys()})
    if len(columns) < 2 or not names:
        return []
    unknown: Sequence[str | None] = [None] * len(names[0])
    ids = [*_present(_ID_COLUMNS, numeric), unknown][0]
    texts = [*_present(_RGB_COLUMNS, columns), unknown][0]
    colors = [*zip(*_present(_COLOR_COLUMNS, numeric), strict=True)] or texts
    classes = zip(names[0], ids, colors, strict=True)
    return [{"name": name, "id": i or None, "color": color} for name, i, color in classes if name]


def _present(words: Sequence[str], columns: Mapping[str, list[str]]) -> list[Sequence[str | None]]:
    return [columns[word] for word in words if word in columns]


def _row_of_line(line: str) -> Plain:
    """Returns the class of a line; a space may follow an id at its beginning."""
    line = re.sub(r"[;:\t]", ",", re.sub(r"^\s*(-?\d+)\s+", r"\1,", line))
    (cells,) = csv.reader([line], skipinitialspace=True)
    words = [cell.strip() for cell in cells if cell.strip()]
    row: Plain = {}
    if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
        words, row["color"] = words[:-3], words[-3:]
    ids = [word for word in words if re.fullmatch(r"-?\d+", word)] if len(words) > 1 else []
    if ids:
        row["id"] = ids[0]
    return row | {"name": " ".join(word for word in words if word not in ids)}


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
_MIN_CONTRAST = 100  # levels between the two values of a binary mask
_NOISE = 8  # levels by which compression changes them
_MANY_VALUES = 12  # of classes, beyond which values that few files have are those of objects
_CHOICES = {"num_classes", "label_map"}  # keys of data that choose the classes of numbers


@dataclass(frozen=True, kw_only=True)
class Masks:
    """The values of masks, and what a file of class names and the user say of them.

    A class has a number: its id, or the row of its colour in ``colors``.
    """

    paths: Sequence[Path]
    values: Values
    file: ClassFile
    given: PlainMapping  # keys of data, which decide before the file and the values
    colors: Sequence[Value] = ()  # of the user or of the file, or else those that occur
    use_palette: bool = False  # whether colours of palettes count, not their indices

    def settings(self) -> tuple[Plain, list[str]]:
        """Returns the settings of the masks, and what was recognised or assumed.

        Raises:
            DataError: the masks have no classes, or can be read in two ways.
        """
        ignored, chosen = _ignored_ids(self.given), _chosen_classes(self.given)
        names = self._names_of_colors() if self.colors else self._names_of_ids(ignored)
        classes = chosen or [(k,) for k in names if k not in ignored]
        numbers, used = [row[0] for row in classes], {*chain(*classes)}
        settings = self._settings_of_colors()
        if not chosen:
            is_range = numbers == [*range(len(numbers))]
            settings |= {"num_classes": len(numbers)} if is_range else {"label_map": numbers}
        unlabelled = self._unlabelled(used, has_choice=bool(chosen))
        settings["ignore_index"] = sorted({*ignored, *unlabelled, IGNORE_INDEX})
        class_names = [names.get(k, "") for k in numbers]
        if all(class_names) and "class_names" not in self.given:
            settings["class_names"] = class_names
        return settings, self._notes({k: names.get(k, "") for k in used})

    def _unlabelled(self, used: Collection[int], *, has_choice: bool) -> set[int]:
        """Returns the numbers, besides those of the user, that mean unlabelled."""
        if self.colors:
            return {*range(len(self.colors))}.difference(used)
        if not has_choice:
            return {i for (i,) in self.values}.difference(used)
        return {i for (i,) in self.values if i < 0 or i in _LARGEST_VALUES}

    def _names_of_colors(self) -> dict[int, str]:
        """Returns the number and the name of each colour."""
        name_of: dict[Value | None, str] = {row.color: row.name for row in self.file.rows}
        unnamed = "color_{:02x}{:02x}{:02x}"
        return {k: name_of.get(c, unnamed.format(*c)) for k, c in enumerate(self.colors)}

    def _settings_of_colors(self) -> Plain:
        if not self.colors:
            return {}
        settings: Plain = {"label_colors": [list(color) for color in self.colors]}
        unknown = [str(color) for color in self.values if color not in self.colors]
        if "color_distance" in self.given:
            return settings
        if unknown and self.given.get("label_colors"):
            fault = f"the masks hold {few(unknown)}, which data.label_colors lacks"
            raise self.fault(f"{fault}: add them, or set data.color_distance")
        return settings | ({"color_distance": 0} if unknown or self.use_palette else {})

    def _names_of_ids(self, ignored: Collection[int]) -> dict[int, str]:
        """Returns the ids of the classes, as the user or the file says, or all that occur, and
        their names, "" where they are unknown."""
        ids = sorted(i for (i,) in self.values if i not in ignored and i >= 0)
        rows, chosen = self.file.rows, _chosen_classes(self.given)
        if chosen:
            has_ids = bool(rows) and all(row.id is not None for row in rows)
            numbers = [row.id or 0 for row in rows] if has_ids else [row[0] for row in chosen]
        elif rows:
            numbers = _ids_of_names(self.file, ids)
        else:
            self._ask_for_doubtful(ids)
            numbers = _ids_of_classes(ids)
        names = [row.name for row in rows] if len(rows) == len(numbers) else [""] * len(numbers)
        return dict(zip(numbers, names, strict=True))

    def binary_settings(self) -> tuple[Plain, list[str]] | None:
        """Returns the settings that divide masks of 8 bits, if nearly all pixels have two values,
        and the others lie near or between these, as smooth borders and compression make them."""
        if self.colors or self.file.rows or _CHOICES & self.given.keys():
            return None
        ids = Counter({i: count for (i,), count in self.values.items()})
        (first, count), (second, others) = (ids.most_common(2) * 2)[:2]
        middle = (first + second) // 2
        gaps = np.abs(np.subtract.outer([*ids], [first, second])).min(axis=1)
        sides = {i > middle for i in ids if i not in (first, second)}
        is_noisy = len(sides) == 2 and (len(ids) > 8 or gaps.max() <= _NOISE)
        is_most = count + others > 0.9 * ids.total()
        is_byte = min(ids) >= 0 and max(ids) <= IGNORE_INDEX
        if not (is_noisy and is_most and is_byte and abs(first - second) > _MIN_CONTRAST):
            return None
        halves = [f"0-{middle}", f"{middle + 1}-{IGNORE_INDEX}"]
        text = f"masks: binary, with {len(ids)} values: up to {middle} is class_0, above it class_1"
        return {"label_map": halves, "ignore_index": []}, [text]

    def _ask_for_doubtful(self, ids: Sequence[int]) -> None:
        """Raises DataError for ids without names that can be read in two ways."""
        if len(self.values) > _MAX_VALUES:
            fault = f"{len(self.values)} values, as in masks after interpolation"
            raise self.fault(f"{fault}: save them as PNG, or set data.label_map (or data.depth)")
        classes = [i for i in ids if i != IGNORE_INDEX]
        if IGNORE_INDEX in ids and (classes == [0, 1] or (len(classes) > 1 and classes[-1] > 100)):
            both = [0, [1, IGNORE_INDEX]] if classes == [0, 1] else ids
            keys = f"data.label_map={both} or data.label_map={classes}".replace(", ", ",")
            raise self.fault(f"{IGNORE_INDEX} may be a class or mean unlabelled: set {keys}")

    def ask_for_objects(self, counts: Sequence[Mapping[Value, int]]) -> None:
        """Raises DataError, a question, for values that seem to tell objects, and have no names.

        Args:
            counts: the pixels of each value in each file.
        """
        largest = {(i,) for i in _LARGEST_VALUES}
        values = sorted(value for value in self.values.keys() - largest if min(value) >= 0)
        names = {name for row in self.file.rows for name in ((row.id,), row.color)}
        codes = _codes_of(values)
        if len(self.file.rows) < len(values) / 2 and _are_of_objects(counts, self.values):
            codes["object"] = 2
        is_chosen = (_CHOICES | {"label_code", "label_colors"}) & self.given.keys()
        if codes and not is_chosen and len(names.intersection(values)) < len(values) / 2:
            choices = [f"data.label_code={code} ({count} classes)" for code, count in codes.items()]
            choices.append("data.label_map or data.label_colors if each value is a class")
            shown = few([str(value).strip("(,)") for value in values], _SHOWN_COLORS)
            fault = f"{plural(len(values), 'value')} ({shown}), which may tell objects of classes"
            raise self.fault(f"{fault}: set {' or '.join(choices)}")

    def _notes(self, names: Mapping[int, str]) -> list[str]:
        """Returns lines about the values that are classes, and those that are none."""
        table = dict(enumerate(self.colors))
        name_of = {table.get(k, (k,)): name for k, name in names.items()}
        total = self.values.total()
        texts: dict[bool, list[str]] = {True: [], False: []}
        for value in [*name_of, *(v for v, _ in self.values.most_common() if v not in name_of)]:
            code = ("#{:02x}{:02x}{:02x}" if len(value) == 3 else "{}").format(*value)
            text = f"{name_of.get(value, '')} {code} ({self.values[value] / total:.2%})"
            texts[value in name_of].append(text.strip())
        hint = "if one is no class, set data.ignore_index or data.label_map"
        files = plural(len(self.paths), "file")
        lines = [f"masks: {files} with the classes {few(texts[True], 40)}; {hint}"]
        if texts[False]:
            hint = "; data.color_distance=32 gives colours the nearest class within 32"
            text = f"unlabelled: {few(texts[False], 6)} of the pixels"
            lines.append(text + hint if self.colors else text)
        return lines

    def fault(self, text: str) -> DataError:
        """Returns an error that names the folder of the masks."""
        return DataError(f"{self.paths[0].parent}: {text}")


def _are_of_objects(counts: Sequence[Mapping[Value, int]], values: Values) -> bool:
    """Returns whether values seem to be numbers of objects, not classes: most of the pixels have
    those of one or two files each, or most files have ids from 1 to a number of their own.

    Args:
        counts, values: the pixels of each value in each file, and in all.
    """
    files = Counter(value for count in counts for value in count)
    few_files = min(2, len(counts) // 3)
    rare = [values[value] for value, count in files.items() if count <= few_files]
    if len(rare) > _MANY_VALUES and 2 * sum(rare) > values.total() - max(values.values()):
        return True
    ids = [{value[0] for value in count if any(value)} for count in counts]
    numbered = [len(of_file) for of_file in ids if of_file == {*range(1, len(of_file) + 1)}]
    is_usual = 4 * len(numbered) > 3 * len(counts)
    return is_usual and len({*numbered}) > 2 and max(numbered) > _MANY_VALUES


def _codes_of(values: Sequence[Value]) -> dict[rules.LabelCode, int]:
    """Returns the codes of objects that values may have, and the number of classes by each."""
    if len({*map(len, values)}) != 1:  # none, or ids beside colours
        return {}
    array, codes = np.array(values), list[rules.LabelCode]()
    first, is_rgb = array[:, 0], array.shape[1] == 3
    if first.max() > IGNORE_INDEX:
        codes = ["class1000", "class256"]
    elif is_rgb and ((array + 1) % 64 > 1).any():  # not colours of 0, 64, 128, 192 and 255
        if first[first < IGNORE_INDEX].max(initial=0) <= io.MAX_RED_ID:
            codes.append("red")
        if not (first % 10).any():
            codes.append("ade20k")
    counts = {code: len(np.unique(rules.classes_of_code(array, code))) for code in codes}
    return {code: n for code, n in counts.items() if 1 < n < len(values) or not is_rgb}


def _ignored_ids(given: PlainMapping) -> set[int]:
    """Returns the numbers that mean unlabelled, as the user says."""
    setting = given.get("ignore_index", ())
    return {setting} if isinstance(setting, int) else {*(setting or ())}


def _chosen_classes(given: PlainMapping) -> list[tuple[int, ...]]:
    """Returns the numbers of each class that the user has chosen; none if the user has not."""
    if not _CHOICES & given.keys():
        return []
    label_map = validate(rules.LabelMap | None, given.get("label_map"), "data.label_map")
    count = validate(int | None, given.get("num_classes"), "data.num_classes")
    rule = rules.LabelRule(label_map=label_map, num_classes=count)
    return list(rule.ids_of_class or [(k,) for k in range(rule.num_classes)])


def _ids_of_classes(ids: Sequence[int]) -> list[int]:
    """Returns the ids that are classes, of ascending ones that occur, with rare gaps filled."""
    classes = [i for i in ids if i not in _LARGEST_VALUES]
    if len(classes) < 2:  # the largest value is a class, too, where only one other id occurs
        classes = [*ids]
    has_few_gaps = classes[0] == 0 and classes[-1] < 2 * len(classes)
    return [*range(classes[-1] + 1)] if has_few_gaps else classes


def _ids_of_names(file: ClassFile, ids: Sequence[int]) -> list[int]:
    """Returns the id of each name in a file, for masks that hold ``ids``; those that a file with
    ids lacks are unlabelled. DataError if most ids have no name."""
    classes = {*ids} - _LARGEST_VALUES
    stated = [row.id for row in file.rows if row.id is not None]
    if len(stated) < len(file.rows):
        return _ids_in_order(file, ids, classes)
    if 2 * len(classes & {*stated}) < len(classes):
        fault = f"{file.path}: names the ids {few([*map(str, stated)], 12)}"
        remedy = "set data.label_map, or remove the file"
        raise DataError(f"{fault}, and the masks hold {few([*map(str, ids)], 12)}: {remedy}")
    return stated


def _ids_in_order(file: ClassFile, ids: Sequence[int], classes: set[int]) -> list[int]:
    """Returns the ids of names without ids, of masks that hold ``ids``, of which ``classes`` may
    have names; DataError if the first name may be that of several ids."""
    count, first = len(file.rows), file.rows[0].name
    if len(classes) < 2:  # the largest value is a class, too, where only one other id occurs
        classes = {*ids}
        if len(ids) == count:
            return [*ids]
    starts = [k for k in (0, 1) if classes <= {*range(k, k + count)}]
    is_void = classes < {*ids} and bool(re.fullmatch(_NO_CLASS, first))
    if len(starts) != 1 or is_void:
        held = f"{count} names from {first}, and the masks hold {few([*map(str, ids)], 12)}"
        choices = f"data.num_classes={count} if the first name is that of 0, data.label_map="
        choices += f"1-{count} if it is that of 1, or data.ignore_index={count} if {count}"
        raise DataError(f"{file.path}: {held}: set {choices} means unlabelled")
    return [*range(starts[0], starts[0] + count)]


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
    table = validate(list[_Color], given.get("label_colors") or [], "data.label_colors")
    table = table or [row.color for row in file.rows if row.color]
    part = FilePart(key=given.get("array_key"), code=given.get("label_code"))
    has_numbers = bool(_CHOICES & given.keys())
    are_apart = has_numbers or not io.palettes_disagree(paths, part)
    for use_palette in (False, True) if are_apart else (True,):
        count = partial(io.label_values, part=part, use_palette=use_palette)
        values, counts = _count_values(paths, count)
        if any(len(value) == 3 and value not in table for value in values):
            values = _with_ids(values)
        masks = Masks(paths=paths, values=values, file=file, given=given, use_palette=use_palette)
        if len(values) < 2:
            raise masks.fault("all hold one value, or are transparent: save each class as an id")
        examples = {len(value): value for value in values}
        masks.ask_for_objects(counts)
        if 3 not in examples:
            return masks
        if 1 not in examples:
            return _with_colors(masks, table)
    both = f"some masks hold ids, such as {examples[1][0]}, others colours, such as {examples[3]}"
    raise masks.fault(f"{both}: save all as ids, or all as colours")


def _with_colors(masks: Masks, table: Sequence[Value]) -> Masks:
    """Returns masks with the table of their colours, or else with those that occur.

    Raises:
        DataError: borders mix the colours; the question which are classes.
    """
    values, given = masks.values, masks.given
    counts = [values[color] for color in table]
    is_common = 2 * sum(count > 0 for count in counts) >= len(counts)
    if table and (given.get("label_colors") or is_common or 2 * sum(counts) >= values.total()):
        return replace(masks, colors=table)
    if given.get("class_names"):
        raise masks.fault("data.class_names needs data.label_colors, the colour of each class")
    is_rare = 0 < values[_BLACK] < _MAX_PADDING * values.total() and len(values) > _MIN_COLORS
    colors = sorted(values.keys() - ({_BLACK} if is_rare else set()))
    if not 1 < len(colors) <= _MANY_COLORS:
        frequent = [[*color] for color, _ in values.most_common(_SHOWN_COLORS)]
        keys = f"data.label_colors={frequent} data.color_distance=0".replace(", ", ",")
        fault = f"{len(values)} colours, as borders mix them"
        raise masks.fault(f"{fault}: set those that are classes, such as {keys}")
    return replace(masks, colors=colors, file=ClassFile())


def _count_values(
    paths: Sequence[Path], count: Callable[[Path], Mapping[Value, int]]
) -> tuple[Values, list[Mapping[Value, int]]]:
    """Returns the pixels of each value in all masks, and in each."""
    values, counts = Values(), []
    with ThreadPoolExecutor(4) as pool:
        for of_file in tracked(pool.map(count, paths), len(paths), title="reading masks"):
            counts.append(of_file)
            values.update(of_file)
            if len(values) > io.MAX_COLORS:
                raise DataError(f"{paths[0].parent}: pictures, not masks: take them out")
    return values, counts


def _with_ids(values: Values) -> Values:
    """Returns the values, with ids in place of colours if all are grey, or dark red as ids in R."""
    colors = [value for value in values if len(value) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > io.MAX_RED_ID for r, g, b in colors):
        return values
    ids = Values()
    for value, count in values.items():
        ids[value[:1]] += count
    return ids


# --------------------------------------------------------------------------------- depth maps

_MAX_MAPS = 48  # from which the unit is derived
_RANGES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_USUAL = 2.5, 10.0  # metres: the farthest depth of rooms; in other units it may be as plausible
_FARTHEST = 100.0  # metres
_FARTHEST_IN_METRES = 1000.0  # in files whose unit that is
_FAR_QUANTILE = 0.999  # of the values: single ones lie far beyond them
_MAX_VALUES_OF_MAP = 50_000  # from which that quantile and the ends of the range are computed
_MIN_SIDE = 8  # of a depth map
_ROUGHER = 8.0  # ratio of the differences of neighbours after and before bytes are swapped
_UNITS = (1.0, 0.01, 1 / 256, 1 / 512, 0.001, 0.0002)  # metres of each, that are in use
_NAMES_OF_INVERSE = r"disp(s|arity|arities)?|inv(erse)?[-_ ]?depths?"
_INVERSE = rf"(?i)(^|[-_. /])({_NAMES_OF_INVERSE})([-_. /0-9]|$)"
_IF_NEARER = "if larger is nearer, of unknown scale: data.depth_kind=inverse (relative depth)"


def depth_settings(folder: Folder, paths: Sequence[Path]) -> Plain:
    """Returns the settings of depth maps, and notes them.

    Raises:
        DataError: nothing measured, several types, or a question: what disparity is, which unit.
    """
    given, place = folder.given, paths[0].parent
    masks = [mask for mask in map(io.mask_of_depth, paths) if mask]
    folder.used.update(mask.relative_to(folder.root).as_posix() for mask in masks)
    name = paths[0].relative_to(folder.root).as_posix()
    if {"depth_kind", "disparity"}.isdisjoint(given) and re.search(_INVERSE, name):
        remedy = "of stereo cameras: data.disparity={baseline:METRES,focal:PIXELS}"
        raise DataError(f"{place}: disparity or inverse depth by its name: {_IF_NEARER}; {remedy}")
    key = given.get("depth_key", given.get("array_key"))
    indices = np.linspace(0, len(paths) - 1, min(len(paths), _MAX_MAPS)).astype(int)
    maps = [io.read_raw_depth(paths[i], key=key) for i in indices]
    _refuse_misread(maps, place)
    is_inverse = given.get("depth_kind") == "inverse"
    read = _inverse_settings if is_inverse else _metric_settings
    settings, text = read(folder, maps, place)
    rest = ", 0 in NAME_depth_mask" if masks else ""
    folder.note(f"depth: {plural(len(paths), 'file')} of {maps[0].dtype} {text}{rest}")
    return settings


def _inverse_settings(folder: Folder, maps: Sequence[np.ndarray], place: Path) -> tuple[Plain, str]:
    """Returns the settings of maps of inverse depth of unknown scale, and a note."""
    invalid = folder.given.get("invalid_depth", [0])
    zeros = float((_some_of(maps) == 0).mean())
    meaning = "not measured (data.invalid_depth=[] if it is the farthest, such as the sky)"
    text = f"of inverse depth, larger is nearer; {zeros:.2%} of the pixels are 0, which is "
    settings: Plain = {"depth_kind": "inverse", "invalid_depth": invalid}
    return settings, text + (meaning if 0 in invalid else "the farthest")


def _metric_settings(folder: Folder, maps: Sequence[np.ndarray], place: Path) -> tuple[Plain, str]:
    """Returns the settings of maps of depth or of stereo disparity, and a note."""
    given = folder.given
    disparity: rules.Disparity | None = given.get("disparity")
    invalid = given.get("invalid_depth", [0, *_missing_values(maps)])
    measured = _measured(maps, invalid, place)
    to_metres: Callable[[np.ndarray], np.ndarray]
    if disparity is None:
        scale = given.get("depth_scale") or _scale(folder, place, measured)
        unit, to_metres = rules.UNITS.get(scale, scale), partial(np.multiply, scale)
    else:
        scale = given.get("depth_scale") or 1.0
        unit = f"{scale:g} pixels of disparity"
        to_metres = partial(disparity.metres, scale=scale)
    metres = to_metres(_some_of(measured).astype(np.float64))
    farthest = float(np.quantile(metres, _FAR_QUANTILE))
    max_depth = next((limit for limit in _RANGES if limit >= farthest), float(np.ceil(farthest)))
    some = _some_of(maps)
    missing = [f"{value:.7g} ({(some == value).mean():.2%})" for value in invalid]
    beyond = float((metres > max_depth).mean())
    text = f"in {unit}, {to_metres(np.array(_typical(measured))):.2g} m typically"
    if beyond:
        text += f", {beyond:.2%} beyond data.max_depth={max_depth:g} m left out"
    text += f"; not measured (otherwise set data.invalid_depth): NaN, {', '.join(missing)}"
    return {"depth_scale": scale, "invalid_depth": invalid, "max_depth": max_depth}, text


def _refuse_misread(maps: Sequence[np.ndarray], place: Path) -> None:
    """Raises DataError for lists of points, and for values with swapped bytes."""
    smallest = min((values.shape for values in maps), key=min)
    if min(smallest) < _MIN_SIDE:
        raise DataError(f"{place}: an array of {smallest}: save depth as (H, W), or remove it")
    shorts = [values for values in maps if values.dtype == np.uint16]
    low_bytes = [values[values > 0] & 255 for values in shorts]
    # of multiples of 256, which 8 bits were scaled to, the low byte is 0
    if 2 * sum(map(np.count_nonzero, low_bytes)) > sum(low.size for low in low_bytes):
        swapped = [values.byteswap() for values in shorts]
        if _roughness(shorts) > _ROUGHER * _roughness(swapped):
            remedy = "swap them (byteswap() of NumPy) and save PNG"
            raise DataError(f"{place}: the two bytes of the values seem swapped: {remedy}")


def _roughness(maps: Sequence[np.ndarray]) -> float:
    """Returns the mean difference of neighbours in rows of integers."""
    return float(np.mean([np.abs(np.diff(m[::8].astype(np.int32))).mean() for m in maps]))


def _some_of(maps: Sequence[np.ndarray]) -> np.ndarray:
    """Returns evenly spaced values of maps, as one array."""
    return np.concatenate([m.ravel()[:: 1 + m.size // _MAX_VALUES_OF_MAP] for m in maps])


def _measured(
    maps: Sequence[np.ndarray], invalid: Sequence[float], place: Path
) -> list[np.ndarray]:
    """Returns the valid values of each map; DataError if there are none, or the types differ."""
    rule = rules.DepthRule(invalid=invalid)
    measured = [values[rule.is_measured(values)] for values in maps]
    types = {str(values.dtype) for values in maps}
    if not any(map(len, measured)) or len({values.dtype.kind == "f" for values in maps}) > 1:
        fault = f"no measured depth, or maps of several types ({few(sorted(types))})"
        raise DataError(f"{place}: {fault}: save all in one unit and type")
    return [values for values in measured if values.size]


def _typical(measured: Sequence[np.ndarray], quantile: float = 0.5) -> float:
    """Returns the median of the maps' quantiles."""
    return float(np.median([np.quantile(m.astype(np.float64), quantile) for m in measured]))


def _missing_values(maps: Sequence[np.ndarray]) -> list[float]:
    """Returns the values in maps that mean "not measured", besides 0: the largest one of their
    integer type, and those at the ends of the range that many pixels share."""
    dtype = maps[0].dtype
    largest = [] if dtype.kind == "f" else [int(np.iinfo(dtype).max)]
    found = [value for value in largest if any((values == value).any() for values in maps)]
    rule = rules.DepthRule(invalid=largest)
    some = _some_of(maps)
    return [*found, *rules.shared_ends(some[rule.is_measured(some)])]


def _scale(folder: Folder, place: Path, measured: Sequence[np.ndarray]) -> float:
    """Returns the metres of a unit, by the valid values of each map: 1 of floats, 0.001 of rooms in
    16 bits; otherwise, and where all maps end at one round value or none exceeds 1, DataError, a
    question."""
    typical, high, dtype = _typical(measured), _typical(measured, 0.99), measured[0].dtype
    limits = dict.fromkeys(_UNITS, _FARTHEST) | {1.0: _FARTHEST_IN_METRES}
    units = [u for u in _UNITS if typical * u >= rules.NEAR and high * u <= limits[u]]
    is_metric = 1.0 in units and (high <= _FARTHEST or units == [1.0])
    is_room = 0.001 in units and _USUAL[0] <= high * 0.001 <= _USUAL[1] and dtype.itemsize > 1
    if not _are_scaled(measured) and (is_metric if dtype.kind == "f" else is_room):
        return 1.0 if dtype.kind == "f" else 0.001
    choices = [f"{typical * unit:.2g} m with data.depth_scale={unit:.9g}, " for unit in units]
    fault = f"the typical depth {typical:.4g} may be {''.join(choices)}have another unit or none"
    remedy = "set data.depth_scale to the metres of a unit: 0.001 of RealSense, Kinect and phones, "
    raise DataError(f"{place}: {fault}: {remedy}{_stated_unit(folder)}; {_IF_NEARER}")


def _stated_unit(folder: Folder) -> str:
    """Returns the unit that a file of ORB-SLAM states, or what to look for."""
    for path in folder.paths:
        if path.endswith((".yaml", ".yml")):
            text = (folder.root / path).read_bytes()[:_MAX_BYTES].decode("latin-1")
            factor = re.search(r"DepthMapFactor:\s*([1-9]\d*)", text)
            if factor:
                return f"{1 / int(factor[1]):.9g} by DepthMapFactor in {path}"
    return "1 / DepthMapFactor where a file states that"


def _are_scaled(measured: Sequence[np.ndarray]) -> bool:
    """Returns whether no value exceeds 1, or all maps end at one round value: they may have been
    scaled to a range."""
    tops = [rules.top_of(values) for values in measured]
    return max(top for top, *_ in tops) <= 1.0 or rules.are_normalised(tops)
