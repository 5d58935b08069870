"""How far a student is from its teacher: class probabilities, and likeness between patches.

As the other losses these are means over images, at least float32. Gradients reach the student.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.depthmath import at_least_float32


def softened_divergence(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over pixels or images.

    Hinton et al. 2015, section 2: a temperature T above 1 shows what a teacher thinks of the
    classes it does not choose, and T² keeps the size of the gradient.

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
    """Mean squared difference of the cosines between all pairs of an image's patches.

    Liu et al. 2019 (structured knowledge distillation), eq. 2. Two encoders need not agree on what
    their channels mean, nor on how many there are, and nothing is learned to translate them.

    Args:
        student: features (B, D, h, w).
        teacher: features (B, D', h', w'), resized to h × w.
    """
    size = (student.shape[-2], student.shape[-1])
    if teacher.shape[-2:] != student.shape[-2:]:
        teacher = F.interpolate(teacher, size=size, mode="bilinear", align_corners=False)
    return (_cosines(student) - _cosines(teacher)).square().mean()


def _cosines(features_BDhw: Tensor) -> Tensor:
    """(B, h·w, h·w)."""
    unit = F.normalize(at_least_float32(features_BDhw).flatten(2), dim=1)
    with torch.autocast(unit.device.type, enabled=False):
        return unit.transpose(1, 2) @ unit
