"""The Vision Transformer (Dosovitskiy et al. 2021): image to token matrices.

Shapes: B batch, N tokens of the grid, P prefix tokens (CLS first, then registers), T = P + N,
D embedding, h × w the grid. Parameter names are timm's, so timm's weights load with no mapping.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpt.functional import act_linear, exporting, norm_linear, same_size
from dpt.nn.base import Encoder, EncoderConfig, Padding, register_encoder
from dpt.types.outputs import Tokens
from dpt.validation import NonNegative, Positive

PositionKind = Literal["learned", "sincos_1d", "sincos_2d", "concat", "rope", "none"]
ResizePolicy = Literal["bilinear", "bicubic", "bicubic_antialias", "dinov2"]


def sincos_1d(positions: Tensor, dim: int) -> Tensor:
    """Returns the sinusoidal code (..., dim) of positions (...,), of the same dtype; dim is even.

    ``PE(p)[2i] = sin(p / 10000^(2i/dim))`` and ``PE(p)[2i+1] = cos(p / 10000^(2i/dim))``,
    0 <= i < dim/2 (Vaswani et al. 2017, section 3.5).
    """
    exponent = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype) / dim
    angle = positions.unsqueeze(-1) / 10000.0**exponent
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)


def sincos_2d(height: int, width: int, dim: int, *, like: Tensor | None = None) -> Tensor:
    """Returns the code ``[PE1D(row) || PE1D(column)]`` of a grid, (height * width, dim).

    ``dim`` must be a multiple of 4. ``like`` gives device and dtype (default: CPU float32). Angles
    are at least float32: bfloat16 does not hold 257.
    """
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
    numbers = partial(torch.arange, device=like.device, dtype=dtype)
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


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): zeroes a residual branch of a sample with probability
    ``rate``, in 0..1, and scales the others by 1 / (1 - rate)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = torch.rand(x.shape[0], *(1,) * (x.ndim - 1), device=x.device) < keep
        return x * (kept / keep).to(x.dtype)


class LayerScale(nn.Module):
    """A learned gain per channel on a residual branch (Touvron et al. 2021, CaiT, section 2)."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class PatchEmbed(nn.Module):
    """Cuts the image into p × p patches and embeds each: one convolution with stride p."""

    def __init__(self, *, patch_size: int, in_channels: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Maps (B, C, H, W) to (B, D, H/p, W/p)."""
        return self.proj(images)


class Attention(nn.Module):
    """Computes multi-head self-attention softmax(Q Kᵀ / √d_head) V; Q, K, V by one product.

    Without ``key_bias``, a ``qkv_bias`` is one of queries and values alone.
    """

    def __init__(self, dim: int, *, num_heads: int, qkv_bias: bool, key_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias and key_bias)
        self.proj = nn.Linear(dim, dim)
        separate = qkv_bias and not key_bias
        self.q_bias = nn.Parameter(torch.zeros(dim)) if separate else None
        self.v_bias = nn.Parameter(torch.zeros(dim)) if separate else None

    def project_qkv(self, tokens_BTD: Tensor, norm: nn.Module | None) -> Tensor:
        """Computes Q, K and V side by side, (B, T, 3 D), from ``norm(tokens)``."""
        if self.q_bias is None or self.v_bias is None:
            return norm_linear(norm, self.qkv, tokens_BTD)
        bias = torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        normed = tokens_BTD if norm is None else norm(tokens_BTD)
        return F.linear(normed, self.qkv.weight, bias)

    def split_heads(
        self, qkv_BT3D: Tensor, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Splits (B, T, 3 D) into Q, K and V of each head, (B, heads, T, D / heads)."""
        B, T, width = qkv_BT3D.shape
        qkv = qkv_BT3D.view(B, T, 3, self.num_heads, width // (3 * self.num_heads))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return (q, k, v) if rotation is None else (rotate(q, rotation), rotate(k, rotation), v)

    def forward(
        self,
        tokens_BTD: Tensor,
        *,
        norm: nn.Module | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Maps (B, T, D) to (B, T, D).

        ``norm`` is applied to the tokens first. ``bias``, (1, heads, T, T), is added to the scaled
        scores; or it is bool, False where a token must not attend. ``rotation`` turns queries and
        keys of the patch tokens, which come last.
        """
        q, k, v = self.split_heads(self.project_qkv(tokens_BTD, norm), rotation)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(mixed.transpose(1, 2).reshape(tokens_BTD.shape))


def gated_width(hidden: int) -> int:
    """Returns the hidden width of SwiGLU: two thirds of ``hidden``, up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


class MLP(nn.Module):
    """fc2(GELU(fc1(x))), or if ``gated`` SwiGLU (Shazeer 2020), as in DINOv2's ViT-g."""

    def __init__(self, dim: int, *, hidden: int, gated: bool = False) -> None:
        super().__init__()
        if gated:
            hidden = gated_width(hidden)
        self.fc1 = nn.Linear(dim, 2 * hidden if gated else hidden)
        self.act = swiglu if gated else F.gelu
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor, *, norm: nn.Module | None = None) -> Tensor:
        return act_linear(self.act, self.fc2, norm_linear(norm, self.fc1, tokens))


def swiglu(hidden: Tensor) -> Tensor:
    """Returns silu(a) · b, where a and b are the halves of the last axis."""
    gate, value = hidden.chunk(2, dim=-1)
    return F.silu(gate) * value


class Block(nn.Module):
    """Attention, then MLP, each on a residual branch: x + f(LN x), or LN(x + f(x)) if post-norm."""

    def __init__(self, config: ViTConfig, *, drop_path: float = 0.0) -> None:
        super().__init__()
        dim, scale = config.embed_dim, config.layer_scale
        self.pre_norm = config.norm_order == "pre"
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        biases = {"qkv_bias": config.qkv_bias, "key_bias": config.key_bias}
        self.attn = Attention(dim, num_heads=config.num_heads, **biases)
        self.ls1 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = MLP(dim, hidden=int(dim * config.mlp_ratio), gated=config.swiglu)
        self.ls2 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, rotation: Rotation | None = None
    ) -> Tensor:
        if self.pre_norm:
            attended = self.attn(x, norm=self.norm1, bias=bias, rotation=rotation)
            x = x + self.drop_path(self.ls1(attended))
            return x + self.drop_path(self.ls2(self.mlp(x, norm=self.norm2)))
        x = self.norm1(x + self.drop_path(self.ls1(self.attn(x, bias=bias, rotation=rotation))))
        return self.norm2(x + self.drop_path(self.ls2(self.mlp(x))))


@register_encoder("vit")
@dataclass(kw_only=True)
class ViTConfig(EncoderConfig):
    """Settings of :class:`VisionTransformer`.

    Attributes:
        image_size: [H, W] of the learned position embeddings, in pixels; other sizes resize them.
        patch_size: side of a patch in pixels.
        embed_dim: D.
        num_blocks: of the architecture; only blocks up to the last of ``out_indices`` are built.
        mlp_ratio: hidden width of the MLP divided by ``embed_dim``.
        qkv_bias, key_bias: whether queries, keys and values have biases; without ``key_bias``,
            queries and values alone (DINOv3).
        num_register_tokens: tokens after CLS that the decoder ignores (Darcet et al. 2024).
        position: ``learned`` adds a parameter for each grid cell, ``sincos_1d`` and ``sincos_2d``
            add fixed embeddings, ``concat`` concatenates a learned one of ``position_dim`` channels
            to a patch embedding of ``embed_dim - position_dim``, ``rope`` turns queries and keys
            (DINOv3, see :func:`dpt.nn.vit.axial_rotation`), ``none`` adds nothing.
        rope_theta: of ``rope``: base of the frequencies.
        cls_position: whether learned embeddings have an entry for CLS, as in ViT and timm.
        position_resize: see :func:`dpt.nn.vit.resize_positions`.
        norm_order: see :class:`Block`.
        swiglu: see :class:`MLP`.
        layer_scale: initial gain of LayerScale; None: no LayerScale.
        drop_path: rate of the last of ``num_blocks``; it grows linearly from 0 at the first.
        out_indices: zero-based blocks whose outputs are returned, ascending.
        num_later_blocks: number of blocks after the last of ``out_indices``, run by a head (EoMT);
            the LayerNorm then follows them instead of the returned tokens.
        final_norm: apply one LayerNorm to every output (Depth Anything: True, official DPT: False).
        final_norm_eps: of that LayerNorm; None for ``norm_eps`` (Depth Anything 3: another one).
        padding: see :class:`dpt.nn.base.Encoder`.
    """

    kind: str = "vit"
    image_size: tuple[int, int] = (384, 384)
    patch_size: int = Field(16, ge=1)
    in_channels: int = Field(3, ge=1, le=512)
    embed_dim: int = Field(768, ge=1)
    num_blocks: int = Field(12, ge=1, le=1000)
    num_heads: int = Field(12, ge=1)
    mlp_ratio: float = Field(4.0, gt=0, le=100)
    qkv_bias: bool = True
    key_bias: bool = True
    num_register_tokens: int = Field(0, ge=0)
    position: PositionKind = "learned"
    position_dim: int = 64
    rope_theta: Positive = 100.0
    position_resize: ResizePolicy = "bilinear"
    cls_position: bool = True
    norm_order: Literal["pre", "post"] = "pre"
    norm_eps: Positive = 1e-6
    swiglu: bool = False
    layer_scale: NonNegative | None = None
    drop_path: float = Field(0.0, ge=0, lt=1)
    out_indices: tuple[int, ...] = (2, 5, 8, 11)
    num_later_blocks: int = Field(0, ge=0)
    final_norm: bool = False
    final_norm_eps: Positive | None = None
    padding: Padding = "bottom_right"

    def __post_init__(self) -> None:
        if self.position == "concat" and not 0 < self.position_dim < self.embed_dim:
            raise ValueError(f"position_dim={self.position_dim}: must be in 1..embed_dim - 1")
        divisor = {"sincos_1d": 2, "sincos_2d": 4, "rope": 4 * self.num_heads}.get(self.position, 1)
        divisor = math.lcm(divisor, self.num_heads)
        if self.embed_dim % divisor:
            raise ValueError(f"embed_dim={self.embed_dim}: must be a multiple of {divisor}")
        check_out_indices(self.out_indices, self.num_blocks, self.num_later_blocks)
        if self.patch_size > min(self.image_size):
            raise ValueError(f"patch_size={self.patch_size}: must fit into {self.image_size}")

    def build(self) -> Encoder:
        return VisionTransformer(self)

    def make_patch_embed(self, dim: int) -> nn.Module:
        """Returns the module from images (B, C, H, W) to a map (B, dim, H/p, W/p)."""
        return PatchEmbed(patch_size=self.patch_size, in_channels=self.in_channels, dim=dim)


def check_out_indices(indices: Sequence[int], num_blocks: int, later: int) -> None:
    """Raises a ValueError unless ``indices`` ascend below ``num_blocks - later``."""
    last = num_blocks - 1 - later
    if not indices or list(indices) != sorted(set(indices) & set(range(last + 1))):
        settings = f"out_indices={list(indices)}, num_later_blocks={later}"
        raise ValueError(f"{settings}: must ascend within 0..{last} (from 0), at least one")


class VisionTransformer(Encoder):
    """Maps images to the token matrices of the blocks in ``out_indices``.

    Blocks that no level and no head needs are not built.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        dim, patch, levels = config.embed_dim, config.patch_size, len(config.out_indices)
        self.in_channels = config.in_channels
        self.embed_dims = (dim,) * levels
        self.num_prefix_tokens = (1 + config.num_register_tokens,) * levels
        self.strides = (patch,) * levels
        self.pad_multiple = patch
        self.padding = config.padding
        self.cls_position = config.cls_position and config.position == "learned"
        self.grid = (config.image_size[0] // patch, config.image_size[1] // patch)
        concat = config.position == "concat"
        code_dim = config.position_dim if concat else dim
        self.patch_embed = config.make_patch_embed(dim - code_dim if concat else dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        registers = config.num_register_tokens
        self.reg_token = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        self.pos_embed = None
        if config.position in ("learned", "concat"):
            entries = self.grid[0] * self.grid[1] + self.cls_position
            self.pos_embed = nn.Parameter(torch.zeros(1, entries, code_dim))
        self.checkpoints_activations = False
        self.num_later_blocks = config.num_later_blocks
        count = config.out_indices[-1] + 1 + config.num_later_blocks
        self.blocks = nn.ModuleList(self.make_block(i) for i in range(count))
        has_norm = config.final_norm or config.num_later_blocks
        final_eps = config.final_norm_eps or config.norm_eps
        self.norm = nn.LayerNorm(dim, eps=final_eps) if has_norm else nn.Identity()
        self.init_weights()

    def make_block(self, index: int) -> Block:
        config = self.config
        return Block(config, drop_path=config.drop_path * index / max(config.num_blocks - 1, 1))

    def init_weights(self) -> None:
        """Sets linear layers, tokens and positions to a truncated normal, std 0.02; biases to 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for code in (self.cls_token, self.reg_token, self.pos_embed):
            if code is not None:
                nn.init.trunc_normal_(code, std=0.02)

    def layer_ids(self) -> dict[str, int]:
        """Returns 0 for embeddings, tokens and a CNN, i + 1 for block i; norm as the last block."""

        def layer(name: str) -> int:
            module, *path = name.split(".")
            if module == "blocks":
                return int(path[0]) + 1
            return len(self.blocks) if module == "norm" else 0

        return {name: layer(name) for name, _ in self.named_parameters()}

    def position_embeddings(self, grid: tuple[int, int]) -> Tensor | None:
        """Returns those of the patch tokens at ``grid``, (1, N, D) or (1, N, position_dim)."""
        if self.pos_embed is not None:
            codes = self.pos_embed[:, 1:] if self.cls_position else self.pos_embed
            return resize_positions(codes, self.grid, grid, policy=self.config.position_resize)
        like, dim = self.cls_token, self.config.embed_dim
        if self.config.position == "sincos_2d":
            return sincos_2d(*grid, dim, like=like).unsqueeze(0)
        if self.config.position == "sincos_1d":
            dtype = torch.promote_types(like.dtype, torch.float32)
            positions = torch.arange(grid[0] * grid[1], device=like.device, dtype=dtype)
            return sincos_1d(positions, dim).to(like.dtype).unsqueeze(0)
        return None

    def rotation(self, grid: tuple[int, int]) -> Rotation | None:
        """Returns the rotary position embeddings of the patch tokens at ``grid``, if it has any."""
        config = self.config
        if config.position != "rope":
            return None
        dim = config.embed_dim // config.num_heads
        return axial_rotation(*grid, dim, theta=config.rope_theta, like=self.cls_token)

    def embed(self, map_BDhw: Tensor) -> Tensor:
        """Maps patch embeddings (B, D, h, w) to the input (B, T, D) of the first block."""
        B, _, *grid = map_BDhw.shape
        tokens = map_BDhw.flatten(2).transpose(1, 2)
        codes = self.position_embeddings((grid[0], grid[1]))
        if self.config.position == "concat" and codes is not None:
            tokens = torch.cat((tokens, codes.expand(B, -1, -1)), dim=-1)
        elif codes is not None:
            tokens = tokens + codes
        cls_token: Tensor = self.cls_token
        if self.cls_position and self.pos_embed is not None:
            cls_token = cls_token + self.pos_embed[:, :1]
        prefix = [cls_token] if self.reg_token is None else [cls_token, self.reg_token]
        return torch.cat([p.expand(B, -1, -1) for p in prefix] + [tokens], dim=1)

    def attention_biases(self, grid: tuple[int, int]) -> Iterable[Tensor | None]:
        """Yields the bias (1, heads, T, T) of each block's attention scores; None for no bias."""
        return repeat(None)

    def encode(self, map_BDhw: Tensor) -> list[Tensor]:
        """Maps patch embeddings to the outputs (B, T, D) of the blocks in ``out_indices``."""
        tokens = self.embed(map_BDhw)
        grid = (map_BDhw.shape[-2], map_BDhw.shape[-1])
        biases, rotation = self.attention_biases(grid), self.rotation(grid)
        levels = []
        for i, bias in zip(range(self.config.out_indices[-1] + 1), biases, strict=False):
            tokens = self.run_block(i, tokens, bias, rotation)
            if i in self.config.out_indices:
                levels.append(tokens if self.num_later_blocks else self.norm(tokens))
        return levels

    def run_block(
        self, index: int, tokens: Tensor, bias: Tensor | None, rotation: Rotation | None
    ) -> Tensor:
        block = self.blocks[index]
        if self.checkpoints_activations and self.training and torch.is_grad_enabled():
            return checkpoint(block, tokens, bias, rotation, use_reentrant=False)
        return block(tokens, bias, rotation)

    def later_block(
        self, index: int, tokens: Tensor, *, attn_mask: Tensor | None, grid: tuple[int, int]
    ) -> Tensor:
        index += self.config.out_indices[-1] + 1
        return self.run_block(index, tokens, attn_mask, self.rotation(grid))

    def later_norm(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keeps only each block's input and recomputes the rest in the backward pass."""
        self.checkpoints_activations = enable

    def forward(self, images: Tensor) -> Tokens:
        """Returns tokens of normalised images (B, C, H, W), sides multiples of the patch size."""
        if any(side % self.pad_multiple for side in images.shape[-2:]):
            raise ValueError(f"sides {images.shape[-2:]}: pad them to multiples of the patch size")
        map_BDhw = self.patch_embed(images)
        levels = self.encode(map_BDhw)
        grid = (map_BDhw.shape[-2], map_BDhw.shape[-1])
        return Tokens(levels, [grid] * len(levels))
