"""The Vision Transformer (Dosovitskiy et al. 2021): image to token matrices.

Shapes: B batch, N tokens of the grid, P prefix tokens (CLS first, then registers), T = P + N,
D embedding, h × w the grid. Parameter names are timm's, so timm's weights load with no mapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpt.nn.positions import PositionKind, ResizePolicy, resize_positions, sincos_1d, sincos_2d
from dpt.nn.recompute import is_plain, linear_of, linear_of_norm
from dpt.types import Tokens

GeluKind = Literal["exact", "tanh", "sigmoid"]
Padding = Literal["bottom_right", "center"]


class SigmoidGELU(nn.Module):
    """x · sigmoid(1.702 x), within 0.0204 of GELU everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def make_gelu(kind: GeluKind) -> nn.Module:
    if kind == "sigmoid":
        return SigmoidGELU()
    if kind not in get_args(GeluKind):
        raise ValueError(f"gelu={kind!r}: choose from {get_args(GeluKind)}")
    return nn.GELU(approximate="none" if kind == "exact" else "tanh")


class DropPath(nn.Module):
    """Leaves out a residual branch for a random share of the samples (stochastic depth)."""

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
        """(B, C, H, W) to a map (B, D, H/p, W/p)."""
        return self.proj(images)


class Attention(nn.Module):
    """Multi-head self-attention, softmax(Q Kᵀ / √d_head) V, with one product for Q, K and V."""

    def __init__(self, dim: int, *, num_heads: int, qkv_bias: bool) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"embed_dim={dim} is not a multiple of num_heads={num_heads}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def project_qkv(self, tokens_BTD: Tensor, norm: nn.Module | None) -> Tensor:
        """(B, T, D) to (B, T, 3 D): Q, K and V side by side, of what ``norm`` makes of tokens."""
        return linear_of_norm(norm, self.qkv, tokens_BTD)

    def split_heads(self, qkv_BT3D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, 3 D) to Q, K and V of each head, (B, heads, T, D / heads)."""
        B, T, width = qkv_BT3D.shape
        qkv = qkv_BT3D.view(B, T, 3, self.num_heads, width // (3 * self.num_heads))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def forward(
        self, tokens_BTD: Tensor, *, norm: nn.Module | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) to the same.

        Args:
            norm: applied to the tokens first; here, since its output need not be kept.
            bias: (1, heads, T, T), added to the scores.
        """
        q, k, v = self.split_heads(self.project_qkv(tokens_BTD, norm))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.proj(mixed.transpose(1, 2).reshape(tokens_BTD.shape))


class MLP(nn.Module):
    def __init__(self, dim: int, *, hidden: int, gelu: GeluKind) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = make_gelu(gelu)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor, *, norm: nn.Module | None = None) -> Tensor:
        hidden = linear_of_norm(norm, self.fc1, tokens)
        if is_plain(self.act, nn.GELU) or is_plain(self.act, SigmoidGELU):
            return linear_of(self.act, self.fc2, hidden)
        return self.fc2(self.act(hidden))  # a user's own may have parameters, or be random


class SwiGLU(nn.Module):
    """fc2(silu(a) · b) with (a, b) = fc1(x) (Shazeer 2020); DINOv2 ViT-g's MLP.

    Its hidden width is two thirds of ``hidden``, rounded up to a multiple of 8.
    """

    def __init__(self, dim: int, *, hidden: int) -> None:
        super().__init__()
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        self.fc1 = nn.Linear(dim, 2 * hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor, *, norm: nn.Module | None = None) -> Tensor:
        return linear_of(self.gate, self.fc2, linear_of_norm(norm, self.fc1, tokens))

    @staticmethod
    def gate(hidden: Tensor) -> Tensor:
        gate, value = hidden.chunk(2, dim=-1)
        return F.silu(gate) * value


