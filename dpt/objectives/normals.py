"""Surface normals."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.losses.depth import AngularLoss
from dpt.metrics.depth import NormalMetrics
from dpt.objectives.base import Objective
from dpt.types.outputs import HeadOutput, HeadPrediction
from dpt.types.samples import Batch


class NormalsObjective(Objective):
    """Trains and scores unit normals (B, 3, H, W) in the camera's frame, see ``Sample.normals``.

    Args:
        loss: called with prediction and target (B, 3, H, W) and valid (B, H, W); None for
            :class:`dpt.losses.AngularLoss`.
    """

    head = "normals"
    target = "normals"

    def __init__(self, *, loss: nn.Module | None = None, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.loss = loss or AngularLoss()
        self.metrics = NormalMetrics()

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        normals = batch["normals"]
        loss = self.loss(output.tensor, normals, normals.any(dim=1))
        return {"loss_normals": self.weight * loss}

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's normals in place of true ones."""
        everywhere = torch.ones_like(teacher[:, 0], dtype=torch.bool)
        loss: Tensor = self.loss(output.tensor, teacher, everywhere)
        return self.weight * loss

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        normals = batch["normals"][k][None]
        return normals, normals.any(dim=1)

    def predict(self, prediction: HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns the normals at ``size``, again of unit length."""
        return F.normalize(super().predict(prediction, size), dim=1)
