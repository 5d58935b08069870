"""DINOv2's DPT depth head over its ViT, written in small from the key table and its recipe."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_depth_anything import DIM, OUT_INDICES, HubViT
from peers_official import depth_layers, resamplers
from torch import nn


class ConvModule(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


class PreActUnit(nn.Module):
    def __init__(self, channels: int, *, bias: bool) -> None:
        super().__init__()
        self.conv1 = ConvModule(channels, channels, 3, bias=bias)
        self.conv2 = ConvModule(channels, channels, 3, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class FusionBlock(nn.Module):
    def __init__(self, channels: int, *, deepest: bool, bias: bool = False) -> None:
        super().__init__()
        self.project = ConvModule(channels, channels, 1)
        self.res_conv_unit1 = None if deepest else PreActUnit(channels, bias=bias)
        self.res_conv_unit2 = PreActUnit(channels, bias=bias)

    def forward(self, x: torch.Tensor, *lateral: torch.Tensor) -> torch.Tensor:
        if lateral:
            (y,) = lateral
            if y.shape != x.shape:
                y = F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)
            x = x + self.res_conv_unit1(y)
        x = self.res_conv_unit2(x)
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        return self.project(x)


class HubHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels, fusion = (16, 32, 64, 128), 16
        self.reassemble_blocks = blocks = nn.Module()
        blocks.projects = nn.ModuleList(ConvModule(DIM, c, 1) for c in channels)
        blocks.resize_layers = nn.ModuleList(resamplers(channels))
        blocks.readout_projects = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * DIM, DIM), nn.GELU()) for _ in channels
        )
        self.convs = nn.ModuleList(ConvModule(c, fusion, 3, bias=False) for c in channels)
        self.fusion_blocks = nn.ModuleList(FusionBlock(fusion, deepest=m == 0) for m in range(4))
        self.project = ConvModule(fusion, fusion, 3)
        self.conv_depth = nn.Module()
        self.conv_depth.head = depth_layers(fusion)

    def forward(self, levels: list[Any], grid: tuple[int, int]) -> torch.Tensor:
        blocks, laterals = self.reassemble_blocks, []
        for n, (patches, cls_token) in enumerate(levels):
            both = torch.cat((patches, cls_token[:, None].expand_as(patches)), -1)
            x = blocks.readout_projects[n](both).mT.unflatten(2, grid)
            laterals.append(self.convs[n](blocks.resize_layers[n](blocks.projects[n](x))))
        x = self.fusion_blocks[0](laterals[3])
        for m in (1, 2, 3):
            x = self.fusion_blocks[m](x, laterals[3 - m])
        return self.conv_depth.head(F.relu(self.project(x))) + 0.001


class HubDepther(nn.Module):
    """At sizes off the grid its code squeezes the padded map into the image; this one crops it."""

    def __init__(self, *, gated: bool = False, registers: int = 0) -> None:
        super().__init__()
        self.backbone = HubViT(gated=gated, registers=registers)
        self.decode_head = HubHead()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        rows, columns = -height % 14, -width % 14
        top, left = rows // 2, columns // 2
        images = F.pad(images, (left, columns - left, top, rows - top))
        size = images.shape[-2:]
        levels = self.backbone.levels(images, OUT_INDICES["v2"], norm=False)
        depth = self.decode_head(levels, (size[0] // 14, size[1] // 14)).clamp(0.001, 80.0)
        depth = F.interpolate(depth, size=size, mode="bilinear", align_corners=False)
        return depth[:, 0, top : top + height, left : left + width]


@dataclass(frozen=True)
class Hub(Case):
    """A random depther, saved whole and read by us."""

    def make(self):
        theirs = jolt(HubDepther(**self.options))
        last = theirs.decode_head.conv_depth.head[4]
        nn.init.constant_(last.bias, 2.0)  # away from a map of zeros behind the last ReLU
        last.weight.data /= 100  # and from 80 m
        return theirs

    def save(self, theirs, folder):
        torch.save({"state_dict": theirs.state_dict()}, folder / "depther.pth")
        return folder / "depther.pth"


SIZES = ((70, 70), (56, 84))  # native (an odd grid), and not square
CASES = [
    Hub("dinov2", "depth", "hub, DPT head", (*SIZES, (65, 90))),
    Hub("dinov2", "depth", "hub, DPT head, registers", SIZES, {"registers": 4}),
    Hub("dinov2", "depth", "hub, DPT head, SwiGLU", SIZES[:1], {"gated": True}),
]
