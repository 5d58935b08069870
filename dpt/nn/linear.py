"""Linear evaluation: how much of a task the encoder's own features tell (Oquab et al. 2023, 7.4).

Shapes: P prefix tokens, (h, w) a level's grid, D its channels, K classes, (H, W) the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpt.nn.enlarge import Enlarged, resize
from dpt.nn.heads import ClassMapHead
from dpt.types import Tokens


class LinearSegmentationHead(ClassMapHead):
    """Class logits (B, K, H, W) from patch tokens alone: batch norm, then one linear map a token.

    DINOv2's linear head for segmentation. No decoder is needed; the logits are resized to the image
    without aligned corners, as its code does.

    Args:
        embed_dims, num_prefix_tokens: of each level's tokens, shallow to deep.
        num_classes: K.
        levels: how many of the deepest levels are concatenated, 1 or 4 in the paper ("lin.",
            "+ms"). Where grids differ, they are resized to the largest.
        dropout: of whole channels, in front of the linear map; 0 in the paper.
    """

    def __init__(
        self,
        *,
        embed_dims: Sequence[int],
        num_prefix_tokens: Sequence[int],
        num_classes: int,
        levels: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(num_classes=num_classes)
        if not 1 <= levels <= len(embed_dims):
            raise ValueError(
                f"a linear head of levels={levels}: the encoder gives {len(embed_dims)} "
                "(model.encoder.out_indices)"
            )
        self.levels = levels
        self.num_prefix_tokens = list(num_prefix_tokens)[-levels:]
        dim = sum(list(embed_dims)[-levels:])
        self.norm = nn.BatchNorm2d(dim)
        self.dropout = nn.Dropout2d(dropout)
        self.linear = nn.Conv2d(dim, num_classes, kernel_size=1)
        nn.init.normal_(self.linear.weight, std=0.01)
        assert self.linear.bias is not None
        nn.init.zeros_(self.linear.bias)

    def reads(self, tokens: Tokens, maps: Sequence[Enlarged]) -> list[Enlarged]:
        """The patch tokens of the deepest levels as one map (B, ΣD, h, w)."""
        last = slice(-self.levels, None)
        parts = [
            level[:, prefix:].transpose(1, 2).unflatten(2, grid)
            for level, grid, prefix in zip(
                tokens.levels[last], tokens.grids[last], self.num_prefix_tokens, strict=True
            )
        ]
        size = (parts[0].shape[-2], parts[0].shape[-1])
        return [Enlarged.of(torch.cat([resize(part, size) for part in parts], dim=1))]

    def logits(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Enlarged:
        logits = self.linear(self.dropout(self.norm(Enlarged.of(features).full())))
        return Enlarged.of(resize(logits, size))
