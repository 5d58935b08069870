"""Pretraining by comparing random views of images without labels (``augment.views``)."""

import torch
from torch import Tensor

from dpt.losses.contrastive import dino_loss, nt_xent
from dpt.metrics.image import EmbeddingMetrics
from dpt.objectives.base import Objective, Outputs
from dpt.types import NO_CLASS, Batch
from dpt.validation import Positive


class SelfSupervisedObjective(Objective):
    """The base class: embeddings are scored by the images' classes, where the data has any.

    In training the model sees the B·N views of a batch and gives ``outputs["<head>_auxiliary"]``,
    projections (B·N, E); in evaluation it sees images and gives embeddings (B, D).
    """

    target = None
    scored_by = "class_id"
    dense = False
    views = 2

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.metrics = EmbeddingMetrics()

    def projections(self, outputs: Outputs, batch: Batch) -> Tensor:
        """(B, V, E), of the views and then of the smaller ones (``augment.crops``)."""
        count, views = batch["views"].shape[:2]
        found = outputs[f"{self.head}_auxiliary"]
        parts = found.tensor_split([count * views])  # the second may be empty
        return torch.cat([part.unflatten(0, (count, len(part) // count)) for part in parts], dim=1)

    def update(self, outputs: Outputs, batch: Batch) -> None:
        index = batch["index"]
        class_id = batch.get("class_id", torch.full_like(index, NO_CLASS))
        self.metrics.update(outputs[self.head], class_id, index)


class ContrastiveObjective(SelfSupervisedObjective):
    """SimCLR (Chen et al. 2020): similar embeddings of one image's views, different ones else.

    Args:
        temperature: divides cosines, see :func:`dpt.losses.nt_xent`.
    """

    head = "contrastive"

    def __init__(self, *, temperature: Positive = 0.2, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.temperature = temperature

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        loss = nt_xent(self.projections(outputs, batch), temperature=self.temperature)
        return {"loss_contrastive": self.weight * loss}


class DinoObjective(SelfSupervisedObjective):
    """DINO (Caron et al. 2021): every view is assigned to the prototypes to which a moving average
    of the model (:class:`dpt.objectives.teacher.SelfTeacher`) assigns the other views.

    Args:
        temperature, teacher_temperature: see :func:`dpt.losses.dino_loss`.
        num_prototypes: see :class:`dpt.nn.heads.DinoHeadConfig`.
    """

    head = "dino"

    def __init__(
        self, *, temperature: Positive = 0.1, teacher_temperature: Positive = 0.02,
        num_prototypes: int = 1024, weight: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(weight=weight)
        self.temperatures = {"temperature": temperature, "teacher_temperature": teacher_temperature}
        self.head_options = {"num_prototypes": num_prototypes}

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        if "teacher" not in batch:
            raise ValueError("task=dino needs task/teacher=self")
        student = self.projections(outputs, batch)
        loss = dino_loss(student, batch["teacher"], **self.temperatures)
        return {"loss_dino": self.weight * loss}
