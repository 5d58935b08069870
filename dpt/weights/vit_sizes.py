"""Sizes of a ViT, and of other parts, from the shapes of a file's tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def shape_of(
    tensors: Mapping[str, Tensor], name: str, *, path: Path, family: str
) -> tuple[int, ...]:
    """Shape of a tensor that a file of ``family`` must hold.

    Raises:
        ValueError: it is missing.
    """
    if name not in tensors:
        raise ValueError(f"{path}: reads like {family}, but {name} is missing")
    return tuple(tensors[name].shape)


def count_blocks(names: Iterable[str], prefix: str) -> int:
    """Number of blocks with tensors under ``prefix``, such as ``pretrained.blocks.``."""
    return len({n.removeprefix(prefix).partition(".")[0] for n in names if n.startswith(prefix)})


def infer_vit(
    tensors: Mapping[str, Tensor], prefix: str, *, path: Path, family: str
) -> dict[str, Any]:
    """Arguments of our ViT for one that stands under ``prefix``, by timm's or DINOv2's names.

    What shapes do not tell: 64 channels a head, LayerNorm eps 1e-6. Behind a CNN (the hybrid) a
    patch is 16 pixels.

    Raises:
        ValueError: a tensor is missing, or of a shape that no ``family`` has.
    """

    def shape(name: str) -> tuple[int, ...]:
        return shape_of(tensors, f"{prefix}{name}", path=path, family=family)

    slots, dim = shape("pos_embed")[1:]
    side = math.isqrt(slots - 1)
    if side * side != slots - 1 or dim % 64:
        raise ValueError(
            f"{path}: position codes of {slots} tokens by {dim} channels: {family} has a square "
            "grid, and 64 channels an attention head"
        )
    num_blocks = count_blocks(tensors, f"{prefix}blocks.")
    if num_blocks < 4:
        raise ValueError(f"{path}: {num_blocks} blocks under {prefix}blocks; four are tapped")
    hybrid = any(k.startswith(f"{prefix}patch_embed.backbone.") for k in tensors)
    patch = 16 if hybrid else shape("patch_embed.proj.weight")[-1]
    gated = f"{prefix}blocks.0.mlp.w12.weight" in tensors
    registers = tensors.get(f"{prefix}register_tokens")
    return {
        "image_size": [side * patch, side * patch],
        "patch_size": patch,
        "embed_dim": dim,
        "num_blocks": num_blocks,
        "num_heads": dim // 64,
        "mlp_ratio": _gated_ratio(shape("blocks.0.mlp.w12.weight")[0] // 2, dim)
        if gated
        else shape("blocks.0.mlp.fc1.weight")[0] / dim,
        "swiglu": gated,
        "qkv_bias": f"{prefix}blocks.0.attn.qkv.bias" in tensors,
        "norm_eps": 1e-6,
        "layer_scale": 1.0 if f"{prefix}blocks.0.ls1.gamma" in tensors else None,
        "num_register_tokens": 0 if registers is None else registers.shape[1],
    }


def _gated_ratio(hidden: int, dim: int) -> float:
    """The ratio of which two thirds, rounded up to a multiple of 8, are ``hidden`` channels."""
    if (int(4 * dim * 2 / 3) + 7) // 8 * 8 == hidden:
        return 4.0
    return 1.5 * hidden / dim
