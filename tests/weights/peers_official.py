"""The official DPT layout in small: what a ``.pt`` file of DPT or MiDaS v3 is loaded into.

Written from the key table and the published recipe; the transformer blocks and the hybrid's CNN are
timm's, which official DPT builds upon too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from peer_cases import Case, Size, jolt
from timm.layers import StdConv2dSame, pad_same
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import HybridEmbed
from torch import nn

DIM, BLOCKS, GRID = 128, 8, 4


class Readout(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(2 * dim, dim), nn.GELU())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        patches = tokens[:, 1:]
        return self.project(torch.cat((patches, tokens[:, :1].expand_as(patches)), -1))


class Assemble(nn.Sequential):
    """Makes a map of the tokens of a level; its modules have the indices of the file."""

    def __init__(self, dim: int, channels: int, resample: nn.Module) -> None:
        project = nn.Conv2d(dim, channels, 1)
        super().__init__(Readout(dim), nn.Identity(), nn.Identity(), project, resample)

    def forward(self, tokens: torch.Tensor, grid: Size) -> torch.Tensor:
        return self[4](self[3](self[0](tokens).mT.unflatten(2, grid)))


class Pretrained(nn.Module):
    """An encoder, and the modules that make maps of its tokens from level ``first`` on."""

    def __init__(
        self, model: nn.Module, dim: int, channels: Sequence[int], *, first: int = 1
    ) -> None:
        super().__init__()
        self.model = model
        resample = resamplers(channels)
        for n in range(first, 5):
            step = Assemble(dim, channels[n - 1], resample[n - 1])
            setattr(self, f"act_postprocess{n}", step)


class Unit(nn.Module):
    def __init__(self, channels: int, *, bn: bool, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        if bn:
            self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.bn = bn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.relu(x))
        y = self.conv2(F.relu(self.bn1(y) if self.bn else y))
        return x + (self.bn2(y) if self.bn else y)


class Refine(nn.Module):
    """Upsamples the deeper map to ``size``, or doubles it."""

    def __init__(self, channels: int, *, bn: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.out_conv = nn.Conv2d(channels, channels, 1)
        self.resConfUnit1 = Unit(channels, bn=bn, bias=bias)  # in the deepest, it never runs
        self.resConfUnit2 = Unit(channels, bn=bn, bias=bias)

    def forward(
        self, x: torch.Tensor, lateral: torch.Tensor | None = None, size: Any = None
    ) -> torch.Tensor:
        if lateral is not None:
            x = x + self.resConfUnit1(lateral)
        x = self.resConfUnit2(x)
        size = size or [2 * s for s in x.shape[-2:]]
        return self.out_conv(F.interpolate(x, size=size, mode="bilinear", align_corners=True))


class Scratch(nn.Module):
    """The decoder of official DPT, MiDaS 3.1 and Depth Anything."""

    def __init__(
        self, channels: Sequence[int], fusion: int, *, bn: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        for n, count in enumerate(channels, start=1):
            setattr(self, f"layer{n}_rn", nn.Conv2d(count, fusion, 3, padding=1, bias=False))
            setattr(self, f"refinenet{n}", Refine(fusion, bn=bn, bias=bias))

    def fuse(self, levels: Sequence[torch.Tensor]) -> torch.Tensor:
        laterals = [getattr(self, f"layer{n}_rn")(x) for n, x in enumerate(levels, start=1)]
        sizes = [None, *(x.shape[-2:] for x in laterals)]
        path = self.refinenet4(laterals[3], size=sizes[3])
        for n in (3, 2, 1):
            path = getattr(self, f"refinenet{n}")(path, laterals[n - 1], size=sizes[n - 1])
        return path


def resamplers(channels: Sequence[int]) -> list[nn.Module]:
    """From the grid of patches to 4, 2, 1 and 1/2 times its size."""
    return [
        nn.ConvTranspose2d(channels[0], channels[0], 4, 4),
        nn.ConvTranspose2d(channels[1], channels[1], 2, 2),
        nn.Identity(),
        nn.Conv2d(channels[3], channels[3], 3, 2, 1),
    ]


def double() -> nn.Module:
    return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)


def depth_layers(fusion: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(fusion, fusion // 2, 3, padding=1),
        double(),
        nn.Conv2d(fusion // 2, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 1, 1),
        nn.ReLU(),
    )


def segmentation_layers(fusion: int) -> list[nn.Module]:
    return [
        nn.Conv2d(fusion, fusion, 3, padding=1, bias=False),
        nn.BatchNorm2d(fusion),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Conv2d(fusion, 5, 1),
    ]


def run_blocks(
    vit: nn.Module,
    patches: torch.Tensor,
    codes: torch.Tensor,
    registers: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Returns the tokens after each block, for embedded patches (B, D, h, w)."""
    x = patches.flatten(2).mT
    x = torch.cat((vit.cls_token.expand(len(x), -1, -1), x), 1) + codes
    if registers is not None:
        x = torch.cat((x[:, :1], registers.expand(len(x), -1, -1), x[:, 1:]), 1)
    levels = []
    for block in vit.blocks:
        x = block(x)
        levels.append(x)
    return levels


