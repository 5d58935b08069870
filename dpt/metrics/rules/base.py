"""The base classes of rules: how one project computes the scores that it publishes.

Everything is NumPy in float64: originals are met to 1e-6, and many rules score one image.
"""

import math
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dpt.types.outputs import DepthKind

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


# --- fits of a prediction to the ground truth, over vectors (N,) of pixels -----------------------

CHUNK = 32768
"""Pixels at a time, so that intermediate results stay in the processor's cache."""


def chunks(*vectors: Floats) -> Iterator[tuple[Floats, ...]]:
    """Yields consecutive parts of vectors of one length."""
    for start in range(0, len(vectors[0]), CHUNK):
        yield tuple(vector[start : start + CHUNK] for vector in vectors)


def least_squares(x: Floats, y: Floats) -> tuple[float, float]:
    """Returns (scale, shift) that minimise Σ (scale · x + shift - y)²; (0, mean) of constant x."""
    mean_x, mean_y = float(x.mean()), float(y.mean())
    variance = covariance = 0.0
    for x_part, y_part in chunks(x, y):
        centred = x_part - mean_x
        variance += float(centred @ centred)
        covariance += float(centred @ (y_part - mean_y))
    # rounding leaves a constant map a spread of a few units in the last place of its mean
    if variance <= len(x) * (16 * np.finfo(float).eps * mean_x) ** 2:
        return 0.0, mean_y
    scale = covariance / variance
    return scale, mean_y - scale * mean_x


def in_depth(prediction: Floats, depth: Floats) -> Floats:
    """Returns the prediction (N,) with the scale and shift of :func:`least_squares`."""
    scale, shift = least_squares(prediction, depth)
    return prediction * scale + shift


def lower_median(values: Floats) -> float:
    """Returns PyTorch's median: the lower of the middle two of an even number; NaN if one is."""
    return float(torch.from_numpy(values).median())


def scale_l1(x: Floats, y: Floats, weight: Floats) -> float:
    """Returns the scale that minimises Σ weight · |scale · x - y|: a weighted median of y / x.

    Of several minimisers it is the smallest. It is 0 if all x are.
    """
    used = x != 0
    if not used.any():
        return 0.0
    quotients = y[used] / x[used]
    order = quotients.argsort(kind="stable")
    weights = (weight[used] * np.abs(x[used]))[order].cumsum()
    first = np.searchsorted(2 * weights, weights[-1])
    return float(quotients[order[min(first, len(order) - 1)]])


