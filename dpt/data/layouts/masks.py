"""The classes of masks in an unknown folder, from the values in the files and from class names."""

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from dpt.data.formats import io
from dpt.data.formats.io import MAX_COLORS, MAX_RED_ID
from dpt.data.formats.rules import LabelMap, LabelRule
from dpt.data.layouts.base import in_threads
from dpt.data.layouts.class_file import LARGEST_VALUES, MAX_VALUES, NO_CLASS, ClassFile, Color
from dpt.files import DataError, few
from dpt.run_log import tracked
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Plain, PlainMapping, validate

Value = tuple[int, ...]
"""An id ``(i,)`` or a colour ``(r, g, b)`` of mask files."""
Values = Counter[Value]
"""Pixels of each value."""

_BLACK = (0, 0, 0)
_MAX_PADDING = 0.01  # fraction of the pixels
_MIN_COLORS = 3
_CHOICES = {"num_classes", "label_map"}  # keys of data that choose the classes of numbers
_MAX_DISTINCT = 1024  # colours that differ clearly, of masks with mixed colours


def part_of(data: PlainMapping) -> io.FilePart:
    """Returns what keys of ``data`` choose of files that hold more than one map."""
    return io.FilePart(key=data.get("array_key"), page=data.get("page"))


def class_weights(counts: Sequence[int], power: float = 0.25) -> list[float]:
    """Returns (fraction of the pixels)^-power divided by the mean; 1 for classes without pixels."""
    weights = np.array([count or np.nan for count in counts], float) ** -power
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def class_settings(
    values: Values, paths: Sequence[Path] = (), part: io.FilePart | None = None
) -> tuple[Plain, list[Value]]:
    """Returns the settings that make classes of the values in mask files, and the value of each
    class.

    Raises:
        DataError: too few or too many colours are classes.
    """
    if _are_colors(values):
        colors = _colors_of_classes(values, paths, part or io.FilePart())
        settings = {"num_classes": len(colors), "label_colors": [list(color) for color in colors]}
        return settings | ({"color_distance": 0} if len(colors) < len(values) else {}), colors
    classes = _ids_of_classes(values)
    settings = _numbers(classes)
    others = sorted({i for (i,) in values}.difference(classes))
    if "num_classes" in settings and not {*others} <= {IGNORE_INDEX}:
        settings["ignore_index"] = others
    return settings, [(i,) for i in classes]


def _ids_of_classes(values: Values) -> list[int]:
    """Returns the ids that are classes, with rare gaps filled."""
    ids = sorted(i for (i,) in values if i >= 0)  # below 0: unlabelled
    classes = [i for i in ids if i not in LARGEST_VALUES]
    if len(classes) < 2:  # the largest value is a class, too, where only one other id occurs
        classes = ids
    has_few_gaps = classes[0] == 0 and classes[-1] < 2 * len(classes)
    return [*range(classes[-1] + 1)] if has_few_gaps else classes


def _numbers(numbers: list[int]) -> Plain:
    """Returns the setting that makes these ids, or rows of ``label_colors``, the classes."""
    is_range = numbers == list(range(len(numbers)))
    return {"num_classes": len(numbers)} if is_range else {"label_map": numbers}


def _are_colors(values: Values) -> bool:
    return any(len(value) == 3 for value in values)


def with_ids(values: Values) -> Values:
    """Returns the values, with ids in place of colours if all are grey, or dark red as ids in R."""
    colors = [value for value in values if len(value) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > MAX_RED_ID for r, g, b in colors):
        return values
    ids = Values()
    for value, count in values.items():
        ids[value[:1]] += count
    return ids


def _colors_of_classes(values: Values, paths: Sequence[Path], part: io.FilePart) -> list[Value]:
    """Returns the colours of masks that are classes, in the order of the classes."""
    mixed = set() if max(map(max, values)) <= MAX_RED_ID else _mixed_colors(values, paths, part)
    colors = sorted(values.keys() - mixed)
    if not 1 < len(colors) < MAX_VALUES:
        fault = f"{len(values)} colours, of which {len(colors)} fill areas, are not those of masks"
        remedy = "save class ids as PNG without interpolation, or set data.label_colors"
        raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
    return colors


