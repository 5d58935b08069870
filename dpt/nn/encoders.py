"""Encoders other than the plain ViT: ViTs over a CNN, and any timm backbone with features.

timm takes two seconds to import, so it is imported inside the functions that need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.files import reason
from dpt.library_internals import compute_buffers, pad_before_shift
from dpt.nn.base import Encoder, EncoderConfig, register_encoder
from dpt.nn.vit import VisionTransformer, ViTConfig, check_out_indices
from dpt.types.outputs import Tokens
from dpt.validation import STRICT, Plain

Standardization = Literal["sqrt", "official"]
WindowPadding = Literal["after_shift", "before_shift"]
Norm = Callable[[int], nn.Module]
Width = Annotated[int, Field(ge=1, le=4096)]
Blocks = Annotated[int, Field(ge=0, le=100)]
WRONG_SHAPE = re.compile("must match the size of tensor|is invalid for input of size")


def _standardized_conv(kind: Standardization) -> Callable[..., nn.Module]:
    """Returns a class of convolutions with standardised weights, see :class:`HybridConfig`."""
    from timm.layers import StdConv2dSame, conv2d_same

    class StandardizedConv(StdConv2dSame):
        def standardized(self) -> Tensor:
            if kind == "official":
                std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
                return (self.weight - mean) / (std + self.eps)
            rows = self.weight.reshape(1, self.out_channels, -1)
            return F.batch_norm(rows, None, None, training=True, eps=self.eps).view_as(self.weight)

        def forward(self, x: Tensor) -> Tensor:
            conv2d: Callable[..., Tensor] = conv2d_same if self.same_pad else F.conv2d
            return conv2d(x, self.standardized(), self.bias, self.stride, self.padding)

    return partial(StandardizedConv, eps=1e-5 if kind == "official" else 1e-8)


class HybridEmbed(nn.Module):
    """ResNet-50 (three weight-standardised stages), and a 1×1 convolution of its stride-16 map."""

    stage_channels = (256, 512)  # of the maps at strides 4 and 8

    def __init__(self, config: HybridConfig, dim: int) -> None:
        super().__init__()
        from timm.models.resnetv2 import ResNetV2

        self.backbone = ResNetV2(
            layers=[3, 4, 9],
            num_classes=0,
            global_pool="",
            in_chans=config.in_channels,
            preact=False,
            stem_type="same",
            conv_layer=_standardized_conv(config.weight_standardization),
        )
        self.proj = nn.Conv2d(self.backbone.num_features, dim, kernel_size=1)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Returns the maps of the first two stages (H/4, H/8) and the embedding (H/16)."""
        x = self.backbone.stem(images)
        maps = []
        for stage in self.backbone.stages:
            x = stage(x)
            maps.append(x)
        return [*maps[:2], self.proj(x)]

    @torch.no_grad()
    def prepare_for_inference(self) -> None:
        """Standardises the weights once and makes the padding constant, in place.

        "Same" padding depends on a map's size. Sides of images are multiples of 16, so the input of
        each layer of stride 2 has even sides, and a kernel of k rows needs k - 2 rows of padding.
        """
        for name, module in list(self.backbone.named_modules()):
            old: Any = module
            plain: nn.Module
            if hasattr(old, "standardized"):
                sizes = (old.in_channels, old.out_channels, old.kernel_size)
                plain = nn.Conv2d(*sizes, stride=old.stride, padding=old.padding, bias=False)
                plain.weight = nn.Parameter(old.standardized())
            elif isinstance(old, nn.MaxPool2d):
                plain = nn.MaxPool2d(old.kernel_size, stride=old.stride)
            else:
                continue
            total = max(old.kernel_size[0] - old.stride[0], 0) if old.padding == (0, 0) else 0
            if total:
                filler = 0.0 if isinstance(plain, nn.Conv2d) else -torch.inf
                sides = (total // 2, total - total // 2) * 2
                plain = nn.Sequential(nn.ConstantPad2d(sides, filler), plain)
            self.backbone.set_submodule(name, plain)


@register_encoder("hybrid")
@dataclass(kw_only=True)
class HybridConfig(ViTConfig):
    """A ViT over the CNN of official DPT-Hybrid: settings of a ViT of patch size 16, and the CNN's.

    ``weight_standardization`` of the CNN: ``sqrt`` divides by sqrt(var + 1e-8), as timm today and
    transformers; ``official`` by std + 1e-5, as the timm version that official DPT pins.
    """

    kind: str = "hybrid"
    out_indices: tuple[int, ...] = (8, 11)
    patch_size: Literal[16] = 16
    weight_standardization: Standardization = "sqrt"

    def build(self) -> Encoder:
        return CnnVisionTransformer(self)

    def make_patch_embed(self, dim: int) -> nn.Module:
        return HybridEmbed(self, dim)


class CnnVisionTransformer(VisionTransformer):
    """A ViT over a CNN; the levels are two stages of the CNN, at strides 4 and 8, then blocks."""

    patch_embed: HybridEmbed | StemEmbed

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.embed_dims = (*self.patch_embed.stage_channels, *self.embed_dims)
        self.num_prefix_tokens = (0, 0, *self.num_prefix_tokens)
        self.strides = (4, 8, *self.strides)

    def forward(self, images: Tensor) -> Tokens:
        *stages, embedding = self.patch_embed(images)
        levels, grids = maps_to_tokens(stages)
        outputs, grid = self.encode(embedding), (embedding.shape[-2], embedding.shape[-1])
        return Tokens([*levels, *outputs], [*grids, *[grid] * len(outputs)])


class ResidualBlock(nn.Module):
    """ReLU(x + BN(conv(ReLU(BN(conv(x)))))) (He et al. 2016, figure 5, left)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = _conv_norm(channels, channels), _conv_norm(channels, channels)
        self.layers = nn.Sequential(first, nn.ReLU(inplace=True), second)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.layers(x))


def _conv_norm(
    inputs: int, outputs: int, *, stride: int = 1, norm: Norm = nn.BatchNorm2d
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
    return nn.Sequential(conv, norm(outputs))


class StemEmbed(nn.Module):
    """3×3 convolutions of stride 2 (Xiao et al. 2021), with residual blocks at strides 4 and 8.

    The map at stride 2 has instance norm, which takes out an image's brightness and contrast
    (IBN-Net, Pan et al. 2018, section 3.2).
    """

    def __init__(self, config: StemConfig, dim: int) -> None:
        super().__init__()
        self.stage_channels = config.stem_channels[1:]
        widths = (config.in_channels, *config.stem_channels)
        within_image = partial(nn.InstanceNorm2d, affine=True)
        norms: list[Norm] = [within_image, nn.BatchNorm2d, nn.BatchNorm2d]
        stages = zip(widths[:-1], widths[1:], (0, *config.stem_blocks), norms, strict=True)
        self.stages = nn.ModuleList(
            nn.Sequential(
                _conv_norm(inputs, outputs, stride=2, norm=norm),
                nn.ReLU(inplace=True),
                *(ResidualBlock(outputs) for _ in range(blocks)),
            )
            for inputs, outputs, blocks, norm in stages
        )
        self.proj = nn.Conv2d(widths[-1], dim, kernel_size=3, stride=2, padding=1)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Returns the maps at H/4 and H/8 and the embedding at H/16."""
        x, maps = images, []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return [*maps[1:], self.proj(x)]


@register_encoder("stem")
@dataclass(kw_only=True)
class StemConfig(ViTConfig):
    """A ViT over a small convolutional stem, which learns from few images; the patch size is 16.

    Attributes:
        stem_channels: of the stem's maps at strides 2, 4 and 8.
        stem_blocks: number of residual blocks at strides 4 and 8.
    """

    kind: str = "stem"
    out_indices: tuple[int, ...] = (8, 11)
    patch_size: Literal[16] = 16
    stem_channels: tuple[Width, Width, Width] = (32, 64, 128)
    stem_blocks: tuple[Blocks, Blocks] = (1, 2)

    def build(self) -> Encoder:
        return CnnVisionTransformer(self)

    def make_patch_embed(self, dim: int) -> nn.Module:
        return StemEmbed(self, dim)


def maps_to_tokens(maps: Sequence[Tensor]) -> Tokens:
    """Flattens maps (B, D, h, w) into tokens (B, h·w, D)."""
    return Tokens([m.flatten(2).mT for m in maps], [(m.shape[-2], m.shape[-1]) for m in maps])


@register_encoder("timm")
@dataclass(kw_only=True)
class TimmConfig(EncoderConfig):
    """Settings of :class:`TimmEncoder`, and further arguments of the timm model.

    Attributes:
        name: a timm model name, with or without a pretrained tag.
        in_channels: C of the images; timm's ``in_chans``.
        out_indices: blocks (plain transformers) or stages (pyramids) whose outputs are returned;
            ``auto`` takes the last block of each quarter, or the last four stages.
        num_later_blocks: as of :class:`dpt.nn.ViTConfig`, in plain transformers only;
            ``out_indices=auto`` is then the block before them.
        drop_path: rate at the last block.
        pad_windows: when Swin and SwinV2 pad maps that are no multiple of the window:
            ``after_shift``, as timm, or ``before_shift``, as Swin's authors and transformers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {**STRICT, "extra": "allow"}
    name: str
    kind: str = "timm"
    in_channels: int = Field(3, ge=1, le=512)
    out_indices: tuple[int, ...] | Literal["auto"] = "auto"
    num_later_blocks: int = Field(0, ge=0)
    drop_path: float = Field(0.0, ge=0, lt=1)
    pad_windows: WindowPadding = "after_shift"

    @property
    def arguments(self) -> Plain:
        """Settings that are not fields of this class: further arguments of the timm model."""
        names = {f.name for f in fields(self)}
        return {k: v for k, v in vars(self).items() if k not in names}

    def build(self) -> Encoder:
        for key, value in self.arguments.items():
            is_long = re.search(r"(?<![\w.])\d{5}", str(value))  # timm may make a list of it
            if is_long or (key == "patch_drop_rate" and value):  # dense outputs need all patches
                limit = "numbers must be below 10000, and patch_drop_rate 0"
                raise ValueError(f"model.encoder.{key}={value}: {limit}")
        encoder = TimmEncoder(self)
        self.out_indices = tuple(encoder.out_indices)
        return encoder


class TimmEncoder(Encoder):
    """Any timm backbone that offers intermediate features: ViT, DINOv2/v3, Swin, ConvNeXt, ..."""

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        self.config, self.in_channels = config, config.in_channels
        self.num_later_blocks = config.num_later_blocks
        self.model = model = _create(config)
        if not hasattr(model, "forward_intermediates"):
            raise ValueError(f"timm's {config.name} offers no intermediate features")
        reductions = [level["reduction"] for level in model.feature_info]
        self.plain = len(set(reductions)) == 1  # one stride throughout: a plain transformer
        self.out_indices = self._choose_indices(len(reductions))
        if hasattr(model, "prune_intermediate_layers"):
            later = self.num_later_blocks
            needed = [*self.out_indices, self.out_indices[-1] + later]
            model.prune_intermediate_layers(needed, prune_norm=not later, prune_head=True)
        if config.pad_windows == "before_shift":
            pad_before_shift(model, config.name)
        levels = [model.feature_info[i] for i in self.out_indices]
        self.embed_dims = tuple(int(level["num_chs"]) for level in levels)
        self.strides = tuple(int(level["reduction"]) for level in levels)
        prefix = _count_prefix_tokens(model) if self.plain else 0
        self.num_prefix_tokens = (prefix,) * len(levels)
        self.pad_multiple = max(self.strides)

    def _choose_indices(self, count: int) -> list[int]:
        """Returns the levels, of ``count`` blocks or stages."""
        config, later = self.config, self.num_later_blocks
        if later and not (self.plain and hasattr(self.model, "blocks")):
            raise ValueError(f"num_later_blocks={later}: {config.name} has no blocks of one size")
        if config.out_indices != "auto":
            indices = list(config.out_indices)
        elif later:
            indices = [count - 1 - later]
        elif self.plain:
            indices = [count * (i + 1) // 4 - 1 for i in range(4)]
        else:
            indices = list(range(max(0, count - 4), count))
        check_out_indices(indices, count, later)
        return indices

    def later_block(
        self, index: int, tokens: Tensor, *, attn_mask: Tensor | None, grid: tuple[int, int]
    ) -> Tensor:
        block = self.model.blocks[self.out_indices[-1] + 1 + index]
        if getattr(self.model, "rope", None) is None:
            return block(tokens, attn_mask=attn_mask)
        block.attn.num_prefix_tokens = tokens.shape[1] - grid[0] * grid[1]  # they have no position
        return block(tokens, rope=self.model.rope.get_embed(shape=grid), attn_mask=attn_mask)

    def later_norm(self, tokens: Tensor) -> Tensor:
        return self.model.norm(tokens)

    def compute_buffers(self) -> None:
        compute_buffers(self.model, next(self.parameters()).device)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        if not hasattr(self.model, "set_grad_checkpointing"):
            super().set_grad_checkpointing(enable)
        self.model.set_grad_checkpointing(enable)

    def layer_ids(self) -> dict[str, int]:
        from timm.models import group_parameters

        if not hasattr(self.model, "group_matcher"):
            return super().layer_ids()
        layers = group_parameters(self.model, self.model.group_matcher(coarse=False), reverse=True)
        return {f"model.{name}": layer for name, layer in layers.items()}

    def forward(self, images: Tensor) -> Tokens:
        """Returns tokens of normalised images (B, C, H, W), sides multiples of ``pad_multiple``."""
        try:
            return self._tokens(images)
        except (AssertionError, RuntimeError) as error:
            if not isinstance(error, AssertionError) and not WRONG_SHAPE.search(str(error)):
                raise
            height, width = images.shape[-2:]
            fault = f"takes one image size, not {height}x{width} ({reason(error)})"
            remedy = "set model.encoder.img_size if timm has it, or choose a ViT, Swin or ConvNeXt"
            raise ValueError(f"model.encoder.name={self.config.name}: {fault}: {remedy}") from error

    def _tokens(self, images: Tensor) -> Tokens:
        options = {"indices": self.out_indices, "stop_early": True, "intermediates_only": True}
        features = partial(self.model.forward_intermediates, images, norm=False, **options)
        if not self.plain:
            return maps_to_tokens(features(output_fmt="NCHW"))
        stride = self.strides[0]
        grids = [(images.shape[-2] // stride, images.shape[-1] // stride)] * len(self.strides)
        if not self.num_prefix_tokens[0]:
            return Tokens(list(features(output_fmt="NLC")), grids)
        pairs = features(output_fmt="NLC", return_prefix_tokens=True)
        return Tokens([torch.cat((prefix, patches), dim=1) for patches, prefix in pairs], grids)


def _count_prefix_tokens(model: Any) -> int:
    """Returns the number of prefix tokens of a plain transformer; 0 without CLS.

    Registers without CLS are dropped: the first of them would be read as CLS.
    """
    has_cls = getattr(model, "cls_token", None) is not None
    options = signature(model.forward_intermediates).parameters
    count = int(getattr(model, "num_prefix_tokens", 0) or 0)
    return count if has_cls and "return_prefix_tokens" in options else 0


def _create(config: TimmConfig) -> Any:
    """Creates the timm model.

    It takes any image size and has no stochastic depth if the model has these options and
    ``config.arguments`` do not set them.
    """
    import timm

    name = config.name
    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"timm has no model {name!r}")
    arguments: Plain = {}
    if config.drop_path:
        arguments["drop_path_rate"] = config.drop_path
    arguments |= config.arguments
    # timm refuses what `arguments` gives a second time: no configuration fetches or reads weights
    fixed: Plain = {"pretrained": False, "checkpoint_path": "", "num_classes": 0}
    fixed["in_chans"] = config.in_channels
    sizes: list[Plain] = [{"dynamic_img_size": True}, {"strict_img_size": False}, {}]
    rates: list[Plain] = [{"drop_path_rate": 0.0}, {}]
    for switch in [{**size, **rate} for rate in rates for size in sizes]:
        try:
            return timm.create_model(name, **fixed, **{**switch, **arguments})
        except Exception as error:  # timm checks few arguments, so it raises many types
            # a TypeError may only mean that this family has no such switch
            if not isinstance(error, TypeError) or not any(key in str(error) for key in switch):
                fault = f"timm's {name} refused {arguments}: {reason(error)}"
                raise ValueError(fault) from error
    raise AssertionError("unreachable")
