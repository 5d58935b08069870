"""Image-level tasks, read from the CLS token: classification and regression."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.files import few
from dpt.metrics.image import ClassificationMetrics, RegressionMetrics
from dpt.objectives.base import ClassObjective, Objective, mean_predictions
from dpt.types import NO_CLASS, Batch, HeadOutput
from dpt.validation import Share


class ClassificationObjective(ClassObjective):
    """Trains ``outputs["classification"]``, logits (B, C), by cross-entropy.

    Args:
        num_classes: C.
        class_names: C of them or none; saved with the weights.
        dropout: in front of the linear layer.
        label_smoothing: share of the target spread over all classes.
    """

    head = "classification"
    target = "class_id"
    dense = False

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        dropout: float = 0.0,
        label_smoothing: Share = 0.0,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing
        names = list(class_names)
        self.head_options = {"num_classes": num_classes, "dropout": dropout, "class_names": names}
        self.metrics = ClassificationMetrics(num_classes)

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        found, names = super().from_data(data, settings), cls.class_names(data)
        if len(names) < 2:
            raise ValueError(f"classification needs two classes, not {few(names) or 'none'}")
        return {**found, "class_names": names}

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        # summed over labelled images and divided by all, so that processes can be averaged
        loss = F.cross_entropy(
            output.tensor.float(),
            batch["class_id"],
            ignore_index=NO_CLASS,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return {"loss_classification": self.weight * loss / len(batch["class_id"])}

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Hard-label distillation (Touvron et al. 2021, eq. 3); ``temperature`` is not used."""
        logits = at_least_float32(output.tensor)
        return self.weight * F.cross_entropy(logits, teacher.argmax(dim=1))

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """The frequencies of the classes, as logits."""
        ids = (labels["class_id"] for labels in samples)
        targets = (F.one_hot(i[i != NO_CLASS], self.num_classes).float() for i in ids)
        return mean_predictions((t for t in targets if len(t)), dense=False)


class RegressionObjective(Objective):
    """Trains ``outputs["regression"]``, one number (B,), by the squared error over ``std``.

    Args:
        dropout: in front of the linear layer.
        mean, std: of the training values, which the head starts from.
    """

    head = "regression"
    target = "value"
    dense = False

    def __init__(
        self, *, dropout: float = 0.0, mean: float = 0.0, std: float = 1.0, weight: float = 1.0
    ) -> None:
        super().__init__(weight=weight)
        self.std = std
        self.head_options = {"dropout": dropout, "mean": mean, "std": std}
        self.metrics = RegressionMetrics()

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        files = (data.files(i) for i in range(len(data)))
        values = [each.value for each in files if each and each.value is not None]
        if not values:  # shards: of some samples, as their pictures are decoded too
            some = (data[i].get("value") for i in data.some_indices(256))
            values = [value for value in some if value is not None]
        if not values:
            return {}
        return {"mean": float(np.mean(values)), "std": float(np.std(values)) or 1.0}

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        value = batch["value"]
        known = value.isfinite()
        error = (output.tensor.float() - torch.where(known, value, 0.0)) / self.std
        return {"loss_regression": self.weight * torch.where(known, error, 0.0).square().mean()}