def _mixed_colors(values: Values, paths: Sequence[Path], part: io.FilePart) -> set[Value]:
    """Returns the colours that are no classes, but mixed at borders or slightly off.

    Such a colour lies beside a more frequent one; or it fills no block of 3 x 3 pixels, in masks
    where a colour lies between two others.
    """
    near = 2 if len(values) <= MAX_VALUES else 32  # lossy compression makes so many
    distinct = np.empty((0, 3), int)
    mixed = set()
    is_blurred = False
    for value, _ in values.most_common():
        color = np.array(value)
        if len(distinct) and np.abs(distinct - color).max(axis=1).min() <= near:
            mixed.add(value)
            continue
        is_blurred = is_blurred or _is_between(color, distinct[:64])
        distinct = np.concatenate([distinct, color[None]])
        if len(distinct) > _MAX_DISTINCT:  # pictures
            return set(values)
    if is_blurred:
        mixed |= {*map(tuple, distinct.tolist())} - _solid_colors(list(values), paths, part)
    return mixed


def _solid_colors(colors: list[Value], paths: Sequence[Path], part: io.FilePart) -> set[Value]:
    """Returns the colours that fill a block of 3 x 3 pixels in one of the masks."""
    block = np.ones((3, 3), np.uint8)
    solid: set[Value] = set()
    for path in paths:
        ids = io.read_labels(path, colors=colors, distance=0, part=part).astype(np.float32)
        inside = cv2.erode(ids, block) == cv2.dilate(ids, block)
        solid |= {colors[int(i)] for i in np.unique(ids[inside]) if i >= 0}
    return solid


def _is_between(color: np.ndarray, colors: np.ndarray) -> bool:
    """Returns whether a colour (3,) is a mixture of two of ``colors`` (N, 3)."""
    steps = colors[None] - colors[:, None]  # from the first to the second of each pair
    offset = color - colors[:, None]
    position = (offset * steps).sum(-1) / (steps**2).sum(-1).clip(1)
    distance = np.abs(position[..., None] * steps - offset).max(-1)
    return bool(((position > 0) & (position < 1) & (distance <= 4)).any())


class _Entry(NamedTuple):
    """What may be a class: an id, or a row of ``label_colors``."""

    value: Value
    name: str = ""  # as a file says

    @property
    def code(self) -> str:
        return ("#{:02x}{:02x}{:02x}" if len(self.value) == 3 else "{}").format(*self.value)


def mask_settings(
    paths: Sequence[Path], file: ClassFile, given: PlainMapping
) -> tuple[Plain, list[str]]:
    """Returns the settings of masks, from all their values, and what was recognised or assumed.

    Args:
        file: names of the classes.
        given: keys of ``data`` that the user has set; they decide before the file and the values.

    Raises:
        DataError: the masks have no classes, or can be read in two ways.
    """
    is_chosen = bool(_CHOICES & given.keys())
    if not is_chosen and len({row.name for row in file.rows}) < len(file.rows):
        raise DataError(f"{file.path}: two classes have one name: give each its own")
    masks = _read_masks(paths, file, given)
    is_foreign = masks.file is not file
    notes = [f"not used: {file.path}, whose colours are not those of the masks"] * is_foreign
    file, has_colors = masks.file, _are_colors(masks.values)
    # colours have rows in a table, not the ids of the file
    has_ids = has_colors and any(row.id is not None for row in file.rows)
    ignored_ids = given.get("ignore_index", [] if has_ids else file.ignored)
    ignored = {ignored_ids} if isinstance(ignored_ids, int) else {*(ignored_ids or ())}
    entries = masks.number_colors() if has_colors else masks.number_ids(ignored)
    classes = masks.chosen_classes() or [(k,) for k in entries if k not in ignored]
    settings = masks.color_settings(entries) if has_colors else {}
    if not is_chosen:
        settings |= _numbers([row[0] for row in classes])
    if masks.table and has_colors:
        ignored |= entries.keys() - set(chain(*classes))
    ids = {value[0] for value in masks.values if len(value) == 1}
    ignored |= {i for i in ids if i < 0 or i in LARGEST_VALUES} | {IGNORE_INDEX}
    settings["ignore_index"] = sorted(ignored)
    if masks.use_palette:
        settings.setdefault("color_distance", given.get("color_distance", 0))
    used = [[entries[k] for k in row if k in entries] for row in classes]
    names = [row[0].name for row in used if row and row[0].name]
    notes += masks.notes([*chain(*used)])
    if "class_names" not in given and len(set(names)) == len(classes):
        settings["class_names"] = names
        notes.append(f"class names: {file.path}, {few(names, 8)}")
        void = [name for name in names if re.fullmatch(NO_CLASS, name)]
        if void:
            remedy = "if it means unlabelled, set data.ignore_index to its number, counted from 0"
            notes.append(f"{few(void)}: trained as a class; {remedy}")
    elif not (_CHOICES | {"class_names", "label_colors"}) & given.keys():
        why = f"{file.path} has no colours; " if has_colors and file.rows else ""
        key = "data.label_map" if has_colors else "data.ignore_index"
        notes.append(f"{why}each value is a class; if one means unlabelled, set {key}")
        if has_colors:
            settings["class_names"] = [f"color_{entry.code[1:]}" for (entry,) in used]
    return settings, notes


