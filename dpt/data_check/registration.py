"""Whether labels belong to their photo: how well the edges of both coincide.

The edges of a mask, or the jumps of a depth map, are moved and scaled over the photo's gradient.
At the right place the gradient below them is strongest. One image says little; the mean over many
has a sharp peak. If the peak is elsewhere than in the files, labels and photos are not registered.

At that place the edges of a map fit its own photo better than those of other samples
(:func:`fit_table`). If they do not, labels and photos are not paired rightly.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from dpt.types import IGNORE_INDEX, Sample

MapKind = Literal["labels", "depth"]
MAP_KINDS: tuple[MapKind, ...] = ("labels", "depth")

SIDE = 320  # longer side in pixels at which photos are compared; larger ones are downsampled
REACH = 0.075  # largest shift tried, as a share of the longer side
SCALES = tuple(round(1 + 0.02 * step, 2) for step in range(-7, 8))
_JUMP = 0.05  # relative step of depth that counts as an edge
FEW_EDGES = 100  # pixels; with fewer, the check is skipped
MANY_IMAGES = 6  # with fewer, the check is skipped
_CLEARLY = 1.15  # ratio of the best score to that of the files
AGREEING = 0.75  # share of the images with a better score there
_SMALL_MOVE = 2.0  # pixels at SIDE, at the picture's border: within the method's error
_CELLS = (96, 128)  # rows and columns of the maps that are compared between samples


@dataclass(frozen=True)
class Misalignment:
    """What registers labels with their photos: scaling about the centre, then moving."""

    scale: float
    dx: float  # to the right, as a share of the photo's longer side
    dy: float  # downwards
    score: float
    score_unmoved: float
    images: int

    def pixels(self, size: tuple[int, int]) -> tuple[int, int]:
        """(dx, dy) for photos of ``size`` [h, w]."""
        return round(self.dx * max(size)), round(self.dy * max(size))

    def apply(self, edges: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Edges (h, w) of labels for a photo of ``size`` [H, W], registered with it."""
        rows, columns = edges.shape
        matrix = cv2.getRotationMatrix2D((columns / 2, rows / 2), 0, self.scale)
        matrix[0, 2] += self.dx * max(size) * columns / size[1]
        matrix[1, 2] += self.dy * max(size) * rows / size[0]
        return cv2.warpAffine(edges.astype(np.float32), matrix, (columns, rows))


def edge_scores(image: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean photo gradient below the labels' edges, bool (H, W), for each scale and shift tried.

    Returns:
        float16 (len(SCALES), 2r+1, 2r+1): scale, shift downwards, shift to the right; r is
        ``REACH`` of the longer side. In units of the photo's mean gradient: 1 is chance.
    """
    factor, size = _compared_size(edges)
    reach = round(REACH * max(size))
    # chance outside the photo
    gradient = np.pad(_gradient(image, size), reach, constant_values=1.0)
    centre = np.array(size)[:, None] / 2
    points = (np.argwhere(edges).T + 0.5) * factor - centre
    scores = []
    for scale in SCALES:
        y, x = np.floor(points * scale + centre).astype(int)
        inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        template = np.zeros(size, np.float32)
        template[y[inside], x[inside]] = 1
        total = cv2.matchTemplate(gradient, template, cv2.TM_CCORR)
        scores.append((total / max(float(template.sum()), 1.0)).astype(np.float16))
    return np.stack(scores)


def find_misalignment(scores: Iterable[np.ndarray | None]) -> Misalignment | None:
    """The move that many images agree on; None if the place in the files is (nearly) the best."""
    found = [array for array in scores if array is not None]
    shapes = Counter(array.shape for array in found)  # small photos have a shorter reach
    if not shapes or max(shapes.values()) < MANY_IMAGES:
        return None
    common = shapes.most_common(1)[0][0]
    stacked = np.stack([array for array in found if array.shape == common]).astype(np.float32)
    mean = stacked.mean(axis=0)
    reach = mean.shape[1] // 2
    unmoved = (SCALES.index(1.0), reach, reach)
    best = np.unravel_index(int(mean.argmax()), mean.shape)
    agreeing = np.mean([array[best] > array[unmoved] for array in stacked])
    scale, dy, dx = SCALES[best[0]], int(best[1]) - reach, int(best[2]) - reach
    side = reach / REACH
    at_border = max(abs(dx), abs(dy)) + abs(scale - 1) * side / 2
    is_clear = mean[best] >= _CLEARLY * mean[unmoved] and agreeing >= AGREEING
    if not is_clear or at_border < _SMALL_MOVE:
        return None
    return Misalignment(
        scale, dx / side, dy / side, float(mean[best]), float(mean[unmoved]), len(stacked)
    )


def edge_densities(image: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The strength of a photo's edges and the density of its labels' edges, small enough to keep
    for a data set, float16 (2, 96, 128)."""
    maps = _gradient(image, _compared_size(edges)[1]), edges.astype(np.float32)
    small = [cv2.resize(m, _CELLS[::-1], interpolation=cv2.INTER_AREA) for m in maps]
    return np.stack(small).astype(np.float16)


def fit_table(photos: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """How well the edges of each map fit those of each photo, (N, h, w) with N > 2.

    Returns:
        float32 (N, N): the correlation of map i and photo j, both minus their mean over samples, as
        a z-score: relative to mean and standard deviation over the photos of other samples.
    """
    centred = (each - each.mean(axis=0, dtype=np.float32) for each in (photos, maps))
    photos, maps = (each.reshape(len(each), -1) for each in centred)
    table = maps @ (photos / (photos.std(axis=1, keepdims=True) + 1e-6)).T
    others = table[~np.eye(len(table), dtype=bool)].reshape(len(table), -1)
    return (table - others.mean(1, keepdims=True)) / (others.std(1, keepdims=True) + 1e-6)


def edge_map(sample: Sample, kind: MapKind) -> np.ndarray:
    """bool (H, W): True beside a border between classes, or beside a jump of the depth."""
    if kind == "labels":
        known, step = sample["labels"] != IGNORE_INDEX, 0.0
        values = sample["labels"].astype(np.int16)
    else:
        known, step = sample["valid"], _JUMP
        values = np.log(np.where(known, sample["depth"], np.float32(1)))
    edges = np.zeros(known.shape, bool)
    edges[:, 1:] |= (np.abs(np.diff(values, axis=1)) > step) & known[:, 1:] & known[:, :-1]
    edges[1:] |= (np.abs(np.diff(values, axis=0)) > step) & known[1:] & known[:-1]
    return edges


def _compared_size(edges: np.ndarray) -> tuple[float, tuple[int, int]]:
    """The factor by which photos are downsampled for the comparison, and their (H, W) then."""
    factor = min(1.0, SIDE / max(edges.shape))
    height, width = (max(1, round(side * factor)) for side in edges.shape)
    return factor, (height, width)


def _gradient(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Strength of the photo's edges, float32 of ``size``, 1 in the mean."""
    small = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    gray = cv2.GaussianBlur(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(np.float32), (0, 0), 1)
    strength = cv2.magnitude(cv2.Sobel(gray, cv2.CV_32F, 1, 0), cv2.Sobel(gray, cv2.CV_32F, 0, 1))
    strength = np.minimum(strength, np.quantile(strength, 0.95))  # limits single bright edges
    return strength / max(float(strength.mean()), 1e-6)
