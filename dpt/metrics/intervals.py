"""Confidence intervals of scores, over blocks of images such as the frames of one video."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import t

from dpt.metrics.base import SumMetric

RESAMPLES = 1000
FEW_BLOCKS = 50
"""With fewer, the percentile bootstrap is too narrow: with 3 blocks it covers 0.72, not 0.95."""
FEWEST_BLOCKS = 5
"""With fewer, an interval would be nearly as wide as all possible scores."""
MOST_LEFT_OUT = 200
"""More blocks than these are left out in groups."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float

    def within(self, limits: tuple[float, float]) -> "Interval":
        """Returns the part of the interval between the limits."""
        return Interval(max(self.low, limits[0]), min(self.high, limits[1]))


@dataclass(frozen=True)
class LeftOut:
    """The scores of a data set, and its scores without each of its blocks."""

    scores: dict[str, float]
    without: dict[str, np.ndarray]
    """By name, float64 (B,): without block b."""
    images: np.ndarray
    """int64 (B,): the number of images of each block."""

    def interval(self, name: str) -> Interval:
        """Returns an interval that also holds for few blocks: a jackknife with a t distribution.

        The variance is the sum of (1 - h) · (score without the block - score)², h the block's
        fraction of the images; of a mean it is the CV2 estimate of Bell and McCaffrey 2002 (Bias
        Reduction in Standard Errors), from whom the degrees of freedom are, too (see Imbens and
        Kolesár 2016, Robust Standard Errors in Small Samples). A large block costs certainty.

        Returns:
            NaN with fewer than two blocks, or if a score is NaN, as without the only block that
            holds a class.
        """
        score, without = self.scores[name], self.without[name]
        if len(without) < 2 or not (isfinite(score) and np.isfinite(without).all()):
            return Interval(nan, nan)
        fractions = self.images / self.images.sum()
        variance = ((1 - fractions) * (without - score) ** 2).sum()
        # the estimate is a quadratic form of independent block means of variance 1 / images
        forms = (fractions / np.sqrt(1 - fractions))[:, None] * (
            np.sqrt(fractions) - np.eye(len(fractions)) / np.sqrt(fractions)
        )
        eigenvalues = np.linalg.eigvalsh(forms.T @ forms)
        freedom = eigenvalues.sum() ** 2 / (eigenvalues**2).sum()
        margin = float(t.ppf(0.975, freedom) * np.sqrt(variance))
        return Interval(score - margin, score + margin)

    def minus(self, other: "LeftOut") -> "LeftOut":
        """Returns differences to another model's scores on the same images and blocks."""
        names = [name for name in self.scores if name in other.scores]
        return LeftOut(
            {name: self.scores[name] - other.scores[name] for name in names},
            {name: self.without[name] - other.without[name] for name in names},
            self.images,
        )


def left_out(metric: SumMetric, states: Sequence[csr_array], blocks: np.ndarray) -> LeftOut:
    """Returns the scores of images, and those without each block.

    Args:
        states: :meth:`SumMetric.state` of each image alone.
        blocks: the number of each image's block, int (N,), from 0, of at most ``MOST_LEFT_OUT``.
    """
    rescore = metric.resampler(states)
    rows = [rescore((blocks != block).astype(int)) for block in range(blocks.max() + 1)]
    scores = rescore(np.ones(len(blocks)))
    without = {name: np.array([row[name] for row in rows]) for name in scores}
    return LeftOut(scores, without, np.bincount(blocks))


def confidence_intervals(
    metric: SumMetric, states: Sequence[csr_array], blocks: np.ndarray | None = None
) -> dict[str, Interval]:
    """Returns intervals of every score, over blocks of images that are not independent.

    With ``FEW_BLOCKS`` and more it is the percentile bootstrap (Efron 1979): each resample draws as
    many blocks as there are, with replacement, and scores their images. See
    :meth:`LeftOut.interval` for fewer blocks.

    Args:
        states: :meth:`SumMetric.state` of each image alone.
        blocks: the number of each image's block, int (N,), from 0; None: each image is one.

    Returns:
        Intervals by name. NaN with fewer than ``FEWEST_BLOCKS``, or where most resamples have no
        score (a class that few images contain).
    """
    blocks = np.arange(len(states)) if blocks is None else blocks
    count = blocks.max() + 1
    if count < FEW_BLOCKS:
        without = left_out(metric, states, blocks)
        if count < FEWEST_BLOCKS:
            return dict.fromkeys(without.scores, Interval(nan, nan))
        # of a rare class, the jackknife can end beyond what its score can be
        return {n: without.interval(n).within(metric.limits_of(n)) for n in without.scores}
    rescore = metric.resampler(states)
    random = np.random.default_rng(0)
    resamples = []
    for _ in range(RESAMPLES):
        times = np.bincount(random.integers(0, count, count), minlength=count)
        resamples.append(rescore(times[blocks]))
    intervals = {}
    for name in resamples[0]:
        values = np.array([scores[name] for scores in resamples])
        finite = values[np.isfinite(values)]
        has_interval = 2 * len(finite) >= RESAMPLES
        low, high = np.quantile(finite, [0.025, 0.975]) if has_interval else (nan, nan)
        intervals[name] = Interval(float(low), float(high))
    return intervals
