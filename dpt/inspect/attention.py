"""Attention weights of an encoder's blocks, which the forward pass itself never holds.

Shapes: B images, T = P + h·w tokens of which P are prefix tokens (CLS first, then registers), h × w
the grid of patches. ``blocks`` are zero-based; None takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpt.nn import DPT, VisionTransformer
from dpt.nn.vit import Attention


def attention_maps(
    model: DPT, images: Tensor, *, blocks: Sequence[int] | None = None
) -> list[np.ndarray]:
    """softmax(Q Kᵀ / √d + bias) of each block: (B, heads, T, T), each row (a query) sums to 1.

    They are large, 21 MB a block of ``dpt_large`` for one image of 384 × 384, and grow with the
    square of its area: name the ``blocks``, or take the single rows of the functions below.

    Args:
        model: one with a ViT, hybrid or BEiT encoder.
        images: float (B, 3, H, W), normalised; padded to the grid as the model does.
        blocks: zero-based; None takes all.

    Raises:
        ValueError: the encoder has no such attention, or no such block.
    """
    return _look(model, images, blocks, queries=None)


def cls_attention(
    model: DPT, images: Tensor, *, blocks: Sequence[int] | None = None
) -> list[np.ndarray]:
    """How much the CLS token takes from each patch (Caron et al. 2021, DINO, figure 1).

    Returns:
        (B, heads, h, w) of each block; a map sums to 1 less what goes to the prefix tokens.
    """
    rows = _look(model, images, blocks, queries=[0])
    return [to_patches(model, images, r[:, :, 0]) for r in rows]


def patch_attention(
    model: DPT, images: Tensor, *, patch: tuple[int, int], blocks: Sequence[int] | None = None
) -> list[np.ndarray]:
    """How much one patch takes from each patch.

    Args:
        patch: its (row, column) in the grid, from 0.

    Returns:
        (B, heads, h, w) of each block; a map sums to 1 less what goes to the prefix tokens.

    Raises:
        ValueError: the patch lies outside the grid.
    """
    rows = _look(model, images, blocks, queries=[patch_query(model, images, patch)])
    return [to_patches(model, images, r[:, :, 0]) for r in rows]


def has_attention(model: DPT) -> bool:
    """Whether the encoder's blocks attend as the functions of this file assume."""
    return isinstance(model.encoder, VisionTransformer) and all(
        isinstance(block.attn, Attention)  # a user may have put another there
        for block in model.encoder.blocks
    )


def patch_grid(model: DPT, images: Tensor) -> tuple[int, int]:
    """(h, w) of the patches in which a ViT sees ``images``."""
    padded, _ = model.pad(images)
    side = _encoder(model).patch_size
    return padded.shape[-2] // side, padded.shape[-1] // side


def patch_query(model: DPT, images: Tensor, patch: tuple[int, int]) -> int:
    """The place of the patch at (row, column) among the tokens."""
    height, width = patch_grid(model, images)
    row, column = patch
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(
            f"patch {row} {column} lies outside the grid of {height} rows and {width} columns, "
            "which are counted from 0"
        )
    return _encoder(model).num_prefix + row * width + column


def to_patches(model: DPT, images: Tensor, rows: np.ndarray) -> np.ndarray:
    """Weights of all tokens (..., T) to those of the patches (..., h, w)."""
    return rows[..., _encoder(model).num_prefix :].reshape(
        *rows.shape[:-1], *patch_grid(model, images)
    )


def attention_rows(
    attention: Attention,
    tokens: Tensor,
    *,
    queries: Sequence[int] | None,
    norm: nn.Module | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The weights that ``attention(tokens, norm=norm, bias=bias)`` applies.

    Args:
        queries: the rows wanted; None takes all.

    Returns:
        float32 (B, heads, number of queries, T).
    """
    rows = slice(None) if queries is None else list(queries)
    q, k, _ = attention.split_heads(attention.project_qkv(tokens, norm))
    scores = q[:, :, rows] @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias[:, :, rows]
    return scores.softmax(dim=-1, dtype=torch.float32)


@contextmanager
def watched(
    model: DPT, *, queries: Sequence[int] | None, blocks: Sequence[int] | None = None
) -> Iterator[dict[int, np.ndarray]]:
    """Each block's weights, taken while the model runs inside the ``with`` block.

    They are computed anew as a block's attention gets its input, by :func:`attention_rows`.
    """
    encoder = _encoder(model)
    count = len(encoder.blocks)
    wanted = range(count) if blocks is None else blocks
    if wrong := [k for k in wanted if not 0 <= k < count]:
        raise ValueError(f"no block {wrong[0]}: this encoder has blocks 0..{count - 1}")
    found: dict[int, np.ndarray] = {}

    def take(k: int, attention: Any, args: Any, options: dict[str, Any]) -> None:
        with torch.no_grad():
            weights = attention_rows(attention, *args, queries=queries, **options)
        found[k] = weights.cpu().numpy()

    hooks = [
        encoder.blocks[k].attn.register_forward_pre_hook(partial(take, k), with_kwargs=True)
        for k in set(wanted)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def _look(
    model: DPT, images: Tensor, blocks: Sequence[int] | None, *, queries: Sequence[int] | None
) -> list[np.ndarray]:
    with watched(model, queries=queries, blocks=blocks) as rows:
        model.encoder(model.pad(images)[0])
    return [rows[k] for k in (sorted(rows) if blocks is None else blocks)]


def _encoder(model: DPT) -> Any:
    if not has_attention(model):
        raise ValueError(
            f"the {type(model.encoder).__name__} of this model shows no attention: that is for "
            "ViT, hybrid and BEiT encoders; tokens, their norms and the read-out can be inspected"
        )
    return model.encoder