class Block(nn.Module):
    """Attention, then MLP, each on a residual branch.

    Pre-norm: x + f(LN x). Post-norm: LN(x + f(x)).
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        norm_order: Literal["pre", "post"] = "pre",
        norm_eps: float = 1e-6,
        gelu: GeluKind = "exact",
        swiglu: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if norm_order not in ("pre", "post"):
            raise ValueError(f"norm_order={norm_order!r}: choose from ('pre', 'post')")
        self.pre_norm = norm_order == "pre"
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attn = Attention(dim, num_heads=num_heads, qkv_bias=qkv_bias)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps)
        hidden = int(dim * mlp_ratio)
        self.mlp = SwiGLU(dim, hidden=hidden) if swiglu else MLP(dim, hidden=hidden, gelu=gelu)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(dim, layer_scale)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.pre_norm:
            x = x + self.drop_path(self.ls1(self.attn(x, norm=self.norm1, bias=bias)))
            return x + self.drop_path(self.ls2(self.mlp(x, norm=self.norm2)))
        x = self.norm1(x + self.drop_path(self.ls1(self.attn(x, bias=bias))))
        return self.norm2(x + self.drop_path(self.ls2(self.mlp(x))))


class VisionTransformer(nn.Module):
    """Image to token matrices of the blocks named in ``out_indices``.

    Blocks after the last one asked for do not exist: they would be computed for nothing.

    Args:
        image_size: [H, W] that learned position codes are made for; other sizes resize them.
        patch_size: side of a patch in pixels.
        num_blocks: blocks of the architecture, of which those up to the last tap are built.
        num_register_tokens: extra tokens after CLS, read by nobody (Darcet et al. 2024).
        position: ``learned`` adds a parameter per grid cell, ``sincos_1d`` and ``sincos_2d`` add
            fixed codes, ``concat`` stacks a learned code of ``position_dim`` channels under a
            patch code of ``embed_dim - position_dim``, ``none`` leaves tokens without a place.
        cls_position: whether learned codes have a slot for CLS, as in ViT and timm.
        position_resize: see :func:`dpt.nn.positions.resize_positions`.
        swiglu: a gated MLP in place of the one with GELU, as in DINOv2's ViT-g.
        layer_scale: initial gain of LayerScale; None leaves it out.
        drop_path: rate at the last block; it grows linearly from 0 at the first.
        out_indices: zero-based blocks whose outputs are returned, ascending.
        final_norm: apply one LayerNorm to every tap, as Depth Anything; official DPT does not.
        padding: how :class:`dpt.nn.DPT` brings images to the grid: ``bottom_right`` repeats the
            last row and column, ``center`` puts zeros on all sides (DINOv2's heads).
    """

    def __init__(
        self,
        *,
        image_size: Sequence[int] = (384, 384),
        patch_size: int = 16,
        in_channels: int = 3,
        embed_dim: int = 768,
        num_blocks: int = 12,
        num_heads: int = 12,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        num_register_tokens: int = 0,
        position: PositionKind = "learned",
        position_dim: int = 64,
        position_resize: ResizePolicy = "bilinear",
        cls_position: bool = True,
        norm_order: Literal["pre", "post"] = "pre",
        norm_eps: float = 1e-6,
        gelu: GeluKind = "exact",
        swiglu: bool = False,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        out_indices: Sequence[int] = (2, 5, 8, 11),
        final_norm: bool = False,
        padding: Padding = "bottom_right",
    ) -> None:
        super().__init__()
        if position not in get_args(PositionKind):
            raise ValueError(f"position={position!r}: choose from {get_args(PositionKind)}")
        if position_resize not in get_args(ResizePolicy):
            choices = get_args(ResizePolicy)
            raise ValueError(f"position_resize={position_resize!r}: choose from {choices}")
        if position == "concat" and not 0 < position_dim < embed_dim:
            raise ValueError(
                f"position_dim={position_dim}: must lie between 0 and embed_dim={embed_dim}"
            )
        taps = tuple(out_indices) if isinstance(out_indices, Sequence) else ()
        if not taps or list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] < num_blocks:
            raise ValueError(
                f"out_indices={out_indices}: must ascend within 0..{num_blocks - 1} (zero-based)"
            )
        if not isinstance(image_size, Sequence) or len(image_size) != 2:
            raise ValueError(f"image_size={image_size}: must be [H, W] in pixels")
        if not 1 <= patch_size <= min(image_size):
            raise ValueError(
                f"image_size={list(image_size)} must hold a patch, and patch_size={patch_size} be "
                "at least 1"
            )
        if padding not in get_args(Padding):
            raise ValueError(f"padding={padding!r}: choose from {get_args(Padding)}")
        self.padding: Padding = padding
        self.patch_size = patch_size
        self.embed_dim = embed_dim
        self.out_indices = taps
        self.position: PositionKind = position
        self.position_resize: ResizePolicy = position_resize
        self.cls_position = cls_position and position == "learned"
        self.num_prefix = 1 + num_register_tokens
        self.grid = (image_size[0] // patch_size, image_size[1] // patch_size)

        patch_dim = embed_dim - position_dim if position == "concat" else embed_dim
        self.patch_embed = self._make_patch_embed(patch_size, in_channels, patch_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.reg_token = (
            nn.Parameter(torch.zeros(1, num_register_tokens, embed_dim))
            if num_register_tokens
            else None
        )
        num_cells = self.grid[0] * self.grid[1]
        self.pos_embed = None
        if position == "learned":
            self.pos_embed = nn.Parameter(torch.zeros(1, num_cells + self.cls_position, embed_dim))
        elif position == "concat":
            self.pos_embed = nn.Parameter(torch.zeros(1, num_cells, position_dim))
        built = taps[-1] + 1
        self.checkpoints_activations = False
        rates = [drop_path * i / max(num_blocks - 1, 1) for i in range(built)]
        self.blocks = nn.ModuleList(
            Block(
                embed_dim,
                num_heads=num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                norm_order=norm_order,
                norm_eps=norm_eps,
                gelu=gelu,
                swiglu=swiglu,
                layer_scale=layer_scale,
                drop_path=rate,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps) if final_norm else nn.Identity()
        self.init_weights()

    def _make_patch_embed(self, patch_size: int, in_channels: int, dim: int) -> nn.Module:
        return PatchEmbed(patch_size=patch_size, in_channels=in_channels, dim=dim)

    def init_weights(self) -> None:
        """Truncated normal 0.02 for linear maps and codes, zero for biases, as ViT and timm."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for code in (self.cls_token, self.reg_token, self.pos_embed):
            if code is not None:
                nn.init.trunc_normal_(code, std=0.02)

    # What a decoder needs to know, one entry a level

    @property
    def embed_dims(self) -> tuple[int, ...]:
        return (self.embed_dim,) * len(self.out_indices)

    @property
    def num_prefix_tokens(self) -> tuple[int, ...]:
        return (self.num_prefix,) * len(self.out_indices)

    @property
    def strides(self) -> tuple[int, ...]:
        return (self.patch_size,) * len(self.out_indices)

    @property
    def pad_multiple(self) -> int:
        """Input sides must be multiples of this many pixels; :class:`dpt.nn.DPT` pads."""
        return self.patch_size

    def position_codes(self, grid: tuple[int, int]) -> Tensor | None:
        """Codes of the patch tokens at ``grid``, (1, N, D) or (1, N, position_dim)."""
        if self.pos_embed is not None:
            codes = self.pos_embed[:, 1:] if self.cls_position else self.pos_embed
            return resize_positions(codes, self.grid, grid, policy=self.position_resize)
        like = self.cls_token
        if self.position == "sincos_2d":
            return sincos_2d(*grid, self.embed_dim, like=like).unsqueeze(0)
        if self.position == "sincos_1d":
            places = torch.arange(grid[0] * grid[1], device=like.device, dtype=like.dtype)
            return sincos_1d(places, self.embed_dim).unsqueeze(0)
        return None

    def embed(self, map_BDhw: Tensor) -> Tensor:
        """A map of patch codes to the token matrix (B, T, D) that enters the first block."""
        B, _, *grid = map_BDhw.shape
        tokens = map_BDhw.flatten(2).transpose(1, 2)
        codes = self.position_codes((grid[0], grid[1]))
        if self.position == "concat" and codes is not None:
            tokens = torch.cat((tokens, codes.expand(B, -1, -1)), dim=-1)
        elif codes is not None:
            tokens = tokens + codes
        cls_token: Tensor = self.cls_token
        if self.cls_position and self.pos_embed is not None:
            cls_token = cls_token + self.pos_embed[:, :1]
        prefix = [cls_token] if self.reg_token is None else [cls_token, self.reg_token]
        return torch.cat([p.expand(B, -1, -1) for p in prefix] + [tokens], dim=1)

    def run_blocks(self, tokens: Tensor) -> list[Tensor]:
        """Token matrices after each block of ``out_indices``."""
        taps = []
        for i, block in enumerate(self.blocks):
            tokens = self.run_block(block, tokens)
            if i in self.out_indices:
                taps.append(self.norm(tokens))
        return taps

    def run_block(self, block: nn.Module, *inputs: Tensor) -> Tensor:
        """One block; under activation checkpointing only its inputs are kept for backward."""
        if self.checkpoints_activations and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Trades a second forward pass of every block for the memory of its activations."""
        self.checkpoints_activations = enable

    def encode(self, map_BDhw: Tensor) -> list[Tensor]:
        """A map of patch codes to the token matrices of ``out_indices``."""
        return self.run_blocks(self.embed(map_BDhw))

    def forward(self, images: Tensor) -> Tokens:
        """Normalised images (B, C, H, W), H and W multiples of the patch size, to their tokens.

        Raises:
            ValueError: the size is not a multiple of the patch size.
        """
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"an image of {height}x{width} is no multiple of the patch size "
                f"{self.patch_size}: pad it, as dpt.nn.DPT does"
            )
        map_BDhw = self.patch_embed(images)
        levels = self.encode(map_BDhw)
        grid = (map_BDhw.shape[-2], map_BDhw.shape[-1])
        return Tokens(levels, [grid] * len(levels))
