"""A 3×3 convolution of an enlarged map, by matrix products that never see the enlarged map.

A 1×1 convolution commutes with interpolation, and a 3×3 convolution is nine 1×1 convolutions, its
taps, whose results are shifted and added. So the products with the weights are taken at the map's
own size: a quarter of the work, at twice the size. What is left, to shift, to interpolate and to
add up, is linear along rows and along columns: a product with a narrow matrix for each.

Shapes: B batch, C channels in, O channels out, (h, w) the map, (H, W) enlarged; r rows of the map
that R rows of the enlarged map are made of.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROWS, COLUMNS = 24, 16
"""Of the enlarged map, made at once: few enough for a cache, enough for a matrix product."""


def convolve_by_taps(conv: nn.Conv2d, low: Tensor, size: tuple[int, int]) -> Tensor:
    """``conv`` of ``low`` (B, C, h, w) enlarged to ``size``, bilinear with aligned corners.

    Only ``low`` is kept for backward.

    Args:
        conv: 3×3 of stride 1, over a border of one zero.
    """
    if torch.compiler.is_compiling():
        return one_operation(low, conv.weight, conv.bias, *size)
    return _convolve(low, conv.weight, conv.bias, size)


def _convolve(low: Tensor, weight: Tensor, bias: Tensor | None, size: tuple[int, int]) -> Tensor:
    weights = weight.permute(2, 1, 3, 0).flatten(2)
    out = TapConv.apply(low.permute(0, 2, 3, 1).contiguous(), weights, size)
    return (out if bias is None else out.add_(bias)).permute(0, 3, 1, 2)


@torch.library.custom_op("dpt::convolve_by_taps", mutates_args=())
def one_operation(
    low: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int
) -> Tensor:
    """The same for a compiler, which would unroll the bands; it has no gradient."""
    return _convolve(low, weight, bias, (height, width))


@one_operation.register_fake
def _(low: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int) -> Tensor:
    return low.new_empty(len(low), height, width, len(weight)).permute(0, 3, 1, 2)


class Band(NamedTuple):
    """Some rows of an enlarged map, the rows of the map that they are made of, and how.

    ``shares`` (3, R, r) is what each of these gives to each of those, which are read one above
    their place, at it, and one below; outside the enlarged map there are zeros.
    """

    high: slice
    low: slice
    shares: np.ndarray


@lru_cache(maxsize=64)
def bands(low: int, high: int, step: int, dtype: str) -> list[Band]:
    """All of ``high`` rows that ``low`` rows are enlarged to, ``step`` at a time.

    Places are as exact as ``dtype``, like torch's own: so its results are met more closely.
    """
    at = np.arange(high) + np.arange(-1, 2)[:, None]
    scale = np.asarray(low - 1, dtype) / np.asarray(max(high - 1, 1), dtype)
    place = np.minimum(at.astype(dtype) * scale, low - 1)
    shares = np.maximum(0, 1 - np.abs(place[..., None] - np.arange(low)))
    shares[(at < 0) | (at >= high)] = 0
    found = []
    for start in range(0, high, step):
        rows = slice(start, min(start + step, high))
        (used,) = shares[:, rows].any(axis=(0, 1)).nonzero()
        source = slice(int(used[0]), int(used[-1]) + 1)
        found.append(Band(rows, source, shares[:, rows, source].astype(dtype)))
    return found


def _bands(low: int, high: int, step: int, like: Tensor) -> list[tuple[slice, slice, Tensor]]:
    made = bands(low, high, step, str(like.dtype).removeprefix("torch."))
    return [(band.high, band.low, torch.from_numpy(band.shares)) for band in made]


class TapConv(torch.autograd.Function):
    """Maps (B, h, w, C) and weights (3, C, 3·O), a row of taps each, to (B, H, W, O)."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(maps, weights)
        _, h, w, C = maps.shape
        outputs = weights.shape[2] // 3
        out = maps.new_empty(len(maps), *size, outputs)
        columns = _bands(w, size[1], COLUMNS, maps)
        for high, low, shares in _bands(h, size[0], ROWS, maps):
            taps = maps.new_empty(3, (low.stop - low.start) * w, 3 * outputs)
            along_rows = shares.transpose(0, 1).flatten(1)
            for image, made in zip(maps, out, strict=True):
                for row, weight in zip(taps, weights, strict=True):
                    torch.mm(image[low].view(-1, C), weight, out=row)
                rows = (along_rows @ taps.view(along_rows.shape[1], -1)).view(-1, 3 * w, outputs)
                for right, left, more in columns:
                    along = more.permute(1, 2, 0).flatten(1).expand(len(rows), -1, -1)
                    part = rows[:, 3 * left.start : 3 * left.stop]
                    made[high, right] = torch.bmm(along, part)
                del rows, part
            del taps  # before the next are made
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        maps, weights = ctx.saved_tensors
        _, h, w, C = maps.shape
        outputs = weights.shape[2] // 3
        grad = grad.contiguous()
        grad_maps = torch.zeros_like(maps) if ctx.needs_input_grad[0] else None
        grad_weights = torch.zeros_like(weights) if ctx.needs_input_grad[1] else None
        columns = _bands(w, grad.shape[2], COLUMNS, maps)
        for high, low, shares in _bands(h, grad.shape[1], ROWS, maps):
            along_rows = shares.permute(0, 2, 1).flatten(0, 1)
            for i, of_image in enumerate(grad):
                rows = maps.new_zeros(high.stop - high.start, 3 * w, outputs)
                for right, left, more in columns:
                    along = more.permute(2, 0, 1).flatten(0, 1).expand(len(rows), -1, -1)
                    part = rows[:, 3 * left.start : 3 * left.stop]
                    part += torch.bmm(along, of_image[high, right])
                taps = (along_rows @ rows.flatten(1)).view(3, -1, 3 * outputs)
                if grad_weights is not None:
                    tokens = maps[i, low].view(-1, C)
                    grad_weights.baddbmm_(tokens.t().expand(3, -1, -1), taps)
                if grad_maps is not None:
                    for row, weight in zip(taps, weights, strict=True):
                        grad_maps[i, low].view(-1, C).addmm_(row, weight.t())
        return grad_maps, grad_weights, None
