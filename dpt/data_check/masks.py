"""Settings for masks of unknown values: classes, their names, and what means unlabelled."""

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data.formats.labels import LabelMap, LabelRule
from dpt.files import few, parse_json, read_text
from dpt.types import IGNORE_INDEX
from dpt.validation import validate

Values = Counter[tuple[int, ...]]
"""Pixels of each id ``(i,)`` and of each colour ``(r, g, b)`` of mask files."""

_Color = tuple[int, int, int]
MOST_VALUES = 256  # of masks: 255 classes, and one that means unlabelled
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a CSV with names alone
_NO_CLASS = r"(?i)void|unlabell?ed|ignored?|undefined"  # names that often mean unlabelled
CLASS_FILE = r"(?i)(?:.*/)?_?(?:class(?:es|_names|_dict)?|names|palette|labelmap)\.(txt|csv|json)"


@dataclass(frozen=True)
class ClassRow:
    """A class in a file of class names; None is what the file does not say."""

    name: str
    id: int | None = None
    color: tuple[int, ...] | None = None


@dataclass
class ClassFile:
    """The classes that a file names; without one there are no rows."""

    path: str = ""  # below the root
    rows: list[ClassRow] = field(default_factory=list)
    ignored: Any = None  # an id, or ids, that mean unlabelled


