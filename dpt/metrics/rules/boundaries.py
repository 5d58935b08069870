"""Boundaries of depth: Depth Pro (Bochkovskii et al. 2024, section 4) and MoGe (Wang et al. 2025).

A step from a pixel to a neighbour is an edge where the quotient of their depths is above a
threshold, so that both rules ignore a scale. Steps from or to a pixel that does not count are none.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpt.metrics.rules.base import DEPTH_KINDS, DepthRule, Floats, Pixels

RADIUS = 3
"""The largest radius of MoGe, in pixels."""
LEAST = 1e-6
"""Metres; smaller depths are clamped by Depth Pro."""


class Edges(NamedTuple):
    """Steps whose quotient is above each of T thresholds, (M, T).

    Row m counts the steps from pixels that are m pixels and more inside the region.
    """

    both: Floats
    predicted: Floats
    true: Floats


class Maps:
    """The predicted and the true map of one image, in which edges are counted.

    Args:
        maps: float64 (2, H, W), NaN where pixels do not count.
        thresholds: (T,), ascending.
    """

    def __init__(self, maps: Floats, thresholds: Floats) -> None:
        sides = ((RADIUS, RADIUS), (RADIUS, RADIUS))
        padded = np.pad(maps, ((0, 0), *sides), constant_values=np.nan)
        self.maps, self.width = padded.reshape(2, -1), padded.shape[2]
        self.thresholds = thresholds
        to_side = [np.minimum(np.arange(n), np.arange(n)[::-1]) for n in maps.shape[1:]]
        self.inside = np.pad(np.minimum.outer(*to_side), sides).ravel()
        # most steps are below all thresholds, which single precision and no division can tell
        self.sizes = np.abs(self.maps).astype(np.float32)
        self.raised = self.sizes * np.float32(0.999 * thresholds[0])

    def edges(self, offset: tuple[int, int], margin: int = 0, rows: int = 1) -> Edges:
        """Counts the edges to the neighbours at an offset (rows, columns), at most ``RADIUS`` each.

        Args:
            margin: pixels that are nearer to a side are left out.
            rows: M, the number of rows of the result.
        """
        step = offset[0] * self.width + offset[1]
        start = RADIUS * (self.width + 1)
        end = self.maps.shape[1] - start
        rises = self.sizes[:, start + step : end + step] > self.raised[:, start:end]
        pixels = np.flatnonzero(rises[0] | rises[1]) + start
        inside = self.inside[pixels] - margin
        pixels, inside = pixels[inside >= 0], inside[inside >= 0].clip(max=rows - 1)
        quotients = self.maps.take(pixels + step, axis=1) / self.maps.take(pixels, axis=1)
        quotients[np.isnan(quotients)] = 0.0
        passed = np.searchsorted(self.thresholds, quotients)
        levels = len(self.thresholds) + 1
        cells = np.ravel_multi_index((inside, *passed), (rows, levels, levels))
        counts = np.bincount(cells, minlength=rows * levels**2).reshape(rows, levels, levels)
        above = counts[::-1, ::-1, ::-1].cumsum(0).cumsum(1).cumsum(2)[::-1, ::-1, ::-1]
        both = above[:, 1:, 1:].diagonal(axis1=1, axis2=2)
        return Edges(*(a.astype(float) for a in (both, above[:, 1:, 0], above[:, 0, 1:])))


def f1_of(precision: Floats, recall: Floats) -> Floats:
    """Returns the harmonic mean, 0 where both are 0."""
    total = precision + recall
    return 2 * precision * recall / np.where(total == 0, 1.0, total)


def measured(pixels: Pixels) -> Floats:
    """Returns prediction and depth (2, H, W) that are NaN where pixels do not count."""
    maps = np.stack([pixels.image.prediction, pixels.image.depth])
    return np.where(pixels.mask, maps, np.nan)


class DepthProBoundary(DepthRule):
    """The scores of ``SI_boundary_F1``, and precision and recall in it, in 0..1.

    ``SI_boundary_Recall`` needs masks of the foreground instead of depth.

    Original: apple/ml-depth-pro src/depth_pro/eval/boundary_metrics.py: SI_boundary_F1
    """

    name = "depth_pro_boundary"
    summary = (
        "Compares edges between neighbours in inverse depth; pixels without ground truth, for "
        "which the original has no rule, are NaN in both maps."
    )
    kinds = DEPTH_KINDS
    min_depth = 0.0
    has_max_depth = False
    scores = ("boundary_f1", "boundary_precision", "boundary_recall")

    def values(self, pixels: Pixels) -> Floats:
        thresholds = np.linspace(1.05, 1.25, 10)
        maps = Maps(1 / measured(pixels).clip(min=LEAST), thresholds)
        precision, recall = np.zeros(10), np.zeros(10)
        for offset in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            edges = maps.edges(offset)
            precision += edges.both[0] / edges.predicted[0].clip(min=1) / 4
            recall += edges.both[0] / edges.true[0].clip(min=1) / 4
        scores = np.stack([f1_of(precision, recall), precision, recall])
        weighted: Floats = scores @ thresholds / thresholds.sum()
        return weighted


class MogeBoundary(DepthProBoundary):
    """The F1 scores ``boundary``, in 0..1, of edges to neighbours within 1, 2 and 3 pixels.

    Original: microsoft/MoGe moge/test/metrics.py: boundary_f1
    """

    name = "moge_boundary"
    summary = (
        "Compares edges to all neighbours within 1, 2 and 3 pixels; the original scores only data "
        "with sharp boundaries."
    )
    scores = ("boundary_f1_radius1", "boundary_f1_radius2", "boundary_f1_radius3")

    def values(self, pixels: Pixels) -> Floats:
        thresholds = np.linspace(0.05, 0.25, 10)
        maps = Maps(measured(pixels), 1 + thresholds)
        total = np.zeros((3, RADIUS, 10))
        for offset in neighbours(RADIUS):
            margin = math.ceil(math.hypot(*offset))  # the smallest radius with this neighbour
            if min(pixels.mask.shape) > 2 * margin:
                total[:, margin - 1 :] += maps.edges(offset, margin, RADIUS + 1 - margin)
        both, predicted, true = total
        f1 = f1_of(both / predicted.clip(min=1), both / true.clip(min=1))
        scores: Floats = f1 @ thresholds / thresholds.sum()
        return scores


def neighbours(radius: int) -> Iterator[tuple[int, int]]:
    """Yields the offsets (rows, columns) other than (0, 0) inside a circle."""
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            if 0 < row**2 + column**2 <= radius**2:
                yield row, column
