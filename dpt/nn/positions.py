"""Where a token is: sinusoidal codes, and resizing learned ones to another grid."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

PositionKind = Literal["learned", "sincos_1d", "sincos_2d", "concat", "none"]
ResizePolicy = Literal["bilinear", "bicubic", "bicubic_antialias", "dinov2"]


def sincos_1d(positions: Tensor, dim: int, *, temperature: float = 10000.0) -> Tensor:
    """Sinusoidal code of scalar positions (Vaswani et al. 2017, section 3.5).

    ``PE(p)[2i] = sin(p / T^(2i/dim))`` and ``PE(p)[2i+1] = cos(p / T^(2i/dim))``, 0 <= i < dim/2.

    Args:
        positions: any shape (...,), in tokens.
        dim: length of a code; even.

    Returns:
        (..., dim), the dtype of ``positions``.
    """
    if dim % 2:
        raise ValueError(f"a sinusoidal code needs an even length, not {dim}")
    exponent = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype) / dim
    angle = positions.unsqueeze(-1) / temperature**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def sincos_2d(
    height: int, width: int, dim: int, *, temperature: float = 10000.0, like: Tensor | None = None
) -> Tensor:
    """Code of a grid, ``[PE1D(row) || PE1D(column)]``: (height * width, dim), row by row.

    ``dim`` must be a multiple of 4. ``like`` gives device and dtype (default: CPU float32).
    """
    if dim % 4:
        raise ValueError(f"a 2-D sinusoidal code needs a length divisible by 4, not {dim}")
    like = torch.zeros(0) if like is None else like
    places = torch.arange(max(height, width), device=like.device, dtype=like.dtype)
    rows = sincos_1d(places[:height], dim // 2, temperature=temperature)
    columns = sincos_1d(places[:width], dim // 2, temperature=temperature)
    grid = (rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1))
    return torch.cat(grid, dim=-1).reshape(height * width, dim)


def resize_positions(
    codes: Tensor, old: tuple[int, int], new: tuple[int, int], *, policy: ResizePolicy
) -> Tensor:
    """Learned position codes of an ``old`` grid, interpolated to a ``new`` one.

    Four policies are in use, and mixing them changes results without a word, so a checkpoint
    stores its own:

    - ``bilinear``: official DPT and MiDaS, and the DPT ViT of transformers
    - ``bicubic_antialias``: timm
    - ``dinov2``: bicubic by the scale factor (g + 0.1) / g0, as DINOv2 and Depth Anything
    - ``bicubic``: by size, as the DINOv2 backbones of transformers

    Args:
        codes: (1, old_h * old_w, D), row by row, without prefix tokens.

    Returns:
        (1, new_h * new_w, D); ``codes`` itself where the grids are equal.
    """
    if policy not in get_args(ResizePolicy):
        raise ValueError(f"position_resize={policy!r}: choose from {get_args(ResizePolicy)}")
    if old == new:
        return codes
    full = codes if codes.dtype == torch.float64 else codes.float()  # half is too coarse
    maps = full.reshape(1, *old, -1).permute(0, 3, 1, 2)
    if policy == "dinov2":
        scale = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        maps = F.interpolate(maps, scale_factor=scale, mode="bicubic", align_corners=False)
    elif policy == "bilinear":
        maps = F.interpolate(maps, size=new, mode="bilinear", align_corners=False)
    else:
        antialias = policy == "bicubic_antialias"
        maps = F.interpolate(
            maps, size=new, mode="bicubic", align_corners=False, antialias=antialias
        )
    assert maps.shape[-2:] == new
    return maps.flatten(2).transpose(1, 2).to(codes.dtype)
