"""The head that compares images with sentences, and its encoder of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.nn.base import Encoder, Features, Head, HeadConfig, register_head
from dpt.nn.heads import TokenHead
from dpt.types import OutputSpec

_START, _PAD = 256, 257  # the tokens beside the 256 bytes
_MAX_SCALE = math.log(100)


@register_head("clip")
@dataclass(kw_only=True)
class ClipHeadConfig(HeadConfig):
    """Settings of :class:`ClipHead`.

    Attributes:
        dim: E, length of the embeddings.
        text_dim, text_depth, text_heads: width, blocks and attention heads of the text encoder.
        text_length: bytes of a text that are read; the rest is ignored.
    """

    dim: int = Field(128, ge=1, le=8192)
    text_dim: int = Field(128, ge=1, le=8192)
    text_depth: int = Field(4, ge=1, le=64)
    text_heads: int = Field(4, ge=1, le=128)
    text_length: int = Field(128, ge=1, le=4096)

    def __post_init__(self) -> None:
        if self.text_dim % self.text_heads:
            raise ValueError(
                f"text_dim={self.text_dim} must be a multiple of text_heads={self.text_heads}"
            )

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return ClipHead(self, encoder)


class ClipHead(Head):
    """Embedding (B, E) of the image, of unit length (Radford et al. 2021, section 2.3).

    It is a linear map of the CLS token. Sentences get embeddings in the same space from a
    transformer that reads UTF-8 bytes (as ByT5, Xue et al. 2022), so there is no vocabulary file.
    """

    uses_decoder = False

    def __init__(self, config: ClipHeadConfig, encoder: Encoder) -> None:
        super().__init__()
        self.output = OutputSpec("clip", "vector", channels=config.dim, dense=False)
        self.image = TokenHead(encoder, self.output, dropout=0.0)
        self.length = config.text_length
        self.bytes = nn.Embedding(258, config.text_dim)
        self.positions = nn.Parameter(torch.empty(1 + self.length, config.text_dim))
        block = nn.TransformerEncoderLayer(
            config.text_dim,
            config.text_heads,
            4 * config.text_dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, config.text_depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(config.text_dim)
        self.linear = nn.Linear(config.text_dim, config.dim, bias=False)
        self.log_scale = nn.Parameter(torch.full((1,), math.log(1 / 0.07)))
        nn.init.normal_(self.bytes.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.01)
        for layer in self.blocks.modules():  # nn.TransformerEncoder copies one block's weights
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.trunc_normal_(self.linear.weight, std=config.text_dim**-0.5)

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        return F.normalize(self.image(features, size).float(), dim=-1)

    def embed_text(self, texts: Sequence[str]) -> Tensor:
        """Embeddings (N, E) of N texts, of unit length."""
        found = [[_START, *text.encode()[: self.length]] for text in texts]
        longest = max(map(len, found), default=1)
        tokens = torch.tensor(
            [[*row, *[_PAD] * (longest - len(row))] for row in found], device=self.positions.device
        ).view(len(found), longest)
        x = self.bytes(tokens) + self.positions[:longest]
        x = self.blocks(x, src_key_padding_mask=tokens == _PAD)
        return F.normalize(self.linear(self.norm(x[:, 0])).float(), dim=-1)

    def scaled_text(self, texts: Sequence[str]) -> Tensor:
        """:meth:`embed_text` times the learned inverse temperature, at most 100."""
        return self.log_scale.float().clamp(max=_MAX_SCALE).exp() * self.embed_text(texts)
