"""Semantic segmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpt.losses.distillation import softened_divergence
from dpt.losses.segmentation import CrossEntropyLoss
from dpt.metrics.segmentation import SegmentationMetrics
from dpt.nn.enlarge import upsample
from dpt.objectives.base import Objective, refuse_classes
from dpt.rowwise import enlarged_argmax
from dpt.types import Batch


class SegmentationObjective(Objective):
    """Trains ``outputs["segmentation"]``, logits (B, K, H, W), and scores its argmax.

    Args:
        num_classes: K.
        class_names: for the report, K of them or none.
        loss: called with logits (B, K, H, W) and labels (B, H, W).
        kind: of the head: ``dpt`` reads the decoder's map, ``linear`` the encoder's own tokens, see
            :class:`dpt.nn.LinearSegmentationHead`.
        levels: of a linear head, how many of the deepest levels it reads.
        auxiliary_weight: factor of the same loss on the auxiliary head (Ranftl et al. 2021,
            section 4.2: 0.2 on the penultimate fusion output); 0 leaves the head out. A linear head
            has none.
        dropout: in front of the last convolution.
        weight: factor of the whole loss.
        boundary: also score boundary IoU at this width, see :class:`SegmentationMetrics`.
    """

    head = "segmentation"
    target = "labels"
    metrics: SegmentationMetrics

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        loss: nn.Module | None = None,
        kind: Literal["dpt", "linear"] = "dpt",
        levels: int = 1,
        auxiliary_weight: float = 0.2,
        dropout: float = 0.1,
        weight: float = 1.0,
        boundary: float | None = None,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.loss = loss or CrossEntropyLoss()
        self.kind = kind
        self.levels = levels
        self.auxiliary_weight = auxiliary_weight
        self.dropout = dropout
        self.weight = weight
        self.metrics = SegmentationMetrics(
            num_classes, class_names=tuple(class_names), boundary=boundary
        )

    def head_options(self) -> dict[str, Any]:
        options = {"num_classes": self.num_classes, "dropout": self.dropout}
        if self.kind == "linear":
            return {"kind": "linear", **options, "levels": self.levels}
        return {**options, "auxiliary": self.auxiliary_weight > 0}

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        terms = {"loss_segmentation": self.weight * self._loss(outputs["segmentation"], labels)}
        auxiliary = outputs.get("segmentation_auxiliary")
        if auxiliary is not None:
            factor = self.weight * self.auxiliary_weight
            terms["loss_auxiliary"] = factor * self._loss(auxiliary, labels)
        return terms

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not isinstance(self.loss, CrossEntropyLoss):  # which enlarges them band by band
            logits = upsample(logits, (labels.shape[-2], labels.shape[-1]))
        return self.loss(logits, labels)

    def refuse_teacher(self, options: Mapping[str, Any]) -> str | None:
        return refuse_classes(self.num_classes, options)

    def distil(
        self, outputs: Mapping[str, Tensor], lesson: Mapping[str, Tensor], *, temperature: float
    ) -> Tensor:
        """Divergence from the teacher's class probabilities, at the size of the head's logits."""
        student = outputs["segmentation"]
        teacher = upsample(lesson["segmentation"], (student.shape[-2], student.shape[-1]))
        return self.weight * softened_divergence(student, teacher, temperature=temperature)

    def predict(self, output: Tensor, size: tuple[int, int]) -> Tensor:
        """Logits (1, K, h, w) to class ids (1, H, W): logits are resized, then the best taken.

        Ids (1, H, W), as a file of predictions holds them, are what they are.
        """
        if not output.is_floating_point():
            return output
        if output.shape[-2:] == torch.Size(size):
            return output.argmax(dim=1)
        return enlarged_argmax(output.float(), size)

    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        for output, labels in zip(outputs["segmentation"].split(1), batch["labels"], strict=True):
            size = (labels.shape[-2], labels.shape[-1])
            ids = self.predict(output, size)
            if self.num_classes <= 256:
                ids = ids.to(torch.uint8)  # counted five times as fast
            self.metrics.update(ids, labels[None])
