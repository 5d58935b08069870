"""A plugin: the task of predicting surface normals."""

import torch
import torch.nn.functional as F
from own_head import NormalsConfig

from dpt.metrics import SumMetric
from dpt.nn import register_head
from dpt.objectives import Objective

register_head("surface")(NormalsConfig)


def normals_of(depth):
    """Unit normals (B, 3, H, W) of depth (B, H, W), seen in parallel projection."""
    down, right = torch.gradient(depth, dim=(-2, -1))
    return F.normalize(torch.stack((-right, -down, torch.full_like(depth, 0.1)), dim=1), dim=1)


def cosine(prediction, normals):
    return F.cosine_similarity(prediction.float(), normals, dim=1)


class AngularError(SumMetric):
    """Mean angle between prediction and truth in degrees."""

    lower_is_better = frozenset({"angle"})

    def __init__(self):
        super().__init__()
        self.add_sum("degrees")
        self.add_count("pixels")

    def update(self, prediction, normals, valid):
        angle = cosine(prediction, normals).clamp(-1, 1).acos().rad2deg()
        self.degrees = self.degrees + angle[valid].double().sum()
        self.pixels = self.pixels + valid.sum()

    def compute(self):
        return {"angle": self.degrees / self.pixels}


class NormalsObjective(Objective):
    head, target = "surface", "depth"

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__(weight=weight)
        self.metrics = AngularError()

    def losses(self, output, batch):
        normals, confidence = output.prediction
        error = 1 - cosine(normals, normals_of(batch["depth"]))
        loss = confidence * error - 0.1 * confidence.clamp_min(1e-3).log()
        return {"loss_normals": self.weight * (loss * batch["valid"]).mean()}

    def ground_truth(self, batch, k):
        return normals_of(batch["depth"][k][None]), batch["valid"][k][None]
