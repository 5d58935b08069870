"""Full-size logits, a band of rows at a time: their argmax and losses need no more than that.

150 classes at 384 × 384 are 88 MB an image in float32, made out of a quarter of that: it is faster
to make a band anew than to fetch it. Interpolation is with aligned corners, as the segmentation
head's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

VALUES_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
"""Logits of a band: a processor's cache, or enough to keep a GPU busy."""
FEW_CLASSES = 32
"""Below it full-size logits are made faster at once than band by band."""
MOST_AT_ONCE = 2**26
"""Full-size logits held for an argmax: 256 MB in float32. Few classes of a large photo are more."""


def bands(logits: Tensor, size: tuple[int, int]) -> Iterator[slice]:
    """Rows of ``logits`` (B, K, h, w) enlarged to ``size``: bands of a bounded number of values."""
    batch, classes = logits.shape[:2]
    height, width = size
    budget = VALUES_AT_ONCE.get(logits.device.type, VALUES_AT_ONCE["cuda"])
    rows = max(1, budget // max(1, batch * classes * width))
    for start in range(0, height, rows):
        yield slice(start, min(start + rows, height))


def source_rows(rows: slice, low: int, high: int) -> tuple[slice, Tensor, Tensor]:
    """Where rows of a map enlarged from ``low`` to ``high`` come from.

    Returns:
        The rows of the small map that matter; for each row asked for, the upper of its two
        sources counted from the first of these; and the weight of the lower.
    """
    scale = (low - 1) / (high - 1) if high > 1 else 0.0
    places = torch.arange(rows.start, rows.stop, dtype=torch.float64) * scale
    upper = places.floor().long().clamp_(max=max(low - 2, 0))
    first, last = int(upper[0]), min(int(upper[-1]) + 2, low)
    return slice(first, last), upper - first, places - upper


def enlarge_rows(logits: Tensor, upper: Tensor, weight: Tensor, width: int) -> Tensor:
    """Rows (B, K, h, w) to those asked for, (B, rows, width, K); see :func:`source_rows`."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    last = exact.permute(0, 2, 3, 1)  # classes beside each other, as softmax and argmax want them
    upper = upper.to(logits.device)
    lower = (upper + 1).clamp(max=last.shape[1] - 1)
    share = weight.to(exact)[:, None, None]
    rows = torch.lerp(last.index_select(1, upper), last.index_select(1, lower), share)
    size = (rows.shape[1], width)
    wide = F.interpolate(rows.permute(0, 3, 1, 2), size=size, mode="bilinear", align_corners=True)
    return wide.permute(0, 2, 3, 1)


def enlarged_argmax(
    logits: Tensor, size: tuple[int, int], *, dtype: torch.dtype = torch.long
) -> Tensor:
    """Class ids (B, H, W) of logits (B, K, h, w) enlarged to ``size``."""
    batch, classes = logits.shape[:2]
    is_small = classes < FEW_CLASSES and batch * classes * size[0] * size[1] <= MOST_AT_ONCE
    if is_small or torch.compiler.is_compiling():  # which fuses by itself
        return _whole(logits, size).argmax(1).to(dtype)
    ids = logits.new_empty((len(logits), *size), dtype=dtype)
    for rows in bands(logits, size):
        source, upper, weight = source_rows(rows, logits.shape[2], size[0])
        ids[:, rows] = enlarge_rows(logits[:, :, source], upper, weight, size[1]).argmax(-1)
    return ids


class _EnlargedCrossEntropy(torch.autograd.Function):
    """Σ over images of scale · Σ over pixels of cross-entropy, the gradient made on the way."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        scale: Tensor,
        class_weights: Tensor | None,
        ignore_index: int,
        label_smoothing: float,
    ) -> Tensor:
        size = (labels.shape[1], labels.shape[2])
        wanted = ctx.needs_input_grad[0]
        grad = torch.zeros_like(logits) if wanted else None
        total = scale.new_zeros(())
        for rows in bands(logits, size):
            source, upper, weight = source_rows(rows, logits.shape[2], size[0])
            with torch.set_grad_enabled(wanted):
                part = logits[:, :, source].detach().requires_grad_(wanted)
                pixels = F.cross_entropy(
                    enlarge_rows(part, upper, weight, size[1]).flatten(0, 2),
                    labels[:, rows].flatten(),
                    weight=class_weights,
                    ignore_index=ignore_index,
                    label_smoothing=label_smoothing,
                    reduction="none",
                )
                loss = (pixels.view(len(scale), -1).sum(1) * scale).sum()
            if grad is not None:
                grad[:, :, source] += torch.autograd.grad(loss, part)[0]
            total += loss.detach()
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * grad_total, None, None, None, None, None


def enlarged_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    scale: Tensor,
    class_weights: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Cross-entropy of logits (B, K, h, w) enlarged to labels (B, H, W), image i times scale[i].

    Neither the enlarged logits nor their softmax is held at once; what is kept for backward is
    the gradient, of the small logits' size. Logits are float32 or float64.
    """
    if logits.shape[1] >= FEW_CLASSES and not torch.compiler.is_compiling():
        return _EnlargedCrossEntropy.apply(
            logits, labels, scale, class_weights, ignore_index, label_smoothing
        )
    pixels = F.cross_entropy(
        _whole(logits, (labels.shape[1], labels.shape[2])),
        labels,
        weight=class_weights,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    return (pixels.flatten(1).sum(1) * scale).sum()


def _whole(logits: Tensor, size: tuple[int, int]) -> Tensor:
    if logits.shape[2:] == size:
        return logits
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=True)
