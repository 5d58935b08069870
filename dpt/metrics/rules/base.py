"""The base classes of rules: how one project computes the scores that it publishes.

Everything is NumPy in float64: originals are met to 1e-6, and many rules score one image.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from dpt.metrics.rules.fits import lower_median
from dpt.metrics.rules.moments import Floats, Mask, Moments, Truth
from dpt.types.outputs import DepthKind

ALL_KINDS: frozenset[DepthKind] = frozenset({"metric", "up_to_scale", "relative"})
DEPTH_KINDS: frozenset[DepthKind] = frozenset({"metric", "up_to_scale"})


@dataclass(frozen=True)
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
    masks: list[Mask] = field(default_factory=list)
    """Pixels that count by one or several rules."""
    gathered: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """Values at such pixels, by the identities of the map and the mask."""
    medians: dict[int, float] = field(default_factory=dict)
    """By the identity of the values."""
    truths: dict[int, Truth] = field(default_factory=dict)
    """By the identity of the mask."""
    scored: list[tuple[Floats, Truth, Moments]] = field(default_factory=list)
    """Predictions and ground truths with their means, which rules with the same predictions
    share."""

    @cached_property
    def disparity(self) -> Floats:
        """The prediction as inverse depth: 1/p, and 0 where p <= 0, of a prediction of depth."""
        if self.kind == "relative":
            return self.prediction
        with np.errstate(divide="ignore"):
            return np.where(self.prediction <= 0, 0.0, 1 / self.prediction)

    def shared(self, counted: Mask) -> Mask:
        """Returns the mask of an earlier rule if it is the same, so that rules share values."""
        for mask in self.masks:
            if mask is counted or np.array_equal(mask, counted):
                return mask
        self.masks.append(counted)
        return counted

    def prediction_at(self, counted: Mask) -> Floats:
        """Returns the prediction (N,) at pixels; not to be changed."""
        return self._gathered(self.prediction, counted)

    def depth_at(self, counted: Mask) -> Floats:
        """Returns the ground truth (N,) at pixels; not to be changed."""
        return self._gathered(self.depth, counted)

    def median(self, values: Floats) -> float:
        """Returns the :func:`lower_median` of what one of these methods has returned."""
        if id(values) not in self.medians:
            self.medians[id(values)] = lower_median(values)
        return self.medians[id(values)]

    def moments(self, prediction: Floats, counted: Mask) -> Moments:
        """Returns the means for a prediction (N,) of the pixels that count."""
        counted = self.shared(counted)
        if id(counted) not in self.truths:
            self.truths[id(counted)] = Truth.of(self.depth_at(counted))
        truth = self.truths[id(counted)]
        for other, other_truth, moments in self.scored:
            is_like = other_truth is truth and other[0] == prediction[0]
            if is_like and np.array_equal(other, prediction):
                return moments
        moments = Moments.of(prediction, truth)
        self.scored.append((prediction, truth, moments))
        return moments

    def _gathered(self, values: Floats, counted: Mask) -> Floats:
        key = id(values), id(self.shared(counted))
        if key not in self.gathered:
            self.gathered[key] = values[counted]
        return self.gathered[key]


class Rule(ABC):
    """How one project computes its scores from all images.

    Each image leaves sums, which are added over images and processes; :meth:`finish` makes scores
    of the total. By default these are weights and weighted values, so that scores are means.

    Attributes:
        name: as users type it, and the prefix of its scores.
        summary: one sentence that says what the rule does to the number.
        original: the code that defines the rule.
        scores: names of the scores.
        fitted: what is fitted to the ground truth of each image; empty for nothing.
        factors: by score, what turns it into the unit in which the table compares it with other
            rules; scores that are not named are in that unit (silog: percent, natural logarithm).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    original: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    fitted: ClassVar[str] = ""
    factors: ClassVar[Mapping[str, float]] = {}

    def finish(self, total: Floats) -> Floats:
        """Returns the scores (S,) from the sums over all images, NaN without any."""
        return total[2:] / total[1] if total[1] else np.full(len(self.scores), np.nan)


RULES: dict[str, "DepthRule"] = {}
"""Rules by name."""


class DepthRule(Rule):
    """A rule for depth maps; a subclass sets ``errors`` and implements :meth:`predicted`.

    Attributes:
        errors: the scores by name, each from the means over the pixels of an image; a rule that
            reads the whole map sets ``scores`` and implements :meth:`values` instead.
        kinds: of predictions that the rule can score.
        min_depth: metres; pixels count if their depth is larger.
        min_pixels: images with fewer pixels that count are left out.
    """

    errors: ClassVar[Mapping[str, Callable[[Moments], float]]]
    kinds: ClassVar[frozenset[DepthKind]] = frozenset({"metric"})
    min_depth: ClassVar[float] = 1e-3
    min_pixels: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        if "scores" not in vars(cls):
            cls.scores = tuple(cls.errors)
        RULES[cls.name] = cls()

    def counted(self, image: DepthImage) -> Mask:
        """Returns the pixels that count, bool (H, W): strictly between the limits by default."""
        return image.valid & (image.depth > self.min_depth) & (image.depth < image.max_depth)

    @abstractmethod
    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        """Returns the depth (N,) in metres that is scored on the pixels that count."""

    def values(self, image: DepthImage, counted: Mask) -> Floats:
        """Returns the scores (S,) of one image on the pixels that count."""
        moments = image.moments(self.predicted(image, counted), counted)
        return np.array([error(moments) for error in self.errors.values()])

    def weight(self, pixels: int) -> float:
        """Returns how much an image with so many pixels counts: each the same by default."""
        return 1.0

    def sums(self, image: DepthImage) -> Floats:
        """Returns what one image adds to the total of :meth:`finish`, (2 + S,).

        These are the number of its pixels that count, its weight and its weighted values: zeros of
        an image that is left out.
        """
        counted = image.shared(self.counted(image))
        pixels = int(np.count_nonzero(counted))
        if pixels < self.min_pixels:
            return np.zeros(2 + len(self.scores))
        weight = self.weight(pixels)
        with np.errstate(all="ignore"):
            return np.concatenate([[pixels, weight], weight * self.values(image, counted)])
