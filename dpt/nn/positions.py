"""Position embeddings: sinusoidal and rotary ones, and learned ones at another grid."""

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.functional import exporting, same_size

PositionKind = Literal["learned", "sincos_1d", "sincos_2d", "concat", "rope", "none"]
ResizePolicy = Literal["bilinear", "bilinear_antialias", "bicubic", "bicubic_antialias", "dinov2"]


def sincos_1d(positions: Tensor, dim: int) -> Tensor:
    """Returns the sinusoidal code (..., dim) of positions (...,), of the same dtype; dim is even.

    ``PE(p)[2i] = sin(p / 10000^(2i/dim))`` and ``PE(p)[2i+1] = cos(p / 10000^(2i/dim))``,
    0 <= i < dim/2 (Vaswani et al. 2017, section 3.5).
    """
    if dim % 2:
        raise ValueError(f"a sinusoidal code needs an even length, not {dim}")
    exponent = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype) / dim
    angle = positions.unsqueeze(-1) / 10000.0**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def sincos_2d(height: int, width: int, dim: int, *, like: Tensor | None = None) -> Tensor:
    """Returns the code ``[PE1D(row) || PE1D(column)]`` of a grid, (height * width, dim).

    ``dim`` must be a multiple of 4. ``like`` gives device and dtype (default: CPU float32). Angles
    are at least float32: bfloat16 does not hold 257.
    """
    if dim % 4:
        raise ValueError(f"a 2-D sinusoidal code needs a length divisible by 4, not {dim}")
    like = torch.zeros(0) if like is None else like
    dtype = torch.promote_types(like.dtype, torch.float32)
    positions = torch.arange(max(height, width), device=like.device, dtype=dtype)
    codes = sincos_1d(positions, dim // 2).to(like.dtype)
    rows = codes[:height, None].expand(-1, width, -1)
    columns = codes[None, :width].expand(height, -1, -1)
    return torch.cat((rows, columns), dim=-1).reshape(height * width, dim)


class Rotation(NamedTuple):
    """The rotary position embeddings of a grid: cosine and sine of each angle, (N, d/2)."""

    cos: Tensor
    sin: Tensor


def axial_rotation(height: int, width: int, dim: int, *, theta: float, like: Tensor) -> Rotation:
    """Returns the rotary position embeddings of a grid for heads of ``dim`` = d channels.

    Those of DINOv3 (Siméoni et al. 2025, section 3.2): the coordinates are those of the centres of
    the patches, in -1..1 on each side of the image. The angles are 2π · coordinate /
    theta^(4i/d), 0 <= i < d/4, first those of the row, then those of the column. ``dim`` must be a
    multiple of 4. ``like`` gives the device and the dtype, which is at least float32.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)

    def numbers(count: int) -> Tensor:
        return torch.arange(count, device=like.device, dtype=dtype)

    frequencies = 2 * math.pi * theta ** (-4 / dim * numbers(dim // 4))
    rows = (2 * numbers(height) + 1) / height - 1
    columns = (2 * numbers(width) + 1) / width - 1
    coordinates = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
    angles = (coordinates[..., None] * frequencies).flatten(2).flatten(0, 1)
    return Rotation(angles.cos(), angles.sin())


def rotate(tokens: Tensor, rotation: Rotation) -> Tensor:
    """Rotates the last N of queries or keys (B, heads, T, d); those before have no position.

    Channels i and i + d/2 are the coordinates of a point in a plane, which is turned about the
    origin by angle i (Su et al. 2021, RoFormer, section 3.2).
    """
    cos, sin = rotation
    first_patch = tokens.shape[-2] - cos.shape[0]
    x, y = tokens[..., first_patch:, :].to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1)
    return torch.cat((tokens[..., :first_patch, :], turned.to(tokens.dtype)), dim=-2)


def resize_positions(
    codes: Tensor, old: tuple[int, int], new: tuple[int, int], *, policy: ResizePolicy
) -> Tensor:
    """Interpolates learned position embeddings of an ``old`` grid to a ``new`` one.

    Five policies are in use. Mixing them changes results, so a checkpoint stores its own:

    - ``bilinear``: official DPT and MiDaS, and the DPT ViT of transformers
    - ``bicubic_antialias``: timm
    - ``bilinear_antialias``: TIPSv2
    - ``dinov2``: bicubic by the scale factor (g + 0.1) / g0, as DINOv2 and Depth Anything
    - ``bicubic``: by size, as the DINOv2 backbones of transformers

    ``codes`` are (1, old_h * old_w, D), row by row, without prefix tokens; the result is
    (1, new_h * new_w, D), ``codes`` itself where the grids are equal.
    """
    if same_size(old, new):
        return codes
    full = codes if codes.dtype == torch.float64 else codes.float()  # half is too coarse
    maps = full.reshape(1, *old, -1).permute(0, 3, 1, 2)
    if policy == "dinov2" and exporting():
        maps = resize_dinov2(maps, new)
    elif policy == "dinov2":
        scale = ((new[0] + 0.1) / old[0], (new[1] + 0.1) / old[1])
        maps = F.interpolate(maps, scale_factor=scale, mode="bicubic")
        assert maps.shape[-2:] == new
    else:
        mode, _, antialias = policy.partition("_")
        maps = F.interpolate(maps, size=new, mode=mode, antialias=bool(antialias))
    return maps.flatten(2).transpose(1, 2).to(codes.dtype)


def resize_dinov2(maps: Tensor, new: tuple[int, int]) -> Tensor:
    """Resizes maps (1, D, h, w) by ``dinov2``, in operations that hold for every new size.

    The file of an exported model needs this form: in ONNX, a scale factor is a constant. Maps that
    have the new size already stay as they are.
    """
    height, width = (torch.full((), n, device=maps.device, dtype=maps.dtype) for n in new)
    differs = (height != maps.shape[-2]) | (width != maps.shape[-1])
    more = 0.1 * differs.to(maps.dtype)
    rows, columns = (
        2 * (torch.arange(n, device=maps.device, dtype=maps.dtype) + 0.5) / (side + more) - 1
        for n, side in zip(new, (height, width), strict=True)
    )
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)[None]
    return F.grid_sample(maps, grid, "bicubic", padding_mode="border", align_corners=False)
