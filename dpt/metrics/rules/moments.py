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
    def of(cls, prediction: Floats, depth: Floats) -> Self:
        """Returns the means over pixels (N,), N > 0."""
        sums = [cls._sums(p, t) for p, t in chunks(prediction, depth)]
        return cls(len(depth), *(np.sum(sums, axis=0) / len(depth)).tolist())

    @staticmethod
    def _sums(p: Floats, t: Floats) -> list[float]:
        difference, quotient = p - t, p / t
        absolute, error = np.abs(difference), np.log(quotient)
        relative = absolute / t
        inverse = 1 / p - 1 / t
        ratio = np.maximum(quotient, t / p)
        return [
            relative.sum(),
            (absolute / (t + 1e-6)).sum(),
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
            len(t) - np.count_nonzero(ratio > 1.25),
        ]

    def silog(self, weight: float = 1.0) -> float:
        """Returns sqrt(mean e² - weight · (mean e)²)."""
        return float(np.sqrt(np.maximum(self.log_square - weight * self.log**2, 0)))

    def silog_unbiased(self) -> float:
        """Returns the standard deviation of e with N - 1 in the denominator; NaN for N = 1."""
        return self.silog() * float(np.sqrt(np.float64(self.pixels) / (self.pixels - 1)))