@dataclass(frozen=True)
class _Masks:
    """The values of masks, and what a file of class names and the user say of them."""

    paths: Sequence[Path]
    values: Values
    use_palette: bool  # whether colours of palettes count, not their indices
    file: ClassFile
    given: PlainMapping
    table: Sequence[Color]  # colours of the user or of the file
    are_mixed: bool  # whether no file holds both 1 and 255

    def fault(self, text: str) -> DataError:
        return DataError(f"{self.paths[0].parent}: {text}")

    def chosen_classes(self) -> list[tuple[int, ...]]:
        """Returns the numbers of each class that the user has chosen; none if the user has not."""
        if not _CHOICES & self.given.keys():
            return []
        label_map = validate(LabelMap | None, self.given.get("label_map"), "data.label_map")
        count = validate(int | None, self.given.get("num_classes"), "data.num_classes")
        rule = LabelRule(label_map=label_map, num_classes=count)
        return list(rule.ids_of_class or [(k,) for k in range(rule.num_classes)])

    def number_colors(self) -> dict[int, _Entry]:
        """Numbers colours as the table does, or all of them if there is none."""
        table: Sequence[Value] = self.table
        if not table and "class_names" in self.given:
            raise self.fault("data.class_names needs data.label_colors, the colour of each class")
        if not table:
            table = _colors_of_classes(self._without_padding(), self.paths, part_of(self.given))
        name_of: dict[Value | None, str] = {row.color: row.name for row in self.file.rows}
        return {k: _Entry(color, name_of.get(color, "")) for k, color in enumerate(table)}

    def color_settings(self, entries: Mapping[int, _Entry]) -> Plain:
        """Returns the settings of colours; DataError if the user's table lacks some."""
        table = [entry.value for entry in entries.values()]
        settings: Plain = {"label_colors": [list(color) for color in table]}
        unknown = [str(color) for color in self.values if color not in table]
        if unknown and "color_distance" not in self.given:
            if self.given.get("label_colors"):
                remedy = "add each (and its number to data.ignore_index), or set"
                fault = f"the masks hold {few(unknown)}, which data.label_colors lacks"
                raise self.fault(f"{fault}: {remedy} data.color_distance")
            settings["color_distance"] = 0
        return settings

    def _without_padding(self) -> Values:
        """Returns the colours without black, if it is rare and several others are frequent."""
        fraction = self.values[_BLACK] / self.values.total()
        is_padding = 0 < fraction < _MAX_PADDING and len(self.values) > _MIN_COLORS
        return Values({c: n for c, n in self.values.items() if not (is_padding and c == _BLACK)})

    def number_ids(self, ignored: Container[int]) -> dict[int, _Entry]:
        """Numbers the ids that are classes: those of the user, of the file, or all but
        ``ignored``."""
        if len(self.values) > MAX_VALUES:
            remedy = "save class ids without interpolation, or set data.label_map (or data.depth)"
            raise self.fault(f"masks of more than {MAX_VALUES} values: {remedy}")
        ids = sorted(i for (i,) in self.values if i not in ignored and i >= 0)
        rows = self.file.rows
        numbers = [row.id for row in rows if row.id is not None]
        chosen = self.chosen_classes()
        classes = list(chain(*chosen))
        if chosen:
            self._refuse_one_class(ids)
            if len(numbers) < len(rows) == len(chosen):  # names without ids are those of classes
                numbers = [row[0] for row in chosen]
        elif rows:
            numbers = classes = _ids_of_names(self.file, ids)
        else:
            values = Values({(i,): self.values[(i,)] for i in ids})
            self._refuse_doubtful(values, ids)
            classes = _ids_of_classes(values)
        is_named = len(numbers) == len(rows)
        names = {i: row.name for i, row in zip(numbers, rows, strict=True)} if is_named else {}
        return {i: _Entry((i,), names.get(i, "")) for i in classes}

    def _refuse_one_class(self, ids: Sequence[int]) -> None:
        """Raises DataError if 255 is the only id besides another one, unless both are mapped."""
        class_ids = [str(i) for i in ids if i not in LARGEST_VALUES]
        if len(class_ids) == 1 and IGNORE_INDEX in ids and "label_map" not in self.given:
            remedy = f"set data.label_map=[{class_ids[0]},255] without data.num_classes"
            raise self.fault(f"255 in the masks means unlabelled: {remedy} if it is a class")

    def _refuse_doubtful(self, values: Values, ids: Sequence[int]) -> None:
        """Raises DataError for ids without names that can be read in two ways."""
        if len(ids) > 8:
            (first, first_pixels), (second, second_pixels) = values.most_common(2)
            is_most = first_pixels + second_pixels > 0.9 * values.total()
            if abs(first[0] - second[0]) > 100 and is_most:
                fault = "nearly all pixels have two values, as in masks of two after interpolation"
                raise self.fault(f"{fault}: save them as PNG, or set data.label_map")
        if [*ids] == [0, 1, IGNORE_INDEX] and self.are_mixed:
            choices = "[0,[1,255]] if both are a class, or [0,1] if 255 means unlabelled"
            raise self.fault(f"no mask holds both 1 and 255: set data.label_map={choices}")
        classes = [i for i in ids if i != IGNORE_INDEX]
        if IGNORE_INDEX in ids and len(classes) > 1 and classes[-1] > 100:
            keys = [f"data.label_map={choice}".replace(" ", "") for choice in (ids, classes)]
            raise self.fault(f"255 may be a class or mean unlabelled: set {keys[0]} or {keys[1]}")

    def notes(self, used: Sequence[_Entry]) -> list[str]:
        """Returns lines about the values that are classes, and those that are none."""
        classes = {entry.value for entry in used}
        unused = [_Entry(value) for value, _ in self.values.most_common() if value not in classes]
        shown = self._fractions(used, 40)
        lines = [f"masks: {len(self.paths)} files with the classes {shown}"]
        if unused:
            lines.append(f"unlabelled: {self._fractions(unused, 6)} of the pixels")
        if unused and _are_colors(self.values):
            distance = self.given.get("color_distance") or 32
            effect = f"gives colours that are no class the nearest one within {distance}"
            lines.append(f"data.color_distance={distance} {effect} in each channel")
        return lines

    def _fractions(self, entries: Sequence[_Entry], count: int) -> str:
        """Returns the first entries with the fractions of the pixels that have them."""
        total = self.values.total()
        texts = [f"{e.name} {e.code} ({self.values[e.value] / total:.2%})" for e in entries]
        return few([text.strip() for text in texts], count)


