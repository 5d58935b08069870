"""Losses between embeddings, or between views, of all images of a step, in all processes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from dpt.depthmath import at_least_float32
from dpt.functional import without_autocast


def contrastive_loss(images: Tensor, texts: Tensor, groups: Tensor) -> Tensor:
    """Returns the cross-entropy of matching pairs (Radford et al. 2021, section 2.3, figure 3).

    The pairs of all processes are negatives of one another, except pairs of one group (with equal
    texts), which are left out of each other's softmax. Gradients flow to all processes. With equal
    B, the mean of the losses over processes is the loss of one process with all pairs.

    Args:
        images: float (B, E) of unit length.
        texts: float (B, E) of unit length, times the inverse temperature.
        groups: int64 (B,), equal for pairs with equal texts, in all processes; negative for pairs
            without a text, which are left out of the sum; the divisor is still B.

    Raises:
        ValueError: there is one image only.
    """
    images, texts = at_least_float32(images), at_least_float32(texts)
    positions, all_groups = gather_rows(groups, of_image=1)
    is_same_group = (groups[:, None] == all_groups).scatter(1, positions[:, None], False)
    excluded = is_same_group | (all_groups < 0)
    has_text = groups >= 0
    total = images.new_zeros(())
    with without_autocast(images.device):  # logits of 100 are coarse in bfloat16
        for queries, keys in ((images, texts), (texts, images)):
            logits = (queries @ gather_rows(keys)[1].mT).masked_fill(excluded, -torch.inf)
            total = total + F.cross_entropy(logits[has_text], positions[has_text], reduction="sum")
    return total / (2 * len(images))


def nt_xent(projections: Tensor, *, temperature: float) -> Tensor:
    """Returns the contrastive loss of SimCLR (Chen et al. 2020, equation 1).

    It compares the views of all processes, to which gradients flow. The mean over processes is the
    loss of one process with all images.

    Args:
        projections: float (B, N, E), N views of each image, equally many in each process.
        temperature: divides the cosines.

    Raises:
        ValueError: there is one image only.
    """
    with without_autocast(projections.device):
        views = F.normalize(at_least_float32(projections), dim=-1).flatten(0, 1)
        views_of_image = projections.shape[1]
        positions, all_views = gather_rows(views, of_image=views_of_image)
        rows, columns = positions[:, None], torch.arange(len(all_views), device=views.device)
        is_self = rows == columns
        is_positive = (rows // views_of_image == columns // views_of_image) & ~is_self
        logits = (views @ all_views.mT / temperature).masked_fill(is_self, -torch.inf)
        return (logits.logsumexp(1, keepdim=True) - logits)[is_positive].mean()


def dino_loss(
    student: Tensor, teacher: Tensor, *, temperature: float, teacher_temperature: float
) -> Tensor:
    """Returns the cross-entropy of the teacher's and the student's distributions over prototypes.

    It is averaged over all pairs of different views (Caron et al. 2021, algorithm 1 and equation
    3). :func:`sinkhorn_knopp` centres the teacher's distributions over the views of all processes,
    as in DINOv2 (Oquab et al. 2023, section 4). With a running mean, short runs gave all images
    equal outputs.

    Args:
        student, teacher: float (B, V, K), and (B, N, K) of the first N views.
        temperature, teacher_temperature: divide ``student`` and ``teacher``.

    Raises:
        ValueError: there is one image only.
    """
    with without_autocast(student.device):
        logs = (at_least_float32(student) / temperature).log_softmax(-1)
        scores = at_least_float32(teacher).flatten(0, 1) / teacher_temperature
        positions, all_scores = gather_rows(scores, of_image=teacher.shape[1])
        targets = sinkhorn_knopp(all_scores)[positions].unflatten(0, teacher.shape[:2]).to(logs)
        entropies = -torch.einsum("bnk,bvk->nv", targets, logs) / len(student)
    same = torch.eye(*entropies.shape, dtype=torch.bool, device=entropies.device)
    return entropies[~same].mean()


def ibot_loss(
    student: Tensor, teacher: Tensor, *, temperature: float, teacher_temperature: float
) -> Tensor:
    """Returns the same cross-entropy for single patches (iBOT, Zhou et al. 2022, equation 2).

    The patches are hidden from the student. The teacher's distributions are centred over the
    patches of all processes, as in :func:`dino_loss`.

    Args:
        student, teacher: float (R, K), equally many rows in each process.
        temperature, teacher_temperature: divide ``student`` and ``teacher``.
    """
    with without_autocast(student.device):
        logs = (at_least_float32(student) / temperature).log_softmax(-1)
        positions, all_scores = gather_rows(at_least_float32(teacher) / teacher_temperature)
        targets = sinkhorn_knopp(all_scores)[positions].to(logs)
        return -(targets * logs).sum(-1).mean()


def sinkhorn_knopp(scores: Tensor) -> Tensor:
    """Returns the softmax of scores (R, K), with nearly equal sums over R.

    Three iterations of Sinkhorn-Knopp (SwAV, Caron et al. 2020, section 3.1).
    """
    for _ in range(3):
        scores = (scores - scores.logsumexp(0)).log_softmax(1)
    return scores.exp()


def gather_rows(rows: Tensor, *, of_image: int = 0) -> tuple[Tensor, Tensor]:
    """Returns int64 (B,), positions of ``rows`` in the second result, the rows of all processes.

    Gradients flow to all processes, each of which must pass the same number of rows.

    Raises:
        ValueError: there is one image only, which has ``of_image`` rows.
    """
    positions, all_rows = torch.arange(len(rows), device=rows.device), rows
    if dist.is_initialized() and dist.get_world_size() > 1:
        positions = dist.get_rank() * len(rows) + positions
        all_rows = torch.cat(all_gather(rows.contiguous()))
    if len(all_rows) == of_image:
        raise ValueError("a loss between images needs two in a step: raise data.batch_size")
    return positions, all_rows
