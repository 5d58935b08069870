"""Metrics of one prediction an image: accuracy of a class, error of a number."""

from __future__ import annotations

import torch
from torch import Tensor

from dpt.metrics.base import SumMetric

_TOP = 5


class ClassificationMetrics(SumMetric):
    """``accuracy`` (top-1) and, with more than five classes, ``top5_accuracy``."""

    higher_is_better = True
    correct: Tensor
    correct_top5: Tensor
    images: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        for name in ("correct", "correct_top5", "images"):
            self.add_count(name)

    def update(self, logits: Tensor, class_id: Tensor) -> None:
        """Args: logits: float (B, C); class_id: integer (B,), negative (-1) where unknown."""
        if logits.shape != (len(class_id), self.num_classes):
            raise ValueError(
                f"logits must be ({len(class_id)}, {self.num_classes}), got {tuple(logits.shape)}"
            )
        known = class_id >= 0
        ranked = logits.topk(min(_TOP, self.num_classes), dim=1).indices
        hit = (ranked == class_id[:, None]) & known[:, None]
        self.correct = self.correct + hit[:, 0].sum()
        self.correct_top5 = self.correct_top5 + hit.any(1).sum()
        self.images = self.images + known.sum()

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN if no image had a class."""
        result = {"accuracy": self.correct / self.images}
        if self.num_classes > _TOP:
            result["top5_accuracy"] = self.correct_top5 / self.images
        return result


class RegressionMetrics(SumMetric):
    """``mae``, ``rmse`` and ``r2`` of real values of any shape; NaN targets do not count."""

    lower_is_better = frozenset({"mae", "rmse"})
    count: Tensor
    absolute_error: Tensor
    squared_error: Tensor
    target_sum: Tensor
    target_square: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_count("count")
        for name in ("absolute_error", "squared_error", "target_sum", "target_square"):
            self.add_sum(name)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Args: prediction, target: float of one shape and unit; NaN in target where unknown."""
        if prediction.shape != target.shape:
            raise ValueError(
                "prediction and target must have one shape, "
                f"got {tuple(prediction.shape)} and {tuple(target.shape)}"
            )
        known = ~target.isnan()
        target = torch.where(known, target, 0.0).to(self.target_sum.dtype)
        error = torch.where(known, prediction.to(target.dtype) - target, 0.0)
        self.count = self.count + known.sum()
        self.absolute_error = self.absolute_error + error.abs().sum()
        self.squared_error = self.squared_error + error.square().sum()
        self.target_sum = self.target_sum + target.sum()
        self.target_square = self.target_square + target.square().sum()

    def compute(self) -> dict[str, Tensor]:
        """Scalars; NaN without a target, and ``r2`` NaN where all targets are equal."""
        spread = self.target_square - self.target_sum.square() / self.count
        rounding = 8 * torch.finfo(spread.dtype).eps * self.target_square
        r2 = 1 - self.squared_error / torch.where(spread > rounding, spread, torch.nan)
        return {
            "mae": self.absolute_error / self.count,
            "rmse": (self.squared_error / self.count).sqrt(),
            "r2": r2,
        }
