"""The interfaces of encoders and heads, and the tables of their configurations."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

import pydantic.dataclasses
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from dpt.functional import upsample
from dpt.nn.prompts import corrected
from dpt.nn.reassemble import ReadoutMode
from dpt.types.outputs import HeadOutput, HeadPrediction, OutputSpec, Tokens, tensors_in
from dpt.validation import STRICT, Settings

Padding = Literal["bottom_right", "center"]
Size = tuple[int, int]
Window = tuple[EllipsisType, slice, slice]
"""The index of the original pixels in a padded image or map."""


class Encoder(nn.Module):
    """Maps images to token matrices. A subclass sets the attributes and implements ``forward``.

    Attributes:
        in_channels: C of the images; 3 for RGB.
        embed_dims: D of each level, shallow to deep.
        num_prefix_tokens: prefix tokens of each level (CLS first, then registers).
        strides: pixels between patch tokens of each level.
        pad_multiple: image sides must be multiples of this; :class:`dpt.nn.Network` pads.
        padding: how :class:`dpt.nn.Network` pads images: ``bottom_right`` repeats the last row and
            column, ``center`` adds zeros on all sides (DINOv2's depth heads).
        num_later_blocks: number of blocks after the last level, run by ``EoMTHead``.
    """

    in_channels: int = 3
    embed_dims: tuple[int, ...]
    num_prefix_tokens: tuple[int, ...]
    strides: tuple[int, ...]
    pad_multiple: int
    padding: Padding = "bottom_right"
    num_later_blocks: int = 0

    def forward(self, images: Tensor) -> Tokens:
        """Returns tokens of normalised images (B, C, H, W), sides multiples of ``pad_multiple``."""
        raise NotImplementedError

    def later_block(
        self, index: int, tokens: Tensor, *, attn_mask: Tensor | None, grid: tuple[int, int]
    ) -> Tensor:
        """Runs block ``index`` after the last level, from 0: (B, T, D) to (B, T, D).

        ``tokens`` are a head's own, then the P + g·g' of the last level, whose grid is (g, g').
        ``attn_mask``, bool (B, 1, T, T), is False where a token must not attend; None allows all.
        """
        raise NotImplementedError

    def later_norm(self, tokens: Tensor) -> Tensor:
        """Normalises the tokens after the last block."""
        raise NotImplementedError

    def compute_buffers(self) -> None:
        """Computes the buffers that no file holds, after the parameters got their values."""

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes activations in the backward pass, to save memory."""
        raise ValueError(f"model.checkpoint_activations=true: {type(self).__name__} cannot do it")

    def lora_layers(self) -> dict[str, nn.Linear]:
        """Returns the layers that ``callbacks.lora`` adapts, by name: here all linear ones."""
        layers = self.named_modules()
        return {name: layer for name, layer in layers if isinstance(layer, nn.Linear)}

    def layer_ids(self) -> dict[str, int]:
        """Returns the layer of each parameter by name, from 0 nearest to the image.

        ``optim.layer_decay`` and ``callbacks.freeze.layers`` read them.
        """
        keys = "optim.layer_decay and callbacks.freeze.layers"
        raise ValueError(f"{keys}: {type(self).__name__} has no order of its layers")


class FusedMap(NamedTuple):
    """The output of a fusion block, which its readers upsample: ``upsample(*fused_map)``."""

    map: Tensor  # (B, F, h, w)
    size: tuple[int, int]  # (H, W) after upsampling


@dataclass
class Features:
    """What heads read: the encoder's tokens and the decoder's maps.

    Attributes:
        encoder: the encoder of the tokens, whose later blocks a head may run.
        tokens: of every level, see :class:`dpt.types.outputs.Tokens`.
        maps: of every level, deepest first; empty without a decoder.
        prompts: sparse depth (B, H, W), if there is any.
        gate: how much it corrects predicted depth, (B, 1, h, w), see
            :func:`dpt.nn.prompts.corrected`.
    """

    encoder: Encoder
    tokens: Tokens
    maps: Sequence[FusedMap] = ()
    prompts: Tensor | None = None
    gate: Tensor | None = None

    @property
    def map(self) -> Tensor:
        """The decoder's feature map (B, F, H/2, W/2) at patch size 16."""
        return upsample(*self.maps[-1])

    def corrected(self, prediction: HeadPrediction, spec: OutputSpec) -> HeadPrediction:
        """Returns a prediction of metres corrected by sparse depth, others as they are."""
        if self.prompts is None or self.gate is None or not spec.has_metres:
            return prediction
        depth, *others = tensors_in(prediction)
        return spec.join([corrected(depth, self.prompts, self.gate), *others])

    def patch_tokens(self) -> Tensor:
        """Returns the deepest level's tokens (B, h·w, D) without its prefix tokens."""
        return self.tokens.levels[-1][:, self.encoder.num_prefix_tokens[-1] :]

    def patch_map(self) -> Tensor:
        """Returns :meth:`patch_tokens` as a map (B, D, h, w)."""
        return self.patch_tokens().mT.unflatten(2, self.tokens.grids[-1])

    def image_token(self) -> Tensor:
        """Returns the deepest level's CLS token (B, D), or without one the mean of its tokens."""
        tokens = self.tokens.levels[-1]
        return tokens[:, 0] if self.encoder.num_prefix_tokens[-1] else tokens.mean(dim=1)


class Head(nn.Module):
    """Maps features to one output. A subclass sets ``output`` and implements ``forward``.

    Attributes:
        output: what is predicted, see :class:`dpt.types.outputs.OutputSpec`.
        uses_decoder: whether the head reads the decoder's maps; if none does, there is no decoder.
    """

    output: OutputSpec
    uses_decoder: ClassVar[bool] = True

    def forward(self, features: Features, size: tuple[int, int]) -> HeadPrediction:
        """Returns the prediction that ``output`` declares, at (H, W) = ``size`` if it is dense."""
        raise NotImplementedError

    def raw(self, features: Features, size: tuple[int, int]) -> HeadOutput:
        """Returns what the objective receives; dense logits may have a smaller size.

        Losses upsample logits to ``size`` with aligned corners.
        """
        return HeadOutput(self(features, size))

    def crop_output(self, output: HeadOutput, size: tuple[int, int], window: Window) -> HeadOutput:
        """Returns an output of :meth:`raw` for padded images, upsampled and cropped.

        Args:
            output: of images of ``size`` (H, W).
            window: the index of the pixels before padding.
        """
        auxiliary = output.auxiliary
        if auxiliary is not None and self.output.dense:
            auxiliary = upsample(auxiliary, size)[window]
        prediction = self.crop(output.prediction, size, window)
        return replace(output, prediction=prediction, auxiliary=auxiliary)

    def crop(self, prediction: HeadPrediction, size: Size, window: Window) -> HeadPrediction:
        """Returns a prediction for padded images, see :meth:`crop_output`."""
        specs = (self.output, *self.output.extra)
        pairs = zip(specs, tensors_in(prediction), strict=True)
        return self.output.join(
            [upsample(tensor, size)[window] if spec.dense else tensor for spec, tensor in pairs]
        )

    def set_progress(self, fraction: float) -> None:
        """Called before each training step with the completed fraction of the training, 0..1."""

    def prepare_for_inference(self) -> None:
        """Removes in place what only training needs, and fuses what can be fused."""


class EncoderConfig(Settings, ABC):
    """Settings of an encoder: a dataclass whose ``kind`` is its name in ``ENCODERS``.

    A setting ``in_channels`` is the number of bands of the images; without it they are RGB.
    """

    kind: str

    @abstractmethod
    def build(self) -> Encoder:
        """Returns the encoder, randomly initialised."""


@pydantic.dataclasses.dataclass(kw_only=True, config=STRICT)
class DecoderConfig:
    """Settings of :class:`dpt.nn.Decoder`.

    Attributes:
        reassemble_channels: channels of each level's map, shallow to deep; None keeps D and omits
            the Project step.
        fusion_channels: of the 3×3 convolution after Reassemble and of all layers after it.
        readout: mode of :class:`dpt.nn.reassemble.Read` on levels with a CLS token.
        scales: ratio of each map's size to its token grid; each map is twice as large as the next.
            ``auto`` derives them from the encoder's strides (4, 2, 1, 1/2 for a plain ViT).
        reassemble_norm: BN before the Project step (DINOv3's depthers).
        batch_norm: BN in the residual units. ``auto``: only in models with a head for classes of
            pixels, as in official DPT.
        unit_bias: bias in the residual units' convolutions. ``auto``: where no BN follows
            (official DPT); MiDaS and Depth Anything always have one, DINOv2's heads never.
        align: how a fused map is matched to the next level's map (the lateral) on odd grids:
            ``to_lateral`` resizes the fused map to the lateral's size; ``resize_lateral`` doubles
            the fused map and resizes the lateral to it (DINOv2's heads, transformers).
        output_project: a 3×3 convolution and ReLU after the last fusion (DINOv2's heads).
        deepest_unit: a residual unit on the deepest lateral too (segmentation_models.pytorch);
            official DPT has none.
        prompts: whether a few measured depths of the image are a further input, see
            :class:`dpt.nn.prompts.PromptLayer`.
    """

    reassemble_channels: tuple[PositiveInt | None, ...] = (96, 192, 384, 768)
    fusion_channels: Annotated[int, Field(ge=2)] = 256
    readout: ReadoutMode = "project"
    scales: tuple[float, ...] | Literal["auto"] = "auto"
    reassemble_norm: bool = False
    batch_norm: bool | Literal["auto"] = "auto"
    unit_bias: bool | Literal["auto"] = "auto"
    align: Literal["to_lateral", "resize_lateral"] = "to_lateral"
    output_project: bool = False
    deepest_unit: bool = False
    prompts: bool = False

    def resolve(self, encoder: Encoder, *, batch_norm: bool) -> None:
        """Replaces every ``auto`` by its value."""
        strides = encoder.strides
        if self.scales == "auto":
            base = min(strides[0], strides[-1] / 4)
            self.scales = tuple(s / (base * 2**i) for i, s in enumerate(strides))
        if self.batch_norm == "auto":
            self.batch_norm = batch_norm
        if self.unit_bias == "auto":
            self.unit_bias = not self.batch_norm


@dataclass(kw_only=True)
class HeadConfig(Settings, ABC):
    """Settings of a head: a dataclass.

    Attributes:
        decoder: settings of a decoder that this head alone reads; None: the model's decoder, which
            all such heads share.
        batch_norm: whether the decoder has BN by default.
        meanings: by layer, the settings that decide what its output means: weights of a head with
            other values of them are not loaded into it.
    """

    decoder: DecoderConfig | None = None
    batch_norm: ClassVar[bool] = False
    meanings: ClassVar[dict[str, tuple[str, ...]]] = {}

    @abstractmethod
    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        """Returns the head, randomly initialised; the decoder's maps have ``fusion_channels``."""


ENCODERS: dict[str, type[EncoderConfig]] = {}
HEADS: dict[str, type[HeadConfig]] = {}

C = TypeVar("C", bound=type)  # a dataclass of pydantic, which hides the base class from mypy
T = TypeVar("T")


def register_encoder(kind: str) -> Callable[[C], C]:
    """Adds a configuration class to ``ENCODERS``, so that ``model.encoder.kind`` can name it."""
    return partial(_enter, ENCODERS, kind)


def register_head(name: str) -> Callable[[C], C]:
    """Adds a configuration class to ``HEADS``, so that ``heads={name: {...}}`` builds it."""
    return partial(_enter, HEADS, name)


def _enter(table: dict[str, type[T]], name: str, config: C) -> C:
    table[name] = config
    return config
