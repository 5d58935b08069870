"""Measurements of one sample, small enough to keep for a whole data set."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from dpt.data.formats.rules import DepthRule, top_of
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX, Sample

_QUANTILE_PIXELS = 20_000  # approximate number of pixels from which quantiles are computed
_FEW_TRIPLES = 200  # with fewer, the check is skipped
_LINES = 1024  # approximate number of rows and columns that are used of larger maps
_FARTHER = 1.1  # ratio of typical depths
_ORDERED = 0.75  # fraction of ordered triples in interpolated masks; by chance a third


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Measurements of an image."""

    size: tuple[int, int]  # (H, W)
    is_empty: bool  # nearly black, white, or of one colour
    digest: bytes  # hash of the decoded pixels


@dataclass(frozen=True, slots=True)
class LabelStats:
    """Measurements of a mask."""

    counts: dict[int, int]  # pixels of each id, IGNORE_INDEX for those without a class
    outside: dict[int, int]  # pixels of each value in the file that is no class and not ignored
    unlabelled: dict[int, float]  # fraction of each ignored value in the file; empty: unknown
    is_interpolated: bool  # whether the ids along borders lie between those of both sides

    @property
    def classes(self) -> set[int]:
        return self.counts.keys() - {IGNORE_INDEX}


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """Measurements of object ids."""

    counts: dict[int, int]  # objects of each class of things
    segments: int  # objects, and classes of stuff that occur
    without_class: int  # objects without a pixel of a class of things
    of_several_classes: int


@dataclass(frozen=True, slots=True)
class DepthStats:
    """Measurements of a depth map.

    Measured pixels are finite, above zero and not declared invalid; valid pixels lie within
    ``min_depth`` and ``max_depth`` too. Quantiles are zeros where there are no pixels.
    """

    valid: float  # fraction of valid pixels
    quantiles: tuple[float, ...]  # 1 %, 50 % and 99 % of the valid depths in metres
    is_constant: bool  # whether at least 100 pixels are valid and all have one depth
    dtype: np.dtype  # of the file; of the map in memory if the file is unknown
    measured: float  # fraction of measured pixels
    raw: tuple[float, ...]  # 50 % and 99 % quantiles of measured values in the file's unit *
    beyond: float  # fraction of the measured pixels that lie beyond max_depth *
    has_type_maximum: bool  # whether a valid pixel has the largest value of the file's integer type
    top: tuple[float, float, float]  # see top_of; of the values in the file
    grows_down: bool  # whether the lower half is typically farther than the upper half
    # * without the largest value of the file's integer type


