"""Heads with a mask and a class for each of a set of queries.

:class:`MaskHead` decodes queries over DPT's features (MaskFormer, Cheng et al. 2021; Mask2Former,
Cheng et al. 2022) by a transformer decoder (Vaswani et al. 2017, section 3.2.3).
:class:`EoMTHead` passes them through the encoder's last blocks (Kerssies et al. 2025).

Shapes: B batch, Q queries, K classes, D width, T tokens of the encoder (the memory), M the memory's
width, (g, g') the grid of patch tokens, (h, w) a mask.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.depthmath import at_least_float32
from dpt.files import plural
from dpt.functional import resize
from dpt.nn.base import Encoder, Features, Head, HeadConfig, Window, register_head
from dpt.nn.vit import MLP, sincos_2d
from dpt.types.outputs import HeadOutput, HeadPrediction, Masks, OutputSpec, QueryOutput

Byte = Annotated[int, Field(ge=0, le=255)]


def require_per_class(num_classes: int, **options: Sequence[object]) -> None:
    """Raises a ValueError unless each of ``options`` is empty or has an entry for each class."""
    for name, values in options.items():
        if values and len(values) != num_classes:
            raise ValueError(f"{name} has {plural(len(values), 'entry')} for {num_classes} classes")


@dataclass(kw_only=True)
class QueryConfig(HeadConfig):
    """Settings that all heads with queries have.

    Attributes:
        num_classes: K.
        num_queries: Q, at least the number of segments in an image.
        num_layers: number of decoder layers of :class:`MaskHead`.
        masked_attention: of :class:`MaskHead`; if False, queries attend to all tokens.
        class_names: K names, or none.
        palette: K RGB rows (0..255), or none for the default colours.
    """

    num_classes: int = Field(ge=1)
    num_queries: int = Field(100, ge=1, le=10_000)
    num_layers: int = Field(3, ge=1, le=100)
    masked_attention: bool = True
    class_names: tuple[str, ...] = ()
    palette: tuple[tuple[Byte, Byte, Byte], ...] = ()
    batch_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_per_class(self.num_classes, class_names=self.class_names, palette=self.palette)

    def query_head(self, encoder: Encoder, channels: int, output: OutputSpec) -> Head:
        """Returns EoMT's head if the encoder has later blocks, or one over the decoder's map."""
        if encoder.num_later_blocks:
            return EoMTHead(self, encoder, output)
        return MaskHead(self, encoder, channels, output)


@register_head("panoptic")
@dataclass(kw_only=True)
class PanopticHeadConfig(QueryConfig):
    """Settings of a head that predicts a mask and a class for each query.

    ``things`` says for each class whether it is a thing; the others are stuff. ``threshold`` and
    ``overlap`` are those of :func:`dpt.segments.panoptic_segments`.
    """

    things: tuple[bool, ...] = Field(min_length=1)
    threshold: float = Field(0.8, ge=0, le=1)
    overlap: float = Field(0.8, ge=0, le=1)
    name: ClassVar[str] = "panoptic"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_per_class(self.num_classes, things=self.things)

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        classes = OutputSpec("classes", "vector", channels=self.num_classes + 1, dense=False)
        output = OutputSpec(
            self.name,
            "masks",
            channels=self.num_queries,
            class_names=self.class_names,
            palette=self.palette,
            things=self.things,
            threshold=self.threshold,
            overlap=self.overlap,
            record=Masks,
            extra=(classes,),
        )
        return self.query_head(encoder, fusion_channels, output)


@register_head("instance")
@dataclass(kw_only=True)
class InstanceHeadConfig(PanopticHeadConfig):
    """Settings of the same head, trained on objects alone."""

    name: ClassVar[str] = "instance"


class QueryHead(Head):
    """Base class of the two mask heads: turns the predictions of each layer into an output.

    The prediction is the last layer's ``Masks``, or their :func:`semantic_scores`,
    (B, K, H, W), if the kind of the output is ``logits``.
    """

    def __init__(self, output: OutputSpec) -> None:
        super().__init__()
        self.output = output

    def layers(self, features: Features) -> tuple[list[Masks], Tensor | None]:
        """Returns predictions, shallow to deep, and class logits of pixels (B, K, h, w), if any.

        In evaluation only the last prediction is used.
        """
        raise NotImplementedError

    def prediction(self, masks: Tensor, classes: Tensor) -> HeadPrediction:
        if self.output.kind == "logits":
            return semantic_scores(masks, classes)
        return Masks(masks, classes)

    def forward(self, features: Features, size: tuple[int, int]) -> HeadPrediction:
        layers, _ = self.layers(features)
        masks, classes = layers[-1]
        return self.prediction(resize(masks, size), classes)  # as Mask2Former, before the sigmoid

    def raw(self, features: Features, size: tuple[int, int]) -> HeadOutput:
        """Returns the predictions of all layers in training, masks at the head's own size."""
        if not self.training and self.output.kind == "logits":
            return HeadOutput(self(features, size))
        layers, pixel_logits = self.layers(features)
        prediction = self.prediction(*layers[-1])
        if not self.training:
            return HeadOutput(prediction)
        stacked = Masks(*(torch.stack(tensors, dim=1) for tensors in zip(*layers, strict=True)))
        return QueryOutput(prediction, auxiliary=pixel_logits, layers=stacked)

    def crop_output(self, output: HeadOutput, size: tuple[int, int], window: Window) -> HeadOutput:
        if isinstance(output, QueryOutput):
            masks, classes = output.layers
            masks = resize(masks.flatten(0, 1), size).unflatten(0, masks.shape[:2])
            prediction = self.prediction(masks[:, -1], classes[:, -1])
            output = replace(output, prediction=prediction, layers=Masks(masks[window], classes))
        elif isinstance(output.prediction, Masks):
            masks, classes = output.prediction
            output = replace(output, prediction=Masks(resize(masks, size), classes))
        return super().crop_output(output, size, window)


