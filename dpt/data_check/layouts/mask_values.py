"""The values of mask files, ids or colours, and which of them are classes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data.formats.colors import MAX_COLORS, MAX_RED_ID
from dpt.data_check.layouts.class_files import LARGEST_VALUES, MAX_VALUES
from dpt.types import IGNORE_INDEX
from dpt.validation import Plain, PlainMapping

Value = tuple[int, ...]
"""An id ``(i,)`` or a colour ``(r, g, b)`` of mask files."""
Values = Counter[Value]
"""Pixels of each value."""

_MAX_DISTINCT = 1024  # colours that differ clearly, of masks with mixed colours


def mask_values(paths: Sequence[Path], parts: io.Parts, *, use_palette: bool = False) -> Values:
    """Returns the values of all masks; with ``use_palette`` colours of palettes count, too."""
    values = Values()
    for path in paths:
        values.update(io.label_values(path, parts=parts, use_palette=use_palette))
        if len(values) > MAX_COLORS:
            raise DataError(f"{path}: pictures of more than {MAX_COLORS} colours, not masks")
    return values


def parts_of(data: PlainMapping) -> io.Parts:
    """Returns what keys of ``data`` choose of files that hold more than one map."""
    return io.Parts(key=data.get("array_key"), page=data.get("page"))


def class_weights(counts: Sequence[int]) -> list[float]:
    """Returns (fraction of the pixels)^-0.25 divided by the mean; 1 for classes without a pixel."""
    weights = np.array([count or np.nan for count in counts], float) ** -0.25
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def class_settings(
    values: Values, paths: Sequence[Path] = (), parts: io.Parts | None = None
) -> tuple[Plain, list[Value]]:
    """Returns the settings that make classes of the values in mask files, and the value of each
    class.

    Raises:
        DataError: too few or too many colours are classes.
    """
    if are_colors(values):
        colors = _colors_of_classes(values, paths, parts or io.Parts())
        settings = {"num_classes": len(colors), "label_colors": [list(color) for color in colors]}
        return settings | ({"color_distance": 0} if len(colors) < len(values) else {}), colors
    stored = sorted(i for (i,) in values)
    ids = [i for i in stored if i >= 0]  # below 0: unlabelled
    classes = [i for i in ids if i not in LARGEST_VALUES]
    if len(classes) < 2:  # the largest value is a class, too, where only one other id occurs
        classes = ids
    if stored[:1] != [0] or classes[-1] >= 2 * len(classes):
        return {"label_map": classes}, [(i,) for i in classes]
    settings = {"num_classes": classes[-1] + 1}
    if not {*ids} <= {*classes, IGNORE_INDEX}:
        settings["ignore_index"] = [i for i in ids if i in LARGEST_VALUES]
    return settings, [(i,) for i in range(classes[-1] + 1)]


def are_colors(values: Values) -> bool:
    return any(len(value) == 3 for value in values)


def are_one_hot(colors: Iterable[Value]) -> bool:
    """Returns whether a 1 in R is the first class, in G the second, in B the third."""
    return all(sum(color) == max(color) < 2 for color in colors)


def ids_of_colors(values: Values) -> Values:
    """Returns the values, with ids in place of colours if all are grey, or dark red as ids in R."""
    colors = [value for value in values if len(value) == 3]
    are_grey = all(r == g == b for r, g, b in colors)
    if not are_grey and any(g or b or r > MAX_RED_ID for r, g, b in colors):
        return values
    ids = Values()
    for value, count in values.items():
        ids[value[:1]] += count
    return ids


def _colors_of_classes(values: Values, paths: Sequence[Path], parts: io.Parts) -> list[Value]:
    """Returns the colours of masks that are classes, in the order of the classes."""
    mixed = set() if max(map(max, values)) <= MAX_RED_ID else _mixed_colors(values, paths, parts)
    colors = sorted(values.keys() - mixed)
    if not 1 < len(colors) < MAX_VALUES:
        fault = f"{len(values)} colours, of which {len(colors)} fill areas, are not those of masks"
        remedy = "save class ids as PNG without interpolation, or set data.label_colors"
        raise DataError(f"{paths[0].parent}: {fault}: {remedy}")
    return sorted(filter(any, colors), reverse=True) if are_one_hot(colors) else colors


def _mixed_colors(values: Values, paths: Sequence[Path], parts: io.Parts) -> set[Value]:
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
        mixed |= {*map(tuple, distinct.tolist())} - _solid_colors(list(values), paths, parts)
    return mixed


def _solid_colors(colors: list[Value], paths: Sequence[Path], parts: io.Parts) -> set[Value]:
    """Returns the colours that fill a block of 3 x 3 pixels in one of the masks."""
    block = np.ones((3, 3), np.uint8)
    solid: set[Value] = set()
    for path in paths:
        ids = io.read_labels(path, colors=colors, distance=0, parts=parts).astype(np.float32)
        inside = cv2.erode(ids, block) == cv2.dilate(ids, block)
        solid |= {colors[int(i)] for i in np.unique(ids[inside]) if i >= 0}
    return solid


def _is_between(color: np.ndarray, others: np.ndarray) -> bool:
    """Returns whether a colour (3,) is a mixture of two of ``others`` (N, 3)."""
    steps = others[None] - others[:, None]  # from the first to the second of each pair
    offset = color - others[:, None]
    position = (offset * steps).sum(-1) / (steps**2).sum(-1).clip(1)
    distance = np.abs(position[..., None] * steps - offset).max(-1)
    return bool(((position > 0) & (position < 1) & (distance <= 4)).any())
