"""A head of a user's own: surface normals, known to the project by its declaration only."""

from dataclasses import dataclass

import torch
from torch import nn

from dpt.functional import upsample
from dpt.nn import Head, HeadConfig
from dpt.types import OutputSpec


class NormalsHead(Head):
    """(B, 3, H, W) in -1..1; x points to the right, so mirroring changes its sign."""

    output = OutputSpec(
        "normals", "map", channels=3, value_range=(-1.0, 1.0), flip_signs=(-1.0, 1.0, 1.0)
    )

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 3, kernel_size=1)
        nn.init.normal_(self.conv.weight, std=2.0)

    def forward(self, features, size):
        return upsample(torch.tanh(self.conv(features.map)), size)


@dataclass
class NormalsConfig(HeadConfig):
    def build(self, encoder, fusion_channels):
        return NormalsHead(fusion_channels)
