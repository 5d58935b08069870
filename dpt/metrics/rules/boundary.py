"""Boundaries of depth: Depth Pro (Bochkovskii et al. 2024, section 4) and MoGe (Wang et al. 2025).

A step from a pixel to a neighbour is an edge where the quotient of their depths is above a
threshold, so that both rules ignore a scale. Steps from or to a pixel that does not count are none.
"""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self

import numpy as np

from dpt.metrics.rules.base import DEPTH_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import Errors
from dpt.metrics.rules.moments import Floats, Mask

LEAST = 1e-6
"""Metres; smaller depths are clamped by Depth Pro."""


class Edges(NamedTuple):
    """Steps whose quotient is above each of T thresholds, (T,)."""

    both: Floats
    predicted: Floats
    true: Floats

    @classmethod
    def of(cls, prediction: Floats, depth: Floats, thresholds: Floats) -> Self:
        """Counts the edges among quotients of one shape; NaN is none."""
        is_used = (prediction > thresholds[0]) | (depth > thresholds[0])
        predicted = prediction[is_used][:, None] > thresholds
        true = depth[is_used][:, None] > thresholds
        counts = [flags.sum(0, dtype=float) for flags in (predicted & true, predicted, true)]
        return cls(*counts)


def steps(values: Floats, margin: int, offset: tuple[int, int]) -> Floats:
    """Returns neighbours at an offset (rows, columns) divided by the pixels inside a margin."""
    height, width = values.shape
    row, column = (margin + step for step in offset)
    inner = values[margin : height - margin, margin : width - margin]
    return values[row : row + len(inner), column : column + inner.shape[1]] / inner


def f1_of(precision: Floats, recall: Floats) -> Floats:
    """Returns the harmonic mean, 0 where both are 0."""
    total = precision + recall
    return 2 * precision * recall / np.where(total == 0, 1.0, total)


def measured(image: DepthImage, counted: Mask) -> tuple[Floats, Floats]:
    """Returns prediction and depth (H, W) that are NaN where pixels do not count."""
    return np.where(counted, image.prediction, np.nan), np.where(counted, image.depth, np.nan)


class DepthProBoundary(DepthRule):
    """The scores of ``SI_boundary_F1``, and precision and recall in it, in 0..1.

    ``SI_boundary_Recall`` needs masks of the foreground instead of depth.
    """

    name = "depth_pro_boundary"
    summary = (
        "Compares edges between neighbours in inverse depth; pixels without ground truth, for "
        "which the original has no rule, are NaN in both maps."
    )
    original = "apple/ml-depth-pro src/depth_pro/eval/boundary_metrics.py: SI_boundary_F1"
    kinds = DEPTH_KINDS
    errors: ClassVar[Errors] = {}
    scores = ("boundary_f1", "boundary_precision", "boundary_recall")

    def counted(self, image: DepthImage) -> Mask:
        return image.valid & (image.depth > 0)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        return image.prediction_at(counted)

    def values(self, image: DepthImage, counted: Mask) -> Floats:
        prediction, depth = (1 / d.clip(min=LEAST) for d in measured(image, counted))
        thresholds = np.linspace(1.05, 1.25, 10)
        precision, recall = np.zeros(10), np.zeros(10)
        for axis in (0, 1):
            maps = [np.moveaxis(d, axis, 0) for d in (prediction, depth)]
            for p, t in ([d[1:] / d[:-1] for d in maps], [d[:-1] / d[1:] for d in maps]):
                edges = Edges.of(p, t, thresholds)
                precision += edges.both / edges.predicted.clip(min=1) / 4
                recall += edges.both / edges.true.clip(min=1) / 4
        scores = np.stack([f1_of(precision, recall), precision, recall])
        weighted: Floats = scores @ thresholds / thresholds.sum()
        return weighted


class MogeBoundary(DepthProBoundary):
    """The F1 scores ``boundary``, in 0..1, of edges to neighbours within 1, 2 and 3 pixels."""

    name = "moge_boundary"
    summary = (
        "Compares edges to all neighbours within 1, 2 and 3 pixels; the original scores only data "
        "with sharp boundaries."
    )
    original = "microsoft/MoGe moge/test/metrics.py: boundary_f1"
    scores = ("boundary_f1_radius1", "boundary_f1_radius2", "boundary_f1_radius3")

    def values(self, image: DepthImage, counted: Mask) -> Floats:
        prediction, depth = measured(image, counted)
        thresholds = np.linspace(0.05, 0.25, 10)
        scores = []
        for radius in (1, 2, 3):
            total = np.zeros((3, 10))
            for offset in neighbours(radius) if min(counted.shape) > 2 * radius else ():
                p, t = (steps(values, radius, offset) for values in (prediction, depth))
                total += Edges.of(p, t, 1 + thresholds)
            both, predicted, true = total
            f1 = f1_of(both / predicted.clip(min=1), both / true.clip(min=1))
            scores.append(f1 @ thresholds / thresholds.sum())
        return np.array(scores)


def neighbours(radius: int) -> Iterator[tuple[int, int]]:
    """Yields the offsets (rows, columns) other than (0, 0) inside a circle."""
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            if 0 < row**2 + column**2 <= radius**2:
                yield row, column
