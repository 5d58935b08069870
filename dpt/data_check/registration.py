"""Whether labels belong to their image: how well the edges of both coincide.

The edges of a mask, or the jumps of a depth map, are moved and scaled over the image's gradient.
At the right place the gradient below them is strongest. One image says little; the mean over many
has a sharp peak. If the peak is elsewhere than in the files, labels and images are not registered.

At that place the edges of a map fit its own image better than those of other samples
(:func:`fit_table`). If they do not, labels and images are not paired rightly.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from dpt.types.samples import IGNORE_INDEX, Sample

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
    score: float
    score_unmoved: float
    images: int

    def pixels(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns (dx, dy) for images of ``size`` [h, w]."""
        return round(self.dx * max(size)), round(self.dy * max(size))

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
    if not is_clear or at_border < _SMALL_MOVE:
        return None
    return Misalignment(
        scale, dx / side, dy / side, float(mean[best]), float(mean[unmoved]), len(stacked)
    )


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
