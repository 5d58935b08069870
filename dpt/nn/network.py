"""The Dense Prediction Transformer (Ranftl et al. 2021): encoder, decoder, heads.

:func:`optimized` returns a copy for prediction alone: the same function in fewer operations.
:func:`add_low_rank` makes a frozen layer one with a trained update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from copy import deepcopy
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval, parametrize

from dpt.files import reason
from dpt.functional import same_size, to_channels_last, without_autocast
from dpt.nn.base import Encoder, Features, Head, Window
from dpt.nn.encoders import HybridEmbed
from dpt.nn.fusion import Decoder, ResidualConvUnit
from dpt.process import log
from dpt.types.outputs import HeadOutput, HeadPrediction, OutputSpec, Tokens


class Network(nn.Module):
    """One encoder, any set of heads, and the decoders that they read.

    Args:
        encoder: images to tokens.
        decoder: tokens to the feature map of every head without a decoder of its own; None if there
            is no such head, or if such heads read the encoder's tokens.
        heads: by the name under which their output is returned.
        decoders: of heads that share no decoder, by the head's name.
    """

    encoder: Encoder
    decoder: Decoder | None
    heads: MutableMapping[str, Head]
    decoders: MutableMapping[str, Decoder]
    predicts_only = False
    """Whether this is a copy for prediction only, see :mod:`dpt.nn.network`."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        decoder: Decoder | None,
        heads: Mapping[str, Head],
        decoders: Mapping[str, Decoder] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.heads = cast(MutableMapping[str, Head], nn.ModuleDict(heads))
        self.decoders = cast(MutableMapping[str, Decoder], nn.ModuleDict(decoders))

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """The declaration of each head's prediction, by the head's name."""
        return {name: head.output for name, head in self.heads.items()}

    def named_decoders(self) -> dict[str, Decoder]:
        """Returns every decoder by its module's name, ``decoder`` or ``decoders.HEAD``."""
        shared = {} if self.decoder is None else {"decoder": self.decoder}
        return shared | {f"decoders.{name}": decoder for name, decoder in self.decoders.items()}

    @property
    def takes_prompts(self) -> bool:
        """Whether sparse depth is a further input."""
        return any(decoder.config.prompts for decoder in self.named_decoders().values())

    def features(self, images: Tensor, prompts: Tensor | None = None) -> dict[str, Features]:
        """Returns what each head reads of padded images, from one pass of the encoder."""
        tokens = self.encoder(images)
        shared = self._decoded(self.decoder, tokens, prompts)
        own = {name: self._decoded(d, tokens, prompts) for name, d in self.decoders.items()}
        return {name: own.get(name, shared) for name in self.heads}

    def _decoded(self, decoder: Decoder | None, tokens: Tokens, prompts: Tensor | None) -> Features:
        if decoder is None:
            return Features(self.encoder, tokens)
        maps, gate = decoder.fuse(tokens, prompts), None
        if decoder.prompt_gate is not None and prompts is not None:
            gate = 4 * decoder.prompt_gate(maps[-1].map)  # it learns faster
        return Features(self.encoder, tokens, maps, prompts, gate)

    def pad(self, images: Tensor) -> tuple[Tensor, Window]:
        """Pads images (B, C, H, W) to multiples of the encoder's ``pad_multiple``.

        ``encoder.padding`` says at which sides. Also returns the index of the original pixels.
        """
        height, width = images.shape[-2:]
        multiple, top, left = self.encoder.pad_multiple, 0, 0
        # written so that the symbols of torch.export cancel in the sum
        rows = (height + multiple - 1) // multiple * multiple - height
        columns = (width + multiple - 1) // multiple * multiple - width
        if not same_size((rows, columns), (0, 0)):
            if self.encoder.padding == "bottom_right":
                images = F.pad(images, (0, columns, 0, rows), mode="replicate")
            else:
                top, left = rows // 2, columns // 2
                images = F.pad(images, (left, columns - left, top, rows - top))
        return images, (..., slice(top, top + height), slice(left, left + width))

    def _check(self, images: Tensor, prompts: Tensor | None) -> None:
        channels, shape = self.encoder.in_channels, tuple(images.shape)
        is_wide = images.dtype == torch.float64 != next(self.parameters()).dtype
        is_batch = len(shape) == 4 and shape[1] == channels and 0 not in shape[2:]
        if is_wide or not is_batch or not images.is_floating_point():
            remedy = "give one image as image[None]; dpt.Predictor also takes files and uint8"
            fault = f"must be float32 (B, {channels}, H, W), found {images.dtype} {shape}"
            raise ValueError(f"images {fault}: {remedy}")
        if prompts is None:
            return
        if not self.takes_prompts or prompts.shape != (shape[0], *shape[2:]):
            fault = f"prompts {tuple(prompts.shape)}: must be (B, H, W) as the images {shape}"
            raise ValueError(f"{fault}, and the model trained with model.decoder.prompts=true")

    def forward(
        self, images: Tensor, *, raw: bool = False, prompts: Tensor | None = None
    ) -> dict[str, HeadPrediction] | dict[str, HeadOutput]:
        """Predicts for images of any size.

        Args:
            images: float (B, C, H, W), normalised; C is 3 for RGB. Sides off the encoder's grid
                are padded, and dense outputs cropped back.
            raw: return what objectives need besides the predictions. Dense logits then keep the
                head's own size if the images need no padding; losses and argmax upsample them in
                chunks (:mod:`dpt.functional`).
            prompts: sparse depth, float (B, H, W) in metres, 0 where unknown; None is the same as
                zeros. Only for models with ``decoder.prompts``. For canonical depth see
                :func:`dpt.depthmath.canonical_prompts`.

        Returns:
            The prediction of each head, in the shape that ``outputs`` declares, such as ``depth``
            (B, H, W); with ``raw``, the head's :class:`dpt.types.outputs.HeadOutput`.

        Raises:
            ValueError: ``images`` or ``prompts`` have another shape or type.
        """
        self._check(images, prompts)
        padded, window = self.pad(images)
        size = (padded.shape[-2], padded.shape[-1])
        if prompts is None and self.training and self.takes_prompts:
            prompts = images.new_zeros((len(images), *images.shape[-2:]))  # all ranks train alike
        if prompts is not None:
            padded_prompts = prompts.new_zeros((len(prompts), *size))
            padded_prompts[window] = prompts
            prompts = padded_prompts
        features = self.features(padded, prompts)
        predictions: dict[str, HeadPrediction] = {}
        outputs: dict[str, HeadOutput] = {}
        for name, head in self.heads.items():
            read = features[name]
            if not raw:
                prediction = read.corrected(head(read, size), head.output)
                predictions[name] = head.crop(prediction, size, window)
                continue
            output = head.raw(read, size)
            output.prediction = read.corrected(output.prediction, head.output)
            is_padded = padded is not images
            outputs[name] = head.crop_output(output, size, window) if is_padded else output
        return outputs if raw else predictions


