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
from dpt.nn.tracing import same_size


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear with aligned corners, as the decoder enlarges its maps; nothing at ``size``."""
    if same_size(maps.shape[-2:], size):
        return maps
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
    if isinstance(conv, TapConv2d) and conv.is_faster_on(maps.low):
        return convolve_by_taps(conv, maps)
    return conv_of(partial(upsample, size=maps.size), conv, maps.low)


class TapConv2d(nn.Conv2d):
    """A 3×3 convolution that does without the enlarged map, see :func:`convolve_by_taps`."""

    @staticmethod
    def take_over(conv: nn.Module) -> None:
        """Makes one of a 3×3 convolution in place; anything else stays what it is."""
        if is_plain_conv(conv) and conv.kernel_size == (3, 3) and conv.padding == (1, 1):
            conv.__class__ = TapConv2d

    def is_faster_on(self, low: Tensor) -> bool:
        """As measured: compiled for a CPU, in float32 or where the outputs are few."""
        return (
            torch.compiler.is_compiling()
            and not torch.is_grad_enabled()
            and low.device.type == "cpu"
            and (low.dtype is torch.float32 or self.out_channels <= 128)
        )


def convolve_by_taps(conv: nn.Conv2d, maps: Enlarged) -> Tensor:
    """A 3×3 convolution of an enlarged map, from products at the map's own size.

    A 1×1 convolution commutes with interpolation, and a 3×3 convolution is nine 1×1 convolutions
    whose results are shifted and added. So the products are taken before the enlargement, a quarter
    of them at twice the size; what is left, an interpolation of shifted maps along columns and then
    along rows, is cheap where a compiler makes one loop of each.
    """
    low, outputs = maps.low, conv.out_channels
    weight = conv.weight.permute(2, 3, 0, 1).flatten(0, 2)  # rows: (dy, dx, output)
    taps = F.linear(low.permute(0, 2, 3, 1), weight).unflatten(-1, (3, 3, outputs))
    columns = _shifted(taps, (1, low.shape[3]), maps.size[1])
    rows = _shifted(columns, (0, low.shape[2]), maps.size[0])
    bias = 0 if conv.bias is None else conv.bias
    return (rows + bias).to(taps.dtype).permute(0, 3, 1, 2)


def _shifted(taps: Tensor, axis_length: tuple[int, int], target: int) -> Tensor:
    """Σ over shifts d of -1, 0, 1 of maps enlarged along one axis and moved by d, zeros outside.

    Args:
        taps: (B, h, w, ..., 3, C) with the shifts of this axis second to last.
        axis_length: 0 for rows or 1 for columns, and how many there are.
    """
    axis, length = axis_length
    first, second, one, two = tap_plan(length, target, taps)
    form = [-1 if i == axis + 1 else 1 for i in range(taps.ndim - 1)]
    parts = []
    for shift in range(3):
        tap = taps.select(-2, shift)
        parts.append(tap.index_select(axis + 1, first[shift]) * one[shift].view(form))
        parts.append(tap.index_select(axis + 1, second[shift]) * two[shift].view(form))
    return sum(parts[1:], start=parts[0])


@torch.library.custom_op("dpt::tap_plan", mutates_args=())
def tap_plan(length: int, target: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where the rows of a map enlarged and moved by -1, 0, 1 come from: four tensors (3, target).

    An operation of its own, so that a compiler keeps the small tables out of the large loops.

    Returns:
        Two source rows, and the weight of each, of the type of ``like``; both are 0 outside.
    """
    at = torch.arange(target, device=like.device) + torch.arange(-1, 2, device=like.device)[:, None]
    inside = (at >= 0) & (at < target)
    place = at.clamp(0, target - 1).double() * ((length - 1) / max(target - 1, 1))
    first = place.floor().long().clamp(max=max(length - 2, 0))
    two = torch.where(inside, place - first, 0.0)
    one = torch.where(inside, 1 - two, 0.0)
    return first, (first + 1).clamp(max=length - 1), one.to(like.dtype), two.to(like.dtype)


@tap_plan.register_fake
def _(length: int, target: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = like.new_empty((3, target), dtype=torch.long)
    return rows, rows.clone(), like.new_empty((3, target)), like.new_empty((3, target))
