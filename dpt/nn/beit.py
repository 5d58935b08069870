"""BEiT (Bao et al. 2022): a ViT with relative position biases in place of position embeddings.

Each block adds a learned bias to its attention scores, one a head for each offset between two
tokens (T5's relative positions in two dimensions; Bao et al. 2022, section 2.4). Shapes: h × w the
grid, N = h·w patch tokens, T = 1 + N with CLS first. Parameter names are those of timm's ViTs.
"""

import math
from collections.abc import Iterable
from typing import Literal, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.nn import vit
from dpt.nn.base import Encoder, register_encoder

Grid = tuple[int, int]


def offsets(grid: Grid) -> Grid:
    """Returns the number of offsets between rows, and between columns, of a grid."""
    return 2 * grid[0] - 1, 2 * grid[1] - 1


def offsets_side(count: int) -> int:
    """Returns the side of the square grid with ``count`` = (2 · side - 1)² offsets."""
    return (math.isqrt(max(count, 0)) + 1) // 2


def offset_index(grid: Grid, *, device: torch.device) -> Tensor:
    """Returns the row of the bias table for each pair of tokens (query, key): (T, T) integers.

    Offsets run row by row from (1 - h, 1 - w); then CLS to patch, patch to CLS, CLS to CLS.
    """
    height, width = grid
    count = offsets(grid)[0] * offsets(grid)[1]
    rows = torch.arange(height, device=device)[:, None].expand(height, width).flatten()
    columns = torch.arange(width, device=device).expand(height, width).flatten()
    down = rows[:, None] - rows + height - 1
    right = columns[:, None] - columns + width - 1
    from_cls = torch.full((1, height * width), count, device=device)
    to_cls = torch.full((height * width + 1, 1), count + 1, device=device)
    to_cls[0] = count + 2
    patches = torch.cat((from_cls, down * offsets(grid)[1] + right))
    return torch.cat((to_cls, patches), dim=1)


def resize_table(table: Tensor, old: Grid, new: Grid, *, policy: vit.ResizePolicy) -> Tensor:
    """Resizes a bias table (offsets + 3, heads) from an ``old`` grid to a ``new`` one."""
    cells = vit.resize_positions(table[None, :-3], offsets(old), offsets(new), policy=policy)
    return torch.cat((cells[0], table[-3:]))


class BeitAttention(vit.Attention):
    """Attention with biases on queries and values alone, and a table of position biases.

    The table of an h × w grid has (2h - 1)(2w - 1) rows for offsets, and three for CLS.
    """

    def __init__(self, config: vit.ViTConfig, grid: Grid) -> None:
        biases = {"qkv_bias": config.qkv_bias, "key_bias": False}
        super().__init__(config.embed_dim, num_heads=config.num_heads, **biases)
        count = offsets(grid)[0] * offsets(grid)[1] + 3
        self.relative_position_bias_table = nn.Parameter(torch.zeros(count, config.num_heads))


@register_encoder("beit")
@dataclass(kw_only=True)
class BeitConfig(vit.ViTConfig):
    """Settings of :class:`Beit`: those of a ViT without position embeddings and registers.

    Keys have no bias, whatever ``key_bias`` is.

    ``position_resize`` resizes each bias table: ``bilinear`` in MiDaS 3.1 and transformers.
    """

    kind: str = "beit"
    position: Literal["none"] = "none"
    num_register_tokens: Literal[0] = 0
    num_later_blocks: Literal[0] = 0

    def build(self) -> Encoder:
        return Beit(self)


class Beit(vit.VisionTransformer):
    """Maps images to the token matrices of the blocks in ``out_indices``."""

    def make_block(self, index: int) -> vit.Block:
        block = super().make_block(index)
        block.attn = BeitAttention(self.config, self.grid)
        return block

    def attention_biases(self, grid: Grid) -> Iterable[Tensor]:
        """Yields the biases (1, heads, T, T) of each block."""
        index = offset_index(grid, device=self.cls_token.device)
        for block in self.blocks:
            table: Tensor = cast(BeitAttention, block.attn).relative_position_bias_table
            table = resize_table(table, self.grid, grid, policy=self.config.position_resize)
            by_head = table.t().contiguous()  # index_select on it is much faster than [:, index]
            yield by_head.index_select(1, index.flatten()).unflatten(1, index.shape).unsqueeze(0)
