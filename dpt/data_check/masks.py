"""Settings for masks of unknown values: classes, their names, and what means unlabelled."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import cv2
import numpy as np
from pydantic import Field

from dpt.data import DataError
from dpt.data.formats import io
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
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a CSV with names alone
_NO_CLASS = r"(?i)_*(void|unlabell?ed|ignored?|undefined)_*"  # names that often mean unlabelled
_LAST_VALUES = {255, *(2**bits - 1 for bits in (16, 31, 32, 63, 64))}
"""The largest values of types of pixels, which mean unlabelled."""
CLASS_FILE = r"(?i)(?:.*/)?_?(?:class(?:es|_names|_dict)?|names|palette|labelmap)\.(txt|csv|json)"


@dataclass(frozen=True)
class ClassRow:
    """A class in a file of class names; None is what the file does not say."""

    name: str
    id: int | None = None
    color: tuple[_Byte, _Byte, _Byte] | None = None


@dataclass
class ClassFile:
    """The classes that a file names; without one there are no rows."""

    path: str = ""  # below the root
    rows: list[ClassRow] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)  # ids that mean unlabelled


@dataclass
class MaskSettings:
    """Keys of ``data`` for masks, what was found out or assumed, and the classes' values."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    classes: list[list[Value]] = field(default_factory=list)  # values of each; empty: unknown
    counts: list[int] = field(default_factory=list)  # pixels of each


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
    stored = sorted(key[0] for key in values if len(key) == 1)
    ids = [i for i in stored if i >= 0]  # below 0: unlabelled
    found = [i for i in ids if i not in _LAST_VALUES]
    keys: list[Value]
    settings: dict[str, Any]
    if len(stored) < len(values):
        mixed = mixed_colors(paths, values, parts or io.Parts())
        keys = sorted((values - mixed).keys())
        if not 1 < len(keys) < MOST_VALUES:
            fault = (
                f"{len(values)} colours, of which {len(keys)} fill areas, are not those of masks"
            )
            remedy = "save class ids as PNG without interpolation, or set data.label_colors"
            raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
        names = ["#{:02x}{:02x}{:02x}".format(*key) for key in keys]
        if all(sum(key) == max(key) < 2 for key in keys):  # one-hot: R is the first class
            keys, names = sorted(filter(any, keys), reverse=True), []
        settings = {"num_classes": len(keys), "label_colors": [list(key) for key in keys]}
        settings |= {"class_names": names} if names else {}
        settings |= {"color_distance": 0} if len(keys) < len(values) else {}
    elif len(found) > 1 and stored[0] == found[0] == 0 and found[-1] < 2 * len(found):
        keys = [(i,) for i in range(found[-1] + 1)]
        settings = {"num_classes": len(keys)}
        if not {*ids} <= {*found, IGNORE_INDEX}:
            settings["ignore_index"] = [i for i in ids if i in _LAST_VALUES]
    else:  # a class for each id; the last value too where only one other id occurs
        keys = [(i,) for i in (found if len(found) > 1 else ids)]
        settings = {"label_map": [i for (i,) in keys]}
    return settings, keys


def ids_of_colors(values: Values) -> Values:
    """The values, with ids in place of colours if all are grey, or dark red as ids in R alone."""
    colors = [key for key in values if len(key) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > io.MAX_RED_ID for r, g, b in colors):
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
    if max(map(max, values)) <= io.MAX_RED_ID:  # ids, not colours
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
        if len(values) > io.MAX_COLORS:
            raise DataError(f"{path}: pictures of more than {io.MAX_COLORS} colours, not masks")
    return values


def mask_settings(paths: Sequence[Path], file: ClassFile, given: Mapping[str, Any]) -> MaskSettings:
    """The settings of masks, from all their values.

    Args:
        file: names of the classes.
        given: keys of ``data`` that the user has set; they decide before the file and the values.

    Raises:
        DataError: the masks have no classes, or can be read in two ways.
    """
    folder, parts = paths[0].parent, io.Parts(key=given.get("array_key"), page=given.get("page"))
    own = validate(list[_Color], given.get("label_colors", []), "data.label_colors")
    table = own or [row.color for row in file.rows if row.color is not None]
    values = mask_values(paths, parts)
    if not {*table} >= {key for key in values if len(key) == 3}:
        values = ids_of_colors(values)
    kinds, use_palette = {len(key): key for key in values}, False
    if len(kinds) > 1:  # perhaps some files have palettes of the colours that others have
        values, use_palette = mask_values(paths, parts, use_palette=True), True
        kinds = {len(key): key for key in values}
    if len(kinds) > 1:
        both = f"some masks hold ids, such as {kinds[1][0]}, others colours, such as {kinds[3]}"
        raise DataError(f"{folder}: {both}: save all as ids, or all as colours")
    if len(values) < 2:
        raise DataError(f"{folder}: all masks hold one value: there is nothing to learn")
    chosen = given.get("ignore_index", file.ignored)
    ignored = [] if chosen is None else [chosen] if isinstance(chosen, int) else [*chosen]
    if 3 in kinds:
        found = _of_colors(paths, values, file, given, ignored)
        kind = f"{len(values)} colours"
    else:
        if len(values) > MOST_VALUES:
            fault = f"masks of more than {MOST_VALUES} values"
            remedy = "save class ids as PNG without interpolation, or set data.label_map"
            raise DataError(f"{folder}: {fault}: {remedy}")
        ids = sorted(i for (i,) in values if i not in ignored and i >= 0)
        found = _of_ids(folder, values, ids, file, given)
        kind = f"ids {few([str(i) for i in ids], 12)}"
        ignored += [i for (i,) in values if i < 0 or i in _LAST_VALUES]
    if use_palette:
        found.settings.setdefault("color_distance", given.get("color_distance", 0))
    found.counts = [sum(values[key] for key in keys) for keys in found.classes]
    found.notes.insert(0, f"masks: {len(paths)} files of {kind}")
    if "class_names" in given:
        found.settings.pop("class_names", None)
    found.notes += _notes(found, values, file, given, has_names=bool(table or 1 in kinds))
    found.settings = {"ignore_index": sorted({*ignored, IGNORE_INDEX})} | found.settings
    return found


