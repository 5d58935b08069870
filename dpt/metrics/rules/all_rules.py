"""The scores of all rules from one pass over a data set, their spread and their table."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import RuleTable, SumMetric
from dpt.metrics.depth import DepthMetrics
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules import RULES, SEGMENTATION_RULES, DepthRule, SegmentationRule
from dpt.metrics.rules.base import DepthImage, Floats, Rule
from dpt.metrics.segmentation import SegmentationMetrics
from dpt.types.outputs import DepthKind

DEPTH_NOTE = (
    "A score says nothing about what its rule fits to the ground truth of each image, nor about "
    "the measured pixels that it leaves out. The largest depth and the crop are those of the "
    "protocol."
)
SEGMENTATION_NOTE = (
    "An absent class is in neither ground truth nor prediction. No class is predicted by a 255 in "
    "a file. Pixels without a label count in no rule."
)


class _RuleScores(SumMetric):
    """The base class: adds the scores of ``rules``, and the spread of each shared score.

    Attributes:
        rules: that score each image.
        shared: scores that have a column of their own in the table of rules.
        note: what the columns of the table mean.
    """

    rules: Sequence[Rule]
    shared: ClassVar[tuple[str, ...]]
    note: ClassVar[str]

    @abstractmethod
    def rule_scores(self) -> dict[str, float]:
        """Returns ``<rule>/<score>`` of every rule."""

    @abstractmethod
    def facts(self, scores: Mapping[str, float]) -> dict[str, list[str]]:
        """Returns a text for each rule, by column of the table, in front of the scores."""

    def added_scores(self) -> dict[str, Tensor]:
        """Returns the scores of the rules and their spread, NaN if nothing was counted."""
        if not self.rules:
            return {}
        scores = self.rule_scores()
        for name in self.shared:
            _, low, high = compared(self.rules, name, scores)
            scores[f"spread/{name}"] = high - low
        return {k: torch.tensor(value, dtype=torch.float64) for k, value in scores.items()}

    def drop_rules(self) -> None:
        self.rules = []

    def rule_table(self, scores: Mapping[str, float]) -> RuleTable:
        """Returns a row for each rule, and one of the spread.

        Columns of scores are in one unit; a score that its project states in another one stands
        among the further scores as well.
        """
        columns = {"rule": [*(rule.name for rule in self.rules), "spread"]}
        columns |= {name: [*texts, ""] for name, texts in self.facts(scores).items()}
        for name in self.shared:
            by_rule, low, high = compared(self.rules, name, scores)
            ends = "-" if math.isnan(low) else f"{low:.3g}..{high:.3g}"
            columns[name] = [*map(text_of, by_rule), ends]
        others = []
        for rule in self.rules:
            values = {name: scores[f"{rule.name}/{name}"] for name in rule.scores}
            more = [f"{k} {value:.4g}" for k, value in values.items() if k not in self.shared]
            more += [f"{name} as stated {values[name]:.4g}" for name in rule.factors]
            others.append((rule.name, rule.summary, ", ".join(more)))
        rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
        return RuleTable([*columns], rows, others, self.note)


class RuleMetrics(DepthMetrics, _RuleScores):
    """Depth errors of a protocol, and those of every rule that can score this kind of prediction.

    The rules' scores are ``<rule>/<score>`` over the pixels inside the protocol's crop.
    ``<rule>/left_out`` is the percentage of measured pixels that do not count, and
    ``spread/<score>`` the largest value of a score minus the smallest, in one unit.

    Args:
        protocol, prediction_kind, uncertainties: see :class:`DepthMetrics`; all errors are pooled
            too.
    """

    lower_is_better = DepthMetrics.lower_is_better | {
        f"{rule.name}/{score}"
        for rule in RULES.values()
        for score in rule.scores
        if not score.startswith(("delta", "tau", "boundary"))
    }
    shared = ("abs_rel", "rmse", "silog", "delta1")
    note = DEPTH_NOTE
    rules: Sequence[DepthRule]
    sums: Tensor
    measured: Tensor

    def __init__(
        self, protocol: Protocol, *, prediction_kind: DepthKind, uncertainties: Sequence[str] = ()
    ) -> None:
        super().__init__(
            protocol, prediction_kind=prediction_kind, all_pooled=True, uncertainties=uncertainties
        )
        self.rules = [rule for rule in RULES.values() if prediction_kind in rule.kinds]
        self.add_sum("sums", sum(2 + len(rule.scores) for rule in self.rules))
        self.add_count("measured")

    def update(
        self, prediction: Tensor, target: Tensor, valid: Tensor, *uncertainties: Tensor
    ) -> None:
        super().update(prediction, target, valid, *uncertainties)
        if not self.rules:
            return
        size = prediction.shape[-2:]
        maps = (prediction.double(), target.double(), valid, self.cropped(valid))
        arrays = (tensor.reshape(-1, *size).cpu().numpy() for tensor in maps)
        for values, depth, known, counted in zip(*arrays, strict=True):
            image = DepthImage(values, depth, counted, self.prediction_kind, self.range[1])
            sums = np.concatenate([rule.sums(image) for rule in self.rules])
            self.sums = self.sums + torch.from_numpy(sums).to(self.sums)
            self.measured = self.measured + int(np.count_nonzero(known))

    def compute(self) -> dict[str, Tensor]:
        return super().compute() | self.added_scores()

    def rule_scores(self) -> dict[str, float]:
        ends = np.cumsum([2 + len(rule.scores) for rule in self.rules])
        totals = np.split(self.sums.cpu().numpy(), ends[:-1])
        measured = float(self.measured) or math.nan
        scores = scores_by_rule(self.rules, totals)
        for rule, total in zip(self.rules, totals, strict=True):
            scores[f"{rule.name}/left_out"] = 100 * (1 - total[0] / measured)
        return scores

    def limits_of(self, score: str) -> tuple[float, float]:
        return (0.0, math.inf) if "/" in score else super().limits_of(score)

    def facts(self, scores: Mapping[str, float]) -> dict[str, list[str]]:
        return {
            "fitted": [rule.fitted or "nothing" for rule in self.rules],
            "left out, %": [text_of(scores[f"{rule.name}/left_out"]) for rule in self.rules],
        }


class SegmentationRuleMetrics(SegmentationMetrics, _RuleScores):
    """The scores of :class:`SegmentationMetrics`, and ``<rule>/<score>`` of every rule.

    ``spread/<score>`` is the largest value of a score minus the smallest.

    Args:
        num_classes, class_names: see :class:`SegmentationMetrics`.
    """

    shared = ("miou", "mean_accuracy", "pixel_accuracy")
    note = SEGMENTATION_NOTE
    rules: Sequence[SegmentationRule]
    class_sums: Tensor

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__(num_classes, class_names)
        self.rules = list(SEGMENTATION_RULES.values())
        self.add_count("class_sums", num_classes, sum(rule.columns for rule in self.rules))

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        super().update(prediction, labels)
        if not self.rules:
            return
        size, num_classes = prediction.shape[-2:], len(self.class_names)
        maps = (ids.reshape(-1, *size).cpu().numpy() for ids in (prediction, labels))
        for predicted, true in zip(*maps, strict=True):
            sums = np.hstack([rule.sums(predicted, true, num_classes) for rule in self.rules])
            self.class_sums = self.class_sums + torch.from_numpy(sums).to(self.class_sums)

    def compute(self) -> dict[str, Tensor]:
        return super().compute() | self.added_scores()

    def rule_scores(self) -> dict[str, float]:
        counts = self.confusion.cpu().numpy().astype(np.float64)
        ends = np.cumsum([rule.columns for rule in self.rules])
        columns = np.split(self.class_sums.cpu().numpy(), ends[:-1], axis=1)
        return scores_by_rule(self.rules, [np.hstack([counts, sums]) for sums in columns])

    def facts(self, scores: Mapping[str, float]) -> dict[str, list[str]]:
        return {
            "absent class": [rule.absent for rule in self.rules],
            "no class predicted": [rule.no_class for rule in self.rules],
        }


def scores_by_rule(rules: Sequence[Rule], totals: Sequence[Floats]) -> dict[str, float]:
    """Returns ``<rule>/<score>`` from the sums over all images of each rule."""
    scores: dict[str, float] = {}
    for rule, total in zip(rules, totals, strict=True):
        with np.errstate(all="ignore"):
            values = rule.finish(total).tolist()
        scores |= {f"{rule.name}/{k}": v for k, v in zip(rule.scores, values, strict=True)}
    return scores


def compared(
    rules: Sequence[Rule], score: str, scores: Mapping[str, float]
) -> tuple[list[float], float, float]:
    """Returns a score by each rule in the unit that all share, NaN for rules without this score,
    and the smallest and the largest finite value, NaN without any."""
    stated = {rule: scores.get(f"{rule.name}/{score}", math.nan) for rule in rules}
    values = [rule.factors.get(score, 1.0) * value for rule, value in stated.items()]
    finite = [value for value in values if math.isfinite(value)]
    return values, min(finite, default=math.nan), max(finite, default=math.nan)


def text_of(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"
