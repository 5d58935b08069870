"""The base class of metrics, a torchmetrics ``Metric`` of sums over images; their intervals."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from dpt.metrics.torchmetrics_internals import MovableMetric

RESAMPLES = 1000


class SumMetric(MovableMetric):
    """A metric whose states are added over images, updates and processes.

    A metric adds its states in ``__init__`` with :meth:`add_sum` (float64) and :meth:`add_count`
    (int64), changes them in ``update`` and returns scalars by name from ``compute``; reports sort
    images by the first one. The states follow the module to another device, but not to another
    precision (``module.half()``).

    Scores of single images and of resamples are computed from :meth:`state` by :meth:`resampler`;
    a metric whose states are no sums overrides both.

    Attributes:
        lower_is_better: names of the scores that are better if lower; all others are better if
            higher.
        by_image: whether single images can be scored. If not, states may be lists, and there are
            neither intervals nor :meth:`state`.
    """

    is_differentiable = False
    full_state_update = False
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    by_image: ClassVar[bool] = True

    def add_sum(self, name: str, *shape: int) -> None:
        """Adds a state of float64 zeros that is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add_count(self, name: str, *shape: int) -> None:
        """Adds a state of int64 zeros that is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def _sums(self) -> dict[str, Tensor]:
        """The states by name; those that are lists belong to metrics that ``by_image`` excludes."""
        return cast(dict[str, Tensor], self.metric_state)

    def vector(self) -> Tensor:
        """All states of this process, concatenated: float64 (S,) on the CPU."""
        states = [state.detach().flatten() for state in self._sums().values()]
        return torch.cat([state.cpu().double() for state in states])

    def states_of(self, vector: Tensor) -> dict[str, Tensor]:
        """The states by name, from a vector as :meth:`vector` returns it."""
        shapes = [state.shape for state in self._sums().values()]
        pieces = vector.split([shape.numel() for shape in shapes])
        views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        return dict(zip(self._sums(), views, strict=True))

    def scores_of(self, vector: Tensor) -> dict[str, float]:
        """The result of :meth:`compute` for the states in ``vector``, without synchronisation.

        Args:
            vector: (S,), of one image, of the sum over all images or over a resample of them.
        """
        before = self._sums()
        try:
            for name, state in self.states_of(vector).items():
                setattr(self, name, state)
            # the class's own method: torchmetrics wraps the instance's (cache, synchronisation)
            return {key: float(value) for key, value in type(self).compute(self).items()}
        finally:
            for name, state in before.items():
                setattr(self, name, state)

    def state(self) -> Any:
        """What images have left in this process since the last reset, to be pickled."""
        return csr_array(self.vector().numpy()[None])

    def resampler(self, states: Sequence[Any]) -> Callable[[np.ndarray], dict[str, float]]:
        """Returns a function that scores images without synchronisation.

        Its argument, (N,), says how many times each image counts.

        Args:
            states: :meth:`state` of each image alone, in the order of the data set.
        """
        columns = vstack(states, format="csr").T
        return lambda times: self.scores_of(torch.from_numpy(columns @ times))

    def scores(self) -> dict[str, float]:
        """The result of :meth:`compute` for this process, without synchronisation."""
        return self.resampler([self.state()])(np.ones(1))

    def total(self, states: Sequence[Any]) -> Tensor:
        """The sum of the states of images, (S,)."""
        return torch.from_numpy(vstack(states).sum(axis=0))

    def confusion_of(self, states: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray] | None:
        """Class names and the confusion matrix, int64 (K, K + 1), truth by row; None without one.

        The last column counts predictions that are no class.
        """
        return None


def confidence_intervals(
    metric: SumMetric, states: Sequence[Any], blocks: np.ndarray | None = None
) -> dict[str, tuple[float, float]]:
    """95 % intervals of every score, by percentile bootstrap over images (Efron 1979).

    Each resample draws as many blocks as there are, with replacement, and scores their images. The
    frames of a video are not independent images: let each video be a block (block bootstrap).

    Args:
        states: :meth:`SumMetric.state` of each image alone.
        blocks: the number of each image's block, int (N,), from 0; None: each image is one.

    Returns:
        (low, high) by name. NaN with fewer than two images, or where most resamples have no score
        (a class that few images contain).
    """
    blocks = np.arange(len(states)) if blocks is None else blocks
    count, score, random = blocks.max() + 1, metric.resampler(states), np.random.default_rng(0)
    values: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        times = np.bincount(random.integers(0, count, count), minlength=count)
        for name, value in score(times[blocks]).items():
            values.setdefault(name, []).append(value)
    intervals = {}
    for name, resampled in values.items():
        finite = np.array(resampled)[np.isfinite(resampled)]
        enough = count > 1 and 2 * len(finite) >= RESAMPLES
        low, high = np.quantile(finite, [0.025, 0.975]) if enough else (np.nan, np.nan)
        intervals[name] = float(low), float(high)
    return intervals