def _notes(
    found: MaskSettings,
    values: Values,
    file: ClassFile,
    given: Mapping[str, Any],
    *,
    has_names: bool,
) -> Iterator[str]:
    """Lines about the values that are no class, and about the names or values of the classes."""
    used, total, of_colors = {*chain(*found.classes)}, values.total(), len(next(iter(values))) == 3
    shown = {key: f"{_shown(key)} ({count / total:.2%})" for key, count in values.most_common()}
    others = [text for key, text in shown.items() if key not in used]
    share = sum(values[key] for key in values.keys() - used) / total
    if found.classes and others:
        fate = "unlabelled"
        if distance := given.get("color_distance", 0):
            fate = f"unlabelled, or of the nearest class within {distance}"
        yield f"{fate}: {few(others, 6)} of the pixels"
        if of_colors and not distance:
            yield (
                f"{len(others)} colours, {share:.2%} of the pixels, are no class; "
                "data.color_distance=32 gives them the nearest one within 32 in each channel"
            )
    names = found.settings.get("class_names", [])
    if names and has_names:
        yield f"class names: {file.path}, {few(names, 8)}"
        counts = dict(zip(names, found.counts, strict=False))
        if doubtful := [name for name in counts if re.fullmatch(_NO_CLASS, name)]:
            share = sum(counts[name] for name in doubtful) / total
            yield (
                f"{few(doubtful)}: trained as a class ({share:.2%} of the pixels); if it means "
                "unlabelled, set data.ignore_index to its number, counted from 0"
            )
    elif not {"class_names", "num_classes", "label_map", "label_colors"} & given.keys():
        why = f"{file.path} has no colours" if of_colors and file.rows else "no file names them"
        each = few([shown.get(key, f"{_shown(key)} (0 %)") for (key,) in found.classes], 40)
        key = "data.label_map" if of_colors else "data.ignore_index"
        yield (
            f"classes: {len(found.classes)}, one for each value, as {why}: {each} of the pixels; "
            f"if a value means unlabelled, set {key}"
        )


def _shown(value: Value) -> str:
    return str(value[0]) if len(value) == 1 else "#{:02x}{:02x}{:02x}".format(*value)


def _of_colors(
    paths: Sequence[Path],
    values: Values,
    file: ClassFile,
    given: Mapping[str, Any],
    ignored: Sequence[int],
) -> MaskSettings:
    """Classes of colours: those of the user, of a file, or all that occur."""
    folder, rows = paths[0].parent, [row for row in file.rows if row.color is not None]
    own = [tuple(color) for color in given.get("label_colors", [])]
    colors: list[Value] = own or [row.color for row in rows if row.color is not None]
    others = [color for color in values if color not in colors]
    if not colors:
        if "class_names" in given:
            raise DataError(f"{folder}: data.class_names needs data.label_colors, the colour of "
                            "each class, for masks of colours")  # fmt: skip
        parts = io.Parts(key=given.get("array_key"), page=given.get("page"))
        settings, keys = class_settings(values, paths, parts)
        others = [color for color in values if color not in keys]
        if {"num_classes", "label_map"} & given.keys():
            settings, keys = {"label_colors": settings["label_colors"]}, []
        found = MaskSettings(settings, classes=[[key] for key in keys])
    elif own and others and "color_distance" not in given:
        raise DataError(
            f"{folder}: the masks hold {few([str(c) for c in others])}, which data.label_colors "
            "lacks: add each, and its number to data.ignore_index if it means unlabelled, or set "
            "data.color_distance"
        )
    elif "label_map" in given:
        numbers = Values({(k,): values[color] for k, color in enumerate(colors)})
        named = [ClassRow(row.name, k) for k, row in enumerate(rows)]
        found = _of_given_ids(folder, numbers, [], ClassFile(file.path, named), given)
        found.classes = [[colors[k] for (k,) in keys if k < len(colors)] for keys in found.classes]
        found.settings["label_colors"] = [list(color) for color in colors]
    else:
        count = len(colors)
        while count - 1 in ignored:
            count -= 1
        count = validate(int, given.get("num_classes", count), "data.num_classes")
        rest = [*range(count, len(colors))]
        settings = {
            "num_classes": count,
            "label_colors": [*map(list, colors)],
            "ignore_index": rest,
        }
        found = MaskSettings(settings, classes=[[color] for color in colors[:count]])
        if not own:
            found.settings["class_names"] = [row.name for row in rows[:count]]
    if others and "color_distance" not in given:
        found.settings["color_distance"] = 0
    return found


