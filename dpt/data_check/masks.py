"""Settings for masks of unknown values: classes, their names, and what means unlabelled."""

import csv
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
from pydantic import BeforeValidator, Field

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data.formats.colors import MAX_COLORS, MAX_RED_ID
from dpt.data.formats.labels import LabelMap, LabelRule, name_of_class
from dpt.files import few, parse_json, read_text
from dpt.types import IGNORE_INDEX
from dpt.validation import validate

Value = tuple[int, ...]
"""An id ``(i,)`` or a colour ``(r, g, b)`` of mask files."""
Values = Counter[Value]
"""Pixels of each value."""

_Byte = Annotated[int, Field(ge=0, le=255)]
_Color = tuple[_Byte, _Byte, _Byte]
_MOST_MIXED = 1024  # colours that differ clearly, of masks with mixed colours
MOST_VALUES = 256  # of masks: 255 classes, and one that means unlabelled
_CHOICES = {"num_classes", "label_map"}  # keys of data that choose the classes of numbers
_HEX_COLOR = "#[0-9a-fA-F]{6}"
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a CSV with names alone
_NO_CLASS = r"(?i)_*(void|unlabell?ed|ignored?|undefined)_*"  # names that often mean unlabelled
_LAST_VALUES = {255, *(2**bits - 1 for bits in (16, 31, 32, 63, 64))}
"""The largest values of types of pixels, which mean unlabelled."""
CLASS_FILE = r"(?i)(?:.*/)?_?(?:class(?:es|_names|_dict)?|names|palette|labelmap)\.(txt|csv|json)"


def _rgb(color: Any) -> Any:
    """``[80, 227, 194]`` of ``#50E3C2``; other values as they are."""
    is_hex = isinstance(color, str) and re.fullmatch(_HEX_COLOR, color)
    return [*bytes.fromhex(color[1:])] if is_hex else color


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
    ignored: list[int] = field(default_factory=list)  # ids that mean unlabelled


