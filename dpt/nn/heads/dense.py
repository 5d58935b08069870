"""Heads with a value for each pixel: depth, normals, classes and colours.

Shapes: F fusion channels, (h, w) a map, (H, W) the image, K classes or bins, D embedding.
"""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from dpt.depthmath import at_least_float32
from dpt.functional import norm_relu_conv2d, resize, upsample, upsample_conv2d, without_autocast
from dpt.nn.base import Encoder, Features, FusedMap, Head, HeadConfig, register_head
from dpt.nn.heads.queries import QueryConfig, require_per_class
from dpt.types import outputs
from dpt.validation import MAX_METRES, STRICT, Count, Metres, NonNegative, Positive

Upsampling = Literal["image", "double"]


@dataclass(kw_only=True, config=STRICT)
class DepthBins:
    """K ``count`` evenly spaced depths in metres, which relu(logits) + 0.1 of a pixel weight.

    Attributes:
        count: K.
        min_depth, max_depth: the first and the last of the depths, in metres.
    """

    count: int = Field(256, ge=2, le=10_000)
    min_depth: Metres = 1e-3
    max_depth: Metres

    def __post_init__(self) -> None:
        if self.min_depth >= self.max_depth:
            raise ValueError(f"min_depth={self.min_depth:g}: must be below {self.max_depth:g}")

    def depths(self, like: Tensor) -> Tensor:
        """Returns the depths (K,) in metres, with the dtype and on the device of ``like``."""
        steps = torch.linspace(0, 1, self.count, dtype=like.dtype, device=like.device)
        return self.min_depth + (self.max_depth - self.min_depth) * steps

    def to_depth(self, logits: Tensor) -> Tensor:
        """Maps logits (B, K, H, W) to depth (B, 1, H, W) in metres."""
        weights = torch.relu(logits) + 0.1
        # both sums in one product: normalised weights would be another tensor of this size
        depths = self.depths(logits)
        factors = torch.stack((depths, torch.ones_like(depths)), dim=1)
        sums = torch.einsum("bkhw,ks->bshw", weights, factors)
        return sums[:, :1] / sums[:, 1:]


