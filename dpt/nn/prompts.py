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
MAX_POINTS = 500  # whose errors correct the depth of an image
SURFACE = 0.05  # difference of ln(depth) at which a point has little weight


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
    """Returns depth (B, H, W) in metres times exp(gate · e), with the errors e at points spread.

    At a point e is ln(prompt) - ln(depth). Elsewhere it is a mean over the points that falls with
    the square of the distance and with the difference of ln(depth), so that an error stays on its
    surface (as in joint bilateral upsampling, Kopf et al. 2007). With a gate of 0, (B, 1, h, w),
    the result is ``depth``, bit for bit. Of more than ``MAX_POINTS`` points every n-th is used.
    """
    is_valid = _valid(prompts)
    size = (depth.shape[-2], depth.shape[-1])
    logs = at_least_float32(depth).clamp(min=1e-3).log()
    errors = torch.zeros_like(logs)
    for k, points in enumerate(is_valid):
        places = points.nonzero()
        if len(places):
            places = places[:: -(-len(places) // MAX_POINTS)]
            rows, columns = places.unbind(1)
            at_points = at_least_float32(prompts[k, rows, columns]).log() - logs[k, rows, columns]
            errors[k] = (_nearby(logs[k].detach(), places) @ at_points).view(size)
    return depth * (upsample(at_least_float32(gate), size)[:, 0] * errors).exp()


@torch.no_grad()
def _nearby(logs: Tensor, places: Tensor) -> Tensor:
    """Returns the weights of points in each pixel of a map of ln(depth) (H, W): (H·W, N)."""
    pixels = torch.ones_like(logs).nonzero().to(logs)
    of_points = logs[places[:, 0], places[:, 1]]
    distance = torch.cdist(pixels, places.to(logs)).square_().add_(0.1)
    difference = (logs.flatten()[:, None] - of_points).div_(SURFACE)
    weights = difference.square_().mul_(-0.5).exp_().add_(1e-4).div_(distance)
    return weights.div_(weights.sum(dim=1, keepdim=True))


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