def measure_image(image: np.ndarray, picture: np.ndarray) -> ImageStats:
    """Measures an image, uint8 RGB (H, W, 3) or float32 (H, W, C), shown as ``picture``."""
    mean, std = cv2.meanStdDev(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
    is_empty = mean.item() < 8 or mean.item() > 247 or std.item() < 3
    digest = hashlib.blake2b(repr(image.shape).encode() + image.tobytes(), digest_size=16).digest()
    return ImageStats(image.shape[:2], is_empty, digest)


def as_picture(image: np.ndarray) -> np.ndarray:
    """Returns an image as uint8 RGB; bands are stretched by their statistics in this image."""
    if image.dtype == np.uint8:
        return image
    values = np.nan_to_num(image.reshape(-1, image.shape[2]))
    mean, std = values.mean(axis=0), values.std(axis=0)
    scale = tuple(np.where(std > 0, std, 1.0).tolist())
    preprocessing = Preprocessing(mean=tuple(mean.tolist()), std=scale, pixels="bands")
    return preprocessing.picture(image.transpose(2, 0, 1))


def measure_labels(
    labels: np.ndarray, *, outside: dict[int, int], unlabelled: dict[int, float]
) -> LabelStats:
    """Measures a uint8 (H, W) map of class ids.

    ``outside`` counts the pixels whose value in the file is no class; here they are IGNORE_INDEX.
    """
    counts = np.bincount(labels.ravel(), minlength=256)
    counts[IGNORE_INDEX] -= sum(outside.values())
    triples = ordered = 0  # neighbours whose ids all differ; those with the middle id between
    step = 1 + max(labels.shape) // _LINES
    for ids in (labels[::step], labels.T[::step]):
        first, middle, last = ids[:, :-2], ids[:, 1:-1], ids[:, 2:]
        low, high = np.minimum(first, last), np.maximum(first, last)
        differ = (first != middle) & (middle != last) & (first != last)
        differ &= np.maximum(high, middle) != IGNORE_INDEX
        triples += int(differ.sum())
        ordered += int((differ & (low < middle) & (middle < high)).sum())
    present = {int(i): int(counts[i]) for i in np.flatnonzero(counts)}
    is_interpolated = triples >= _FEW_TRIPLES and ordered > _ORDERED * triples
    return LabelStats(present, outside, unlabelled, is_interpolated)


def measure_objects(labels: np.ndarray, objects: np.ndarray, things: Sequence[bool]) -> ObjectStats:
    """Measures object ids (H, W), 0 where there is none, with class ids (H, W)."""
    is_object = objects > 0
    codes = objects[is_object].astype(np.int64) * 256 + labels[is_object]
    pairs = np.stack(np.divmod(np.flatnonzero(np.bincount(codes)), 256))  # faster than np.unique
    numbers, classes = pairs[:, pairs[1] != IGNORE_INDEX]
    is_thing = np.isin(classes, np.flatnonzero(things))
    ids, counts = np.unique(classes[is_thing], return_counts=True)
    stuff = np.setdiff1d(labels, [*np.flatnonzero(things), IGNORE_INDEX])
    return ObjectStats(
        dict(zip(ids.tolist(), counts.tolist(), strict=True)),
        segments=int(counts.sum()) + len(stuff),
        without_class=len(np.unique(pairs[0])) - len(np.unique(numbers[is_thing])),
        of_several_classes=int((np.unique(numbers, return_counts=True)[1] > 1).sum()),
    )


def measure_depth(
    depth: np.ndarray, valid: np.ndarray, *, raw: np.ndarray | None, rule: DepthRule | None
) -> DepthStats:
    """Measures a depth map, float32 (H, W), metres, with ``valid``, bool (H, W).

    ``raw`` are the file's values, before ``rule`` converted them; None: the metres are measured.
    """
    metres, limit = depth[valid], np.inf
    measured, values = metres, depth
    if raw is not None and rule is not None:
        measured, values = raw[rule.is_measured(raw)], raw
        limit = np.inf if rule.max_depth is None else rule.max_depth / rule.scale
    is_constant = bool(metres.size >= 100 and metres.min() == metres.max())
    last = np.iinfo(values.dtype).max if values.dtype.kind in "ui" else np.inf
    levels = measured[measured < last]
    middle = (len(depth) + 1) // 2
    (upper,) = _quantiles(depth[:middle][valid[:middle]], (0.5,))
    (lower,) = _quantiles(depth[middle:][valid[middle:]], (0.5,))
    return DepthStats(
        valid=metres.size / depth.size,
        quantiles=_quantiles(metres, (0.01, 0.5, 0.99)),
        is_constant=is_constant,
        dtype=values.dtype,
        measured=measured.size / values.size,
        raw=_quantiles(levels, (0.5, 0.99)),
        beyond=float((levels > limit).mean()) if levels.size else 0.0,
        has_type_maximum=not is_constant and last <= limit and bool((measured == last).any()),
        top=top_of(values),
        grows_down=lower > _FARTHER * upper > 0,
    )


def _quantiles(values: np.ndarray, fractions: Sequence[float]) -> tuple[float, ...]:
    if values.size == 0:
        return (0.0,) * len(fractions)
    some = values[:: max(1, values.size // _QUANTILE_PIXELS)].astype(np.float64)
    return tuple(np.quantile(some, fractions).tolist())


# --- registration --------------------------------------------------------------------------------

# Whether labels belong to their image: how well the edges of both coincide. The edges of a mask, or
# the jumps of a depth map, are moved and scaled over the image's gradient. At the right place the
# gradient below them is strongest. One image says little; the mean over many has a sharp peak. If
# the peak is elsewhere than in the files, labels and images are not registered. At that place the
# edges of a map fit its own image better than those of other samples (``fit_table``). If they do
# not, labels and images are not paired rightly.

MapKind = Literal["labels", "depth"]
MAP_KINDS: tuple[MapKind, ...] = ("labels", "depth")

_SIDE = 320  # longer side in pixels at which images are compared; larger ones are downsampled
_REACH = 0.075  # largest shift tried, as a fraction of the longer side
_SCALES = tuple(round(1 + 0.02 * step, 2) for step in range(-7, 8))
_JUMP = 0.05  # relative step of depth that counts as an edge
_FEW_EDGES = 100  # pixels; with fewer, the check is skipped
MANY_IMAGES = 6  # with fewer, the check is skipped
_CLEARLY = 1.15  # ratio of the best score to that of the files
AGREEING = 0.75  # fraction of the images with a better score there
_SMALL_MOVE = 2.0  # pixels at _SIDE, at the picture's border: within the method's error
_CELLS = (96, 128)  # rows and columns of the maps that are compared between samples


@dataclass(frozen=True)
class Misalignment:
    """What registers labels with their images: scaling about the centre, then moving."""

    scale: float
    dx: float  # to the right, as a fraction of the image's longer side
    dy: float  # downwards

    def apply(self, edges: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Returns edges (h, w) of labels for an image of ``size`` [H, W], registered with it."""
        rows, columns = edges.shape
        matrix = cv2.getRotationMatrix2D((columns / 2, rows / 2), 0, self.scale)
        matrix[0, 2] += self.dx * max(size) * columns / size[1]
        matrix[1, 2] += self.dy * max(size) * rows / size[0]
        return cv2.warpAffine(edges.astype(np.float32), matrix, (columns, rows))


def edge_scores(image: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Measures the mean image gradient below the labels' edges, bool (H, W), after each move tried.

    Returns:
        float16 (len(_SCALES), 2r+1, 2r+1): scale, shift downwards, shift to the right; r is
        ``_REACH`` of the longer side. In units of the image's mean gradient: 1 is chance.
    """
    factor, size = _compared_size(edges)
    reach = round(_REACH * max(size))
    # chance outside the image
    gradient = np.pad(_gradient(image, size), reach, constant_values=1.0)
    centre = np.array(size)[:, None] / 2
    points = (np.argwhere(edges).T + 0.5) * factor - centre
    scores = []
    for scale in _SCALES:
        y, x = np.floor(points * scale + centre).astype(int)
        inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        template = np.zeros(size, np.float32)
        template[y[inside], x[inside]] = 1
        total = cv2.matchTemplate(gradient, template, cv2.TM_CCORR)
        scores.append((total / max(float(template.sum()), 1.0)).astype(np.float16))
    return np.stack(scores)


def find_misalignment(scores: Iterable[np.ndarray]) -> Misalignment | None:
    """Returns the move that many images agree on; None if the files' registration is (nearly) the
    best."""
    by_shape = defaultdict(list)  # small images have a shorter reach
    for array in scores:
        by_shape[array.shape].append(array)
    most = max(by_shape.values(), key=len, default=[])
    if len(most) < MANY_IMAGES:
        return None
    stacked = np.stack(most).astype(np.float32)
    mean = stacked.mean(axis=0)
    reach = mean.shape[1] // 2
    unmoved = (_SCALES.index(1.0), reach, reach)
    best = np.unravel_index(int(mean.argmax()), mean.shape)
    agreeing = np.mean([array[best] > array[unmoved] for array in stacked])
    scale, dy, dx = _SCALES[best[0]], int(best[1]) - reach, int(best[2]) - reach
    side = reach / _REACH
    at_border = max(abs(dx), abs(dy)) + abs(scale - 1) * side / 2
    is_clear = mean[best] >= _CLEARLY * mean[unmoved] and agreeing >= AGREEING
    is_needed = is_clear and at_border >= _SMALL_MOVE
    return Misalignment(scale, dx / side, dy / side) if is_needed else None


def edge_densities(image: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the strength of an image's edges and the density of its labels' edges, float16
    (2, 96, 128): small enough to keep for a data set."""
    gradient = _gradient(image, _compared_size(edges)[1])
    maps = (gradient, edges.astype(np.float32))
    small = [cv2.resize(array, _CELLS[::-1], interpolation=cv2.INTER_AREA) for array in maps]
    return np.stack(small).astype(np.float16)


def fit_table(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Measures how well the edges of each map fit those of each image, (N, h, w) with N > 2.

    Returns:
        float32 (N, N): the correlation of map i and image j, both minus their mean over samples, as
        a z-score: relative to mean and standard deviation over the images of other samples.
    """
    images = (images - images.mean(axis=0, dtype=np.float32)).reshape(len(images), -1)
    maps = (maps - maps.mean(axis=0, dtype=np.float32)).reshape(len(maps), -1)
    table = maps @ (images / (images.std(axis=1, keepdims=True) + 1e-6)).T
    unpaired = table[~np.eye(len(table), dtype=bool)].reshape(len(table), -1)
    return (table - unpaired.mean(1, keepdims=True)) / (unpaired.std(1, keepdims=True) + 1e-6)


def edge_map(sample: Sample, kind: MapKind) -> np.ndarray | None:
    """Returns where a border between classes or a jump of the depth is, bool (H, W); None if the
    sample has no such map, or few edges."""
    if kind not in sample:
        return None
    if kind == "labels":
        is_known, step = sample["labels"] != IGNORE_INDEX, 0.0
        values = sample["labels"].astype(np.int16)
    else:
        is_known, step = sample["valid"], _JUMP
        values = np.log(np.where(is_known, sample["depth"], np.float32(1)))
    edges = np.zeros(is_known.shape, bool)
    edges[:, 1:] |= (np.abs(np.diff(values, axis=1)) > step) & is_known[:, 1:] & is_known[:, :-1]
    edges[1:] |= (np.abs(np.diff(values, axis=0)) > step) & is_known[1:] & is_known[:-1]
    return edges if np.count_nonzero(edges) >= _FEW_EDGES else None


def _compared_size(edges: np.ndarray) -> tuple[float, tuple[int, int]]:
    """Returns the factor by which images are downsampled to compare them, and their (H, W) then."""
    factor = min(1.0, _SIDE / max(edges.shape))
    height, width = (max(1, round(side * factor)) for side in edges.shape)
    return factor, (height, width)


def _gradient(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns the strength of the image's edges, float32 of ``size``, 1 in the mean."""
    small = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    gray = cv2.GaussianBlur(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32), (0, 0), 1)
    strength = cv2.magnitude(cv2.Sobel(gray, cv2.CV_32F, 1, 0), cv2.Sobel(gray, cv2.CV_32F, 0, 1))
    strength = np.minimum(strength, np.quantile(strength, 0.95))  # limits single bright edges
    return strength / max(float(strength.mean()), 1e-6)