@register_head("depth")
@dataclass(kw_only=True)
class DepthHeadConfig(HeadConfig):
    """Settings of :class:`DepthHead`; those that it does not use get their defaults.

    Attributes:
        kind: ``relative`` gives inverse depth up to scale and shift, >= 0 (official DPT);
            ``metric`` gives metres; ``up_to_scale`` gives depth up to scale, > 0 (Depth Anything
            3).
        max_depth: largest depth in metres, of ``sigmoid``.
        prior: of ``sigmoid``: the typical depth at the start of training, in metres; None: half of
            ``max_depth``.
        activation: of ``metric``: ``sigmoid`` is max_depth · sigmoid(x), ``inverse`` is
            1 / max(scale · relu(x) + shift, 1e-8) (official DPT for NYU and KITTI), ``relu`` is
            relu(x) + min_depth (DINOv2's heads), ``exp`` is exp(x) (Depth Anything 3).
        canonical_focal: of ``metric``: the output is metres for a camera of this focal length, see
            :class:`dpt.types.outputs.OutputSpec`; None: it is metres for every camera.
        hidden_channels: output channels of the second convolution.
        scale, shift: of ``inverse``, from relative inverse depth to 1/metres.
        min_depth: of ``relu``, in metres.
        bins: of ``metric``: depth is a weighted mean of these depths; ``activation`` and
            ``max_depth`` are then not used.
        upsample: ``image`` interpolates the first convolution's map to the image's size (a factor
            of 2 at patch size 16); ``double`` doubles it at any patch size and resizes the
            output (transformers, DINOv2's heads).
        sky: a second branch predicts where the sky is: ``sigmoid`` its probability, ``relu`` a
            value that is 0.3 and more in the sky (Depth Anything 3).
        log_variance: another branch predicts the logarithm of the variance of the error, see
            :class:`dpt.losses.LogVarianceLoss`.
    """

    kind: outputs.DepthKind = "relative"
    max_depth: Metres | None = None
    prior: Metres | None = None
    activation: Literal["sigmoid", "inverse", "relu", "exp"] = "sigmoid"
    canonical_focal: Positive | None = None
    hidden_channels: Count = 32
    scale: Positive = 1.0
    shift: NonNegative = 0.0
    min_depth: float = Field(0.0, ge=0, le=MAX_METRES)
    upsample: Upsampling = "image"
    bins: DepthBins | None = None
    sky: Literal["none", "sigmoid", "relu"] = "none"
    log_variance: bool = False
    meanings: ClassVar[dict[str, tuple[str, ...]]] = {
        "conv3": ("kind", "activation", "canonical_focal", "bins"),
        "branches.sky.conv3": ("sky",),
        "branches.log_variance.conv3": ("kind",),
    }

    def __post_init__(self) -> None:
        if self.kind != "metric":
            self.bins = self.canonical_focal = None
        if self.kind == "up_to_scale":
            self.activation = "exp"
        elif self.kind == "relative" or self.bins is not None:
            self.activation, self.min_depth = "relu", 0.0
        if self.activation != "sigmoid":
            self.max_depth = self.prior = None
        elif self.max_depth is None:
            raise ValueError("a metric depth head needs max_depth, in metres")
        if self.activation != "inverse":
            self.scale, self.shift = 1.0, 0.0
        if self.activation != "relu":
            self.min_depth = 0.0

    @property
    def output(self) -> outputs.OutputSpec:
        bound = 1 / self.shift if self.shift else self.max_depth
        value_range = None if bound is None else (0.0, bound)
        if self.bins is not None:
            value_range = self.bins.min_depth, self.bins.max_depth
        threshold = {"sigmoid": 0.5, "relu": 0.3}.get(self.sky)
        extra = [outputs.OutputSpec("sky", "map", threshold=threshold)] if threshold else []
        extra += [outputs.OutputSpec("log_variance", "log_variance")] if self.log_variance else []
        return outputs.OutputSpec(
            "depth",
            "depth",
            unit=outputs.DEPTH_UNITS[self.kind],
            canonical_focal=self.canonical_focal,
            value_range=value_range,
            record=outputs.DepthMaps if extra else None,
            extra=tuple(extra),
        )

    def activate(self, x: Tensor) -> Tensor:
        """Maps the outputs of the last layer, (B, K, H, W), to depth, (B, 1, H, W)."""
        if self.bins is not None:
            return self.bins.to_depth(x)
        if self.activation == "exp":
            return torch.exp(x)
        if self.activation == "sigmoid":
            assert self.max_depth is not None
            return torch.sigmoid(x) * self.max_depth
        if self.activation == "inverse":
            return 1 / (self.scale * torch.relu(x) + self.shift).clamp_min(1e-8)
        return torch.relu(x) + self.min_depth if self.min_depth else torch.relu(x)

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return DepthHead(self, fusion_channels)