def _read_masks(paths: Sequence[Path], file: ClassFile, given: PlainMapping) -> _Masks:
    """Reads the values of all masks, without the file if most pixels have other colours, and most
    of its colours do not occur."""
    colors = validate(list[Color], given.get("label_colors", []), "data.label_colors")
    table = colors or [row.color for row in file.rows if row.color]
    values, use_palette, are_mixed = _read_values(paths, given, table)
    counts = [values[color] for color in table]
    occur = 2 * sum(count > 0 for count in counts) >= len(table)
    if colors or not _are_colors(values) or occur or 2 * sum(counts) >= values.total():
        return _Masks(paths, values, use_palette, file, given, table, are_mixed)
    return _Masks(paths, values, use_palette, ClassFile(), given, (), are_mixed)


def _read_values(
    paths: Sequence[Path], given: PlainMapping, table: Sequence[Value]
) -> tuple[Values, bool, bool]:
    """Returns the values of all masks: all ids, or all colours; whether these are also those of
    palettes, where other masks are pictures of colours or the palettes disagree; and whether no
    mask holds both 1 and 255."""
    part = part_of(given)
    need_palette = not _CHOICES & given.keys() and io.palettes_disagree(paths, part)
    examples: dict[int, Value] = {}
    for use_palette in (True,) if need_palette else (False, True):
        values, are_mixed = Values(), True
        count = partial(io.label_values, part=part, use_palette=use_palette)
        counted = tracked(in_threads(count, paths), len(paths), title="reading masks")
        for path, counts in zip(paths, counted, strict=True):
            values.update(counts)
            are_mixed = are_mixed and not {1, IGNORE_INDEX} <= {value[0] for value in counts}
            if len(values) > MAX_COLORS:
                raise DataError(f"{path}: pictures of more than {MAX_COLORS} colours, not masks")
        if any(len(value) == 3 and value not in table for value in values):
            values = with_ids(values)
        examples = {len(value): value for value in values}
        if len(values) < 2:
            fault = "all masks hold one value, and transparent pixels mean unlabelled"
            remedy = "save each class as an id or an opaque colour"
            raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
        if len(examples) == 1:
            return values, use_palette, are_mixed
    both = f"some masks hold ids, such as {examples[1][0]}, others colours, such as {examples[3]}"
    raise DataError(f"{paths[0].parent}: {both}: save all as ids, or all as colours")


