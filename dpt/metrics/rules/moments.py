"""Means over the pixels of one image, from which the scores of most projects follow.

p is the prediction, t the ground truth, both in metres, and e = ln p - ln t.
"""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CHUNK = 32768
"""Pixels at a time, so that intermediate results stay in the processor's cache."""


class Truth(NamedTuple):
    """The ground truth (N,) in metres, and what many rules divide by it."""

    depth: Floats
    inverse: Floats
    moge_inverse: Floats
    """1 / (depth + 1e-6)."""

    @classmethod
    def of(cls, depth: Floats) -> Self:
        with np.errstate(all="ignore"):
            return cls(depth, 1 / depth, 1 / (depth + 1e-6))


def chunks(*vectors: Floats) -> Iterator[tuple[Floats, ...]]:
    """Yields consecutive parts of vectors of one length."""
    for start in range(0, len(vectors[0]), CHUNK):
        yield tuple(vector[start : start + CHUNK] for vector in vectors)


class Moments(NamedTuple):
    """Means over N pixels; NaN where p is, but for ``within``, in which such pixels are wrong."""

    pixels: int
    """N."""
    abs_rel: float
    """|p - t| / t."""
    moge_rel: float
    """|p - t| / (t + 1e-6)."""
    sq_rel: float
    """(p - t)² / t, metres."""
    sq_rel_squared: float
    """(p - t)² / t²."""
    absolute: float
    """|p - t|, metres."""
    square: float
    """(p - t)², square metres."""
    inverse: float
    """|1/p - 1/t|, 1/metres."""
    inverse_square: float
    """(1/p - 1/t)², 1/square metres."""
    log: float
    """e."""
    log_absolute: float
    """|e|."""
    log_square: float
    """e²."""
    within3: float
    """The fraction of pixels with max(p/t, t/p) < 1.03."""
    delta1: float
    """The fraction of pixels with max(p/t, t/p) < 1.25; the next ones: 1.25² and 1.25³."""
    delta2: float
    delta3: float
    at_most: float
    """The fraction of pixels with max(p/t, t/p) <= 1.25, or NaN."""

    @classmethod
    def of(cls, prediction: Floats, truth: Truth) -> Self:
        """Returns the means over pixels (N,), N > 0."""
        sums = [cls._sums(p, Truth(*true)) for p, *true in chunks(prediction, *truth)]
        return cls(len(prediction), *(np.sum(sums, axis=0) / len(prediction)).tolist())

    @staticmethod
    def _sums(p: Floats, truth: Truth) -> list[float]:
        # divisions take the most time
        quotient, reciprocal = p / truth.depth, truth.depth / p
        absolute, error = np.abs(p - truth.depth), np.log(quotient)
        relative = absolute * truth.inverse
        inverse = (reciprocal - 1) * truth.inverse
        ratio = np.maximum(quotient, reciprocal)
        return [
            relative.sum(),
            absolute @ truth.moge_inverse,
            relative @ absolute,
            relative @ relative,
            absolute.sum(),
            absolute @ absolute,
            np.abs(inverse).sum(),
            inverse @ inverse,
            error.sum(),
            np.abs(error).sum(),
            error @ error,
            np.count_nonzero(ratio < 1.03),
            *(np.count_nonzero(ratio < 1.25**power) for power in (1, 2, 3)),
            len(p) - np.count_nonzero(ratio > 1.25),
        ]

    def silog(self, weight: float = 1.0) -> float:
        """Returns sqrt(mean e² - weight · (mean e)²)."""
        return float(np.sqrt(np.maximum(self.log_square - weight * self.log**2, 0)))

    def silog_unbiased(self) -> float:
        """Returns the standard deviation of e with N - 1 in the denominator; NaN for N = 1."""
        return self.silog() * float(np.sqrt(np.float64(self.pixels) / (self.pixels - 1)))