def semantic_scores(masks: Tensor, classes: Tensor) -> Tensor:
    """Returns log Σ_q p_q(c) · sigmoid(m_q), (B, K, h, w) (Cheng et al. 2021, section 3.4)."""
    probabilities = at_least_float32(classes).softmax(-1)[..., :-1]
    scores = torch.einsum("bqk,bqhw->bkhw", probabilities, at_least_float32(masks).sigmoid())
    return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()


def mlp(dim: int) -> nn.Sequential:
    """Returns three linear layers, from a query to its mask embedding."""
    linear = [nn.Linear(dim, dim) for _ in range(3)]
    return nn.Sequential(linear[0], nn.GELU(), linear[1], nn.GELU(), linear[2])


def attended(masks: Tensor, grid: tuple[int, int]) -> Tensor:
    """Returns patches where the mask probability is above 0.5: bool (B, Q, g·g'), detached."""
    return (resize(masks.detach(), grid) > 0).flatten(2)


class CrossAttention(nn.Module):
    """Computes softmax(Q Kᵀ / √d_head) V in heads; Q of one sequence, K and V of another."""

    def __init__(self, dim: int, *, memory_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(memory_dim, dim)
        self.v = nn.Linear(memory_dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self,
        queries_BQD: Tensor,
        memory_BTM: Tensor,
        *,
        query_pos: Tensor | float = 0.0,
        memory_pos: Tensor | float = 0.0,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Maps (B, Q, D) and (B, T, M) to (B, Q, D).

        Position embeddings are added to the inputs of Q and K, not of V (Carion et al. 2020,
        section A.4). ``attn_mask``, bool (B, 1, Q, T), is False where a query must not attend;
        each query needs at least one True.
        """
        q = self._split(self.q(queries_BQD + query_pos))
        k = self._split(self.k(memory_BTM + memory_pos))
        v = self._split(self.v(memory_BTM))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, tokens: Tensor) -> Tensor:
        """Reshapes (B, T, D) to (B, heads, T, D / heads)."""
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class DecoderLayer(nn.Module):
    """Self-attention of the queries, cross-attention to the memory, MLP: each x + f(LN x)."""

    def __init__(self, dim: int, *, memory_dim: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.self_attn = CrossAttention(dim, memory_dim=dim, num_heads=num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, memory_dim=memory_dim, num_heads=num_heads)
        self.norm3 = nn.LayerNorm(dim)
        self.mlp = MLP(dim, hidden=4 * dim)

    def forward(
        self,
        queries_BQD: Tensor,
        memory_BTM: Tensor,
        *,
        query_pos: Tensor | float = 0.0,
        memory_pos: Tensor | float = 0.0,
        attn_mask: Tensor | None = None,
    ) -> Tensor:
        """Maps (B, Q, D) to (B, Q, D); arguments as for :meth:`CrossAttention.forward`."""
        x = queries_BQD
        y = self.norm1(x)
        x = x + self.self_attn(y, y, query_pos=query_pos, memory_pos=query_pos)
        y, positions = self.norm2(x), {"query_pos": query_pos, "memory_pos": memory_pos}
        x = x + self.cross_attn(y, memory_BTM, **positions, attn_mask=attn_mask)
        return x + self.mlp(x, norm=self.norm3)


class TokenDecoder(nn.Module):
    """Decoder layers whose queries attend to the tokens of an encoder.

    The queries of the first layer are ``num_queries`` learnable tokens with learnable positions
    (object queries, Carion et al. 2020), whose outputs are a set; or, if that is None, the
    encoder's tokens, so that there is an output token for each of them and D must be M. Each
    further layer takes the output of the previous one.
    """

    def __init__(
        self, dim: int, *, memory_dim: int, num_layers: int, num_heads: int, num_queries: int | None
    ) -> None:
        super().__init__()
        self.queries = self.codes = None
        if num_queries is not None:
            self.queries = nn.Parameter(torch.zeros(1, num_queries, dim))
            self.codes = nn.Parameter(torch.zeros(1, num_queries, dim))
            nn.init.trunc_normal_(self.queries, std=0.02)
            nn.init.normal_(self.codes)  # as large as normalised tokens, so that queries differ
        self.layers = nn.ModuleList(
            DecoderLayer(dim, memory_dim=memory_dim, num_heads=num_heads) for _ in range(num_layers)
        )

    def start(self, memory_BTM: Tensor) -> tuple[Tensor, Tensor | float]:
        """Returns the queries of the first layer, (B, Q, D), and their position embeddings."""
        if self.queries is None or self.codes is None:
            return memory_BTM, 0.0
        return self.queries.expand(memory_BTM.shape[0], -1, -1), self.codes

    def forward(self, memory_BTM: Tensor, *, memory_pos: Tensor | float = 0.0) -> Tensor:
        """Maps (B, T, M) to the queries after the last layer, (B, Q, D)."""
        x, codes = self.start(memory_BTM)
        for layer in self.layers:
            x = layer(x, memory_BTM, query_pos=codes, memory_pos=memory_pos)
        return x


class MaskHead(QueryHead):
    """Queries that attend to the encoder's deepest patch tokens, masks over the decoder's map.

    A query attends to the tokens where the mask that the previous layer predicts for it is above
    0.5, or to all tokens if there are none (masked attention, Cheng et al. 2022, section 3.2.1).
    Two additions to the paper speed up training from scratch: position embeddings are added to the
    map whose product with the mask embeddings gives the masks, and each pixel has class logits,
    whose mean over a query's mask is added to the class logits of the query. D are the map's
    channels.
    """

    def __init__(self, config: QueryConfig, encoder: Encoder, dim: int, output: OutputSpec) -> None:
        super().__init__(output)
        if dim % 4:  # of the position embeddings
            raise ValueError(f"fusion_channels={dim}: mask heads need a multiple of 4")
        self.masked_attention = config.masked_attention
        self.memory = nn.Sequential(
            nn.LayerNorm(encoder.embed_dims[-1], eps=1e-6), nn.Linear(encoder.embed_dims[-1], dim)
        )
        self.decoder = TokenDecoder(
            dim,
            memory_dim=dim,
            num_layers=config.num_layers,
            num_heads=max(h for h in range(1, 9) if dim % h == 0 and dim // h >= min(dim, 16)),
            num_queries=config.num_queries,
        )
        self.norm = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, config.num_classes + 1)
        self.mask_mlp = mlp(dim)
        self.pixels = nn.Conv2d(dim, dim, kernel_size=1)
        self.classify_pixels = nn.Conv2d(dim, config.num_classes, kernel_size=1)

    def layers(self, features: Features) -> tuple[list[Masks], Tensor]:
        grid = features.tokens.grids[-1]
        memory = self.memory(features.patch_tokens())
        codes = sincos_2d(*grid, memory.shape[-1], like=memory)
        pixels = self.pixels(features.maps[-1].map)
        rows, columns = pixels.shape[-2:]
        pixel_pos = sincos_2d(rows, columns, pixels.shape[1], like=pixels)
        pixels = pixels + pixel_pos.mT.unflatten(1, (rows, columns))
        logits = self.classify_pixels(features.maps[-1].map)
        x, query_pos = self.decoder.start(memory)
        predictions = [self._predict(x, pixels, logits)]
        for layer in self.decoder.layers:
            attn_mask = None
            if self.masked_attention:
                attn_mask = attended(predictions[-1].masks, grid)
                attn_mask = (attn_mask | ~attn_mask.any(-1, keepdim=True))[:, None]
            x = layer(x, memory, query_pos=query_pos, memory_pos=codes, attn_mask=attn_mask)
            predictions.append(self._predict(x, pixels, logits))
        return predictions, logits

    def _predict(self, queries: Tensor, pixels: Tensor, logits: Tensor) -> Masks:
        queries = self.norm(queries)
        masks = torch.einsum("bqd,bdhw->bqhw", self.mask_mlp(queries), pixels)
        weights = masks.sigmoid() / 256  # float16 ends at 65504, below the sum over an image
        mean = torch.einsum("bqhw,bkhw->bqk", weights, logits)
        mean = mean / (weights.sum((2, 3))[..., None] + 1 / 256)
        classes = self.classify(queries) + F.pad(mean, (0, 1))  # "no object": plus 0
        return Masks(masks, classes)


class EoMTHead(QueryHead):
    """Queries among the tokens of the encoder's last blocks (Kerssies et al. 2025, section 3).

    In training the attention of these blocks is masked: a query attends to the patches where its
    mask, predicted before the block, is above 0.5. The fraction of queries whose attention is
    masked decreases from 1 to 0, block after block, so that prediction needs no masks (section
    3.3).
    """

    uses_decoder = False
    mask_shares: Tensor

    def __init__(self, config: QueryConfig, encoder: Encoder, output: OutputSpec) -> None:
        super().__init__(output)
        dim, self.num_prefix_tokens = encoder.embed_dims[-1], encoder.num_prefix_tokens[-1]
        self.num_blocks = encoder.num_later_blocks
        self.queries = nn.Parameter(torch.empty(1, config.num_queries, dim))
        nn.init.normal_(self.queries)
        self.classify = nn.Linear(dim, config.num_classes + 1)
        self.mask_mlp = mlp(dim)
        # to a stride of 4 pixels, for patches of 16
        doublings = max(1, encoder.strides[-1].bit_length() - 3)
        self.upscale = nn.Sequential(*(Doubling(dim) for _ in range(doublings)))
        # fraction of queries whose attention is masked, in each block
        self.register_buffer("mask_shares", torch.ones(self.num_blocks))
        self.is_masked: list[bool] | None = None

    def set_progress(self, fraction: float) -> None:
        """Sets the fraction of masked queries of each block for a fraction of the training.

        The fraction of a block is 1 at first, decreases as (1 - x)^0.9 during a sixth of the
        training, then is 0. The blocks start evenly from 1/6 to 2/3 of the training, as in the
        configurations of EoMT over DINOv2.
        """
        starts = torch.linspace(1 / 6, 2 / 3, self.num_blocks)
        x = 6 * (fraction - starts)
        self.mask_shares.copy_((1 - x.clamp(0, 1)) ** 0.9)

    def prepare_for_inference(self) -> None:
        self.is_masked = self.masked_blocks()  # a constant of an exported graph

    def masked_blocks(self) -> list[bool]:
        """Returns for each block whether the attention of the queries is masked in prediction."""
        return [fraction > 0.5 for fraction in self.mask_shares.tolist()]

    def layers(self, features: Features) -> tuple[list[Masks], None]:
        encoder, grid = features.encoder, features.tokens.grids[-1]
        tokens = features.tokens.levels[-1]
        tokens = torch.cat((self.queries.expand(tokens.shape[0], -1, -1), tokens), dim=1)
        if self.training:
            is_masked = [True] * self.num_blocks
        else:
            is_masked = self.is_masked or self.masked_blocks()
        predictions: list[Masks] = []
        for i, masked in enumerate(is_masked):
            attn_mask = None
            if masked:
                predictions.append(self._predict(encoder.later_norm(tokens), grid))
                masks, fraction = predictions[-1].masks, self.mask_shares[i]
                attn_mask = self._attn_mask(masks, grid, tokens.shape[1], fraction)
            tokens = encoder.later_block(i, tokens, attn_mask=attn_mask, grid=grid)
        predictions.append(self._predict(encoder.later_norm(tokens), grid))
        return predictions, None

    def _predict(self, tokens: Tensor, grid: tuple[int, int]) -> Masks:
        count = self.queries.shape[1]
        queries, patches = tokens[:, :count], tokens[:, count + self.num_prefix_tokens :]
        pixels = self.upscale(patches.mT.unflatten(2, grid))
        masks = torch.einsum("bqd,bdhw->bqhw", self.mask_mlp(queries), pixels)
        return Masks(masks, self.classify(queries))

    def _attn_mask(
        self, masks: Tensor, grid: tuple[int, int], length: int, fraction: Tensor
    ) -> Tensor:
        """Returns whether each token attends to each other one, bool (B, 1, T, T)."""
        patches = attended(masks, grid)
        if self.training:
            free = torch.rand(patches.shape[:2], device=masks.device) >= fraction
            patches = patches | free[..., None]
        attn_mask = patches.new_ones(masks.shape[0], 1, length, length)
        attn_mask[:, 0, : patches.shape[1], length - patches.shape[2] :] = patches
        return attn_mask


class Doubling(nn.Module):
    """Upsamples a map (B, D, h, w) by 2: transposed and depthwise convolution, LayerNorm over D."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(dim, dim, kernel_size=2, stride=2)
        self.conv2 = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim, bias=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(F.gelu(self.conv1(x)))
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)
