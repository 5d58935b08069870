"""Depth Anything: transformers' models, and the authors' ``.pth`` layout in small.

The layout is written from the key table; its ViT is DINOv2's as the hub has it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_official import Refine, resamplers
from torch import nn

OUT_INDICES = {"v1": (4, 5, 6, 7), "v2": (1, 3, 5, 7)}
GRID, DIM, BLOCKS = 5, 128, 8


class GatedMLP(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = (int(4 * dim * 2 / 3) + 7) // 8 * 8
        self.w12, self.w3 = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(first) * second)


def hub_block(dim: int, *, gated: bool) -> nn.Module:
    """DINOv2's block, whose tensors have timm's names but for a gated MLP."""
    from timm.models.vision_transformer import Block

    norm = partial(nn.LayerNorm, eps=1e-6)
    block = Block(dim, dim // 64, qkv_bias=True, init_values=1.0, norm_layer=norm)
    if gated:
        block.mlp = GatedMLP(dim)
    return block


class HubViT(nn.Module):
    """DINOv2 with the hub's names; square grid of codes, resized by the scale factor."""

    def __init__(
        self,
        *,
        gated: bool = False,
        registers: int = 0,
        patch: int = 14,
        dim: int = DIM,
        grid: int = GRID,
        blocks: int = BLOCKS,
    ) -> None:
        super().__init__()
        self.grid, self.patch = grid, patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + grid**2, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, dim))
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, dim)) if registers else None
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.ModuleList(hub_block(dim, gated=gated) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def codes(self, h: int, w: int) -> torch.Tensor:
        if (h, w) == (self.grid, self.grid):
            return self.pos_embed
        maps = self.pos_embed[:, 1:].mT.unflatten(2, (self.grid, self.grid))
        if self.register_tokens is None:
            scale = ((h + 0.1) / self.grid, (w + 0.1) / self.grid)
            maps = F.interpolate(maps, scale_factor=scale, mode="bicubic")
        else:
            maps = F.interpolate(maps, size=(h, w), mode="bicubic", antialias=True)
        return torch.cat((self.pos_embed[:, :1], maps.flatten(2).mT), 1)

    def levels(self, images: torch.Tensor, which: tuple[int, ...], *, norm: bool) -> list[Any]:
        """(patch tokens, CLS token) of each feature level."""
        x = self.patch_embed.proj(images)
        h, w = x.shape[-2:]
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x.flatten(2).mT), 1)
        x = x + self.codes(h, w)
        skip = 1
        if self.register_tokens is not None:
            skip += self.register_tokens.shape[1]
            registers = self.register_tokens.expand(len(x), -1, -1)
            x = torch.cat((x[:, :1], registers, x[:, 1:]), 1)
        found = []
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i in which:
                y = self.norm(x) if norm else x
                found.append((y[:, skip:], y[:, 0]))
        return found


