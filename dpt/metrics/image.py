"""Metrics of one prediction an image: accuracy of a class, error of a number."""

from __future__ import annotations

import torch
from torch import Tensor

from dpt.metrics.base import SumMetric

_TOP = 5


class ClassificationMetrics(SumMetric):
    """``accuracy`` (top-1) and, with more than five classes, ``top5_accuracy``."""

    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_count("counts", 3)  # images with a class; right, and right among the first five

    def update(self, logits: Tensor, class_id: Tensor) -> None:
        """Args: logits: float (B, C); class_id: integer (B,), negative (-1) where unknown."""
        if logits.shape != (len(class_id), self.num_classes):
            raise ValueError(
                f"logits must be ({len(class_id)}, {self.num_classes}), got {tuple(logits.shape)}"
            )
        known = class_id >= 0
        ranked = logits.topk(min(_TOP, self.num_classes), dim=1).indices
        hit = (ranked == class_id[:, None]) & known[:, None]
        self.counts = self.counts + torch.stack([known.sum(), hit[:, 0].sum(), hit.any(1).sum()])

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN if no image had a class."""
        images, correct, correct_top5 = self.counts
        top5 = {"top5_accuracy": correct_top5 / images} if self.num_classes > _TOP else {}
        return {"accuracy": correct / images, **top5}


class RegressionMetrics(SumMetric):
    """``mae``, ``rmse`` and ``r2`` of real values of any shape; NaN targets do not count."""

    lower_is_better = frozenset({"mae", "rmse"})
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 5)  # number of targets, Σ |error|, Σ error², Σ target, Σ target²

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Args: prediction, target: float of one shape and unit; NaN in target where unknown."""
        if prediction.shape != target.shape:
            raise ValueError(
                "prediction and target must have one shape, "
                f"got {tuple(prediction.shape)} and {tuple(target.shape)}"
            )
        known = ~target.isnan()
        target = torch.where(known, target, 0.0).to(self.sums.dtype)
        error = torch.where(known, prediction.to(target.dtype) - target, 0.0)
        terms = (known.to(error.dtype), error.abs(), error.square(), target, target.square())
        self.sums = self.sums + torch.stack([term.sum() for term in terms])

    def compute(self) -> dict[str, Tensor]:
        """Scalars; NaN without a target, and ``r2`` NaN where all targets are equal."""
        count, absolute, squared, total, square = self.sums
        spread = square - total.square() / count
        rounding = 8 * torch.finfo(spread.dtype).eps * square
        return {
            "mae": absolute / count,
            "rmse": (squared / count).sqrt(),
            "r2": 1 - squared / torch.where(spread > rounding, spread, torch.nan),
        }
