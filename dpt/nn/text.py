"""The head that compares images with texts, and its encoder of text."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.depthmath import at_least_float32, masked_mean
from dpt.nn.base import Encoder, Features, Head, HeadConfig, register_head
from dpt.types.outputs import OutputSpec

_START, _PAD = 256, 257  # the tokens beside the 256 bytes
_MAX_SCALE = math.log(100)


@register_head("clip")
@dataclass(kw_only=True)
class ClipHeadConfig(HeadConfig):
    """Settings of :class:`ClipHead`.

    Attributes:
        dim: E, length of the embeddings.
        text_dim, text_depth: width and blocks of the text encoder; 32 values an attention head.
        text_length: bytes of a text that are read; the rest is ignored.
        prompt: the text of a class, with ``{}`` for its name, see :meth:`ClipHead.embed_classes`.
    """

    dim: int = Field(128, ge=1, le=8192)
    text_dim: int = Field(128, ge=32, le=8192, multiple_of=32)
    text_depth: int = Field(2, ge=1, le=64)
    text_length: int = Field(128, ge=1, le=4096)
    prompt: str = Field("a {}", pattern=r"\{\}")

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return ClipHead(self, encoder)


class ClipHead(Head):
    """Embeds the image, (B, E) of unit length (Radford et al. 2021, section 2.3).

    It is a linear map of the mean patch token, which learns faster from few images than CLS does.
    Texts are embedded by a transformer that reads UTF-8 bytes (as ByT5, Xue et al. 2022).
    """

    uses_decoder = False

    def __init__(self, config: ClipHeadConfig, encoder: Encoder) -> None:
        super().__init__()
        self.output = OutputSpec("clip", "vector", channels=config.dim, dense=False)
        self.image_norm = nn.LayerNorm(encoder.embed_dims[-1], eps=1e-6)
        self.image_linear = nn.Linear(encoder.embed_dims[-1], config.dim, bias=False)
        self.length, self.prompt = config.text_length, config.prompt
        self.bytes = nn.Embedding(258, config.text_dim)
        self.positions = nn.Parameter(torch.empty(1 + self.length, config.text_dim))
        width, heads = config.text_dim, config.text_dim // 32
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                heads,
                4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(config.text_depth)
        )
        self.norm = nn.LayerNorm(config.text_dim)
        self.linear = nn.Linear(config.text_dim, config.dim, bias=False)
        self.log_scale = nn.Parameter(torch.full((1,), math.log(1 / 0.07)))
        nn.init.normal_(self.bytes.weight, std=0.5)
        nn.init.normal_(self.positions, std=0.1)
        for linear in (self.linear, self.image_linear):
            nn.init.trunc_normal_(linear.weight, std=linear.in_features**-0.5)

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        mean = features.patch_map().mean(dim=(-2, -1))
        return F.normalize(at_least_float32(self.image_linear(self.image_norm(mean))), dim=-1)

    def embed_text(self, texts: Sequence[str]) -> Tensor:
        """Returns embeddings (N, E) of N texts, of unit length.

        Raises:
            TypeError: ``texts`` is one text, not a list of them.
        """
        if isinstance(texts, str):
            raise TypeError(f"embed_text takes a list of texts: [{texts!r}]")
        rows = [[_START, *text.encode()[: self.length]] for text in texts]
        longest = max(map(len, rows), default=1)
        padded = [[*row, *[_PAD] * (longest - len(row))] for row in rows]
        tokens = torch.tensor(padded, dtype=torch.long, device=self.positions.device)
        tokens = tokens.view(len(rows), longest)  # also without a text
        x = self.bytes(tokens) + self.positions[:longest]
        padding = tokens == _PAD
        for block in self.blocks if rows else ():
            x = block(x, src_key_padding_mask=padding)
        x = masked_mean(self.linear(self.norm(x)), ~padding[..., None], dim=1)
        return F.normalize(x, dim=-1)

    def embed_classes(self, names: Sequence[str]) -> Tensor:
        """Returns embeddings (C, E) of classes, of the text ``prompt`` with each name."""
        return self.embed_text([self.prompt.replace("{}", name) for name in names])

    def scaled_text(self, texts: Sequence[str]) -> Tensor:
        """Returns :meth:`embed_text` times the learned inverse temperature, at most 100."""
        if self.training:  # in place: a clamp in the graph has no gradient beyond its limit
            with torch.no_grad():
                self.log_scale.clamp_(max=_MAX_SCALE)
        return self.log_scale.exp() * self.embed_text(texts)