# --- Low-rank adaptation

PART = ".parametrizations.weight."
"""Between the names of a layer and of a tensor of its parametrization."""


def low_rank_sum(weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Returns W + B A (out, in) of W (out, in), B = ``up`` (out, rank), A = ``down`` (rank, in)."""
    with without_autocast(weight.device):  # bf16 would lose small updates
        return torch.addmm(weight, up, down)


class LowRank(nn.Module):
    """Adds B A to a frozen weight (Hu et al. 2022, LoRA, section 4.1, with α = r); zero at first.

    peft is not used, because its public interface cannot keep what runs promise here. BEiT, EVA
    (timm's DINOv3) and SwinV2 read the weight of a layer instead of calling the layer: peft's
    layers then have no effect and get no gradient. peft computes W x + B (A x), but the merged
    model (W + B A) x, so the scores of a validation would not be those of the saved model to the
    bit. And it renames tensors. Here a parametrization of torch computes W + B A wherever the
    weight is read. A step therefore takes as long as one that trains the whole encoder (on a CPU,
    peft is no faster), but neither gradients nor the optimiser's state are kept for the encoder's
    weights.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as in the authors' code

    def forward(self, weight: Tensor) -> Tensor:
        return low_rank_sum(weight, self.up, self.down)


def add_low_rank(layer: nn.Linear, rank: int) -> None:
    """Freezes the weight of a layer, and adds a trained update of low rank to it."""
    layer.weight.requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))


