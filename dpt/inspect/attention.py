"""Attention weights of an encoder's blocks, which the forward pass does not keep (fused attention).

Shapes: B images, T = P + h·w tokens of which P are prefix tokens (CLS first, then registers), h × w
the grid of patches. ``blocks`` are zero-based; None takes all of them. The blocks of EoMT that also
process queries are not included.
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor, nn

from dpt.nn import Network, VisionTransformer
from dpt.nn.positions import Rotation
from dpt.nn.vit import Attention
from dpt.validation import PlainMapping


@torch.no_grad()
def attention_maps(
    model: Network,
    images: Tensor,
    *,
    blocks: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> list[np.ndarray]:
    """Returns softmax(Q Kᵀ / √d + bias) of each block: (B, heads, T, T), whose rows sum to 1.

    A full map of ``dpt_large`` takes 21 MB for one image of 384 × 384 and grows with the square of
    the image's area: name the ``blocks``, or ``queries``, the tokens whose rows are wanted.

    Raises:
        ValueError: the encoder has no such attention, or no such block.
    """
    encoder = _encoder(model)
    layers = [m for m in encoder.blocks.modules() if isinstance(m, Attention)]
    layers = layers[: encoder.config.out_indices[-1] + 1]
    blocks = range(len(layers)) if blocks is None else blocks
    for block in blocks:
        if not 0 <= block < len(layers):
            raise ValueError(f"no block {block}: this encoder has blocks 0..{len(layers) - 1}")
    maps: dict[nn.Module, np.ndarray] = {}

    def keep(attention: nn.Module, args: tuple[Tensor], options: PlainMapping) -> None:
        assert isinstance(attention, Attention)
        weights = attention_rows(attention, *args, queries=queries, **options)
        maps[attention] = weights.cpu().numpy()

    with ExitStack() as hooks:  # which are removed at its end
        for block in set(blocks):
            hook = layers[block].register_forward_pre_hook(keep, with_kwargs=True)
            hooks.enter_context(hook)
        encoder(model.pad(images)[0])
    return [maps[layers[block]] for block in blocks]


def cls_attention(
    model: Network, images: Tensor, *, blocks: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Returns the attention of the CLS token to each patch (Caron et al. 2021, DINO, figure 1).

    (B, heads, h, w) of each block; a map sums to 1 minus the weight of the prefix tokens.
    """
    return _patch_maps(model, images, query=0, blocks=blocks)


def patch_attention(
    model: Network, images: Tensor, *, patch: tuple[int, int], blocks: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Returns the attention of the ``patch`` at (row, column) of the grid, from 0, to each patch.

    Raises:
        ValueError: the patch lies outside the grid.
    """
    (height, width), (row, column) = patch_grid(model, images), patch
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(
            f"patch {row} {column} lies outside the grid of {height} rows and {width} columns, "
            "which are counted from 0"
        )
    query = model.encoder.num_prefix_tokens[-1] + row * width + column
    return _patch_maps(model, images, query=query, blocks=blocks)


def attention_rows(
    attention: Attention,
    tokens: Tensor,
    *,
    queries: Sequence[int] | None = None,
    norm: nn.Module | None = None,
    bias: Tensor | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """Computes the weights of ``attention(tokens, ...)`` for ``queries``: (B, heads, Q or T, T)."""
    rows = slice(None) if queries is None else list(queries)
    q, k, _ = attention.split_heads(attention.project_qkv(tokens, norm), rotation)
    scores = q[:, :, rows] @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias[:, :, rows]
    return scores.softmax(dim=-1, dtype=torch.float32)


def patch_grid(model: Network, images: Tensor) -> tuple[int, int]:
    """Returns (h, w), the grid of the patches of padded ``images``."""
    padded, _ = model.pad(images)
    side = _encoder(model).config.patch_size
    return padded.shape[-2] // side, padded.shape[-1] // side


def _patch_maps(
    model: Network, images: Tensor, *, query: int, blocks: Sequence[int] | None
) -> list[np.ndarray]:
    """Returns one token's attention to the patches, (B, heads, h, w) of each block."""
    grid, prefix = patch_grid(model, images), model.encoder.num_prefix_tokens[-1]
    rows = attention_maps(model, images, blocks=blocks, queries=[query])
    return [r[:, :, 0, prefix:].reshape(*r.shape[:2], *grid) for r in rows]


def _encoder(model: Network) -> VisionTransformer:
    if not isinstance(model.encoder, VisionTransformer):
        raise ValueError(
            f"no attention maps of {type(model.encoder).__name__}: only ViT, hybrid and BEiT "
            "encoders have them; tokens, their norms and the readout can be inspected"
        )
    return model.encoder
