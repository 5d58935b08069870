"""Heads with one prediction for the image: classes, numbers and embeddings.

Shapes: D embedding of the tokens, K classes, E embedding of the head.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.depthmath import at_least_float32, masked_mean
from dpt.functional import mean_over_processes, without_autocast
from dpt.nn.base import Encoder, Features, Head, HeadConfig, register_head
from dpt.nn.heads.queries import require_per_class
from dpt.types.outputs import EmbeddingOutput, HeadOutput, OutputSpec
from dpt.validation import Positive


@dataclass(kw_only=True)
class TokenHeadConfig(HeadConfig):
    """Settings of a :class:`TokenHead`; ``dropout`` comes before the linear map."""

    dropout: float = Field(0.0, ge=0, le=1)
    initial: ClassVar[float] = 0.0  # the value of the linear map at first

    @property
    @abstractmethod
    def output(self) -> OutputSpec:
        """What the head predicts."""

    def activate(self, values: Tensor) -> Tensor:
        """Maps the values of the linear map to the prediction."""
        return values

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return TokenHead(self, encoder)


@register_head("classification")
@dataclass(kw_only=True)
class ClassificationHeadConfig(TokenHeadConfig):
    """Settings of a head with logits (B, K) of the whole image; ``class_names`` are K or none."""

    num_classes: int = Field(ge=1)
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_per_class(self.num_classes, class_names=self.class_names)

    @property
    def output(self) -> OutputSpec:
        names = self.class_names
        return OutputSpec("classification", "logits", self.num_classes, False, class_names=names)


@register_head("regression")
@dataclass(kw_only=True)
class RegressionHeadConfig(TokenHeadConfig):
    """Settings of a head with one number (B,): ``mean`` plus ``std`` times its value.

    They are the mean and the standard deviation of the training values.
    """

    mean: float = 0.0
    std: Positive = 1.0

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("regression", "vector", dense=False)

    def activate(self, values: Tensor) -> Tensor:
        return self.mean + self.std * at_least_float32(values)


@register_head("fov")
@dataclass(kw_only=True)
class FieldOfViewHeadConfig(TokenHeadConfig):
    """Settings of a head with the horizontal field of view of images (B,) in degrees, in 0..180.

    It is 180 · sigmoid(x) for the value x of a :class:`TokenHead`, at first about 60. It does not
    depend on the size or aspect ratio to which a whole image is resized.
    """

    initial: ClassVar[float] = -math.log(2)

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("fov", "fov", dense=False, unit="degrees", value_range=(0.0, 180.0))

    def activate(self, values: Tensor) -> Tensor:
        return 180 * torch.sigmoid(at_least_float32(values))


class TokenHead(Head):
    """Predicts values of the whole image: LayerNorm and a linear map of the deepest CLS token.

    If the encoder has no CLS token, the mean of the patch tokens replaces it.
    """

    uses_decoder = False

    def __init__(self, config: TokenHeadConfig, encoder: Encoder) -> None:
        super().__init__()
        self.output, self.activate = config.output, config.activate
        self.norm = nn.LayerNorm(encoder.embed_dims[-1], eps=1e-6)
        self.dropout = nn.Dropout(config.dropout)
        self.linear = nn.Linear(encoder.embed_dims[-1], self.output.channels or 1)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.constant_(self.linear.bias, config.initial)

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        values = self.linear(self.dropout(self.norm(features.image_token())))
        return self.activate(values.squeeze(-1) if self.output.channels is None else values)


@register_head("contrastive")
@dataclass(kw_only=True)
class ContrastiveHeadConfig(HeadConfig):
    """No settings. The :class:`EmbeddingHead`'s projection has 2048 and 128 channels (SimCLR)."""

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return EmbeddingHead(encoder, "contrastive", [2048, 128], patches=False)


@register_head("dino")
@dataclass(kw_only=True)
class DinoHeadConfig(HeadConfig):
    """Settings of an :class:`EmbeddingHead` with the projection of DINO: an MLP of three layers of
    1024 (DINO: 2048) and 256 channels, and cosines to ``num_prototypes`` (DINO: 65536) vectors
    (Caron et al. 2021, appendix C). On a CPU without bf16, Muon takes 20 s a step with 2048. With
    ``patches``, patch tokens are projected too, by the same layers (iBOT, Zhou et al. 2022).
    """

    num_prototypes: int = Field(1024, ge=2, le=2**20)
    patches: bool = False

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        prototypes = CosineLinear(256, self.num_prototypes, bias=False)
        return EmbeddingHead(encoder, "dino", [1024, 1024, 256], prototypes, patches=self.patches)


class CosineLinear(nn.Linear):
    """Computes cosines (B, K) between vectors (B, E) and the rows of the weight (K, E)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(F.normalize(input, dim=-1), F.normalize(self.weight, dim=-1))


class Standardize(nn.Module):
    """Standardises each feature of (B, E) over the batches of all processes, which have equal B.

    Synchronised BatchNorm without weights and running averages; it also works on CPUs.
    """

    def forward(self, rows: Tensor) -> Tensor:
        with without_autocast(rows.device):
            centred = at_least_float32(rows)
            centred = centred - mean_over_processes(centred.mean(0))
            return centred * (mean_over_processes(centred.square().mean(0)) + 1e-5).rsqrt()


class EmbeddingHead(Head):
    """Returns the normalised CLS token (B, D), and in training its projection (B, E).

    If the encoder has no CLS token, the mean of the patch tokens replaces it. With ``patches``, the
    patch tokens are projected too in training, (B, T, E). The projection is an MLP with a
    :class:`Standardize` after each hidden layer, where SimCLR and MoCo v3 have BatchNorm: without
    it all projections are nearly equal at first, and short runs of DINO learn nothing.
    """

    uses_decoder = False

    def __init__(
        self, encoder: Encoder, name: str, dims: Sequence[int], *last: nn.Module, patches: bool
    ) -> None:
        super().__init__()
        self.patches = patches
        dim = encoder.embed_dims[-1]
        self.output = OutputSpec(name, "vector", channels=dim, dense=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([dim, *dims[:-1]]):
            layers += [nn.Linear(inputs, outputs, bias=False), Standardize(), nn.GELU()]
        self.projection = nn.Sequential(*layers, nn.Linear(dims[-2], dims[-1]), *last)

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        return self.norm(features.image_token())

    def raw(self, features: Features, size: tuple[int, int]) -> HeadOutput:
        embeddings = self(features, size)
        if not self.training:
            return HeadOutput(embeddings)
        output = EmbeddingOutput(embeddings, projection=self.projection(embeddings))
        if self.patches:
            tokens = self.norm(features.patch_tokens())
            rows = self.projection(tokens.flatten(0, 1))
            output.patches = rows.unflatten(0, tokens.shape[:2])
        return output

    def prepare_for_inference(self) -> None:
        del self.projection


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
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
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