def merge_low_rank(module: nn.Module) -> None:
    """Adds the updates of all layers to their weights, in place.

    torch's ``remove_parametrizations`` would also change the model of which this one is a copy.
    """
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear) and parametrize.is_parametrized(layer, "weight"):
            weight = layer.weight.detach()
            layer.__class__ = parametrize.type_before_parametrizations(layer)
            del layer.parametrizations
            layer.weight = nn.Parameter(weight, requires_grad=False)


def low_rank_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a state that :func:`merged_state` merges."""
    return {name: tensor for name, tensor in state.items() if PART in name}


def merged_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of an equal model without updates: they are added to their weights."""
    merged = {}
    for name, tensor in state.items():
        layer, _, part = name.partition(PART)
        if part == "original":
            up, down = state[f"{layer}{PART}0.up"], state[f"{layer}{PART}0.down"]
            merged[f"{layer}.weight"] = low_rank_sum(tensor, up, down)
        elif not part:
            merged[name] = tensor
    return merged


def unmerged_state(
    state: Mapping[str, Tensor], low_rank: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the state that was merged; ``low_rank`` are its :func:`low_rank_tensors`."""
    merged = {f"{name.partition(PART)[0]}.weight" for name in low_rank}
    return {name: tensor for name, tensor in state.items() if name not in merged} | {**low_rank}


# --- Prediction alone

M = TypeVar("M", bound=Network)
Forward = Callable[..., object]
"""The ``forward`` of a model: images and options to outputs."""


class Compiled:
    """A function of images; its first call decides whether the compiled form is used."""

    def __init__(self, function: Forward) -> None:
        self.function = function
        self.chosen: Forward | None = None

    def __call__(self, images: Tensor, **options: object) -> object:
        with torch.no_grad():
            try:
                self.chosen = self.chosen or self._choose(images, options)
                return self.chosen(images, **options)
            except Exception as error:  # other sizes and options are compiled when they come
                # torch raises errors of its own types if there is no C++ compiler or no Triton
                if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                    raise
                log.warning("torch.compile does not work here, running without: %s", reason(error))
            self.chosen = self.function
            return self.function(images, **options)

    def _choose(self, images: Tensor, options: Mapping[str, object]) -> Forward:
        self.function(images, **options)  # raises what is wrong with the images
        compiled = torch.compile(self.function, options={"freezing": True})
        compiled(images, **options)
        seconds = {f: _seconds(f, images, options) for f in (self.function, compiled)}
        log.info("%.4g s, compiled %.4g s, for %s", *seconds.values(), tuple(images.shape))
        return min(seconds, key=seconds.__getitem__)

    def __deepcopy__(self, memo: dict[int, object]) -> Compiled:
        return Compiled(deepcopy(self.function, memo))  # compiled again for the copy's weights


def _seconds(function: Forward, images: Tensor, options: Mapping[str, object]) -> float:
    from torch.utils.benchmark import Timer  # warns where a CUDA toolkit is found without a GPU

    timer = Timer(
        "function(images, **options)", globals=locals(), num_threads=torch.get_num_threads()
    )
    return timer.timeit(5).mean


def fuse_norms(layers: nn.Sequential) -> None:
    """Fuses each BN into the convolution just before it, in place."""
    for i, (conv, norm) in enumerate(pairwise(list(layers))):
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d:  # timm's contain more
            layers[i], layers[i + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()


def optimized(model: M, *, compiled: bool) -> M:
    """Returns a copy for prediction alone, see :meth:`dpt.DPT.optimize_for_inference`."""
    copy = deepcopy(model).eval().requires_grad_(False)
    if copy.predicts_only:
        return copy
    copy.predicts_only = True
    merge_low_rank(copy)  # the sum is exact in the weights' own precision
    for module in list(copy.modules()):
        if type(module) is nn.Sequential:
            fuse_norms(module)
        if isinstance(module, Head | HybridEmbed | ResidualConvUnit):
            module.prepare_for_inference()
    to_channels_last(copy)
    if compiled:
        # nn.Module calls the `forward` of the instance, which mypy takes for a method of the class
        copy.forward = Compiled(copy.forward)  # type: ignore[method-assign, assignment]
    return copy
