"""The scores of all rules from one pass over a data set."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.metrics.base import RuleTable
from dpt.metrics.depth import DepthMetrics
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules.base import RULES, DepthImage
from dpt.types import DepthKind

SHARED = ("abs_rel", "rmse", "silog", "delta1")
"""Scores that have a column of their own in the table of rules."""


class RuleMetrics(DepthMetrics):
    """Depth errors of a protocol, and those of every rule that can score this kind of prediction.

    The rules' scores are ``<rule>/<score>`` over the pixels inside the protocol's crop.
    ``<rule>/left_out`` is the percentage of measured pixels that do not count, and
    ``spread/<score>`` the largest value of a score minus the smallest.

    Args:
        protocol, prediction_kind, all_pooled, uncertainties: see :class:`DepthMetrics`.
    """

    lower_is_better = DepthMetrics.lower_is_better | {
        f"{rule.name}/{score}"
        for rule in RULES.values()
        for score in rule.scores
        if not score.startswith(("delta", "tau"))
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
        scores: dict[str, float] = {}
        for rule, total in zip(self.rules, totals, strict=True):
            with np.errstate(all="ignore"):
                values = rule.finish(total).tolist()
            scores |= {f"{rule.name}/{k}": v for k, v in zip(rule.scores, values, strict=True)}
            left_out = 100 * (1 - total[0] / measured) if measured else math.nan
            scores[f"{rule.name}/left_out"] = left_out
        for name in SHARED:
            finite = self._finite(name, scores)
            scores[f"spread/{name}"] = max(finite) - min(finite) if finite else math.nan
        tensors = torch.tensor(list(scores.values()), dtype=torch.float64).unbind()
        return super().compute() | dict(zip(scores, tensors, strict=True))

    def drop_rules(self) -> None:
        self.rules = []

    def _finite(self, score: str, scores: Mapping[str, float]) -> list[float]:
        """Returns the finite values of a score by all rules that report it."""
        values = [scores.get(f"{rule.name}/{score}", math.nan) for rule in self.rules]
        return [value for value in values if math.isfinite(value)]

    def rule_table(self, scores: Mapping[str, float]) -> RuleTable:
        rows: list[tuple[str | float, ...]] = []
        for rule in self.rules:
            values = {name: scores[f"{rule.name}/{name}"] for name in rule.scores}
            more = [f"{name} {value:.4g}" for name, value in values.items() if name not in SHARED]
            shared = [values.get(name, math.nan) for name in SHARED]
            left_out = scores[f"{rule.name}/left_out"]
            fitted = rule.fitted or "nothing"
            rows.append((rule.name, fitted, left_out, *shared, ", ".join(more), rule.summary))
        spreads = []
        for name in SHARED:
            finite = self._finite(name, scores)
            spreads.append(f"{min(finite):.3g}..{max(finite):.3g}" if finite else "-")
        rows.append(("spread", "", math.nan, *spreads, "", ""))
        columns = ("rule", "fitted", "left out, %", *SHARED)
        return RuleTable((*columns, "further scores", "what it does"), rows)