def line_l1(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Returns (scale, shift) that minimise Σ weight · |scale · x + shift - y| exactly.

    A minimiser passes through two points. The line is turned about one of its points to the best
    slope, until no turn about any of its points improves it: the sum is convex, and linear between
    these turns.
    """
    scale, shift = least_squares(x, y)
    anchors = [int(np.abs(y - scale * x - shift).argmin())]
    least = np.inf
    while anchors:
        anchor = anchors.pop()
        dx, dy = x - x[anchor], y - y[anchor]
        slope = scale_l1(dx, dy, weight)
        residual = np.abs(slope * dx - dy)
        loss = float(weight @ residual)
        if loss < least * (1 - 1e-14):
            least, scale, shift = loss, slope, float(y[anchor] - slope * x[anchor])
            on_line = residual <= 1e-12 * (np.abs(y) + np.abs(slope * x))
            on_line[anchor] = False
            anchors = np.flatnonzero(on_line).tolist()
    return scale, shift


# --- means over pixels ---------------------------------------------------------------------------


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
        return cls(len(prediction), *(np.sum(sums, axis=0) / len(prediction)).tolist())

    @staticmethod
    def _sums(p: Floats, t: Floats) -> list[float]:
        quotient, reciprocal = p / t, t / p
        absolute, error = np.abs(p - t), np.log(quotient)
        relative = absolute * (1 / t)
        inverse = (reciprocal - 1) * (1 / t)
        ratio = np.maximum(quotient, reciprocal)
        return [
            relative.sum(),
            absolute @ (1 / (t + 1e-6)),
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


Errors = Mapping[str, Callable[[Moments], float]]

DELTAS: Errors = {
    "delta1": lambda m: m.delta1,
    "delta2": lambda m: m.delta2,
    "delta3": lambda m: m.delta3,
}
COMMON: Errors = {
    "abs_rel": lambda m: m.abs_rel,
    "rmse": lambda m: math.sqrt(m.square),
    "rmse_log": lambda m: math.sqrt(m.log_square),
    "log10": lambda m: m.log_absolute / math.log(10),
    "silog": lambda m: 100 * m.silog(),
    **DELTAS,
}
EIGEN: Errors = {**COMMON, "sq_rel": lambda m: m.sq_rel}
"""What most projects report, as in the BTS evaluation (Lee et al. 2019)."""


ALL_KINDS: frozenset[DepthKind] = frozenset({"metric", "up_to_scale", "relative"})
DEPTH_KINDS: frozenset[DepthKind] = frozenset({"metric", "up_to_scale"})


@dataclass(frozen=True, eq=False)
class DepthImage:
    """A prediction and the ground truth of one image.

    Attributes:
        prediction: float64 (H, W), of the ``kind``.
        depth: float64 (H, W), metres; anything where not ``valid``.
        valid: bool (H, W), measured pixels inside the protocol's crop.
        kind: ``metric`` or ``up_to_scale`` depth, or ``relative`` inverse depth.
        max_depth: the largest depth of the data in metres, or infinity.
    """

    prediction: Floats
    depth: Floats
    valid: Mask
    kind: DepthKind = "metric"
    max_depth: float = np.inf
    regions: list["Pixels"] = field(default_factory=list)
    """What rules have counted so far."""

    def pixels(self, mask: Mask) -> "Pixels":
        """Returns the pixels of a mask (H, W); one object for all rules with equal masks."""
        for region in self.regions:
            if np.array_equal(region.mask, mask):
                return region
        region = Pixels(self, mask)
        self.regions.append(region)
        return region


class Pixels:
    """The N pixels of an image that count by one or several rules.

    Attributes:
        image: the whole maps.
        mask: bool (H, W).
        prediction, depth: float64 (N,), not to be changed.
    """

    def __init__(self, image: DepthImage, mask: Mask) -> None:
        self.image, self.mask = image, mask
        self.prediction, self.depth = image.prediction[mask], image.depth[mask]
        self._scored: list[tuple[Floats, Moments]] = []

    @cached_property
    def disparity(self) -> Floats:
        """The prediction as inverse depth: 1/p, and 0 where p <= 0, of a prediction of depth."""
        p = self.prediction
        return p if self.image.kind == "relative" else np.where(p <= 0, 0.0, 1 / p)

    @cached_property
    def median_prediction(self) -> float:
        return lower_median(self.prediction)

    @cached_property
    def median_depth(self) -> float:
        return lower_median(self.depth)

    def moments(self, prediction: Floats) -> Moments:
        """Returns the means for a fitted prediction (N,), N > 0; equal ones are computed once."""
        for scored, moments in self._scored:
            if scored[0] == prediction[0] and np.array_equal(scored, prediction):
                return moments
        moments = Moments.of(prediction, self.depth)
        self._scored.append((prediction, moments))
        return moments


LINE = "scale, shift"
"""The name of a fit of both in depth."""


class Rule(ABC):
    """How one project computes its scores from all images.

    Each image leaves sums, which are added over images and processes; :meth:`finish` makes scores
    of the total. By default these are weights and weighted values, so that scores are means. The
    docstring of a rule names the code that defines it after ``Original:``.

    Attributes:
        name: as users type it, and the prefix of its scores.
        summary: one sentence that says what the rule does to the number.
        scores: names of the scores.
        fitted: what is fitted to the ground truth of each image; empty for nothing. ``LINE`` is
            fitted by least squares, all else by the rule itself.
        factors: by score, what turns it into the unit in which the table compares it with other
            rules; scores that are not named are in that unit (silog: percent, natural logarithm).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    fitted: ClassVar[str] = ""
    factors: ClassVar[Mapping[str, float]] = {}

    def finish(self, total: Floats) -> Floats:
        """Returns the scores (S,) from the sums over all images, NaN without any."""
        return total[2:] / total[1] if total[1] else np.full(len(self.scores), np.nan)


RULES: dict[str, "DepthRule"] = {}
"""Rules by name."""


class DepthRule(Rule):
    """A rule for depth maps; a subclass sets ``errors`` and overrides what differs.

    Attributes:
        errors: the scores by name, each from the means over the pixels of an image; a rule that
            reads the whole map sets ``scores`` and implements :meth:`values` instead.
        kinds: of predictions that the rule can score.
        min_depth: metres; pixels count if their depth is larger.
        has_max_depth: whether pixels count only below the largest depth of the data.
        is_clamped: whether predictions are clamped to the range of the data.
        min_pixels: images with fewer pixels that count are left out.
    """

    errors: ClassVar[Errors] = {}
    kinds: ClassVar[frozenset[DepthKind]] = frozenset({"metric"})
    min_depth: ClassVar[float] = 1e-3
    has_max_depth: ClassVar[bool] = True
    is_clamped: ClassVar[bool] = False
    min_pixels: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        if "scores" not in vars(cls):
            cls.scores = tuple(cls.errors)
        RULES[cls.name] = cls()

    def counted(self, image: DepthImage) -> Mask:
        """Returns the pixels that count, bool (H, W): strictly between the limits by default."""
        counted = image.valid & (image.depth > self.min_depth)
        return counted & (image.depth < image.max_depth) if self.has_max_depth else counted

    def predicted(self, pixels: Pixels) -> Floats:
        """Returns the depth (N,) in metres that is scored."""
        depth = pixels.prediction
        if self.fitted == LINE:
            depth = in_depth(depth, pixels.depth)
        return depth.clip(self.min_depth, pixels.image.max_depth) if self.is_clamped else depth

    def values(self, pixels: Pixels) -> Floats:
        """Returns the scores (S,) of one image."""
        moments = pixels.moments(self.predicted(pixels))
        return np.array([error(moments) for error in self.errors.values()])

    def weight(self, pixels: int) -> float:
        """Returns how much an image with so many pixels counts: each the same by default."""
        return 1.0

    def sums(self, image: DepthImage) -> Floats:
        """Returns what one image adds to the total of :meth:`finish`, (2 + S,).

        These are the number of its pixels that count, its weight and its weighted values: zeros of
        an image that is left out.
        """
        pixels = image.pixels(self.counted(image))
        count = len(pixels.depth)
        if count < self.min_pixels:
            return np.zeros(2 + len(self.scores))
        weight = self.weight(count)
        with np.errstate(all="ignore"):
            return np.concatenate([[count, weight], weight * self.values(pixels)])
