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
from peer_cases import Case, jolt
from torch import nn

DIM, BLOCKS, GRID = 128, 8, 4


class Readout(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(2 * dim, dim), nn.GELU())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        patches = tokens[:, 1:]
        return self.project(torch.cat((patches, tokens[:, :1].expand_as(patches)), -1))


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


def resamplers(channels: Sequence[int]) -> list[nn.Module]:
    """From the grid of patches to 4, 2, 1 and 1/2 times its size."""
    return [
        nn.ConvTranspose2d(channels[0], channels[0], 4, 4),
        nn.ConvTranspose2d(channels[1], channels[1], 2, 2),
        nn.Identity(),
        nn.Conv2d(channels[3], channels[3], 3, 2, 1),
    ]


def standardised_conv() -> type[nn.Module]:
    """Weight standardisation of the timm that official DPT pins: (w - mean) / (std + 1e-5)."""
    from timm.layers import StdConv2dSame, pad_same

    class Conv(StdConv2dSame):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            w = self.weight.flatten(1)
            w = (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True, unbiased=False) + 1e-5)
            if self.same_pad:
                x = pad_same(x, self.kernel_size, self.stride, self.dilation)
            return F.conv2d(x, w.view_as(self.weight), None, self.stride, self.padding)

    return Conv


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
        classes: int = 5,
        metric: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        from timm.models.resnetv2 import ResNetV2
        from timm.models.vision_transformer import VisionTransformer
        from timm.models.vision_transformer_hybrid import HybridEmbed

        options: dict[str, Any] = {}
        if hybrid:
            cnn = ResNetV2(
                layers=[3, 4, 9],
                num_classes=0,
                global_pool="",
                preact=False,
                stem_type="same",
                conv_layer=standardised_conv(),
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
        self.hybrid, self.task, self.metric, self.dim = hybrid, task, metric, dim
        out_indices = [blocks * (i + 1) // 4 - 1 for i in range(4)]
        self.out_indices = out_indices[2:] if hybrid else out_indices
        self.pretrained = nn.Module()
        self.pretrained.model = vit
        resample = resamplers(channels)
        if hybrid:
            channels = (256, 512, *channels[2:])
        for n in range(4):
            step = nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())
            if not hybrid or n > 1:
                step = nn.Sequential(
                    Readout(dim),
                    nn.Identity(),  # transpose
                    nn.Identity(),  # unflatten
                    nn.Conv2d(dim, channels[n], 1),
                )
                if n != 2:
                    step.append(resample[n])
            setattr(self.pretrained, f"act_postprocess{n + 1}", step)
        self.scratch = nn.Module()
        bn = task == "segmentation"
        unit = {"bn": bn, "bias": not bn if unit_bias is None else unit_bias}
        for n in range(4):
            rn = nn.Conv2d(channels[n], fusion, 3, padding=1, bias=False)
            setattr(self.scratch, f"layer{n + 1}_rn", rn)
            setattr(self.scratch, f"refinenet{n + 1}", Refine(fusion, **unit))

        def head() -> list[nn.Module]:
            return [
                nn.Conv2d(fusion, fusion, 3, padding=1, bias=False),
                nn.BatchNorm2d(fusion),
                nn.ReLU(),
                nn.Dropout(0.1),
                nn.Conv2d(fusion, classes, 1),
            ]

        double = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        if task == "depth":
            self.scratch.output_conv = nn.Sequential(
                nn.Conv2d(fusion, fusion // 2, 3, padding=1),
                double,
                nn.Conv2d(fusion // 2, 32, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(32, 1, 1),
                nn.ReLU(),
            )
        else:
            self.scratch.output_conv = nn.Sequential(*head(), double)
            self.auxlayer = nn.Sequential(*head())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        vit = self.pretrained.model
        h, w = images.shape[-2] // 16, images.shape[-1] // 16
        levels = []
        if self.hybrid:
            x = vit.patch_embed.backbone.stem(images)
            for i, stage in enumerate(vit.patch_embed.backbone.stages):
                x = stage(x)
                if i < 2:
                    levels.append(x)
            x = vit.patch_embed.proj(x)
        else:
            x = vit.patch_embed.proj(images)
        codes = vit.pos_embed[:, 1:].transpose(1, 2).unflatten(2, (GRID, GRID))
        codes = F.interpolate(codes, size=(h, w), mode="bilinear").flatten(2).transpose(1, 2)
        codes = torch.cat((vit.pos_embed[:, :1], codes), 1)
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat((vit.cls_token.expand(len(x), -1, -1), x), 1) + codes
        for i, block in enumerate(vit.blocks):
            x = block(x)
            if i in self.out_indices:
                step = getattr(self.pretrained, f"act_postprocess{len(levels) + 1}")
                patches = step[0](x).transpose(1, 2).unflatten(2, (h, w))
                levels.append(step[3:](patches))
        laterals = [getattr(self.scratch, f"layer{n + 1}_rn")(x) for n, x in enumerate(levels)]
        path = self.scratch.refinenet4(laterals[3])
        for n in (3, 2, 1):
            path = getattr(self.scratch, f"refinenet{n}")(path, laterals[n - 1])
        out = self.scratch.output_conv(path)
        if self.task == "segmentation":
            return out
        if self.metric is None:
            return out[:, 0]
        depth = self.metric[0] * out[:, 0] + self.metric[1]
        depth[depth < 1e-8] = 1e-8
        return 1 / depth


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
