"""Scores by the rules of several projects, their spread and their table."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpt.metrics.base import RuleTable
from dpt.metrics.rules.base import Rule
from dpt.metrics.rules.moments import Floats


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
