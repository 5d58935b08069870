"""Confidence intervals by resampling images: how much of a score is luck of the test set."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import SumMetric

_DRAWS_AT_ONCE = 2**24
"""Numbers held at a time."""


def confidence_intervals(
    metric: SumMetric,
    vectors: Tensor,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Percentile bootstrap (Efron 1979) over images, of every number that ``metric`` computes.

    Each resample draws as many images as there are, with replacement, and scores their sum.
    Frames of one video are no independent images: their intervals come out too narrow.

    Args:
        metric: whose states the vectors are.
        vectors: float64 (N, S), dense or sparse: what each image alone leaves in the metric, see
            :meth:`SumMetric.vector`.
        resamples: how many.
        level: share of resamples inside the interval.
        seed: of the draws.

    Returns:
        (low, high) by name. NaN with fewer than two images, or where most resamples give no number
        (a class that hardly any image holds).
    """
    count, states = vectors.shape
    random = np.random.default_rng(seed)
    rows = max(1, min(resamples, _DRAWS_AT_ONCE // max(count, states)))
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
