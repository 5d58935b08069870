"""The base class of metrics."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from dpt.metrics.torchmetrics_internals import MovableMetric

Rescore = Callable[[np.ndarray], dict[str, float]]
"""Scores by name, if image k counts ``times[k]`` times; ``times`` is (N,)."""


class Confusion(NamedTuple):
    """A confusion matrix."""

    class_names: tuple[str, ...]
    counts: np.ndarray
    """int64 (K, K + 1): ground truth by row, prediction by column, the last one of no class."""


class RuleTable(NamedTuple):
    """Scores of one prediction by the rules of several projects, as text."""

    columns: list[str]
    rows: list[list[str]]
    """One for each rule, and the spread of the scores."""
    others: list[tuple[str, str, str]]
    """Of each rule its name, what it does, and the scores that have no column."""
    note: str
    """What the columns mean, for the report."""


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
        has_limits: whether scores that are better if lower are errors from 0 on, and all others
            fractions in 0..1. See :meth:`limits_of`.
        by_image: whether single images can be scored. If not, states may be lists, and there are
            neither intervals nor :meth:`state`.
    """

    full_state_update = False
    lower_is_better: ClassVar[frozenset[str]] = frozenset()
    has_limits: ClassVar[bool] = False
    by_image: ClassVar[bool] = True

    def add_sum(self, name: str, *shape: int) -> None:
        """Adds a state of float64 zeros that is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add_count(self, name: str, *shape: int) -> None:
        """Adds a state of int64 zeros that is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def vector(self) -> Tensor:
        """Returns all states of this process, concatenated: float64 (S,) on the CPU."""
        states = [state.detach().cpu().double().flatten() for state in self._sums().values()]
        return torch.cat(states)

    def _sums(self) -> dict[str, Tensor]:
        """Returns the states by name; lists of tensors occur only if ``by_image`` is False."""
        return cast(dict[str, Tensor], self.metric_state)

    def scores_of(self, vector: Tensor) -> dict[str, float]:
        """Returns the result of :meth:`compute` for other states, without synchronisation.

        Args:
            vector: (S,), of one image, of the sum over all images or over a resample of them.
        """
        states = self._sums()
        pieces = vector.split([state.numel() for state in states.values()])
        try:
            for (name, state), piece in zip(states.items(), pieces, strict=True):
                setattr(self, name, piece.view(state.shape))
            # the class's own method: torchmetrics wraps the instance's (cache, synchronisation)
            return {key: float(value) for key, value in type(self).compute(self).items()}
        finally:
            for name, state in states.items():
                setattr(self, name, state)

    def state(self) -> csr_array:
        """Returns what images have left in this process since the last reset, to be pickled."""
        return csr_array(self.vector().numpy()[None])

    def resampler(self, states: Sequence[csr_array]) -> Rescore:
        """Returns a function that scores images without synchronisation.

        Args:
            states: :meth:`state` of each image alone, in the order of the data set.
        """
        columns = vstack(states, format="csr").T
        return lambda times: self.scores_of(torch.from_numpy(columns @ times))

    def scores(self) -> dict[str, float]:
        """Returns the result of :meth:`compute` for this process, without synchronisation."""
        return self.resampler([self.state()])(np.ones(1))

    def limits_of(self, score: str) -> tuple[float, float]:
        """Returns the smallest and the largest value that a score can have."""
        if not self.has_limits:
            return -inf, inf
        return 0.0, inf if score in self.lower_is_better else 1.0

    def drop_rules(self) -> None:
        """Leaves out the scores by rules of other projects, as of baselines."""

    def rule_table(self, scores: Mapping[str, float]) -> RuleTable | None:
        """Returns the scores by rule, from all scores; None for metrics without rules."""
        return None

    def confusion_of(self, states: Sequence[csr_array]) -> Confusion | None:
        """Returns the confusion matrix of all images; None for metrics without one."""
        return None


def require_one_shape(**tensors: Tensor) -> None:
    """Raises ValueError if the tensors, given by name, differ in shape."""
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1:
        raise ValueError(f"{', '.join(tensors)} must have one shape, got {shapes}")


def class_labels(class_names: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """Returns the names of the classes, or their ids if there are no names."""
    if class_names and len(class_names) != num_classes:
        raise ValueError(f"{len(class_names)} class_names for {num_classes} classes")
    return tuple(class_names) or tuple(str(class_id) for class_id in range(num_classes))
