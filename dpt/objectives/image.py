"""Image-level tasks, read from the CLS token: classification, regression and field of view."""

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data.base import Dataset
from dpt.depthmath import at_least_float32
from dpt.files import few
from dpt.metrics.image import (
    ClassificationMetrics,
    FieldOfViewMetrics,
    RegressionMetrics,
)
from dpt.metrics.protocols import Protocol
from dpt.objectives.base import ClassObjective, Objective, mean_predictions
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.samples import NO_CLASS, Batch
from dpt.validation import NonNegative, Plain, PlainMapping, Share


class ClassificationObjective(ClassObjective):
    """Trains logits (B, C) by cross-entropy.

    Args:
        num_classes: C.
        class_names: C of them or none; saved with the weights.
        label_smoothing: fraction of the target spread over all classes.
    """

    head = "classification"
    target = "class_id"
    dense = False

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        label_smoothing: Share = 0.0,
        weight: NonNegative = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing
        self.class_names = tuple(class_names)
        self.metrics = ClassificationMetrics(num_classes)

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        names = cls.names_of_classes(data)
        if len(names) < 2:
            raise ValueError(f"classification needs two classes, not {few(names) or 'none'}")
        return super().from_data(data, settings)

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
        """Returns the cross-entropy to the teacher's class (Touvron et al. 2021, eq. 3).

        ``temperature`` is not used.
        """
        logits = at_least_float32(output.tensor)
        return self.weight * F.cross_entropy(logits, teacher.argmax(dim=1))

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the frequencies of the classes, as logits."""
        ids = torch.cat([labels["class_id"] for labels in samples])
        targets = F.one_hot(ids[ids != NO_CLASS], self.num_classes).float()
        return mean_predictions(targets[:, None], dense=False)


class RegressionObjective(Objective):
    """Trains one number (B,) by the squared error over ``std``, that of the training values."""

    head = "regression"
    target = "value"
    dense = False
    measured = ("mean", "std")

    def __init__(self, *, std: float = 1.0, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.std = std
        self.metrics = RegressionMetrics()

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        files = (data.files(i) for i in range(len(data)))
        values = [f.value for f in files if f and f.value is not None]
        if not values:  # shards: of some samples, as their pictures are decoded too
            samples = (data[i] for i in data.some_indices(256))  # one at a time in memory
            values = [sample["value"] for sample in samples if "value" in sample]
        if not values:
            return {}
        return {"mean": float(np.mean(values)), "std": float(np.std(values)) or 1.0}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        return cls()  # its settings are of the loss alone

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        value = batch["value"]
        has_value = value.isfinite()
        error = (output.tensor.float() - torch.where(has_value, value, 0.0)) / self.std
        loss = torch.where(has_value, error, 0.0).square().mean()
        return {"loss_regression": self.weight * loss}


class FieldOfViewObjective(Objective):
    """Trains the horizontal field of view (B,) by the absolute error of the angle in radians.

    The ground truth is that of :class:`dpt.geometry.Camera`: 2 · atan(W / (2 · fx)), for a crop of
    an image too.
    """

    head = "fov"
    target = "K"
    dense = False

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.metrics = FieldOfViewMetrics()

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        fov = batch["fov"]
        is_known = fov.isfinite()
        error = torch.deg2rad(output.tensor.float() - torch.where(is_known, fov, 0.0))
        # divided by all images, so that processes can be averaged
        loss = torch.where(is_known, error, 0.0).abs().mean()
        return {"loss_fov": self.weight * loss}

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's angle in place of the true one."""
        return self.weight * torch.deg2rad(output.tensor.float() - teacher).abs().mean()

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        return (batch["fov"][k : k + 1],)

    def update(self, output: HeadOutput, batch: Batch) -> None:
        self.metrics.update(output.tensor, batch["fov"])
