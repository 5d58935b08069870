"""Loss of pairs of embeddings against all other pairs of a step."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from dpt.depthmath import at_least_float32


def contrastive_loss(images: Tensor, texts: Tensor, groups: Tensor) -> Tensor:
    """Symmetric cross-entropy of matching pairs (Radford et al. 2021, section 2.3, figure 3).

    The pairs of all processes are negatives of one another, except pairs of one group (with equal
    texts), which are left out of each other's softmax. Gradients flow to all of them. The mean of
    the losses of equally many pairs in each process is the loss of one process with all pairs.

    Args:
        images: float (B, E) of unit length.
        texts: float (B, E) of unit length, times the inverse temperature.
        groups: int64 (B,), equal for pairs with equal texts, in all processes; negative for pairs
            without a text, which are left out, though B still divides.

    Returns:
        A scalar, at least 0.
    """
    images, texts = at_least_float32(images), at_least_float32(texts)
    all_images, all_texts, all_groups, first = images, texts, groups, 0
    if dist.is_initialized() and dist.get_world_size() > 1:
        all_images = torch.cat(all_gather(images.contiguous()))
        all_texts = torch.cat(all_gather(texts.contiguous()))
        all_groups = torch.cat(all_gather(groups))
        first = dist.get_rank() * len(images)
    own = first + torch.arange(len(images), device=images.device)
    excluded = (groups[:, None] == all_groups).scatter(1, own[:, None], False) | (all_groups < 0)
    known = groups >= 0
    total = images.new_zeros(())
    with torch.autocast(images.device.type, enabled=False):  # logits of 100 are coarse in bfloat16
        for queries, keys in ((images, all_texts), (texts, all_images)):
            logits = (queries @ keys.mT).masked_fill(excluded, -torch.inf)[known]
            total = total + F.cross_entropy(logits, own[known], reduction="sum")
    return total / (2 * len(images))
