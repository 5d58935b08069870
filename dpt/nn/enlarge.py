"""Enlarging maps, and convolving a map that is still to be enlarged.

Shapes: B batch, C channels, (h, w) before, (H, W) after.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.recompute import conv_of, is_plain_conv
from dpt.nn.taps import convolve_by_taps
from dpt.nn.tracing import exporting, same_size


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear with aligned corners, as the decoder enlarges its maps; nothing at ``size``."""
    if same_size(maps.shape[-2:], size):
        return maps
    if exporting() and same_size(size, [2 * side for side in maps.shape[-2:]]):
        # told a factor and not a size, ONNX Runtime keeps its own layout: twice as fast
        return F.interpolate(maps, scale_factor=2.0, mode="bilinear", align_corners=True)
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=True)


def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear without aligned corners, as code around the decoder does; nothing at ``size``."""
    if same_size(maps.shape[-2:], size):
        return maps
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class Enlarged:
    """A map to be seen at ``size``, held at its own: what reads it may never need it enlarged.

    Attributes:
        low: (B, C, h, w).
        size: (H, W).
    """

    low: Tensor
    size: tuple[int, int]

    @classmethod
    def twice(cls, maps: Tensor) -> Enlarged:
        return cls(maps, (2 * maps.shape[-2], 2 * maps.shape[-1]))

    @classmethod
    def of(cls, maps: Tensor | Enlarged) -> Enlarged:
        """The map itself, or a tensor as a map of its own size."""
        if isinstance(maps, Enlarged):
            return maps
        return cls(maps, (maps.shape[-2], maps.shape[-1]))

    def full(self) -> Tensor:
        """(B, C, H, W)."""
        return upsample(self.low, self.size)


def convolve(conv: nn.Module, maps: Enlarged) -> Tensor:
    """conv(maps.full()); the enlarged map is not kept for backward, or not made at all."""
    if same_size(maps.low.shape[-2:], maps.size):
        return conv(maps.low)
    if is_plain_conv(conv) and isinstance(conv, nn.Conv2d) and _taps_are_faster(conv, maps):
        return convolve_by_taps(conv, maps.low, maps.size)
    return conv_of(partial(upsample, size=maps.size), conv, maps.low)


def _taps_are_faster(conv: nn.Conv2d, maps: Enlarged) -> bool:
    """As measured: in float32 on a CPU, of maps with some channels, to three times the pixels.

    In bfloat16 a CPU that has matrix units convolves as fast as it interpolates.
    """
    low, (height, width) = maps.low, maps.size
    return (
        conv.kernel_size == (3, 3)
        and conv.padding == (1, 1)
        and conv.in_channels >= 64
        and low.device.type == "cpu"
        and low.dtype is conv.weight.dtype is torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not (exporting() or torch.jit.is_tracing())
        and not (torch.compiler.is_compiling() and torch.is_grad_enabled())
        and height * width >= 3 * low.shape[-2] * low.shape[-1]
    )