class DepthHead(Head):
    """Predicts the depth of each pixel, (B, H, W), from the feature map (B, F, h, w).

    With ``sky`` or ``log_variance`` the prediction is a :class:`dpt.types.outputs.DepthMaps`.
    """

    def __init__(self, config: DepthHeadConfig, in_channels: int) -> None:
        super().__init__()
        self.config, self.output, self.activate = config, config.output, config.activate
        hidden, num_outputs = config.hidden_channels, config.bins.count if config.bins else 1
        self.conv1 = nn.Conv2d(in_channels, in_channels // 2, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(in_channels // 2, hidden, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(hidden, num_outputs, kernel_size=1)
        assert self.conv3.bias is not None
        if config.activation != "sigmoid":
            # a ReLU whose input starts below zero at every pixel would have no gradient
            nn.init.constant_(self.conv3.bias, 1.0)
        elif config.prior is not None and config.max_depth is not None:
            fraction = min(0.999, config.prior / config.max_depth)
            nn.init.constant_(self.conv3.bias, math.log(fraction / (1 - fraction)))
        self.branches = nn.ModuleDict()
        if config.sky != "none":
            activate = torch.sigmoid if config.sky == "sigmoid" else torch.relu
            self.branches["sky"] = Branch(in_channels // 2, config, activate)
        if config.log_variance:
            self.branches["log_variance"] = Branch(in_channels // 2, config, torch.clone)

    def forward(self, features: Features, size: tuple[int, int]) -> outputs.HeadPrediction:
        x = upsample_conv2d(*features.maps[-1], self.conv1)
        depth = last_layers(self, x, size)
        maps = {name: branch(x, size) for name, branch in self.branches.items()}
        return outputs.DepthMaps(depth, **maps) if maps else depth


class Branch(nn.Module):
    """Predicts a map (B, H, W) beside depth, by two convolutions as those of depth.

    The head holds it in ``branches``: weights without it can be loaded into a head that has it.
    """

    def __init__(
        self, in_channels: int, config: DepthHeadConfig, activate: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.config, self.activate = config, activate
        hidden = config.hidden_channels
        self.conv2 = nn.Conv2d(in_channels, hidden, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(hidden, 1, kernel_size=1)

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        return last_layers(self, x, size)


def last_layers(head: DepthHead | Branch, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns the map (B, H, W) at ``size`` that two convolutions make of (B, C, h, w)."""
    double = (2 * x.shape[-2], 2 * x.shape[-1])
    x = upsample_conv2d(x, double if head.config.upsample == "double" else size, head.conv2)
    assert head.conv3.bias is not None
    with without_autocast(x.device):  # bf16 would round 30 m to 0.125 m
        x, weight, bias = map(at_least_float32, (x, head.conv3.weight, head.conv3.bias))
        return resize(head.activate(F.conv2d(torch.relu(x), weight, bias)), size).squeeze(1)


@register_head("normals")
@dataclass(kw_only=True)
class NormalsHeadConfig(HeadConfig):
    """Settings of a :class:`NormalsHead`.

    Attributes:
        hidden_channels: output channels of the second convolution.
    """

    hidden_channels: Count = 32

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return NormalsHead(fusion_channels, self.hidden_channels)


class NormalsHead(Head):
    """Predicts the unit normal of each pixel, (B, 3, H, W), from the feature map (B, F, h, w).

    The layers are those of :class:`DepthHead`. At first all normals face the camera.
    """

    output = outputs.OutputSpec(
        "normals",
        "map",
        channels=3,
        value_range=(-1.0, 1.0),
        flip_signs=(-1.0, 1.0, 1.0),
        is_direction=True,
    )

    def __init__(self, in_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, in_channels // 2, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(in_channels // 2, hidden_channels, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(hidden_channels, 3, kernel_size=1)
        assert self.conv3.bias is not None
        with torch.no_grad():
            self.conv3.bias.copy_(torch.tensor([0.0, 0.0, -1.0]))

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        x = upsample_conv2d(*features.maps[-1], self.conv1)
        x = upsample_conv2d(x, size, self.conv2)
        return F.normalize(at_least_float32(self.conv3(torch.relu(x))), dim=1)


@register_head("segmentation")
@dataclass(kw_only=True)
class SegmentationHeadConfig(QueryConfig):
    """Settings of :class:`SegmentationHead` and :class:`LinearSegmentationHead`.

    Attributes:
        kind: ``dpt`` reads the decoder's map; ``linear`` reads the encoder's tokens; ``masks``
            predicts a mask and a class for each query and computes class scores from them.
        dropout: before the last convolution.
        prior: of ``dpt``: the probability of each class at the start of training, above 0; empty:
            random ones.
        auxiliary: of ``dpt``: a second head on the penultimate fusion output, for training.
        upsample: of ``dpt``: ``image`` interpolates the logits to the image's size; ``double``
            doubles them first, at any patch size (transformers).
    """

    kind: Literal["dpt", "linear", "masks"] = "dpt"
    dropout: float = Field(0.1, ge=0, le=1)
    prior: tuple[Positive, ...] = ()
    auxiliary: bool = True
    upsample: Upsampling = "image"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_per_class(self.num_classes, prior=self.prior)

    @property
    def output(self) -> outputs.OutputSpec:
        return outputs.OutputSpec(
            "segmentation",
            "logits",
            channels=self.num_classes,
            class_names=self.class_names,
            palette=self.palette,
        )

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        if self.kind == "linear":
            return LinearSegmentationHead(self, encoder)
        if self.kind == "masks":
            return self.query_head(encoder, fusion_channels, self.output)
        return SegmentationHead(self, fusion_channels)


class SegmentationHead(Head):
    """Predicts class logits of each pixel, (B, K, H, W), from the feature map (B, F, h, w)."""

    def __init__(self, config: SegmentationHeadConfig, in_channels: int) -> None:
        super().__init__()
        self.config = config
        self.output = config.output

        def layers() -> nn.Sequential:
            # in the order in which they compute: it decides the random initial weights
            conv = nn.Conv2d(in_channels, in_channels, kernel_size=3, padding=1, bias=False)
            classify = nn.Conv2d(in_channels, config.num_classes, kernel_size=1)
            if config.prior:
                assert classify.bias is not None
                nn.init.zeros_(classify.weight)
                with torch.no_grad():
                    classify.bias.copy_(torch.tensor(config.prior).log())
            norm = nn.BatchNorm2d(in_channels)
            return nn.Sequential(conv, norm, nn.ReLU(), nn.Dropout(config.dropout), classify)

        self.layers = layers()
        self.auxiliary_layers = layers() if config.auxiliary else None

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        logits = self._logits(self.layers, features.maps[-1])
        if self.config.upsample == "double":
            return resize(upsample(logits, (2 * logits.shape[-2], 2 * logits.shape[-1])), size)
        return upsample(logits, size)

    def raw(self, features: Features, size: tuple[int, int]) -> outputs.HeadOutput:
        """Returns logits at the size of the feature map; at ``size`` with ``upsample="double"``."""
        is_double = self.config.upsample == "double"
        logits = self(features, size) if is_double else self._logits(self.layers, features.maps[-1])
        output = outputs.HeadOutput(logits)
        if self.training and self.auxiliary_layers is not None:
            output.auxiliary = self._logits(self.auxiliary_layers, features.maps[-2])
        return output

    @staticmethod
    def _logits(layers: nn.Sequential, fused_map: FusedMap) -> Tensor:
        conv, norm, _, dropout, classify = layers
        x = upsample_conv2d(*fused_map, conv)
        return norm_relu_conv2d(norm, classify, x, dropout=dropout)

    def prepare_for_inference(self) -> None:
        self.auxiliary_layers = None


class LinearSegmentationHead(Head):
    """Predicts class logits (B, K, H, W) from the deepest patch tokens: BN, then one linear map.

    DINOv2's linear evaluation (Oquab et al. 2023, section 7.4, "lin."), which shows how much of a
    task the encoder's features contain. Logits are resized without aligned corners.
    """

    uses_decoder = False

    def __init__(self, config: SegmentationHeadConfig, encoder: Encoder) -> None:
        super().__init__()
        self.output = config.output
        dim = encoder.embed_dims[-1]
        self.norm = nn.BatchNorm2d(dim)
        self.dropout = nn.Dropout2d(config.dropout)
        self.linear = nn.Conv2d(dim, config.num_classes, kernel_size=1)
        nn.init.normal_(self.linear.weight, std=0.01)
        assert self.linear.bias is not None
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        x = features.patch_map()
        return resize(self.linear(self.dropout(self.norm(x))), size)


@register_head("inpainting")
@dataclass(kw_only=True)
class InpaintingHeadConfig(HeadConfig):
    """No settings."""

    def build(self, encoder: Encoder, fusion_channels: int) -> Head:
        return InpaintingHead(encoder)


class InpaintingHead(Head):
    """Predicts RGB (B, 3, H, W) in 0..1 by a linear map of each token (SimMIM, Xie et al. 2022)."""

    output = outputs.OutputSpec("inpainting", "map", channels=3, value_range=(0.0, 1.0))
    uses_decoder = False

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.stride = encoder.strides[-1]
        self.norm = nn.LayerNorm(encoder.embed_dims[-1], eps=1e-6)
        self.linear = nn.Linear(encoder.embed_dims[-1], 3 * self.stride**2)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.constant_(self.linear.bias, 0.5)  # mid-grey

    def forward(self, features: Features, size: tuple[int, int]) -> Tensor:
        patches = self.linear(self.norm(features.patch_tokens()))
        patch_map = patches.mT.unflatten(2, features.tokens.grids[-1])
        return F.pixel_shuffle(patch_map, self.stride)
