"""Position embeddings: sinusoidal ones, and interpolation of learned ones to another grid."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.functional import exporting, same_size

PositionKind = Literal["learned", "sincos_1d", "sincos_2d", "concat", "none"]
ResizePolicy = Literal["bilinear", "bicubic", "bicubic_antialias", "dinov2"]


def sincos_1d(positions: Tensor, dim: int) -> Tensor:
    """Sinusoidal code of positions (...,), in tokens: (..., dim) of the same dtype, dim even.

    ``PE(p)[2i] = sin(p / 10000^(2i/dim))`` and ``PE(p)[2i+1] = cos(p / 10000^(2i/dim))``,
    0 <= i < dim/2 (Vaswani et al. 2017, section 3.5).
    """
    if dim % 2:
        raise ValueError(f"a sinusoidal code needs an even length, not {dim}")
    exponent = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype) / dim
    angle = positions.unsqueeze(-1) / 10000.0**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def sincos_2d(height: int, width: int, dim: int, *, like: Tensor | None = None) -> Tensor:
    """Code of a grid, ``[PE1D(row) || PE1D(column)]``: (height * width, dim), row by row.

    ``dim`` must be a multiple of 4. ``like`` gives device and dtype (default: CPU float32). Angles
    are at least float32: bfloat16 does not hold 257.
    """
    if dim % 4:
        raise ValueError(f"a 2-D sinusoidal code needs a length divisible by 4, not {dim}")
    like = torch.zeros(0) if like is None else like
    dtype = torch.promote_types(like.dtype, torch.float32)
    places = torch.arange(max(height, width), device=like.device, dtype=dtype)
    codes = sincos_1d(places, dim // 2).to(like.dtype)
    rows = codes[:height, None].expand(-1, width, -1)
    columns = codes[None, :width].expand(height, -1, -1)
    return torch.cat((rows, columns), dim=-1).reshape(height * width, dim)


def resize_positions(
    codes: Tensor, old: tuple[int, int], new: tuple[int, int], *, policy: ResizePolicy
) -> Tensor:
    """Learned position embeddings of an ``old`` grid, interpolated to a ``new`` one.

    Four policies are in use. Mixing them changes results, so a checkpoint stores its own:

    - ``bilinear``: official DPT and MiDaS, and the DPT ViT of transformers
    - ``bicubic_antialias``: timm
    - ``dinov2``: bicubic by the scale factor (g + 0.1) / g0, as DINOv2 and Depth Anything
    - ``bicubic``: by size, as the DINOv2 backbones of transformers

    ``codes`` are (1, old_h * old_w, D), row by row, without prefix tokens; the result is
    (1, new_h * new_w, D), ``codes`` itself where the grids are equal.
    """
    if same_size(old, new):
        return codes
    full = codes if codes.dtype == torch.float64 else codes.float()  # half is too coarse
    if exporting():
        return resize_by_products(full, old, new, policy=policy).to(codes.dtype)
    maps = full.reshape(1, *old, -1).permute(0, 3, 1, 2)
    if policy == "dinov2":
        scale = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        maps = F.interpolate(maps, scale_factor=scale, mode="bicubic")
    else:
        mode, _, antialias = policy.partition("_")
        maps = F.interpolate(maps, size=new, mode=mode, antialias=bool(antialias))
    assert maps.shape[-2:] == new
    return maps.flatten(2).transpose(1, 2).to(codes.dtype)


def resize_by_products(
    codes: Tensor, old: tuple[int, int], new: tuple[int, int], *, policy: ResizePolicy
) -> Tensor:
    """:func:`resize_positions` in operations that hold for every new grid, the old one included.

    What an exported graph contains: interpolation is separable, so it is a product with one matrix
    along the rows and another along the columns.
    """
    rows = interpolation_matrix(old[0], new[0], policy=policy, like=codes)
    columns = interpolation_matrix(old[1], new[1], policy=policy, like=codes)
    maps = (rows @ codes.reshape(old[0], -1)).reshape(new[0], old[1], -1)
    return (columns @ maps).reshape(1, new[0] * new[1], -1)


def interpolation_matrix(old: int, new: int, *, policy: ResizePolicy, like: Tensor) -> Tensor:
    """Weights (new, old) by which ``F.interpolate`` computes ``new`` cells from ``old`` cells.

    The cubic kernel is Keys' (1981) with a = -0.75, or -0.5 where it is widened against aliasing.
    """
    cells = torch.arange(old, device=like.device, dtype=like.dtype)
    places = torch.arange(new, device=like.device, dtype=like.dtype)
    step = old / torch.full((), new, device=like.device, dtype=like.dtype)
    if policy == "dinov2":  # which leaves a grid of the old size as it is
        step = torch.where(step == 1, step, 1 / (1 / step + 0.1 / old))
    centres = (places[:, None] + 0.5) * step - 0.5
    if policy == "bilinear":
        return (1 - (centres.clamp(0, old - 1) - cells).abs()).clamp_min(0)
    if policy == "bicubic_antialias":
        shares = cubic((centres - cells) / step.clamp_min(1), a=-0.5)
        return shares / shares.sum(1, keepdim=True)
    first = centres.floor()
    sources = [first + k for k in (-1, 0, 1, 2)]  # indices beyond the border repeat the border
    parts = [(k.clamp(0, old - 1) == cells) * cubic(centres - k, a=-0.75) for k in sources]
    return parts[0] + parts[1] + parts[2] + parts[3]


def cubic(x: Tensor, *, a: float) -> Tensor:
    """Keys' cubic convolution kernel, 0 from a distance of 2 on."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0.0))