def _of_ids(
    folder: Path, values: Values, ids: Sequence[int], file: ClassFile, given: Mapping[str, Any]
) -> MaskSettings:
    """Classes of ids: those of the user, of a file, or all that occur."""
    classes, rows = [i for i in ids if i not in _LAST_VALUES], file.rows
    if {"num_classes", "label_map"} & given.keys():
        return _of_given_ids(folder, values, classes, file, given)
    if not rows:
        _refuse_doubtful(folder, values, ids)
        settings, keys = class_settings(Values({(i,): values[(i,)] for i in ids}))
        settings.pop("ignore_index", None)
        return MaskSettings(settings, classes=[[key] for key in keys])
    last = len(rows)
    if len({row.name for row in rows}) < last:
        raise DataError(f"{file.path}: two classes have one name: give each its own")
    if classes == [*range(last + 1)]:
        raise DataError(
            f"{file.path}: {last} names for the ids 0 to {last} of the masks: set "
            f"data.label_map=1-{last} if 0 means unlabelled, or data.ignore_index={last} if {last} "
            "does"
        )
    if (
        re.fullmatch(_NO_CLASS, rows[0].name)
        and rows[0].id is None
        and ({*ids} & _LAST_VALUES and classes and classes[-1] == last - 2)
    ):
        raise DataError(
            f"{file.path}: {last} names, and the masks hold 0 to {last - 2} and {ids[-1]}: set "
            f"data.num_classes={last} if {rows[0].name} is the name of 0; remove it from the file "
            f"if it is that of {ids[-1]}"
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
    return MaskSettings(settings, classes=[[(i,)] for i in known])


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
    keys: list[list[Value]] = [[(i,) for i in own] for own in rows]
    names = {row.id: row.name for row in file.rows}
    if None in names:  # names without ids are those of the classes
        ordered = [row.name for row in file.rows]
        found = ordered if len(ordered) == len(rows) else []
    else:
        found = [names[own[0]] for own in rows if own[0] in names]
    complete = len(set(found)) == len(rows)
    return MaskSettings({"class_names": found} if complete else {}, classes=keys)


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
    ignored: int | Sequence[int] | None = None
    if path.lower().endswith(".json"):
        rows, ignored = _rows_of_json(text, root / path)
    else:
        rows = _rows_of_text(text, is_csv=path.lower().endswith(".csv"))
    if len(rows) > MOST_VALUES:
        fault = f"{len(rows)} classes, at most {MOST_VALUES - 1}"
        raise DataError(f"{root / path}: {fault}: keep those of the masks")
    file = ClassFile(path, [], [ignored] if isinstance(ignored, int) else [*(ignored or ())])
    for number, row in enumerate(rows):
        row = validate(ClassRow, row, f"{root / path}: class")
        is_value = row.id is not None and (row.id < 0 or row.id in _LAST_VALUES)
        if re.fullmatch(_NO_CLASS, row.name) and is_value:
            file.ignored.append(cast(int, row.id))
        elif number or row.id is not None or row.name != "__ignore__":  # labelme's -1, without ids
            file.rows.append(replace(row, name=name_of_class(row.name, root / path)))
    return file


def _rows_of_json(text: str, path: Path) -> tuple[list[dict[str, Any]], Any]:
    """The classes as fields of ``ClassRow``, not checked yet, and the value of ignore_index."""
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
    return (
        [{"name": r.get(key), "id": r.get("id"), "color": _rgb(r.get("color"))} for r in rows],
        validate(int | list[int] | None, table.get("ignore_index"), f"{path}: ignore_index"),
    )


def _rgb(color: Any) -> Any:
    """``[80, 227, 194]`` of ``#50E3C2``; other values as they are."""
    is_hex = isinstance(color, str) and re.fullmatch("#[0-9a-fA-F]{6}", color)
    return [*bytes.fromhex(color[1:])] if is_hex else color


def _rows_of_text(text: str, *, is_csv: bool) -> list[dict[str, Any]]:
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
            words, color = words[:-3], words[-3:]
        elif len(words) > 1 and isinstance(_rgb(words[-1]), list):
            color = _rgb(words.pop())
        first = words if is_csv else words[:1]  # names in texts may hold numbers
        ids = [word for word in first if re.fullmatch(r"-?\d+", word)] if len(words) > 1 else []
        kept = [w for w in words if w not in ids] if is_csv else words[len(ids) :]
        rows.append({"name": " ".join(kept), "id": ids[0] if ids else None, "color": color})
    return rows
