"""The weighted human disagreement rate (WHDR) of depth in the wild (Chen et al. 2016)."""

from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules.base import ALL_KINDS, DepthImage, DepthRule
from dpt.metrics.rules.errors import Errors
from dpt.metrics.rules.moments import Floats, Mask

PAIRS = 50_000
"""Pairs that are drawn in each image."""
TIE = 1.03
"""Pairs whose depths have at most this quotient have no order."""


@lru_cache(maxsize=1)
def _draws() -> NDArray[np.uint64]:
    """Returns integers (PAIRS, 2) below 2³², of splitmix64 (Steele et al. 2014) with the seed 0."""
    z = np.arange(1, 2 * PAIRS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(32)).reshape(PAIRS, 2)


def ordered_pairs(depth: Floats) -> NDArray[np.int64]:
    """Returns indices (P, 2) into depths (N,) of pairs that have an order, P <= 50,000.

    The indices are floor(draw · N / 2³²), the draws being the same for every image.
    """
    pairs = (_draws() * np.uint64(len(depth)) >> np.uint64(32)).astype(np.int64)
    first, second = depth[pairs[:, 0]], depth[pairs[:, 1]]
    return pairs[np.maximum(first, second) > TIE * np.minimum(first, second)]


class Whdr(DepthRule):
    """The fraction of wrong pairs, over the pairs of all images.

    The pixels that count are numbered by rows. The original has one pair of an image, from people,
    and stops at a tie of the prediction.
    """

    name = "whdr"
    summary = (
        "Draws 50,000 pairs of pixels of each image by one seed, leaves out those whose depths "
        "differ by at most 3 %, and reports the fraction that the prediction does not put in order."
    )
    original = "yifjiang/relative-depth-using-pytorch validation_crit/validate_crit_DIW.py"
    kinds = ALL_KINDS
    errors: ClassVar[Errors] = {}
    scores = ("whdr",)

    def counted(self, image: DepthImage) -> Mask:
        return image.valid & (image.depth > 0)

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        values = image.prediction_at(counted)
        return -values if image.kind == "relative" else values

    def sums(self, image: DepthImage) -> Floats:
        """Returns the numbers of pixels that count, of ordered pairs and of wrong ones."""
        counted = self.counted(image)
        if not counted.any():
            return np.zeros(3)
        depth, values = image.depth_at(counted), self.predicted(image, counted)
        first, second = ordered_pairs(depth).T
        is_right = np.where(
            depth[first] > depth[second],
            values[first] > values[second],
            values[first] < values[second],
        )
        return np.array([len(depth), len(first), np.count_nonzero(~is_right)], dtype=np.float64)
