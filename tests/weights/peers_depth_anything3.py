"""Depth Anything 3, mono and metric, in small; written from the key table.

Its ViT is DINOv2's as the hub has it, but for the epsilon of the last LayerNorm.
"""

import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_depth_anything import CHANNELS, DIM, OUT_INDICES, SIZES, HubViT
from peers_official import Scratch, resamplers
from safetensors.torch import save_file
from torch import nn

FUSION = 16


def last_layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(FUSION // 2, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 1))


class DepthAnything3(nn.Module):
    """Takes sides that are multiples of 14 pixels."""

    def __init__(self, *, gated: bool = False) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.backbone = nn.Module()
        self.model.backbone.pretrained = vit = HubViT(gated=gated)
        del vit.mask_token
        vit.norm = nn.LayerNorm(DIM, eps=1e-5)
        self.model.head = head = nn.Module()
        head.projects = nn.ModuleList(nn.Conv2d(DIM, c, 1) for c in CHANNELS)
        head.resize_layers = nn.ModuleList(resamplers(CHANNELS))
        head.scratch = Scratch(CHANNELS, FUSION)
        del head.scratch.refinenet4.resConfUnit1
        head.scratch.output_conv1 = nn.Conv2d(FUSION, FUSION // 2, 3, padding=1)
        head.scratch.output_conv2 = last_layers()
        head.scratch.sky_output_conv2 = last_layers()

    def shared(self, images: torch.Tensor) -> torch.Tensor:
        h, w = (s // 14 for s in images.shape[-2:])
        head, vit = self.model.head, self.model.backbone.pretrained
        tokens = vit.levels(images, OUT_INDICES["v2"], norm=True)
        maps = [
            resize(project(patches.mT.unflatten(2, (h, w))))
            for project, resize, (patches, _) in zip(
                head.projects, head.resize_layers, tokens, strict=True
            )
        ]
        x = head.scratch.output_conv1(head.scratch.fuse(maps))
        return F.interpolate(x, size=(14 * h, 14 * w), mode="bilinear", align_corners=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model.head.scratch.output_conv2(self.shared(images))[:, 0].exp()

    def sky(self, images: torch.Tensor) -> torch.Tensor:
        return self.model.head.scratch.sky_output_conv2(self.shared(images))[:, 0].relu()


@dataclass(frozen=True)
class Folder(Case):
    """A folder as of the Hub; ``model_name`` tells what the depth is."""

    model_name: str = "da3mono-large"

    def make(self):
        theirs = jolt(DepthAnything3(**self.options))
        last = theirs.model.head.scratch.output_conv2[2]
        last.weight.data /= 20  # a steep exponential would amplify rounding
        return theirs

    def save(self, theirs, folder):
        (folder / "config.json").write_text(json.dumps({"model_name": self.model_name}))
        save_file(theirs.state_dict(), folder / "model.safetensors")
        return folder


METRIC = "da3metric-large"
FORMAT = "depth_anything_3"
CASES = [
    Folder(FORMAT, "depth", "mono", SIZES),
    Folder(FORMAT, "depth", "metric", SIZES[:1], model_name=METRIC),
]
