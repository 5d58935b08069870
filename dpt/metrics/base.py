"""The base class of metrics, a torchmetrics ``Metric`` of sums over images; their intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on devices that have no float64 (Apple's mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


class SumMetric(Metric):
    """A metric whose states are added over images, updates and processes.

    A metric adds its states in ``__init__`` with :meth:`add_sum` (float64) and :meth:`add_count`
    (int64), changes them in ``update`` and returns scalars by name from ``compute``; reports sort
    images by the first one. The states follow the module to another device, but not to another
    precision (``module.half()``).

    The states of one image are everything the metric keeps of it: scores of single images and
    confidence intervals are computed from :meth:`vector` by :meth:`scores_of`.

    Attributes:
        lower_is_better: names of the scores that are better if lower; all others are better if
            higher.
    """

    is_differentiable = False
    full_state_update = False
    lower_is_better: ClassVar[frozenset[str]] = frozenset()

    def add_sum(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add_count(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def vector(self) -> Tensor:
        """All states of this process, concatenated: float64 (S,) on the CPU."""
        states = [getattr(self, name).detach().flatten() for name in self._defaults]
        return torch.cat([state.cpu().double() for state in states])

    def states_of(self, vector: Tensor) -> dict[str, Tensor]:
        """The states by name, from a vector as :meth:`vector` returns it."""
        shapes = [getattr(self, name).shape for name in self._defaults]
        pieces = vector.split([shape.numel() for shape in shapes])
        views = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return dict(zip(self._defaults, views, strict=True))

    def scores_of(self, vector: Tensor) -> dict[str, float]:
        """The result of :meth:`compute` for the states in ``vector``, without synchronisation.

        Args:
            vector: (S,), of one image, of the sum over all images or over a resample of them.
        """
        return {key: float(value) for key, value in self._scores(vector).items()}

    def scores_of_many(self, vectors: Tensor) -> dict[str, np.ndarray]:
        """:meth:`scores_of` of each row of ``vectors`` (R, S), as arrays (R,)."""
        try:
            found = torch.vmap(self._scores)(vectors)
            return {key: value.double().numpy() for key, value in found.items()}
        except (RuntimeError, TypeError, ValueError):  # a ``compute`` with Python's own numbers
            rows = [self.scores_of(vector) for vector in vectors]
            return {key: np.array([row[key] for row in rows]) for key in rows[0]}

    def _scores(self, vector: Tensor) -> dict[str, Tensor]:
        before = {name: getattr(self, name) for name in self._defaults}
        try:
            for name, state in self.states_of(vector).items():
                setattr(self, name, state)
            # the class's own method: torchmetrics wraps the instance's (cache, synchronisation)
            return type(self).compute(self)
        finally:
            for name, state in before.items():
                setattr(self, name, state)

    def confusion_of(self, vector: Tensor) -> tuple[tuple[str, ...], np.ndarray] | None:
        """Class names and the confusion matrix, int64 (K, K + 1), truth by row; None without one.

        The last column counts predictions that are no class.
        """
        return None

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = "") -> nn.Module:
        def move(state: Tensor) -> Tensor:
            device = fn(torch.zeros((), device=state.device)).device
            return state.to(device, sum_dtype(device) if state.is_floating_point() else state.dtype)

        return super()._apply(move, exclude_state)


VALUES_AT_ONCE = 2**21
"""State values of resamples that are scored together: 16 MB in float64."""


def confidence_intervals(
    metric: SumMetric, vectors: Any, *, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """95 % intervals of every score, by percentile bootstrap over images (Efron 1979).

    Each resample draws as many images as there are, with replacement, and scores their sum. The
    frames of a video are not independent images: to resample whole videos, pass the sums over the
    images of each (a block bootstrap).

    Args:
        metric: the metric of the vectors.
        vectors: float64 (N, S), a NumPy array or a SciPy sparse array: :meth:`SumMetric.vector` of
            each image, or of each block of images, alone.
        resamples: number of resamples.
        seed: of the draws.

    Returns:
        (low, high) by name. NaN with fewer than two images, or where most resamples have no score
        (a class that few images contain).
    """
    count, columns = vectors.shape[0], vectors.T
    random = np.random.default_rng(seed)
    values: dict[str, list[np.ndarray]] = {}
    step = max(1, VALUES_AT_ONCE // len(metric.vector()))
    for start in range(0, resamples, step):
        draws = [random.integers(0, count, count) for _ in range(min(step, resamples - start))]
        times = np.stack([np.bincount(drawn, minlength=count) for drawn in draws], axis=1)
        sums = torch.from_numpy(np.ascontiguousarray((columns @ times).T, np.float64))
        for name, found in metric.scores_of_many(sums).items():
            values.setdefault(name, []).append(found)
    intervals = {}
    for name, parts in values.items():
        found = np.concatenate(parts)
        known = found[np.isfinite(found)]
        enough = count > 1 and 2 * len(known) >= resamples
        low, high = np.quantile(known, [0.025, 0.975]) if enough else (np.nan, np.nan)
        intervals[name] = float(low), float(high)
    return intervals
