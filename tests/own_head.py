"""A head of a user's own: surface normals with their confidence, known by its declaration only."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpt.functional import upsample
from dpt.nn import Head, HeadConfig
from dpt.types.outputs import OutputSpec


class Normals(NamedTuple):
    normals: Tensor  # (B, 3, H, W) in -1..1; x points to the right, so mirroring changes its sign
    confidence: Tensor  # (B, H, W) in 0..1


class NormalsHead(Head):
    output = OutputSpec(
        "surface",
        "map",
        channels=3,
        value_range=(-1.0, 1.0),
        flip_signs=(-1.0, 1.0, 1.0),
        record=Normals,
        extra=(OutputSpec("confidence", "map", value_range=(0.0, 1.0)),),
    )

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, kernel_size=1)
        nn.init.normal_(self.conv.weight, std=2.0)

    def forward(self, features, size):
        maps = upsample(self.conv(features.map), size)
        return Normals(torch.tanh(maps[:, :3]), torch.sigmoid(maps[:, 3]))


@dataclass
class NormalsConfig(HeadConfig):
    def build(self, encoder, fusion_channels):
        return NormalsHead(fusion_channels)
