"""Fits of a prediction to the ground truth, over vectors (N,) of pixels, float64."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CHUNK = 32768
"""Pixels at a time, so that intermediate results stay in the processor's cache."""


def chunks(*vectors: Floats) -> Iterator[tuple[Floats, ...]]:
    """Yields consecutive parts of vectors of one length."""
    for start in range(0, len(vectors[0]), CHUNK):
        yield tuple(vector[start : start + CHUNK] for vector in vectors)


def least_squares(x: Floats, y: Floats) -> tuple[float, float]:
    """Returns (scale, shift) that minimise Σ (scale · x + shift - y)²; (0, mean) of constant x."""
    mean_x, mean_y = float(x.mean()), float(y.mean())
    variance = covariance = 0.0
    for x_part, y_part in chunks(x, y):
        centred = x_part - mean_x
        variance += float(centred @ centred)
        covariance += float(centred @ (y_part - mean_y))
    # rounding leaves a constant map a spread of a few units in the last place of its mean
    if variance <= len(x) * (16 * np.finfo(float).eps * mean_x) ** 2:
        return 0.0, mean_y
    scale = covariance / variance
    return scale, mean_y - scale * mean_x


def in_depth(prediction: Floats, depth: Floats) -> Floats:
    """Returns the prediction (N,) with the scale and shift of :func:`least_squares`."""
    scale, shift = least_squares(prediction, depth)
    return prediction * scale + shift


def lower_median(values: Floats) -> float:
    """Returns PyTorch's median: the lower of the middle two of an even number; NaN if one is."""
    return float(torch.from_numpy(values).median())


def scale_l1(x: Floats, y: Floats, weight: Floats) -> float:
    """Returns the scale that minimises Σ weight · |scale · x - y|: a weighted median of y / x.

    Of several minimisers it is the smallest. It is 0 if all x are.
    """
    used = x != 0
    if not used.any():
        return 0.0
    quotients = y[used] / x[used]
    order = quotients.argsort(kind="stable")
    weights = (weight[used] * np.abs(x[used]))[order].cumsum()
    first = np.searchsorted(2 * weights, weights[-1])
    return float(quotients[order[min(first, len(order) - 1)]])


def line_l1(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Returns (scale, shift) that minimise Σ weight · |scale · x + shift - y| exactly.

    A minimiser passes through two points. The line is turned about one of its points to the best
    slope, until no turn about any of its points improves it: the sum is convex, and linear between
    these turns.
    """
    scale, shift = least_squares(x, y)
    anchors = [int(np.abs(y - scale * x - shift).argmin())]
    least = np.inf
    while anchors:
        anchor = anchors.pop()
        dx, dy = x - x[anchor], y - y[anchor]
        slope = scale_l1(dx, dy, weight)
        residual = np.abs(slope * dx - dy)
        loss = float(weight @ residual)
        if loss < least * (1 - 1e-14):
            least, scale, shift = loss, slope, float(y[anchor] - slope * x[anchor])
            on_line = residual <= 1e-12 * (np.abs(y) + np.abs(slope * x))
            on_line[anchor] = False
            anchors = np.flatnonzero(on_line).tolist()
    return scale, shift
