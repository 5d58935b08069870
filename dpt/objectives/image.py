"""Tasks of the whole image, read from the CLS token: classification and regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.metrics.image import ClassificationMetrics, RegressionMetrics
from dpt.objectives.base import Objective, refuse_classes
from dpt.types import NO_CLASS, Batch


class ClassificationObjective(Objective):
    """Trains ``outputs["classification"]``, logits (B, C), by cross-entropy.

    Args:
        num_classes: C.
        dropout: in front of the linear layer.
        label_smoothing: share of the target spread over all classes.
        distillation_token: a teacher trains a second classifier, on the token after CLS.
        weight: factor of the loss.
    """

    head = "classification"
    target = "class_id"

    def __init__(
        self,
        *,
        num_classes: int,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
        distillation_token: bool = False,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.dropout = dropout
        self.label_smoothing = label_smoothing
        self.distillation_token = distillation_token
        self.weight = weight
        self.metrics = ClassificationMetrics(num_classes)

    def head_options(self) -> dict[str, Any]:
        return {
            "num_classes": self.num_classes,
            "dropout": self.dropout,
            "distillation_token": self.distillation_token,
        }

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        # summed over the labelled and divided by all, so that ranks can be averaged
        loss = F.cross_entropy(
            outputs["classification"].float(),
            batch["class_id"],
            ignore_index=NO_CLASS,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return {"loss_classification": self.weight * loss / len(batch["class_id"])}

    def refuse_teacher(self, options: Mapping[str, Any]) -> str | None:
        return refuse_classes(self.num_classes, options)

    def distil(
        self, outputs: Mapping[str, Tensor], lesson: Mapping[str, Tensor], *, temperature: float
    ) -> Tensor:
        """The teacher's choice as a hard label (Touvron et al. 2021, eq. 3), at any temperature.

        It is learned by the classifier of the distillation token where there is one, else by the
        only one, as in the paper's comparison of usual with token distillation.
        """
        logits = outputs.get("classification_auxiliary", outputs["classification"])
        choice = lesson["classification"].argmax(dim=1)
        return self.weight * F.cross_entropy(at_least_float32(logits), choice)

    def predict(self, output: Tensor, size: tuple[int, int]) -> Tensor:
        return output.argmax(dim=1)

    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self.metrics.update(outputs["classification"], batch["class_id"])


class RegressionObjective(Objective):
    """Trains ``outputs["regression"]``, one number (B,), by squared error.

    Args:
        dropout: in front of the linear layer.
        weight: factor of the loss.
    """

    head = "regression"
    target = "value"

    def __init__(self, *, dropout: float = 0.0, weight: float = 1.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.weight = weight
        self.metrics = RegressionMetrics()

    def head_options(self) -> dict[str, Any]:
        return {"dropout": self.dropout}

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        value = batch["value"]
        known = value.isfinite()
        error = outputs["regression"].float() - torch.where(known, value, torch.zeros_like(value))
        squared = torch.where(known, error, torch.zeros_like(error)).square()
        return {"loss_regression": self.weight * squared.mean()}

    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        self.metrics.update(outputs["regression"], batch["value"])
