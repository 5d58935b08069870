"""The head of masked image inpainting, as light as it can be: what it cannot do the encoder must.

Shapes: P prefix tokens, (h, w) the deepest level's grid, D its channels, s its stride.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.types import OutputSpec


class InpaintingHead(nn.Module):
    """RGB of each pixel from the deepest level: one linear map a token (Xie et al. 2022, SimMIM).

    Args:
        dim: D.
        num_prefix_tokens: P.
        stride: s; a token becomes s × s pixels.
    """

    def __init__(
        self, *, dim: int, num_prefix_tokens: int, stride: int, norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.stride = stride
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.linear = nn.Linear(dim, 3 * stride**2)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.constant_(self.linear.bias, 0.5)  # mid-grey

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("inpainting", "map", channels=3, value_range=(0.0, 1.0))

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, P + h·w, D) to colours (B, 3, s·h, s·w), 0..1 but for the network's mistakes."""
        patches = self.linear(self.norm(tokens[:, self.num_prefix_tokens :]))
        return F.pixel_shuffle(patches.transpose(1, 2).unflatten(2, grid), self.stride)
