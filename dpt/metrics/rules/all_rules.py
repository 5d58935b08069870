"""The scores of all rules from one pass over a data set, their spread and their table."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import RuleTable
from dpt.metrics.depth import DepthMetrics
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules import RULES, SEGMENTATION_RULES
from dpt.metrics.rules.base import DepthImage, Rule
from dpt.metrics.rules.fits import Floats
from dpt.metrics.segmentation import SegmentationMetrics
from dpt.types.outputs import DepthKind

DEPTH_COLUMNS = ("abs_rel", "rmse", "silog", "delta1")
"""Scores of depth that have a column of their own in the table of rules."""
SEGMENTATION_COLUMNS = ("miou", "mean_accuracy", "pixel_accuracy")
"""Scores of segmentation that have one."""

DEPTH_NOTE = (
    "A score says nothing about what its rule fits to the ground truth of each image, nor about "
    "the measured pixels that it leaves out. The largest depth and the crop are those of the "
    "protocol."
)
SEGMENTATION_NOTE = (
    "An absent class is in neither ground truth nor prediction. No class is predicted by a 255 in "
    "a file. Pixels without a label count in no rule."
)


class RuleMetrics(DepthMetrics):
    """Depth errors of a protocol, and those of every rule that can score this kind of prediction.

    The rules' scores are ``<rule>/<score>`` over the pixels inside the protocol's crop.
    ``<rule>/left_out`` is the percentage of measured pixels that do not count, and
    ``spread/<score>`` the largest value of a score minus the smallest, in one unit.

    Args:
        protocol, prediction_kind, all_pooled, uncertainties: see :class:`DepthMetrics`.
    """

    lower_is_better = DepthMetrics.lower_is_better | {
        f"{rule.name}/{score}"
        for rule in RULES.values()
        for score in rule.scores
        if not score.startswith(("delta", "tau", "boundary"))
    }
    sums: Tensor
    measured: Tensor

    def __init__(
        self,
        protocol: Protocol,
        *,
        prediction_kind: DepthKind,
        all_pooled: bool = False,
        uncertainties: Sequence[str] = (),
    ) -> None:
        super().__init__(
            protocol,
            prediction_kind=prediction_kind,
            all_pooled=all_pooled,
            uncertainties=uncertainties,
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
        maps = (prediction, target, valid, self.cropped(valid))
        arrays = (tensor.reshape(-1, *size).cpu().numpy() for tensor in maps)
        for values, depth, known, counted in zip(*arrays, strict=True):
            image = DepthImage(
                values.astype(np.float64),
                depth.astype(np.float64),
                counted,
                self.prediction_kind,
                self.range[1],
            )
            sums = np.concatenate([rule.sums(image) for rule in self.rules])
            self.sums = self.sums + torch.from_numpy(sums).to(self.sums)
            self.measured = self.measured + int(np.count_nonzero(known))

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars by name, NaN if no valid pixel was seen."""
        if not self.rules:
            return super().compute()
        ends = np.cumsum([2 + len(rule.scores) for rule in self.rules])
        totals = np.split(self.sums.cpu().numpy(), ends[:-1])
        measured = int(self.measured)
        scores = scores_by_rule(self.rules, totals)
        for rule, total in zip(self.rules, totals, strict=True):
            left_out = 100 * (1 - total[0] / measured) if measured else math.nan
            scores[f"{rule.name}/left_out"] = left_out
        scores |= spreads(self.rules, DEPTH_COLUMNS, scores)
        return super().compute() | _as_tensors(scores)

    def limits_of(self, score: str) -> tuple[float, float]:
        return (0.0, math.inf) if "/" in score else super().limits_of(score)

    def drop_rules(self) -> None:
        self.rules = []

    def rule_table(self, scores: Mapping[str, float]) -> RuleTable:
        facts: dict[str, list[str | float]] = {
            "fitted": [rule.fitted or "nothing" for rule in self.rules],
            "left out, %": [scores[f"{rule.name}/left_out"] for rule in self.rules],
        }
        return table_of(self.rules, DEPTH_COLUMNS, scores, facts, DEPTH_NOTE)