@dataclass
class MaskSettings:
    """Keys of ``data`` for masks, and what was found out or assumed."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # pixels of each class


def class_weights(counts: Sequence[int]) -> list[float]:
    """(share of the pixels)^-0.25 divided by the mean; 1 for classes without a pixel."""
    weights = np.array([count or np.nan for count in counts], float) ** -0.25
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def class_settings(
    values: Values, paths: Sequence[Path] = (), parts: io.Parts | None = None
) -> tuple[dict[str, Any], list[Value]]:
    """The settings that make classes of the values in mask files, and the value of each class.

    Raises:
        DataError: too few or too many colours are classes.
    """
    if are_colors(values):
        colors = _colors_of_classes(paths, values, parts or io.Parts())
        settings = {"num_classes": len(colors), "label_colors": [list(color) for color in colors]}
        return settings | ({"color_distance": 0} if len(colors) < len(values) else {}), colors
    stored = sorted(i for (i,) in values)
    ids = [i for i in stored if i >= 0]  # below 0: unlabelled
    classes = [i for i in ids if i not in _LAST_VALUES]
    if len(classes) < 2:  # the last value is a class, too, where only one other id occurs
        classes = ids
    if stored[:1] != [0] or classes[-1] >= 2 * len(classes):
        return {"label_map": classes}, [(i,) for i in classes]
    settings = {"num_classes": classes[-1] + 1}
    if not {*ids} <= {*classes, IGNORE_INDEX}:
        settings["ignore_index"] = [i for i in ids if i in _LAST_VALUES]
    return settings, [(i,) for i in range(classes[-1] + 1)]


def are_colors(values: Values) -> bool:
    return any(len(value) == 3 for value in values)


def _colors_of_classes(paths: Sequence[Path], values: Values, parts: io.Parts) -> list[Value]:
    """The colours of masks that are classes, in the order of the classes."""
    colors = sorted((values - mixed_colors(paths, values, parts)).keys())
    if not 1 < len(colors) < MOST_VALUES:
        fault = f"{len(values)} colours, of which {len(colors)} fill areas, are not those of masks"
        remedy = "save class ids as PNG without interpolation, or set data.label_colors"
        raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
    return sorted(filter(any, colors), reverse=True) if _are_one_hot(colors) else colors


def _are_one_hot(colors: Iterable[Value]) -> bool:
    """Whether a 1 in R is the first class, in G the second, in B the third."""
    return all(sum(color) == max(color) < 2 for color in colors)


def ids_of_colors(values: Values) -> Values:
    """The values, with ids in place of colours if all are grey, or dark red as ids in R alone."""
    colors = [key for key in values if len(key) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > MAX_RED_ID for r, g, b in colors):
        return values
    ids = Values()
    for key, count in values.items():
        ids[key[:1]] += count
    return ids


def mixed_colors(paths: Sequence[Path], values: Values, parts: io.Parts) -> Values:
    """The colours that are no classes, but mixed at borders or slightly off.

    Such a colour lies beside a more frequent one; or it fills no block of 3 x 3 pixels, in masks
    where a colour lies between two others.
    """
    near = 2 if len(values) <= MOST_VALUES else 32  # lossy compression makes so many
    main, mixed = np.empty((0, 3), int), Values()
    is_blurred = False
    if max(map(max, values)) <= MAX_RED_ID:  # ids, not colours
        return mixed
    for key, count in values.most_common():
        color = np.array(key)
        if len(main) and np.abs(main - color).max(axis=1).min() <= near:
            mixed[key] = count
            continue
        is_blurred = is_blurred or _is_between(color, main[:64])
        main = np.concatenate([main, color[None]])
        if len(main) > _MOST_MIXED:  # pictures
            return Values(values)
    if is_blurred:
        colors, solid, block = list(values), set[Value](), np.ones((3, 3), np.uint8)
        for path in paths:
            ids = io.read_labels(path, colors=colors, distance=0, parts=parts).astype(np.float32)
            inside = cv2.erode(ids, block) == cv2.dilate(ids, block)
            solid |= {colors[int(i)] for i in np.unique(ids[inside]) if i >= 0}
        mixed |= {key: values[key] for key in map(tuple, main.tolist()) if key not in solid}
    return mixed


def _is_between(color: np.ndarray, others: np.ndarray) -> bool:
    """Whether a colour (3,) is a mixture of two of ``others`` (N, 3)."""
    steps = others[None] - others[:, None]  # from the first to the second of each pair
    offset = color - others[:, None]
    place = (offset * steps).sum(-1) / (steps**2).sum(-1).clip(1)
    distance = np.abs(place[..., None] * steps - offset).max(-1)
    return bool(((place > 0) & (place < 1) & (distance <= 4)).any())


def mask_values(paths: Sequence[Path], parts: io.Parts, *, use_palette: bool = False) -> Values:
    """The values of all masks."""
    values = Values()
    for path in paths:
        values.update(io.label_values(path, parts=parts, use_palette=use_palette))
        if len(values) > MAX_COLORS:
            raise DataError(f"{path}: pictures of more than {MAX_COLORS} colours, not masks")
    return values


def parts_of(data: Mapping[str, Any]) -> io.Parts:
    """What keys of ``data`` choose of files that hold more than one map."""
    return io.Parts(key=data.get("array_key"), page=data.get("page"))


def mask_settings(paths: Sequence[Path], file: ClassFile, given: Mapping[str, Any]) -> MaskSettings:
    """The settings of masks, from all their values.

    Args:
        file: names of the classes.
        given: keys of ``data`` that the user has set; they decide before the file and the values.

    Raises:
        DataError: the masks have no classes, or can be read in two ways.
    """
    colors = validate(list[_Color], given.get("label_colors", []), "data.label_colors")
    colors = colors or [row.color for row in file.rows if row.color]
    if not _CHOICES & given.keys() and len({row.name for row in file.rows}) < len(file.rows):
        raise DataError(f"{file.path}: two classes have one name: give each its own")
    has_indices = _CHOICES & given.keys() or not io.palettes_disagree(paths, parts_of(given))
    values, use_palette = _values_of_one_kind(paths, parts_of(given), colors, not has_indices)
    if len(values) < 2:
        fault = "all masks hold one value, and transparent pixels mean unlabelled"
        raise DataError(f"{paths[0].parent}: {fault}: save each class as an id or an opaque colour")
    masks = _Masks(paths, values, file, given)
    # of colours the places count, not the ids, whose rows are left out
    has_ids = are_colors(values) and any(row.id is not None for row in file.rows)
    chosen = given.get("ignore_index", [] if has_ids else file.ignored)
    ignored = {chosen} if isinstance(chosen, int) else {*(chosen or ())}
    settings, value_of, names = masks.colors(colors) if are_colors(values) else masks.ids(ignored)
    classes = masks.given_classes() or [(k,) for k in value_of if k not in ignored]
    if not _CHOICES & given.keys():
        numbers = [row[0] for row in classes]
        is_range = numbers == [*range(len(numbers))]
        settings |= {"num_classes": len(numbers)} if is_range else {"label_map": numbers}
    if colors and are_colors(values):
        ignored |= value_of.keys() - chain(*classes)
    ignored |= {i for i, *others in values if not others and (i < 0 or i in _LAST_VALUES)}
    settings["ignore_index"] = sorted({*ignored, IGNORE_INDEX})
    if use_palette:
        settings.setdefault("color_distance", given.get("color_distance", 0))
    used = [[value_of[k] for k in row if k in value_of] for row in classes]
    counts = [sum(values[value] for value in row) for row in used]
    class_names = [names[row[0]] for row in classes if row[0] in names]
    notes = masks.notes(used)
    if "class_names" not in given and len({*class_names}) == len(classes):
        settings["class_names"] = class_names
        notes += masks.notes_of_names(dict(zip(class_names, counts, strict=True)))
    elif not {*_CHOICES, "class_names", "label_colors"} & given.keys():
        notes.append(masks.note_of_classes(used))
        if are_colors(values) and not _are_one_hot(chain(*used)):
            settings["class_names"] = [_name_of(value) for (value,) in used]
    return MaskSettings(settings, notes, counts)


def _values_of_one_kind(
    paths: Sequence[Path], parts: io.Parts, table: Sequence[Value], need_palette: bool
) -> tuple[Values, bool]:
    """The values of all masks, all ids or all colours, and whether colours of palettes count."""
    examples: dict[int, Value] = {}
    for use_palette in (True,) if need_palette else (False, True):  # as colours of other files
        values = mask_values(paths, parts, use_palette=use_palette)
        if not {*table} >= {value for value in values if len(value) == 3}:
            values = ids_of_colors(values)
        examples = {len(value): value for value in values}
        if len(examples) < 2:
            return values, use_palette
    both = f"some masks hold ids, such as {examples[1][0]}, others colours, such as {examples[3]}"
    raise DataError(f"{paths[0].parent}: {both}: save all as ids, or all as colours")


_Table = tuple[dict[str, Any], Mapping[int, Value], Mapping[int, str]]
"""Settings, and the value and the name of each number that may be a class: an id, or the place of
a colour in ``label_colors``."""


@dataclass(frozen=True)
class _Masks:
    """The values of masks, and what a file of class names and the user say of them."""

    paths: Sequence[Path]
    values: Values
    file: ClassFile
    given: Mapping[str, Any]

    def fault(self, text: str) -> DataError:
        return DataError(f"{self.paths[0].parent}: {text}")

    def given_classes(self) -> list[tuple[int, ...]]:
        """The numbers of each class that the user has chosen; none if the user has not."""
        if not _CHOICES & self.given.keys():
            return []
        label_map = validate(LabelMap | None, self.given.get("label_map"), "data.label_map")
        count = validate(int | None, self.given.get("num_classes"), "data.num_classes")
        rule = LabelRule(label_map=label_map, num_classes=count)
        return [*(rule.ids_of_class or [(k,) for k in range(rule.num_classes)])]

    def colors(self, table: Sequence[Value]) -> _Table:
        """Classes of colours: those of ``table``, which the user or a file gives, or all."""
        settings: dict[str, Any] = {"label_colors": [list(color) for color in table]}
        others = [str(color) for color in self.values if color not in table]
        if not table:
            if "class_names" in self.given:
                need = "data.class_names needs data.label_colors, the colour of each class"
                raise self.fault(f"{need}, for masks of colours")
            settings, table = class_settings(self.values, self.paths, parts_of(self.given))
            del settings["num_classes"]
        elif others and "color_distance" not in self.given:
            if self.given.get("label_colors"):
                raise self.fault(
                    f"the masks hold {few(others)}, which data.label_colors lacks: add each, and "
                    "its number to data.ignore_index if it means unlabelled, or set "
                    "data.color_distance"
                )
            settings["color_distance"] = 0
        name_of = {row.color: row.name for row in self.file.rows}
        names = {k: name_of[color] for k, color in enumerate(table) if color in name_of}
        return settings, dict(enumerate(table)), names

    def ids(self, ignored: Container[int]) -> _Table:
        """Classes of ids: those of the user, of a file, or else all but ``ignored``."""
        if len(self.values) > MOST_VALUES:
            fault = f"masks of more than {MOST_VALUES} values"
            remedy = "save class ids as PNG without interpolation, or set data.label_map"
            raise self.fault(f"{fault}: {remedy}")
        ids = sorted(i for (i,) in self.values if i not in ignored and i >= 0)
        numbers: Sequence[int | None] = [row.id for row in self.file.rows]
        chosen = self.given_classes()
        classes = [*chain(*chosen)]
        if chosen:
            others = [i for i in ids if i not in _LAST_VALUES]
            if len(others) == 1 and "label_map" not in self.given and IGNORE_INDEX in ids:
                raise self.fault(
                    f"the masks hold {others[0]} and 255, which means unlabelled: set "
                    f"data.label_map=[{others[0]},255] if both are classes, without "
                    "data.num_classes"
                )
            if None in numbers:  # names without ids are those of the classes
                numbers = [row[0] for row in chosen] if len(chosen) == len(numbers) else []
        elif numbers:
            numbers = classes = _ids_of_names(self.file, ids)
        else:
            values = Values({(i,): self.values[(i,)] for i in ids})
            _refuse_doubtful(self.paths[0].parent, values, ids)
            classes = [i for (i,) in class_settings(values)[1]]
        named = zip(numbers, self.file.rows, strict=False)
        names = {i: row.name for i, row in named if i is not None}
        return {}, {i: (i,) for i in classes}, names

    def notes(self, used: Sequence[Sequence[Value]]) -> list[str]:
        """Lines about all values, and about those that are no class."""
        is_class = {*chain(*used)}
        others = [value for value, _ in self.values.most_common() if value not in is_class]
        kind = f"{len(self.values)} colours"
        if not are_colors(self.values):
            kind = f"ids {few([str(i) for (i,) in sorted(self.values)], 12)}"
        lines = [f"masks: {len(self.paths)} files of {kind}"]
        if others:
            lines.append(f"unlabelled: {few([*map(self._shown, others)], 6)} of the pixels")
        if others and are_colors(self.values):
            near = self.given.get("color_distance") or 32
            share = sum(self.values[value] for value in others) / self.values.total()
            lines.append(
                f"{len(others)} colours, {share:.2%} of the pixels, are no class; "
                f"data.color_distance={near} gives them the nearest one within {near} in each "
                "channel"
            )
        return lines

    def _shown(self, value: Value) -> str:
        """A value and the fraction of the pixels that have it."""
        return f"{_name_of(value)} ({self.values[value] / self.values.total():.2%})"

    def notes_of_names(self, pixels: Mapping[str, int]) -> Iterator[str]:
        """Lines about the names of classes, of which ``pixels`` are given."""
        yield f"class names: {self.file.path}, {few([*pixels], 8)}"
        if doubtful := [name for name in pixels if re.fullmatch(_NO_CLASS, name)]:
            share = sum(pixels[name] for name in doubtful) / self.values.total()
            yield (
                f"{few(doubtful)}: trained as a class ({share:.2%} of the pixels); if it means "
                "unlabelled, set data.ignore_index to its number, counted from 0"
            )

    def note_of_classes(self, used: Sequence[Sequence[Value]]) -> str:
        """A line about classes without names, and about the setting that changes them."""
        has_colors = are_colors(self.values)
        without = f"{self.file.path} has no colours" if has_colors else ""
        why = without if without and self.file.rows else "no file names them"
        shown = few([*map(self._shown, chain(*used))], 40)
        key = "data.label_map" if has_colors else "data.ignore_index"
        return (
            f"classes: {len(used)}, one for each value, as {why}: {shown} of the pixels; "
            f"if a value means unlabelled, set {key}"
        )


def _name_of(value: Value) -> str:
    return str(value[0]) if len(value) == 1 else "#{:02x}{:02x}{:02x}".format(*value)


def _ids_of_names(file: ClassFile, ids: Sequence[int]) -> list[int]:
    """The id of each name in a file, for masks that hold ``ids``; DataError if it is not sure."""
    rows, last = file.rows, len(file.rows)
    classes = {*ids} - _LAST_VALUES
    start = 0  # the id of the first name, if the file gives none
    if rows[0].id is None and classes:
        first = rows[0].name
        meanings = {
            0: f"data.num_classes={last} if {first} is the name of 0",
            1: f"data.label_map=1-{last} if {first} is that of 1",
        }
        if classes < {*ids} and re.fullmatch(_NO_CLASS, first):
            meanings[-1] = f"nothing, but remove {first} from the file, if it is that of {ids[-1]}"
        possible = [k for k in meanings if classes <= {*range(k, k + last)}]
        if not possible and classes <= {*range(last + 1)}:
            meanings = {
                0: f"data.label_map=1-{last} if 0 means unlabelled",
                1: f"data.ignore_index={last} if {last} does",
            }
            possible = [0, 1]
        if len(possible) > 1:
            held = f"{last} names, and the masks hold the ids {few([*map(str, ids)], 12)}"
            choices = ", or ".join(meanings[k] for k in possible)
            raise DataError(f"{file.path}: {held}: set {choices}")
        start = sum(possible)
    numbers = [k + start if row.id is None else row.id for k, row in enumerate(rows)]
    if strange := [str(i) for i in sorted(classes - {*numbers})]:
        fault = f"no name for the ids {few(strange)} of the masks"
        raise DataError(f"{file.path}: {fault}: add them, or set data.label_map")
    return numbers


def _refuse_doubtful(folder: Path, values: Values, ids: Sequence[int]) -> None:
    """Raises DataError for ids without names that can be read in two ways."""
    classes = [i for i in ids if i != IGNORE_INDEX]
    if len(ids) > 8:
        (first, pixels), (second, others) = values.most_common(2)
        if abs(first[0] - second[0]) > 100 and pixels + others > 0.9 * values.total():
            raise DataError(f"{folder}: nearly all pixels of the masks have two values, few have "
                            "others, as after interpolation or JPEG: save two values as PNG, or "
                            "set data.label_map")  # fmt: skip
    if IGNORE_INDEX in ids and len(classes) > 1 and classes[-1] > 100:
        both = [f"data.label_map={each}".replace(" ", "") for each in (ids, classes)]
        raise DataError(f"{folder}: 255 may be a class or mean unlabelled: "
                        f"set {both[0]} or {both[1]}")  # fmt: skip


def read_class_file(root: Path, paths: Sequence[str]) -> ClassFile:
    """The first of ``paths`` whose name is one of class names, such as ``classes.txt``."""
    path = next((p for p in paths if re.fullmatch(CLASS_FILE, p)), None)
    if path is None:
        return ClassFile()
    place = root / path
    text = read_text(place, limit=1 << 17)  # also the limit of csv.reader
    ignored: list[int] = []
    if path.lower().endswith(".json"):
        entries, ignored = _rows_of_json(text, place)
    else:
        entries = _rows_of_text(text, is_csv=path.lower().endswith(".csv"))
    if len(entries) > MOST_VALUES:
        fault = f"{len(entries)} classes, at most {MOST_VALUES - 1}"
        raise DataError(f"{place}: {fault}: keep those of the masks")
    rows = [validate(ClassRow, entry, f"{place}: class") for entry in entries]
    if rows[:1] == [ClassRow("__ignore__")]:  # labelme's -1, without ids
        del rows[0]
    named_void = [
        row.id for row in rows if re.fullmatch(_NO_CLASS, row.name) and row.id is not None
    ]
    ignored += [i for i in named_void if i < 0 or i in _LAST_VALUES]
    rows = [row for row in rows if row.id is None or row.id not in ignored]
    return ClassFile(
        path, [replace(row, name=name_of_class(row.name, place)) for row in rows], ignored
    )


def _rows_of_json(text: str, path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The classes as fields of ``ClassRow``, not checked yet, and the values of ignore_index."""
    table = parse_json(text, path)
    if not isinstance(table, dict) or not {"classes", "names"} & table.keys():
        table = {"classes": table}
    classes = table.get("classes", table.get("names"))
    if isinstance(classes, dict) and all(isinstance(v, int) for v in classes.values()):
        classes = [{"id": v, "name": k} for k, v in classes.items()]
    if isinstance(classes, dict):  # names by id
        ids = [key for key in classes if re.fullmatch(r"-?[0-9]{1,9}", key)]
        classes = [{"id": int(key), "name": classes[key]} for key in ids]
    if not isinstance(classes, list) or not classes:
        raise DataError(f"{path}: no names of classes: write a list of names, or {{id: name}}")
    rows = [row if isinstance(row, dict) else {"name": row} for row in classes]
    key = next((key for key in ("name", "title", "label") if key in rows[0]), "name")
    rows = [{"name": r.get(key), "id": r.get("id"), "color": r.get("color")} for r in rows]
    where = f"{path}: ignore_index"
    ignored = validate(int | list[int] | None, table.get("ignore_index"), where)
    return rows, [ignored] if isinstance(ignored, int) else [*(ignored or ())]


