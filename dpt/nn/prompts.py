"""Sparse depth as a further input: measured metres at some pixels of the image.

It is spread over the map of each fusion block and added there as features. Metric depth is then
corrected by its own errors at the points. Layers that are zero at first decide how much.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.depthmath import at_least_float32, valid_range
from dpt.functional import upsample

FADING = 1 / 32  # weight of a coarser map, in `_accumulated`


class PromptLayer(nn.Module):
    """Maps sparse depth to features of one fusion block, by three convolutions.

    The last one is zero at first, as in PromptDA (Lin et al. 2025, section 3.2), so that an
    untrained layer changes nothing. Images without a point get zeros.
    """

    def __init__(self, channels: int, *, hidden: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, hidden, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(hidden, hidden, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(hidden, channels, kernel_size=3, padding=1, bias=False)
        nn.init.zeros_(self.conv3.weight)

    def forward(self, prompts: Tensor, size: tuple[int, int]) -> Tensor:
        """Maps (B, H, W), metres, not above 0 where unknown, to features (B, C, h, w) at a size."""
        is_valid = _valid(prompts)
        logs = torch.where(is_valid, at_least_float32(prompts), 1.0).log()
        x = spread(logs, is_valid, size).to(self.conv1.weight.dtype)
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.conv3(x * is_valid.flatten(1).any(1)[:, None, None, None])


def corrected(depth: Tensor, prompts: Tensor, gate: Tensor) -> Tensor:
    """Returns depth (B, H, W) in metres times exp(gate · e), with the errors e spread from points.

    At a point e is ln(prompt) - ln(depth): with a gate of 1 the result there is the prompt, and
    with 0 it is ``depth``, bit for bit. ``gate`` is (B, 1, h, w).
    """
    is_valid = _valid(prompts)
    predicted = at_least_float32(depth).clamp(min=1e-3)
    measured = torch.where(is_valid, at_least_float32(prompts), predicted)
    size = (depth.shape[-2], depth.shape[-1])
    error = spread(measured.log() - predicted.log(), is_valid, size)[:, 0]
    return depth * (upsample(at_least_float32(gate), size)[:, 0] * error).exp()


def spread(values: Tensor, valid: Tensor, size: tuple[int, int]) -> Tensor:
    """Brings values at some pixels to every pixel of a map of another size.

    A normalised convolution (Knutsson and Westin 1993) whose weights fall with about the seventh
    power of the distance: means of the points in a pixel of the map, of a map of half its size, and
    so on, are added with smaller and smaller weights.

    Args:
        values, valid: (B, H, W).
        size: (h, w), at most (H, W).

    Returns:
        (B, 2, h, w): the values, and how near a point is: 1 in its pixel, about half as much at
        twice the distance, and 0 in an image without points.
    """
    masked = torch.where(valid, values, 0.0)
    pair = F.adaptive_avg_pool2d(torch.stack([masked, valid.to(values)], dim=1), size)
    sums, density = pair.split(1, dim=1)
    is_known = density > 0
    mean = sums / torch.where(is_known, density, 1.0)
    total, weight = _accumulated(torch.cat([mean, is_known.to(mean)], dim=1)).split(1, dim=1)
    nearness = weight.clamp(max=1) ** (1 / 7)
    return torch.cat([total / torch.where(weight > 0, weight, 1.0), nearness], dim=1)


def _accumulated(pair: Tensor) -> Tensor:
    """Returns the sum of maps (B, 2, h, w) and of their coarser and coarser means."""
    size = pair.shape[-2:]
    if max(size) == 1:
        return pair
    coarse = _accumulated(F.avg_pool2d(pair, 2, ceil_mode=True))
    return pair + FADING * F.interpolate(coarse, size=size, mode="bilinear")


def _valid(prompts: Tensor) -> Tensor:
    return valid_range(prompts, prompts > 0, min_depth=0.0, max_depth=torch.inf)