class SegmentationRuleMetrics(SegmentationMetrics):
    """The scores of :class:`SegmentationMetrics`, and ``<rule>/<score>`` of every rule.

    ``spread/<score>`` is the largest value of a score minus the smallest.

    Args:
        num_classes, class_names: see :class:`SegmentationMetrics`.
    """

    class_sums: Tensor

    def __init__(self, num_classes: int, class_names: Sequence[str] = ()) -> None:
        super().__init__(num_classes, class_names)
        self.rules = list(SEGMENTATION_RULES.values())
        self.add_count("class_sums", num_classes, sum(rule.columns for rule in self.rules))

    def update(self, prediction: Tensor, labels: Tensor) -> None:
        super().update(prediction, labels)
        if not any(rule.columns for rule in self.rules):
            return
        size, num_classes = prediction.shape[-2:], len(self.class_names)
        maps = (ids.reshape(-1, *size).cpu().numpy() for ids in (prediction, labels))
        for predicted, true in zip(*maps, strict=True):
            sums = np.hstack([rule.sums(predicted, true, num_classes) for rule in self.rules])
            self.class_sums = self.class_sums + torch.from_numpy(sums).to(self.class_sums)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars by name, NaN if nothing was counted."""
        if not self.rules:
            return super().compute()
        counts = self.confusion.cpu().numpy().astype(np.float64)
        ends = np.cumsum([rule.columns for rule in self.rules])
        columns = np.split(self.class_sums.cpu().numpy(), ends[:-1], axis=1)
        totals = [np.hstack([counts, sums]) for sums in columns]
        scores = scores_by_rule(self.rules, totals)
        scores |= spreads(self.rules, SEGMENTATION_COLUMNS, scores)
        return super().compute() | _as_tensors(scores)

    def drop_rules(self) -> None:
        self.rules = []

    def rule_table(self, scores: Mapping[str, float]) -> RuleTable:
        facts = {
            "absent class": [rule.absent for rule in self.rules],
            "no class predicted": [rule.no_class for rule in self.rules],
        }
        return table_of(self.rules, SEGMENTATION_COLUMNS, scores, facts, SEGMENTATION_NOTE)


def _as_tensors(scores: Mapping[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in scores.items()}


def scores_by_rule(rules: Sequence[Rule], totals: Sequence[Floats]) -> dict[str, float]:
    """Returns ``<rule>/<score>`` from the sums over all images of each rule."""
    scores: dict[str, float] = {}
    for rule, total in zip(rules, totals, strict=True):
        with np.errstate(all="ignore"):
            values = rule.finish(total).tolist()
        scores |= {f"{rule.name}/{k}": v for k, v in zip(rule.scores, values, strict=True)}
    return scores


def comparable(rule: Rule, score: str, scores: Mapping[str, float]) -> float:
    """Returns a score in the unit that all rules share, NaN if the rule does not report it."""
    return rule.factors.get(score, 1.0) * scores.get(f"{rule.name}/{score}", math.nan)


def finite_scores(rules: Sequence[Rule], score: str, scores: Mapping[str, float]) -> list[float]:
    """Returns the finite values of a score by all rules that report it, in one unit."""
    values = [comparable(rule, score, scores) for rule in rules]
    return [value for value in values if math.isfinite(value)]


def spreads(
    rules: Sequence[Rule], shared: Sequence[str], scores: Mapping[str, float]
) -> dict[str, float]:
    """Returns the largest minus the smallest value, in one unit, as ``spread/<score>``."""
    by_score = {f"spread/{name}": finite_scores(rules, name, scores) for name in shared}
    return {key: max(v) - min(v) if v else math.nan for key, v in by_score.items()}


def table_of(
    rules: Sequence[Rule],
    shared: Sequence[str],
    scores: Mapping[str, float],
    facts: Mapping[str, Sequence[str | float]],
    note: str,
) -> RuleTable:
    """Returns a row for each rule, and one of the spread.

    Columns of scores are in one unit; a score that its project states in another one stands among
    the further scores as well.

    Args:
        shared: scores that have a column of their own.
        scores: ``<rule>/<score>``.
        facts: a value for each rule, by column, in front of the scores.
        note: what the columns mean.
    """
    rows: list[tuple[str | float, ...]] = []
    for rule, *beside in zip(rules, *facts.values(), strict=True):
        values = {name: scores[f"{rule.name}/{name}"] for name in rule.scores}
        more = [f"{name} {value:.4g}" for name, value in values.items() if name not in shared]
        more += [f"{name} as stated {values[name]:.4g}" for name in rule.factors]
        columns = [comparable(rule, name, scores) for name in shared]
        rows.append((rule.name, *beside, *columns, ", ".join(more), rule.summary))
    ends = []
    for name in shared:
        finite = finite_scores(rules, name, scores)
        ends.append(f"{min(finite):.3g}..{max(finite):.3g}" if finite else "-")
    rows.append(("spread", *[""] * len(facts), *ends, "", ""))
    return RuleTable(("rule", *facts, *shared, "further scores", "what it does"), rows, note)