def _ids_of_names(file: ClassFile, ids: Sequence[int]) -> list[int]:
    """Returns the id of each name in a file, for masks that hold ``ids``.

    Raises:
        DataError: the first name without an id may belong to 0, 1 or a value that means unlabelled,
            or an id has no name.
    """
    count = len(file.rows)
    first = file.rows[0]
    classes = {*ids} - LARGEST_VALUES
    if len(classes) < 2:  # 255 is a class, too, where only one other id occurs
        classes = {*ids}
        if len(ids) == count and all(row.id is None for row in file.rows):
            return [*ids]
    start = 0  # the id of the first name, if the file gives none
    if first.id is None and classes:
        starts = [0, 1, -1] if classes < {*ids} and re.fullmatch(NO_CLASS, first.name) else [0, 1]
        possible = [k for k in starts if classes <= set(range(k, k + count))]
        if len(possible) > 1 or (not possible and classes <= set(range(count + 1))):
            held = f"{count} names, and the masks hold the ids {few([*map(str, ids)], 12)}"
            choices = (
                f"data.num_classes={count} if {first.name} is the name of 0, "
                f"data.label_map=1-{count} if it is that of 1, or data.ignore_index={count} if "
                f"{count} means unlabelled; or remove the name if it means unlabelled"
            )
            raise DataError(f"{file.path}: {held}: set {choices}")
        start = possible[0] if possible else 0
    numbers = [k + start if row.id is None else row.id for k, row in enumerate(file.rows)]
    unnamed = [str(i) for i in sorted(classes - {*numbers})]
    if unnamed:
        fault = f"no name for the ids {few(unnamed)} of the masks"
        raise DataError(f"{file.path}: {fault}: add them, or set data.label_map")
    return numbers
