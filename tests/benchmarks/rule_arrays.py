"""Arrays for rules of scoring: ties, holes, zeros, NaN, few pixels and none, from one seed."""

import numpy as np

from dpt.metrics.rules import DepthImage
from dpt.types import DepthKind

MAX_DEPTH = 10.0
CASES = ("smooth", "holes", "ties", "far", "zeros", "few", "empty", "nan")


def _smooth(random: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    rows, columns = np.linspace(0, 3, size[0])[:, None], np.linspace(0, 4, size[1])
    return 4 + 2 * np.sin(rows + columns * random.random()) + random.random(size)


def arrays(case: str, kind: DepthKind = "metric") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns prediction, depth (0 or NaN where invalid) and valid, each (H, W), float64."""
    random = np.random.default_rng([50, CASES.index(case)])
    size = (96, 130) if case in ("smooth", "far") else (60, 84)
    depth = _smooth(random, size)
    noise = 1 + 0.3 * (random.random(size) - 0.5) + 0.1 * np.sin(np.arange(size[1]) / 9)
    if case == "ties":
        depth = (2 * depth).round() / 2
        noise = random.choice([0.8, 1.0, 1.25, 2.0], size)
    if case == "far":
        depth *= 1.5
    prediction = depth * noise * 1.1
    if case == "ties":
        prediction = depth * noise
    if kind == "relative":
        prediction = 3 / prediction + 0.2
    valid = np.ones(size, dtype=bool)
    if case in ("holes", "zeros", "nan"):
        valid = random.random(size) < 0.4
    if case == "few":
        valid = np.zeros(size, dtype=bool)
        valid[random.integers(20, 50, 7), random.integers(20, 60, 7)] = True
    if case == "empty":
        valid[:] = False
    depth[~valid] = 0.0 if case != "holes" else np.nan
    if case == "zeros":
        prediction[random.random(size) < 0.1] = 0.0
        prediction[:3] = prediction[-2:] = 0.0
        prediction[20, 30:70] = 0.0
    if case == "nan":
        prediction[random.random(size) < 0.01] = np.nan
    return prediction, depth, valid


def image(case: str, kind: DepthKind = "metric") -> DepthImage:
    """Returns the arrays as a rule reads them."""
    prediction, depth, valid = arrays(case, kind)
    return DepthImage(prediction, depth, valid, kind, MAX_DEPTH)