@dataclass
class MaskSettings:
    """Keys of ``data`` for masks, what was found out or assumed, and the pixels of each class."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # empty: unknown


def class_weights(counts: Sequence[int]) -> list[float]:
    """(share of the pixels)^-0.25 divided by the mean; 1 for classes without a pixel."""
    weights = np.array([count or np.nan for count in counts], float) ** -0.25
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def class_settings(values: Values) -> tuple[dict[str, Any], list[int]]:
    """The settings that make classes of the values in mask files, and the pixels of each class."""
    stored = sorted(key[0] for key in values if len(key) == 1)
    ids = [i for i in stored if i >= 0]  # below 0: unlabelled
    found = [i for i in ids if i != IGNORE_INDEX]
    keys: list[tuple[int, ...]]
    settings: dict[str, Any]
    if len(stored) < len(values):
        keys = [key for key, _ in values.most_common() if len(key) == 3]
        settings = {"num_classes": len(keys), "label_colors": [list(key) for key in keys]}
    elif len(found) > 1 and stored[0] == found[0] == 0 and found[-1] < 2 * len(found):
        keys = [(i,) for i in range(found[-1] + 1)]
        settings = {"num_classes": len(keys)}
    else:  # a class for each id; 255 too where only one other id occurs
        keys = [(i,) for i in (found if len(found) > 1 else ids)]
        settings = {"label_map": [i for (i,) in keys]}
    return settings, [values[key] for key in keys]


def mask_settings(paths: Sequence[Path], file: ClassFile, given: Mapping[str, Any]) -> MaskSettings:
    """The settings of masks, from all their values.

    Args:
        file: names of the classes.
        given: keys of ``data`` that the user has set; they decide before the file and the values.

    Raises:
        DataError: the masks have no classes, or can be read in two ways.
    """
    values, folder = Values(), paths[0].parent
    for path in paths:
        values.update(io.label_values(path))
        if len(values) > MOST_VALUES or len({len(key) for key in values}) > 1:
            raise DataError(f"{path}: masks of more than {MOST_VALUES} values, or of ids and of "
                            "colours: save class ids as PNG without interpolation")  # fmt: skip
    if len(values) < 2:
        raise DataError(f"{folder}: all masks hold one value: there is nothing to learn")
    chosen = given.get("ignore_index", file.ignored)
    ignored = [] if chosen is None else [chosen] if isinstance(chosen, int) else [*chosen]
    if len(next(iter(values))) == 3:
        found = _of_colors(folder, values, file, given, ignored)
        kind = f"{len(values)} colours"
    else:
        ignored += [i for (i,) in values if i < 0]
        ids = sorted(i for (i,) in values if i not in ignored)
        found = _of_ids(folder, values, ids, file, given)
        kind = f"ids {few([str(i) for i in ids], 12)}"
        if ignored or (IGNORE_INDEX in ids and len(ids) > 2):
            unlabelled = few([str(i) for i in (*ignored, IGNORE_INDEX)])
            found.notes.insert(0, f"unlabelled: {unlabelled}")
    found.notes.insert(0, f"masks: {len(paths)} files of {kind}")
    if "class_names" in given:
        found.settings.pop("class_names", None)
    if names := found.settings.get("class_names"):
        found.notes.append(f"class names: {file.path}, {few(names, 8)}")
        if doubtful := [name for name in names if re.fullmatch(_NO_CLASS, name)]:
            found.notes.append(f"{few(doubtful)}: trained as a class; if it means unlabelled, set "
                               "data.ignore_index to its number, counted from 0")  # fmt: skip
    elif not {"class_names", "num_classes", "label_map", "label_colors"} & given.keys():
        of_colors = kind.endswith("colours")
        why = f"{file.path} has no colours" if of_colors and file.rows else "no file names them"
        key = "data.label_map" if of_colors else "data.ignore_index"
        found.notes.append(f"classes: {len(found.counts)}, one for each value, as {why}; if a "
                           f"value means unlabelled, set {key}")  # fmt: skip
    found.settings = {"ignore_index": [*ignored, IGNORE_INDEX]} | found.settings
    return found


def _of_colors(
    folder: Path, values: Values, file: ClassFile, given: Mapping[str, Any], ignored: Sequence[int]
) -> MaskSettings:
    """Classes of colours: those of the user, of a file, or all that occur."""
    rows = [row for row in file.rows if row.color is not None]
    own = validate(list[_Color], given.get("label_colors", []), "data.label_colors")
    colors = own or [row.color for row in rows if row.color is not None]
    others = [color for color in values if color not in colors]
    if not colors:
        if "class_names" in given:
            raise DataError(f"{folder}: data.class_names needs data.label_colors, the colour of "
                            "each class, for masks of colours")  # fmt: skip
        settings, counts = class_settings(values)
        if {"num_classes", "label_map"} & given.keys():
            return MaskSettings({"label_colors": settings["label_colors"]})
        return MaskSettings(settings, counts=counts)
    if own and others:
        raise DataError(
            f"{folder}: the masks hold {few([str(c) for c in others])}, which data.label_colors "
            "lacks: add each, and its number to data.ignore_index if it means unlabelled"
        )
    every = [*colors, *others]
    if "label_map" in given:
        numbers = Values({(k,): values[color] for k, color in enumerate(every)})
        named = [ClassRow(row.name, k) for k, row in enumerate(rows)]
        found = _of_given_ids(folder, numbers, [], ClassFile(file.path, named), given)
        found.settings["label_colors"] = [list(color) for color in every]
        return found
    count = len(colors)
    while count - 1 in ignored:
        count -= 1
    count = validate(int, given.get("num_classes", count), "data.num_classes")
    settings = {"num_classes": count, "label_colors": [list(color) for color in every],
                "ignore_index": [*range(count, len(every))]}  # fmt: skip
    if not own:
        settings["class_names"] = [row.name for row in rows[:count]]
    notes = [f"unlabelled: the colour {color}, without a name" for color in others]
    return MaskSettings(settings, notes, [values[color] for color in colors[:count]])


def _of_ids(
    folder: Path, values: Values, ids: Sequence[int], file: ClassFile, given: Mapping[str, Any]
) -> MaskSettings:
    """Classes of ids: those of the user, of a file, or all that occur."""
    classes, rows = [i for i in ids if i != IGNORE_INDEX], file.rows
    if {"num_classes", "label_map"} & given.keys():
        return _of_given_ids(folder, values, classes, file, given)
    if not rows:
        _refuse_doubtful(folder, values, ids)
        settings, counts = class_settings(Values({(i,): values[(i,)] for i in ids}))
        return MaskSettings(settings, counts=counts)
    last = len(rows)
    if len({row.name for row in rows}) < last:
        raise DataError(f"{file.path}: two classes have one name: give each its own")
    if classes == [*range(last + 1)]:
        raise DataError(
            f"{file.path}: {last} names for the ids 0 to {last} of the masks: set "
            f"data.label_map=1-{last} if 0 means unlabelled, or data.ignore_index={last} if {last} "
            "does"
        )
    known = [k if row.id is None else row.id for k, row in enumerate(rows)]
    if rows[0].id is None and classes and 0 not in classes:
        if classes[-1] < last:
            raise DataError(
                f"{file.path}: {last} names, and the masks hold neither 0 nor {last}: set "
                f"data.num_classes={last} if the first name is that of 0, or "
                f"data.label_map=1-{last} if it is that of 1"
            )
        known = [k + 1 for k in known]
    if strange := [str(i) for i in classes if i not in known]:
        raise DataError(f"{file.path}: no name for the ids {few(strange)} of the masks: add them, "
                        "or set data.label_map")  # fmt: skip
    settings = {"num_classes": last} if known == [*range(last)] else {"label_map": known}
    settings["class_names"] = [row.name for row in rows]
    return MaskSettings(settings, counts=[values[(i,)] for i in known])


def _of_given_ids(
    folder: Path, values: Values, classes: Sequence[int], file: ClassFile, given: Mapping[str, Any]
) -> MaskSettings:
    """Names and pixels of the classes that the user has chosen."""
    if len(classes) == 1 and "label_map" not in given and (IGNORE_INDEX,) in values:
        raise DataError(
            f"{folder}: the masks hold {classes[0]} and 255, which means unlabelled: set "
            f"data.label_map=[{classes[0]},255] if both are classes, without data.num_classes"
        )
    label_map = validate(LabelMap | None, given.get("label_map"), "data.label_map")
    count = validate(int | None, given.get("num_classes"), "data.num_classes")
    rule = LabelRule(label_map=label_map, num_classes=count)
    rows = rule.ids_of_class or [(k,) for k in range(rule.num_classes)]
    counts = [sum(values[(i,)] for i in own) for own in rows]
    names = {row.id: row.name for row in file.rows}
    if None in names:  # names without ids are those of the classes
        ordered = [row.name for row in file.rows]
        found = ordered if len(ordered) == len(rows) else []
    else:
        found = [names[own[0]] for own in rows if own[0] in names]
    complete = len(set(found)) == len(rows)
    return MaskSettings({"class_names": found} if complete else {}, counts=counts)


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
    text = read_text(root / path, limit=1 << 17)  # also the limit of csv.reader
    if not path.endswith(".json"):
        return ClassFile(path, _rows_of_text(text, is_csv=path.endswith(".csv")))
    table = parse_json(text, root / path)
    if not isinstance(table, dict) or not {"classes", "names"} & table.keys():
        table = {"classes": table}
    classes = table.get("classes", table.get("names"))
    if isinstance(classes, dict) and all(isinstance(v, int) for v in classes.values()):
        classes = {v: k for k, v in classes.items()}  # ids by name
    if isinstance(classes, dict):  # names by id
        classes = [{"id": int(k), "name": v} for k, v in classes.items() if str(k).isdecimal()]
    if not isinstance(classes, list) or not classes:
        raise DataError(f"{root / path}: no names of classes: write a list of names, or {{id: "
                        "name}")  # fmt: skip
    rows = [row if isinstance(row, dict) else {"name": row} for row in classes]
    found = [
        ClassRow(
            str(r.get("name")),
            validate(int | None, r.get("id"), f"{root / path}: id of a class"),
            validate(_Color | None, r.get("color"), f"{root / path}: color of a class"),
        )
        for r in rows
    ]
    return ClassFile(path, found, table.get("ignore_index"))


def _rows_of_text(text: str, *, is_csv: bool) -> list[ClassRow]:
    """The classes of lines with a name, and perhaps an id and a colour. A CSV may have a header."""
    rows = []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    has_numbers = any(re.search(r"(^|[,;\t])\s*\d+\s*($|[,;\t])", line) for line in lines)
    for number, line in enumerate(lines):
        parts = re.split(r"[,;:\s]", line)
        if is_csv:
            (parts,) = csv.reader([re.sub(r"[;\t]", ",", line)], skipinitialspace=True)
        words = [word for word in map(str.strip, parts) if word]
        is_header = has_numbers or (number == 0 and words[:1] and words[0].lower() in _HEADERS)
        if not words or (is_csv and is_header and not any(map(str.isdecimal, words))):
            continue
        color = None
        if len(words) > 3 and all(map(str.isdecimal, words[-3:])):
            words, color = words[:-3], tuple(map(int, words[-3:]))
        first = words if is_csv else words[:1]  # names in texts may hold numbers
        ids = [word for word in first if word.isdecimal()] if len(words) > 1 else []
        kept = [w for w in words if w not in ids] if is_csv else words[len(ids) :]
        rows.append(ClassRow(" ".join(kept), int(ids[0]) if ids else None, color))
    return rows
