"""Conversion of stored values: of depth files to metres, of label files to class ids."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.files import DataError, few, plain_name
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Positive, Settings

FARTHEST = 1e5
"""Depth in multiples of the nearest one where inverse depth is 0."""


@dataclass(frozen=True, kw_only=True)
class Disparity(Settings):
    """How stereo disparity becomes metres, the settings of ``data.disparity``.

    Attributes:
        baseline: distance of the two cameras, in metres.
        focal: focal length, in pixels of the disparity files.
        offset: pixels added to the disparity: -1/256 for Cityscapes, ``doffs`` for Middlebury.
    """

    baseline: Positive
    focal: Positive
    offset: float = 0.0

    def metres(self, values: np.ndarray, *, scale: float) -> np.ndarray:
        """Returns baseline · focal / (value · scale + offset), 0 unless that divisor is above 0.

        Args:
            values: of the files, (H, W).
            scale: pixels of disparity for each unit.
        """
        pixels = values.astype(np.float64) * scale + self.offset
        depth = np.zeros_like(pixels)
        return np.divide(self.baseline * self.focal, pixels, out=depth, where=pixels > 0)


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """Converts values to depth: metres = value in the file × scale, valid within limits.

    Attributes:
        scale: metres for each unit: 0.001 for millimetres, 1/256 for KITTI's PNGs.
        invalid: values in the file that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; None for no limit.
        decode: converts stored values (H, W) that are not proportional to depth, before ``scale``.
        has_metres: whether depth is in metres. If not, the values are inverse depth up to scale and
            shift, and depth is in multiples of the smallest one of each map; ``scale`` has no
            effect. Values of 0 that are not ``invalid`` are infinitely far, 1e5 times.
    """

    scale: float = 0.001
    invalid: Sequence[float] = (0.0,)
    min_depth: float = 0.0
    max_depth: float | None = None
    decode: Callable[[np.ndarray], np.ndarray] | None = None
    has_metres: bool = True

    def __post_init__(self) -> None:
        limit = np.inf if self.max_depth is None else self.max_depth
        if not (1e-30 < self.scale < 1e30 and 0 <= self.min_depth < limit):
            fault = f"data.depth_scale={self.scale}, data.min_depth={self.min_depth}"
            raise DataError(f"{fault}, data.max_depth={limit}: must be above 0 and ascend (metres)")

    @property
    def is_proportional(self) -> bool:
        """Whether depth is proportional to the values in the file."""
        return self.decode is None and self.has_metres

    def __call__(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns depth, float32 (H, W) in metres, 0 where invalid, and valid, bool (H, W).

        NaN, infinity and values not above zero are always invalid.
        """
        if not self.has_metres:
            return self._depth_of_inverse(raw)
        values = raw if self.decode is None else self.decode(raw)
        inverse = round(1.0 / self.scale)
        # Whole divisors (1000 for millimetres) divide: the result is then rounded correctly.
        if inverse and abs(inverse * self.scale - 1.0) < 1e-9:
            depth = np.divide(values, np.float32(inverse), dtype=np.float32, casting="unsafe")
        else:
            depth = np.multiply(values, np.float32(self.scale), dtype=np.float32, casting="unsafe")
        valid = (depth > 0) & (depth >= self.min_depth) & (depth < np.inf)
        if self.max_depth is not None:
            valid &= depth <= self.max_depth
        valid &= self.is_declared_valid(raw)
        return np.where(valid, depth, np.float32(0)), valid

    def _depth_of_inverse(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the largest of the valid values divided by each value, and which are valid."""
        valid = np.isfinite(raw) & (raw >= 0) & self.is_declared_valid(raw)
        largest = float(raw.max(where=valid, initial=0))
        valid &= largest > 0
        values = np.where(valid, raw, 1.0).clip(min=largest / FARTHEST)
        return np.where(valid, largest / values, 0).astype(np.float32), valid

    def is_declared_valid(self, raw: np.ndarray) -> np.ndarray:
        """Returns where the values of a file are none of ``invalid``, bool (H, W)."""
        valid = np.ones(raw.shape, bool)
        for value in self.invalid:
            whole = raw.dtype.kind != "f" and float(value).is_integer()
            valid &= raw != (int(value) if whole else value)  # integers compare 8 times as fast
        return valid

    def is_measured(self, raw: np.ndarray) -> np.ndarray:
        """Returns where values are finite, above 0 and declared valid, bool (H, W)."""
        return np.isfinite(raw) & (raw > 0) & self.is_declared_valid(raw)


NEAR = 0.25  # metres: a smaller typical depth is implausible
UNITS = {  # by metres for each unit
    0.001: "millimetres",
    1.0: "metres",
    0.01: "centimetres",
    1 / 256: "KITTI's 1/256 m",
    0.0002: "TUM's 1/5000 m",
}
_MAX_RANGE = 100.0  # metres, if data.max_depth is unknown
_MANY_MAPS = 4
_ROUND_TOPS = {1, 10, 100, 255, 1000, 1023, 4095, 10_000, 32_767, 65_535}
"""The largest values of maps that were scaled to their own range."""


def likely_scale(
    typical: float, high: float, *, max_depth: float | None, scale: float
) -> float | None:
    """Returns the largest of ``UNITS`` but ``scale`` with which values are plausible depths.

    Args:
        typical, high: the median and the 99 % quantile of the values.
    """
    limit = _MAX_RANGE if max_depth is None else max_depth
    plausible = [unit for unit in UNITS if typical * unit >= NEAR and high * unit <= limit]
    return max((unit for unit in plausible if abs(unit / scale - 1) > 0.01), default=None)


def are_normalised(tops: Sequence[tuple[float, float, float]]) -> bool:
    """Returns whether maps, of which :func:`top_of` is known, seem each scaled to its own
    range: all end at one round value, which few pixels have."""
    values, following, fractions = map(np.array, zip(*tops, strict=True))
    return (
        len(tops) >= _MANY_MAPS
        and len({*values}) == 1
        and values[0] in _ROUND_TOPS
        and bool(np.median(following) > 0.9 and np.median(fractions) < 0.01)
    )


def top_of(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the largest finite value, the next one divided by it, and the fraction of its
    pixels."""
    top = float(values.max(where=np.isfinite(values), initial=0))
    following = float(values.max(where=np.isfinite(values) & (values < top), initial=0))
    return top, following / max(top, 1e-30), float((values == top).mean())


_NEIGHBOURS = 20  # values next to an end; with fewer, nothing is certain
_FAR, _NEAR, _ROUND = 5.0, 10.0, 2.0  # ratios of an end that is far from these
_CLOSE = 1.25  # ratio of a limit to all of these
_MANY_TIMES = 10  # as many pixels as these have on average
_CLIPPED = 0.01  # smallest fraction of the pixels at a limit


def shared_ends(values: np.ndarray) -> list[float]:
    """Returns the values at the ends of the range of positive ``values`` that many pixels share.

    Such an end is far from the other values, as that of the sky, or it follows them closely, as a
    limit where depth was clipped, and has ten times as many pixels as each of these.
    """
    levels, counts = np.unique(values, return_counts=True)
    logs = np.log(levels.astype(np.float64))
    ends: list[float] = []
    for inwards, ratio in ((-1, _FAR), (1, _NEAR)):
        order = np.arange(len(levels))[::inwards]
        while len(order) > _NEIGHBOURS:
            end, near = order[0], order[1 : 1 + _NEIGHBOURS]
            ratios, mean = np.exp(np.abs(logs[near] - logs[end])), counts[near].mean()
            least = _ROUND if levels[end] in _ROUND_TOPS else ratio
            is_apart = ratios.min() > least and counts[end] > mean
            is_many = counts[end] > max(_MANY_TIMES * mean, _CLIPPED * values.size)
            if not (is_apart or (ratios.max() < _CLOSE and is_many)):
                break
            ends.append(levels[end].item())
            order = order[1:]
    return ends


LabelMap = Sequence[int | str | Sequence[int]] | str
"""The file's ids of each class, in the order of the classes: ``[7, 8, [11, 12]]`` makes 7 the
class 0, 8 the class 1, and both 11 and 12 the class 2. ``"1-150"`` is short for 1, 2, ..., 150,
and ``["0-127", "128-255"]`` are the ids of two classes. All other ids are ignored."""

LabelCode = Literal["class1000", "class256", "ade20k", "red", "object"]
"""How the values of masks tell objects of classes, see :func:`classes_of_code`."""


def classes_of_code(values: np.ndarray, code: LabelCode) -> np.ndarray:
    """Returns the classes of values that tell objects, too.

    Args:
        values: integers (..., 1), or RGB (..., 3) for ``ade20k`` and ``red``.
        code: ``class1000``, class · 1000 + object, or the class alone (Cityscapes, MOTS);
            ``class256``, class · 256 + object (KITTI); ``ade20k``, R / 10 · 256 + G is the class
            and B the object; ``red``, R is the class (KITTI-STEP, SYNTHIA); ``object``, each value
            but 0 is an object of the class 1.
    """
    first: np.ndarray = values[..., 0].astype(np.int64)
    if code == "class1000":
        return np.asarray(np.where(first < 1000, first, first // 1000))
    if code == "class256":
        return np.asarray(first // 256)
    if code == "ade20k":
        return np.asarray(first // 10 * 256 + values[..., 1])
    return first if code == "red" else np.asarray(values.any(axis=-1), np.int64)


TRANSPARENT = -(2**31)
"""The id of transparent pixels of label files, which are unlabelled."""

OTHER_COLOR = -1
"""The id of colours that are far from all in a table."""

_IDS = 1 << 16
_BYTE = {*range(256)}


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


def alike_names(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of names that differ in case, width, spaces, hyphens or a number at their
    end alone. Single letters, ``class_1`` and ``color_ff0000`` are alike to none."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = unicodedata.normalize("NFKC", name).casefold()
        is_given = len(name) > 1 and not re.match(r"class_\d|color_", name)
        groups[re.sub(r"[\s_-]+|(?<!\d)\d+$", "", plain) if is_given else name].append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


class LabelRule:
    """Converts ids in label files to class ids 0..num_classes-1, 255 where no class applies.

    Args:
        num_classes: at most 255. None: the number of rows of ``label_map`` or ``class_names``.
        class_names: one for each class; by default ``class_`` and its id, or its position if a
            class has several ids.
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
        self.ignore_index = tuple(map(int, ignored))
        if color_distance is not None:
            self.ignore_index += (OTHER_COLOR,)
        self.color_distance = color_distance
        rows = self.ids_of_class = None if label_map is None else _rows(label_map)
        self.num_classes = num_classes = _count_classes(num_classes, rows or (), class_names)
        first_ids = range(num_classes) if rows is None else [ids[0] for ids in rows]
        self.class_names = tuple(class_names) or _default_names(rows or [[i] for i in first_ids])
        self.colors = _color_table(colors, max(first_ids))
        self.palette = tuple(self.colors[i] for i in first_ids) if self.colors else ()
        self._table = np.full(_IDS + 2, IGNORE_INDEX, np.uint8)
        """The class of each id + 1; the first and the last entry are for ids outside of it."""
        for class_id, ids in enumerate(rows or ()):
            self._table[np.array(ids) + 1] = class_id

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
        allowed = (*self.ignore_index, TRANSPARENT)
        return ((raw < 0) | (raw >= self.num_classes)) & ~np.isin(raw, allowed)


def _default_names(rows: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Returns names by the ids of the classes (rows), or by their positions if one has several."""
    has_one = all(len(ids) == 1 for ids in rows)
    return tuple(f"class_{ids[0] if has_one else k}" for k, ids in enumerate(rows))


def _count_classes(count: int | None, *tables: Sequence[object]) -> int:
    """Returns the number of classes: as stated, or that of the rows of the first table with any."""
    sizes = {len(table) for table in tables if table}
    count = next(iter(sizes), 0) if count is None else count
    if not sizes <= {count} or not 1 <= count <= 255:
        fault = f"data.num_classes={count} must be 1 to 255, as many as the rows of data.label_map"
        raise DataError(f"{fault} and data.class_names: dpt fit DIR --plan prints the classes")
    return count


def _color_table(colors: Sequence[Sequence[int]], last_id: int) -> tuple[tuple[int, int, int], ...]:
    """Returns RGB rows; DataError if they are none, or too few for ids up to ``last_id``."""
    levels = [level for row in colors for level in row]
    if colors and (len(colors) <= last_id or {*map(len, colors)} != {3} or not {*levels} <= _BYTE):
        raise DataError(f"data.label_colors must have [r,g,b] of 0..255 for each id 0..{last_id}")
    return tuple((int(r), int(g), int(b)) for r, g, b in colors)


def _rows(label_map: LabelMap) -> tuple[tuple[int, ...], ...]:
    """Returns the file's ids of each class."""
    label_map = _range(label_map) if isinstance(label_map, str) else label_map
    lists = [_range(row) if isinstance(row, str) else row for row in label_map]
    rows = tuple((row,) if isinstance(row, int) else tuple(row) for row in lists)
    ids = [i for row in rows for i in row]
    if not rows or not all(rows) or len({*ids}) < len(ids) or not {*ids} <= {*range(_IDS)}:
        raise DataError("data.label_map must have ids in 0..65535, each once, as [7,8,[11,12]]")
    return rows


def _range(text: str) -> range:
    """Returns the ids in ``1-150``; none of other texts."""
    ends = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    return range(int(ends[1]), int(ends[2]) + 1) if ends else range(0)
