"""Metrics of one class or one number an image."""

from math import inf

import torch
from torch import Tensor

from dpt.metrics.base import SumMetric, require_one_shape

_TOP = 5


class ClassificationMetrics(SumMetric):
    """``accuracy`` (top-1) and, with more than five classes, ``top5_accuracy``."""

    has_limits = True
    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_count("counts", 3)  # images with a class; right, and right among the first five

    def update(self, logits: Tensor, class_id: Tensor) -> None:
        """Adds images.

        Args:
            logits: float (B, C).
            class_id: integer (B,), negative (-1) where unknown.
        """
        is_known = class_id >= 0
        ranked = logits.topk(min(_TOP, self.num_classes), dim=1).indices
        hits = (ranked == class_id[:, None]) & is_known[:, None]
        counts = is_known.sum(), hits[:, 0].sum(), hits.any(1).sum()
        self.counts = self.counts + torch.stack(counts)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1; NaN if no image had a class."""
        images, correct, correct_top5 = self.counts
        scores = {"accuracy": correct / images}
        if self.num_classes > _TOP:
            scores["top5_accuracy"] = correct_top5 / images
        return scores


class RegressionMetrics(SumMetric):
    """``mae``, ``rmse`` and ``r2`` of real values of any shape; NaN targets do not count."""

    lower_is_better = frozenset({"mae", "rmse"})
    has_limits = True
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 5)  # number of targets, Σ |error|, Σ error², Σ target, Σ target²

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds values.

        Args:
            prediction: float.
            target: float of the same shape and unit; NaN where unknown.
        """
        require_one_shape(prediction=prediction, target=target)
        is_known = ~target.isnan()
        target = torch.where(is_known, target, 0.0).to(self.sums.dtype)
        error = torch.where(is_known, prediction.to(target.dtype) - target, 0.0)
        terms = (is_known.to(error.dtype), error.abs(), error.square(), target, target.square())
        self.sums = self.sums + torch.stack([term.sum() for term in terms])

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars; NaN without a target, and ``r2`` NaN where all targets are equal."""
        count, absolute, squared, total, square = self.sums
        spread = square - total.square() / count
        rounding = 8 * torch.finfo(spread.dtype).eps * square
        return {
            "mae": absolute / count,
            "rmse": (squared / count).sqrt(),
            "r2": 1 - squared / torch.where(spread > rounding, spread, torch.nan),
        }

    def limits_of(self, score: str) -> tuple[float, float]:
        return (-inf, 1.0) if score == "r2" else super().limits_of(score)


class FieldOfViewMetrics(RegressionMetrics):
    """``fov_error``: mean absolute error of angles, in their unit; NaN targets do not count."""

    lower_is_better = frozenset({"fov_error"})

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars; NaN without a target."""
        return {"fov_error": super().compute()["mae"]}
