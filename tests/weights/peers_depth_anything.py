"""Depth Anything: transformers' models, and the authors' ``.pth`` layout in small.

The layout is written from the key table; its ViT is DINOv2's as the hub has it.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_official import Scratch, resamplers, run_blocks
from peers_transformers import OfTransformers, Output
from timm.models.vision_transformer import Block
from torch import nn

OUT_INDICES = {"v1": (4, 5, 6, 7), "v2": (1, 3, 5, 7)}
GRID, DIM, BLOCKS, CHANNELS = 5, 128, 8, (8, 12, 16, 24)


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
    norm = partial(nn.LayerNorm, eps=1e-6)
    block = Block(dim, dim // 64, qkv_bias=True, init_values=1.0, norm_layer=norm)
    if gated:
        block.mlp = GatedMLP(dim)
    return block


class HubViT(nn.Module):
    """DINOv2 with the hub's names; square grid of codes, resized by the scale factor."""

    def __init__(self, *, gated: bool = False, registers: int = 0, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, DIM))
        self.mask_token = nn.Parameter(torch.zeros(1, DIM))
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, DIM)) if registers else None
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, DIM, 14, 14)
        self.blocks = nn.ModuleList(hub_block(DIM, gated=gated) for _ in range(blocks))
        self.norm = nn.LayerNorm(DIM, eps=1e-6)

    def codes(self, h: int, w: int) -> torch.Tensor:
        if (h, w) == (GRID, GRID):
            return self.pos_embed
        maps = self.pos_embed[:, 1:].mT.unflatten(2, (GRID, GRID))
        if self.register_tokens is None:
            scale = ((h + 0.1) / GRID, (w + 0.1) / GRID)
            maps = F.interpolate(maps, scale_factor=scale, mode="bicubic")
        else:
            maps = F.interpolate(maps, size=(h, w), mode="bicubic", antialias=True)
        return torch.cat((self.pos_embed[:, :1], maps.flatten(2).mT), 1)

    def levels(self, images: torch.Tensor, which: tuple[int, ...], *, norm: bool) -> list[Any]:
        """(patch tokens, CLS token) of each feature level."""
        patches = self.patch_embed.proj(images)
        codes = self.codes(*patches.shape[-2:])
        tokens = run_blocks(self, patches, codes, self.register_tokens)
        if norm:
            tokens = [self.norm(x) for x in tokens]
        skip = 1 if self.register_tokens is None else 1 + self.register_tokens.shape[1]
        return [(tokens[i][:, skip:], tokens[i][:, 0]) for i in which]


class HubDepthAnything(nn.Module):
    """Takes sides that are multiples of 14 pixels."""

    def __init__(
        self, *, version: str = "v2", gated: bool = False, max_depth: float | None = None
    ) -> None:
        super().__init__()
        self.which, self.max_depth = OUT_INDICES[version], max_depth
        self.pretrained = HubViT(gated=gated)
        self.depth_head = head = nn.Module()
        head.projects = nn.ModuleList(nn.Conv2d(DIM, c, 1) for c in CHANNELS)
        head.resize_layers = nn.ModuleList(resamplers(CHANNELS))
        head.scratch = Scratch(CHANNELS, 16)
        head.scratch.output_conv1 = nn.Conv2d(16, 8, 3, padding=1)
        head.scratch.output_conv2 = nn.Sequential(
            nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        h, w = (s // 14 for s in images.shape[-2:])
        head = self.depth_head
        levels = [
            resize(project(patches.mT.unflatten(2, (h, w))))
            for project, resize, (patches, _) in zip(
                head.projects,
                head.resize_layers,
                self.pretrained.levels(images, self.which, norm=True),
                strict=True,
            )
        ]
        path = head.scratch.output_conv1(head.scratch.fuse(levels))
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


class Folder(OfTransformers):
    def make(self):
        return Output(folder_model(**self.options))


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