class StandardizedConv(StdConv2dSame):
    """Weight standardisation of the timm that official DPT pins: (w - mean) / (std + 1e-5)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight.flatten(1)
        w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True, unbiased=False) + 1e-5)
        if self.same_pad:
            x = pad_same(x, self.kernel_size, self.stride, self.dilation)
        return F.conv2d(x, w.view_as(self.weight), None, self.stride, self.padding)


class OfficialDPT(nn.Module):
    """Takes sides that are multiples of 32 pixels."""

    def __init__(
        self,
        *,
        task: str = "depth",
        hybrid: bool = False,
        dim: int = DIM,
        blocks: int = BLOCKS,
        channels: tuple[int, ...] = (8, 12, 16, 24),
        fusion: int = 16,
        unit_bias: bool | None = None,
        metric: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {}
        if hybrid:
            cnn = ResNetV2(
                layers=[3, 4, 9],
                num_classes=0,
                global_pool="",
                preact=False,
                stem_type="same",
                conv_layer=StandardizedConv,
            )
            options["embed_layer"] = partial(HybridEmbed, backbone=cnn)
        vit = VisionTransformer(
            img_size=16 * GRID,
            patch_size=1 if hybrid else 16,
            embed_dim=dim,
            depth=blocks,
            num_heads=dim // 64,
            num_classes=1000,
            **options,
        )
        self.hybrid, self.task, self.metric = hybrid, task, metric
        out_indices = [blocks * (i + 1) // 4 - 1 for i in range(4)]
        self.out_indices = out_indices[2:] if hybrid else out_indices
        self.pretrained = Pretrained(vit, dim, channels, first=3 if hybrid else 1)
        if hybrid:
            channels = (256, 512, *channels[2:])
        bn = task == "segmentation"
        bias = not bn if unit_bias is None else unit_bias
        self.scratch = Scratch(channels, fusion, bn=bn, bias=bias)
        if task == "depth":
            self.scratch.output_conv = depth_layers(fusion)
        else:
            self.scratch.output_conv = nn.Sequential(*segmentation_layers(fusion), double())
            self.auxlayer = nn.Sequential(*segmentation_layers(fusion))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        vit, levels, x = self.pretrained.model, [], images
        if self.hybrid:
            x = vit.patch_embed.backbone.stem(x)
            for stage in vit.patch_embed.backbone.stages:
                x = stage(x)
                levels.append(x)
            levels = levels[:2]
        x = vit.patch_embed.proj(x)
        grid = x.shape[-2:]
        codes = vit.pos_embed[:, 1:].mT.unflatten(2, (GRID, GRID))
        codes = F.interpolate(codes, size=grid, mode="bilinear").flatten(2).mT
        tokens = run_blocks(vit, x, torch.cat((vit.pos_embed[:, :1], codes), 1))
        for i in self.out_indices:
            step = getattr(self.pretrained, f"act_postprocess{len(levels) + 1}")
            levels.append(step(tokens[i], grid))
        out = self.scratch.output_conv(self.scratch.fuse(levels))
        if self.task == "segmentation":
            return out
        if self.metric is None:
            return out[:, 0]
        scale, shift = self.metric
        return 1 / (scale * out[:, 0] + shift).clamp(min=1e-8)


@dataclass(frozen=True)
class Official(Case):
    """A random official model, saved as it is and read by us."""

    file: str = "dpt.pt"
    wrapped: bool = False
    gain: float = 1.0

    def make(self):
        theirs = jolt(OfficialDPT(task=self.task, **self.options), gain=self.gain)
        if self.task == "depth":  # away from a map of zeros behind the last ReLU
            nn.init.constant_(theirs.scratch.output_conv[4].bias, 2.0)
        if theirs.metric is not None:  # inverse depth as large as that of the released models
            images = torch.randn(1, 3, 16 * GRID, 16 * GRID)
            with torch.no_grad():
                theirs.metric, kept = None, theirs.metric
                gain = 1000 / theirs(images).max()
                theirs.metric = kept
                for tensor in theirs.scratch.output_conv[4].parameters():
                    tensor.mul_(gain)
        return theirs

    def save(self, theirs, folder):
        content: Any = theirs.state_dict()
        if self.wrapped:
            content = {"model": content, "optimizer": {"state": {}, "param_groups": []}}
        torch.save(content, folder / self.file)
        return folder / self.file


NYU_FILE = "dpt_hybrid_nyu-2ce69ec7.pt"
SIZES = ((64, 64), (64, 96), (128, 32))  # native, and not square
NYU = {"hybrid": True, "metric": (0.000305, 0.1378)}
CASES = [
    Official("official", "depth", "ViT", SIZES),
    Official("official", "depth", "ViT, MiDaS's file", SIZES, wrapped=True),
    Official("official", "depth", "hybrid", SIZES[:2], {"hybrid": True}),
    Official("official", "depth", "hybrid, metric (NYU)", SIZES[:1], NYU, file=NYU_FILE),
    Official("official", "segmentation", "ViT", SIZES),
    Official("official", "segmentation", "ViT, biases", SIZES, {"unit_bias": True}),
]
