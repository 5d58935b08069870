"""Loss of pairs of embeddings against all other pairs of a step."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather


def contrastive_loss(images: Tensor, texts: Tensor, known: Tensor | None = None) -> Tensor:
    """Symmetric cross-entropy of matching pairs (Radford et al. 2021, section 2.3, figure 3).

    Every pair of every process is a negative of the others; gradients flow to all of them. The
    mean of the losses of equally many pairs in each process is the loss of one process with all.

    Args:
        images: float (B, E) of unit length.
        texts: float (B, E) of unit length, times the inverse temperature.
        known: bool (B,), False for pairs without a text, which are left out; B still divides.

    Returns:
        A scalar, at least 0.
    """
    if known is None:
        known = images.new_ones(len(images), dtype=torch.bool)
    images, texts = images.float(), texts.float()
    all_images, all_texts, all_known, first = images, texts, known, 0
    if dist.is_initialized() and dist.get_world_size() > 1:
        all_images = torch.cat(all_gather(images.contiguous()))
        all_texts = torch.cat(all_gather(texts.contiguous()))
        all_known = torch.cat(all_gather(known.float())) > 0
        first = dist.get_rank() * len(images)
    total = images.new_zeros(())
    places = first + torch.arange(len(images), device=images.device)[known]
    for queries, keys in ((images, all_texts), (texts, all_images)):
        logits = (queries @ keys.mT).masked_fill(~all_known, -torch.inf)[known]
        total = total + F.cross_entropy(logits, places, reduction="sum")
    return total / (2 * len(images))
