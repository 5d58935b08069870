"""Distances between a model and its teacher: of class probabilities, and of patch features.

Means over images, in float32 at least. Gradients reach the student.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.functional import resize


def softened_divergence(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over pixels or images.

    Hinton et al. 2015, section 2. T > 1 raises small probabilities, and T² keeps the size of the
    gradient.

    Args:
        student, teacher: logits of one shape, (B, K) or (B, K, h, w).
        temperature: T > 0.
    """
    student, teacher = (at_least_float32(x) / temperature for x in (student, teacher))
    divergence = F.kl_div(
        student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True
    )
    return temperature**2 * divergence.sum(1).mean()


def pairwise_similarity_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of the cosine similarities of all pairs of an image's patches.

    Liu et al. 2019 (structured knowledge distillation), eq. 2. The numbers of channels may differ.

    Args:
        student: features (B, D, h, w).
        teacher: features (B, D', h', w'), resized to h × w.
    """
    teacher = resize(teacher, (student.shape[-2], student.shape[-1]))
    return (_similarities(student) - _similarities(teacher)).square().mean()


def _similarities(features_BDhw: Tensor) -> Tensor:
    """Cosine similarities of all pairs of patches, (B, h·w, h·w)."""
    unit = F.normalize(at_least_float32(features_BDhw).flatten(2), dim=1)
    with torch.autocast(unit.device.type, enabled=False):
        return unit.transpose(1, 2) @ unit