def _rows_of_text(text: str, *, is_csv: bool) -> list[dict[str, Any]]:
    """The classes of lines with a name, and perhaps an id and a colour. A CSV may have a header."""
    rows = []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    has_numbers = any(re.search(r"(^|[,;\t])\s*\d+\s*($|[,;\t])", line) for line in lines)
    for number, line in enumerate(lines):
        cells = re.split(r"[,;:\s]", line)
        if is_csv:
            (cells,) = csv.reader([re.sub(r"[;\t]", ",", line)], skipinitialspace=True)
        words = [word for word in map(str.strip, cells) if word]
        is_header = has_numbers or (number == 0 and words[:1] and words[0].lower() in _HEADERS)
        if not words or (is_csv and is_header and not any(map(str.isdecimal, words))):
            continue
        color: Any = None
        if len(words) > 3 and all(map(str.isdecimal, words[-3:])):
            words, color = words[:-3], words[-3:]
        elif len(words) > 1 and re.fullmatch(_HEX_COLOR, words[-1]):
            color = words.pop()
        first = words if is_csv else words[:1]  # names in texts may hold numbers
        ids = [word for word in first if re.fullmatch(r"-?\d+", word)] if len(words) > 1 else []
        kept = [w for w in words if w not in ids] if is_csv else words[len(ids) :]
        rows.append({"name": " ".join(kept), "id": ids[0] if ids else None, "color": color})
    return rows
