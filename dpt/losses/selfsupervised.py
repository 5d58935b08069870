"""Losses between views of unlabelled images. All views of all processes of a step take part."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from dpt.depthmath import at_least_float32


def nt_xent(projections: Tensor, *, temperature: float) -> Tensor:
    """The contrastive loss of SimCLR (Chen et al. 2020, equation 1), over the views of all
    processes, to which gradients flow. The mean over processes is the loss of one with all images.

    Args:
        projections: float (B, N, E), N views of each image, equally many in each process.
        temperature: divides the cosines.

    Raises:
        ValueError: there is one image only.
    """
    with torch.autocast(projections.device.type, enabled=False):
        own = F.normalize(at_least_float32(projections), dim=-1).flatten(0, 1)
        everything, first = own, 0
        if dist.is_initialized() and dist.get_world_size() > 1:
            everything = torch.cat(all_gather(own))
            first = dist.get_rank() * len(own)
        if len(everything) == (views := projections.shape[1]):
            raise ValueError("contrastive loss: a step needs two images: raise data.batch_size")
        columns = torch.arange(len(everything), device=own.device)
        rows = columns[first : first + len(own), None]
        is_self = rows == columns
        is_positive = (rows // views == columns // views) & ~is_self
        logits = (own @ everything.mT / temperature).masked_fill(is_self, -torch.inf)
        return (logits.logsumexp(1, keepdim=True) - logits)[is_positive].mean()


def dino_loss(
    student: Tensor, teacher: Tensor, center: Tensor, temperature: float, teacher_temperature: float
) -> Tensor:
    """Cross-entropy of the teacher's and the student's distributions over prototypes, averaged over
    all pairs of different views (Caron et al. 2021, algorithm 1 and equation 3).

    Args:
        student, teacher: float (B, V, K), and (B, N, K) of the first N views.
        center: float (K,), subtracted from ``teacher``.
        temperature, teacher_temperature: divide ``student`` and the centred ``teacher``.
    """
    with torch.autocast(student.device.type, enabled=False):
        logs = (at_least_float32(student) / temperature).log_softmax(-1)
        targets = ((at_least_float32(teacher) - center) / teacher_temperature).softmax(-1)
        entropies = -torch.einsum("bnk,bvk->nv", targets, logs) / len(student)
    same = torch.eye(*entropies.shape, dtype=torch.bool, device=entropies.device)
    return entropies[~same].mean()
