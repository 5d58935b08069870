"""Fusion ("the combine step"; Ranftl et al. 2021, section 3.2 and figure 1, right)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.enlarge import Enlarged, convolve, resize
from dpt.nn.reassemble import ReadoutMode, Reassemble
from dpt.nn.recompute import conv_of_norm_relu
from dpt.types import Tokens

Alignment = Literal["to_lateral", "double", "resize_lateral"]


class ResidualConvUnit(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))), each convolution followed by BN where asked for.

    The ReLU is not in place: the skip carries x, not ReLU(x). A convolution has a bias where no
    BN follows it, unless ``bias`` says otherwise.
    """

    def __init__(self, channels: int, *, batch_norm: bool, bias: bool | None = None) -> None:
        super().__init__()
        with_bias = not batch_norm if bias is None else bias

        def conv() -> nn.Conv2d:
            return nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=with_bias)

        def norm() -> nn.Module:
            return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()

        self.conv1, self.bn1 = conv(), norm()
        self.conv2, self.bn2 = conv(), norm()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(x))
        return x + self.bn2(conv_of_norm_relu(self.bn1, self.conv2, y))


class Fusion(nn.Module):
    """Adds a level to what comes from above, refines, doubles the size, projects.

    A ``deepest`` block has no unit for its lateral, as nothing comes from above that it would be
    added to: official checkpoints hold one there that never runs.
    """

    def __init__(
        self,
        channels: int,
        *,
        batch_norm: bool,
        unit_bias: bool | None = None,
        deepest: bool = False,
    ) -> None:
        super().__init__()

        def unit() -> ResidualConvUnit:
            return ResidualConvUnit(channels, batch_norm=batch_norm, bias=unit_bias)

        self.rcu1 = None if deepest else unit()
        self.rcu2 = unit()
        self.project = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(self, lateral: Tensor, above: Tensor | None, size: tuple[int, int]) -> Enlarged:
        """(B, C, h, w) and, but for the deepest, the same from above; to be seen at ``size``."""
        x = lateral if self.rcu1 is None else self.rcu1(lateral)
        x = x if above is None else above + x
        # the paper projects after upsampling; the two commute, and here it is a quarter of the work
        return Enlarged(self.project(self.rcu2(x)), size)


class Decoder(nn.Module):
    """Token matrices to a feature map: reassemble each level, then fuse from deep to shallow.

    Args:
        embed_dims, num_prefix_tokens: of each level's tokens, shallow to deep.
        reassemble_channels: channels of each level's map; None keeps D and leaves Project out.
        scales: size of each map over its token grid; each map is twice the next one's size.
        fusion_channels: channels of everything after the 3×3 convolution behind Reassemble.
        readout: mode of Read on levels with a CLS token, see :class:`dpt.nn.reassemble.Read`.
        batch_norm: BN in the residual units, as official DPT has for segmentation.
        unit_bias: bias in the residual units' convolutions. None: where no BN follows (official
            DPT); MiDaS and Depth Anything always have one, DINOv2's heads never.
        align: how maps of unequal size meet, which they do on odd grids alone. ``to_lateral``
            brings what comes from above to the lateral's size; ``resize_lateral`` doubles always
            and resizes the lateral (DINOv2's heads, transformers); ``double`` doubles always and
            resizes nothing: :class:`dpt.nn.DPT` pads images to even grids for it.
        output_project: a 3×3 convolution and ReLU behind the last fusion (DINOv2's heads).
        deepest_unit: a residual unit on the deepest lateral too, as segmentation_models.pytorch
            runs one; official DPT does not.
    """

    def __init__(
        self,
        *,
        embed_dims: Sequence[int],
        num_prefix_tokens: Sequence[int],
        reassemble_channels: Sequence[int | None] = (96, 192, 384, 768),
        scales: Sequence[float] = (4, 2, 1, 0.5),
        fusion_channels: int = 256,
        readout: ReadoutMode = "project",
        batch_norm: bool = False,
        unit_bias: bool | None = None,
        align: Alignment = "to_lateral",
        output_project: bool = False,
        deepest_unit: bool = False,
    ) -> None:
        super().__init__()
        if align not in get_args(Alignment):
            raise ValueError(f"align={align!r}: choose from {get_args(Alignment)}")
        per_level = (embed_dims, num_prefix_tokens, reassemble_channels, scales)
        if len({len(values) for values in per_level}) != 1 or len(embed_dims) < 2:
            raise ValueError(
                "the decoder needs one entry a level and at least two levels: "
                f"{len(embed_dims)} taps, reassemble_channels={list(reassemble_channels)}, "
                f"scales={list(scales)}"
            )
        self.fusion_channels = fusion_channels
        self.align: Alignment = align
        self.reassemble = nn.ModuleList(
            Reassemble(
                dim=dim,
                num_prefix_tokens=prefix,
                readout=readout if prefix else "ignore",
                channels=channels,
                scale=scale,
            )
            for dim, prefix, channels, scale in zip(*per_level, strict=True)
        )
        self.layer_rn = nn.ModuleList(
            nn.Conv2d(channels or dim, fusion_channels, kernel_size=3, padding=1, bias=False)
            for dim, channels in zip(embed_dims, reassemble_channels, strict=True)
        )
        last = len(embed_dims) - 1
        self.fusion = nn.ModuleList(
            Fusion(
                fusion_channels,
                batch_norm=batch_norm,
                unit_bias=unit_bias,
                deepest=i == last and not deepest_unit,
            )
            for i in range(len(embed_dims))
        )
        self.output_project = (
            nn.Conv2d(fusion_channels, fusion_channels, kernel_size=3, padding=1)
            if output_project
            else None
        )

    def fuse(self, tokens: Tokens) -> list[Enlarged]:
        """The output of every fusion block, deepest first; the last is the feature map."""
        levels = zip(self.layer_rn, self.reassemble, tokens.levels, tokens.grids, strict=True)
        laterals = [conv(reassemble(*level)) for conv, reassemble, *level in levels]
        maps: list[Enlarged] = []
        for i in reversed(range(len(laterals))):
            above = maps[-1].full() if maps else None
            lateral = laterals[i]
            if self.align == "resize_lateral" and above is not None:
                lateral = resize(lateral, (above.shape[-2], above.shape[-1]))
            if i and self.align == "to_lateral":  # twice, but for odd sizes
                size = (laterals[i - 1].shape[-2], laterals[i - 1].shape[-1])
            else:
                size = (2 * lateral.shape[-2], 2 * lateral.shape[-1])
            maps.append(self.fusion[i](lateral, above, size))
        if self.output_project is not None:
            maps[-1] = Enlarged.of(F.relu(convolve(self.output_project, maps[-1])))
        return maps

    def forward(self, tokens: Tokens) -> Tensor:
        """Tokens to (B, fusion_channels, 8·grid_h, 8·grid_w): H/2 × W/2 at patch size 16."""
        return self.fuse(tokens)[-1].full()