class HubDepthAnything(nn.Module):
    """Takes sides that are multiples of 14 pixels."""

    def __init__(
        self,
        *,
        version: str = "v2",
        gated: bool = False,
        max_depth: float | None = None,
        channels: tuple[int, ...] = (8, 12, 16, 24),
        fusion: int = 16,
    ) -> None:
        super().__init__()
        self.which, self.max_depth = OUT_INDICES[version], max_depth
        self.pretrained = HubViT(gated=gated)
        self.depth_head = head = nn.Module()
        head.projects = nn.ModuleList(nn.Conv2d(DIM, c, 1) for c in channels)
        head.resize_layers = nn.ModuleList(resamplers(channels))
        head.scratch = scratch = nn.Module()
        for n, c in enumerate(channels, start=1):
            setattr(scratch, f"layer{n}_rn", nn.Conv2d(c, fusion, 3, padding=1, bias=False))
            setattr(scratch, f"refinenet{n}", Refine(fusion))
        scratch.output_conv1 = nn.Conv2d(fusion, fusion // 2, 3, padding=1)
        scratch.output_conv2 = nn.Sequential(
            nn.Conv2d(fusion // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        h, w = (s // 14 for s in images.shape[-2:])
        head, laterals = self.depth_head, []
        levels = self.pretrained.levels(images, self.which, norm=True)
        for n, (patches, _) in enumerate(levels):
            x = head.resize_layers[n](head.projects[n](patches.mT.unflatten(2, (h, w))))
            laterals.append(getattr(head.scratch, f"layer{n + 1}_rn")(x))
        sizes = [x.shape[-2:] for x in laterals]
        path = head.scratch.refinenet4(laterals[3], size=sizes[2])
        path = head.scratch.refinenet3(path, laterals[2], size=sizes[1])
        path = head.scratch.refinenet2(path, laterals[1], size=sizes[0])
        path = head.scratch.output_conv1(head.scratch.refinenet1(path, laterals[0]))
        size = (14 * h, 14 * w)
        path = F.interpolate(path, size=size, mode="bilinear", align_corners=True)
        depth = head.scratch.output_conv2(path)[:, 0]
        return F.relu(depth) if self.max_depth is None else depth.sigmoid() * self.max_depth


@dataclass(frozen=True)
class Hub(Case):
    """A random model of the authors', saved as its state dict and read by us."""

    file: str = "depth_anything_v2_vits.pth"
    stored: float | None = None

    def make(self):
        theirs = jolt(HubDepthAnything(**self.options))
        last = theirs.depth_head.scratch.output_conv2[2]
        nn.init.constant_(last.bias, 2.0 if theirs.max_depth is None else 0.0)
        if theirs.max_depth is not None:  # a steep sigmoid would amplify rounding
            last.weight.data /= 10
        return theirs

    def save(self, theirs, folder):
        content: Any = theirs.state_dict()
        if self.stored is not None:
            content = {"model": content, "max_depth": self.stored}
        torch.save(content, folder / self.file)
        return folder / self.file


class Depth(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images).predicted_depth


def folder_model(
    *, gated: bool = False, out_indices: tuple[int, ...] = (2, 4, 6, 8), **options: Any
):
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        image_size=14 * GRID,
        use_swiglu_ffn=gated,
        out_indices=list(out_indices),
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=48,
        neck_hidden_sizes=[8, 12, 16, 24],
        fusion_hidden_size=16,
        **options,
    )
    model = jolt(DepthAnythingForDepthEstimation(config))
    metric = options.get("depth_estimation_type") == "metric"
    nn.init.constant_(model.head.conv3.bias, 0.0 if metric else 2.0)
    if metric:  # a steep sigmoid would amplify rounding
        model.head.conv3.weight.data /= 10
    return model


@dataclass(frozen=True)
class Folder(Case):
    """A random model of transformers, saved by it and read by us."""

    def make(self):
        return Depth(folder_model(**self.options))

    def save(self, theirs, folder):
        theirs.model.save_pretrained(folder)
        return folder


SIZES = ((70, 70), (98, 70), (84, 112))  # native (an odd grid), and not square
HYPERSIM = "depth_anything_v2_metric_hypersim_vits.pth"
BY_SIZE = 1e-6  # transformers resizes position embeddings in float32 whatever it is given
METRIC = {"depth_estimation_type": "metric", "max_depth": 80, "out_indices": (5, 6, 7, 8)}
V1 = {"version": "v1"}
CASES = [
    Hub("depth_anything", "depth", "v2 .pth", SIZES),
    Hub("depth_anything", "depth", "v1 .pth", SIZES[:2], V1, file="depth_anything_vits14.pth"),
    Hub("depth_anything", "depth", "v2 .pth, SwiGLU (ViT-g)", SIZES[:1], {"gated": True}),
    Hub("depth_anything", "depth", "metric .pth", SIZES[:2], {"max_depth": 20.0}, file=HYPERSIM),
    Hub("depth_anything", "depth", "metric .pth, stored", SIZES[:1], {"max_depth": 7.0}, stored=7),
    Folder("depth_anything", "depth", "transformers", SIZES, exact=BY_SIZE),
    Folder("depth_anything", "depth", "transformers, SwiGLU", SIZES[:1], {"gated": True}),
    Folder("depth_anything", "depth", "transformers, metric", SIZES[:1], METRIC),
]
