"""Confidence intervals of scores, by resampling images."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import SumMetric

_MAX_DRAWS = 2**24
"""Numbers held in memory at a time."""


def confidence_intervals(
    metric: SumMetric,
    vectors: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap (Efron 1979) over images, of every score that ``metric`` computes.

    Each resample draws as many images as there are, with replacement, and scores their sum. The
    frames of a video are not independent images: their intervals are too narrow.

    Args:
        metric: the metric of the vectors.
        vectors: float64 (N, S), dense or sparse: the states of each image alone, see
            :meth:`SumMetric.vector`.
        resamples: number of resamples.
        level: share of the resamples inside the interval.
        seed: of the draws.

    Returns:
        (low, high) by name. NaN with fewer than two images, or where most resamples have no score
        (a class that few images contain).
    """
    count, states = vectors.shape
    random = np.random.default_rng(seed)
    rows = max(1, min(resamples, _MAX_DRAWS // max(count, states)))
    values: dict[str, list[float]] = {}
    for start in range(0, resamples, rows):
        draws = random.integers(0, count, (min(rows, resamples - start), count))
        times = np.stack([np.bincount(draw, minlength=count) for draw in draws], axis=1)
        sums = vectors.T @ torch.from_numpy(times).double()  # (S, resamples)
        for vector in sums.T.contiguous():
            for name, value in metric.scores_of(vector).items():
                values.setdefault(name, []).append(value)
    return {name: _interval(np.array(v), count, level) for name, v in values.items()}


def _interval(values: np.ndarray, count: int, level: float) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if count < 2 or 2 * len(known) < len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
