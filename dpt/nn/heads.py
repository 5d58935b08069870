"""Heads: what a task reads from the feature map, or from the CLS token.

Shapes: F fusion channels, (h, w) the feature map, (H, W) the image, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.enlarge import Enlarged, convolve, resize
from dpt.nn.recompute import conv_of_norm_relu, is_plain
from dpt.types import OutputSpec, Tokens

DepthActivation = Literal["sigmoid", "softplus", "inverse", "relu"]
Upsampling = Literal["image", "double"]


def check_upsampling(value: str) -> Upsampling:
    for choice in get_args(Upsampling):
        if value == choice:
            return choice
    raise ValueError(f"upsample={value!r}: choose from {get_args(Upsampling)}")


class DenseHead(nn.Module):
    """A head that makes a map of the image's size from the decoder's.

    The decoder's maps come not yet enlarged: ``Enlarged.of(features).full()`` is the tensor, and
    :func:`dpt.nn.enlarge.convolve` a first convolution that needs none.
    """

    def forward(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Tensor:
        raise NotImplementedError

    def auxiliary(self, maps: Sequence[Tensor | Enlarged], size: tuple[int, int]) -> Tensor | None:
        """A second prediction from inside the decoder, for training only."""
        return None

    def reads(self, tokens: Tokens, maps: Sequence[Enlarged]) -> Sequence[Enlarged]:
        """The maps that the head is given, of which the last is the one it predicts from.

        Args:
            tokens: the encoder's.
            maps: the decoder's, deepest first.
        """
        return maps


class DepthHead(DenseHead):
    """Depth of each pixel: features (B, F, h, w) to (B, H, W).

    Args:
        kind: ``relative`` gives inverse depth up to scale and shift, >= 0 (official DPT);
            ``metric`` gives metres.
        max_depth: largest depth in metres, for ``metric``; ``sigmoid`` and ``softplus`` need it.
        activation: of ``metric``: ``sigmoid`` is max_depth · sigmoid(x), ``softplus`` is unbounded,
            ``inverse`` is 1 / max(scale · relu(x) + shift, 1e-8) (official DPT for NYU and KITTI),
            ``relu`` is relu(x) + min_depth (DINOv2's heads).
        scale, shift: of ``inverse``, from relative inverse depth to 1/metres.
        min_depth: of ``relu``, in metres.
        upsample: ``image`` interpolates the first convolution's map to the image's size, which
            doubles it at patch size 16; ``double`` doubles it whatever the patch, and resizes the
            finished map (transformers, DINOv2's heads).
    """

    def __init__(
        self,
        *,
        in_channels: int,
        kind: Literal["relative", "metric"] = "relative",
        max_depth: float | None = None,
        activation: DepthActivation = "sigmoid",
        hidden_channels: int = 32,
        scale: float = 1.0,
        shift: float = 0.0,
        min_depth: float = 0.0,
        upsample: Upsampling = "image",
    ) -> None:
        super().__init__()
        if kind not in ("relative", "metric"):
            raise ValueError(f"depth kind={kind!r}: choose from ('relative', 'metric')")
        if activation not in get_args(DepthActivation):
            raise ValueError(
                f"depth activation={activation!r}: choose from {get_args(DepthActivation)}"
            )
        bounded = activation in ("sigmoid", "softplus")
        if kind == "metric" and bounded and (max_depth is None or not max_depth > 0):
            raise ValueError(f"a metric depth head needs max_depth > 0 in metres, not {max_depth}")
        self.kind = kind
        self.max_depth = max_depth
        self.activation: DepthActivation = activation if kind == "metric" else "relu"
        self.scale, self.shift, self.min_depth = scale, shift, min_depth
        self.upsample = check_upsampling(upsample)
        self.conv1 = nn.Conv2d(in_channels, in_channels // 2, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(in_channels // 2, hidden_channels, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(hidden_channels, 1, kernel_size=1)
        if self.activation in ("relu", "inverse"):
            # a ReLU that starts below zero everywhere never learns; the loss ignores the shift
            assert self.conv3.bias is not None
            nn.init.constant_(self.conv3.bias, 1.0)

    def forward(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Tensor:
        x = convolve(self.conv1, Enlarged.of(features))
        enlarged = Enlarged(x, size) if self.upsample == "image" else Enlarged.twice(x)
        x = self._activate(self.conv3(torch.relu(convolve(self.conv2, enlarged))))
        return resize(x, size).squeeze(1)

    @property
    def output(self) -> OutputSpec:
        if self.kind == "relative":
            return OutputSpec("depth", "depth", unit="relative inverse depth")
        return OutputSpec("depth", "depth", unit="m")

    def _activate(self, x: Tensor) -> Tensor:
        if self.activation == "sigmoid":
            assert self.max_depth is not None
            return torch.sigmoid(x) * self.max_depth
        if self.activation == "softplus":
            return F.softplus(x)
        if self.activation == "inverse":
            return 1 / (self.scale * torch.relu(x) + self.shift).clamp_min(1e-8)
        return torch.relu(x) + self.min_depth if self.min_depth else torch.relu(x)


class ClassMapHead(DenseHead):
    """A head whose map is class logits: features (B, F, h, w) to (B, K, H, W)."""

    def __init__(self, *, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a segmentation head needs num_classes >= 1, not {num_classes}")
        self.num_classes = num_classes

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("segmentation", "logits", channels=self.num_classes)

    def forward(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Tensor:
        return self.logits(features, size).full()

    def auxiliary(self, maps: Sequence[Tensor | Enlarged], size: tuple[int, int]) -> Tensor | None:
        logits = self.auxiliary_logits(maps, size)
        return None if logits is None else logits.full()

    def logits(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Enlarged:
        """Logits to be seen at ``size``, held as small as they can be."""
        raise NotImplementedError

    def auxiliary_logits(
        self, maps: Sequence[Tensor | Enlarged], size: tuple[int, int]
    ) -> Enlarged | None:
        """Those of a second prediction, for training only."""
        return None


class SegmentationHead(ClassMapHead):
    """Class logits of each pixel: features (B, F, h, w) to (B, K, H, W).

    The auxiliary head has the same layers and reads the penultimate fusion output.

    Args:
        upsample: ``image`` interpolates the logits to the image's size; ``double`` doubles them
            first, as transformers does whatever the patch size.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        dropout: float = 0.1,
        auxiliary: bool = True,
        upsample: Upsampling = "image",
    ) -> None:
        super().__init__(num_classes=num_classes)
        self.upsample = check_upsampling(upsample)

        def layers() -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(in_channels, in_channels, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(in_channels),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Conv2d(in_channels, num_classes, kernel_size=1),
            )

        self.layers = layers()
        self.auxiliary_layers = layers() if auxiliary else None

    def logits(self, features: Tensor | Enlarged, size: tuple[int, int]) -> Enlarged:
        logits = self._logits(self.layers, Enlarged.of(features))
        if self.upsample == "image":
            return Enlarged(logits, size)
        return Enlarged.of(resize(Enlarged.twice(logits).full(), size))

    def auxiliary_logits(
        self, maps: Sequence[Tensor | Enlarged], size: tuple[int, int]
    ) -> Enlarged | None:
        if self.auxiliary_layers is None:
            return None
        return Enlarged(self._logits(self.auxiliary_layers, Enlarged.of(maps[-2])), size)

    @staticmethod
    def _logits(layers: nn.Sequential, maps: Enlarged) -> Tensor:
        """Logits at the size of the map, half the image's."""
        conv, norm, relu, dropout, last = layers
        if layers._forward_hooks or not (is_plain(relu, nn.ReLU) and is_plain(dropout, nn.Dropout)):
            return layers(maps.full())
        assert isinstance(dropout, nn.Dropout)
        rate = dropout.p if dropout.training else 0.0
        return conv_of_norm_relu(norm, last, convolve(conv, maps), dropout=rate)


class TokenHead(nn.Module):
    """A head on the CLS token of the deepest level (the mean token where there is no CLS)."""

    def __init__(
        self, *, dim: int, num_prefix_tokens: int, outputs: int, dropout: float, norm_eps: float
    ) -> None:
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(dim, outputs)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, P + N, D) to (B, outputs)."""
        token = tokens[:, 0] if self.num_prefix_tokens else tokens.mean(dim=1)
        return self.linear(self.dropout(self.norm(token)))

    def auxiliary(self, tokens: Tensor) -> Tensor | None:
        """A second prediction, for training only."""
        return None


class ClassificationHead(TokenHead):
    """Logits (B, C) of the whole image.

    Args:
        distillation_token: a second classifier reads the token after CLS, which a teacher trains;
            in evaluation the two are averaged (Touvron et al. 2021, section 4). The encoder must
            have a second prefix token: a register.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_prefix_tokens: int,
        num_classes: int,
        dropout: float = 0.0,
        distillation_token: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        if num_classes < 1:
            raise ValueError(f"a classification head needs num_classes >= 1, not {num_classes}")
        super().__init__(
            dim=dim,
            num_prefix_tokens=num_prefix_tokens,
            outputs=num_classes,
            dropout=dropout,
            norm_eps=norm_eps,
        )
        self.num_classes = num_classes
        self.linear_distilled = None
        if distillation_token:
            if num_prefix_tokens < 2:
                raise ValueError(
                    "distillation_token needs a second prefix token beside CLS: "
                    "model.encoder.num_register_tokens=1"
                )
            self.linear_distilled = nn.Linear(dim, num_classes)
            nn.init.trunc_normal_(self.linear_distilled.weight, std=0.02)
            nn.init.zeros_(self.linear_distilled.bias)

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("classification", "logits", channels=self.num_classes, dense=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        if self.training or self.linear_distilled is None:
            return logits
        return (logits + self._distilled(self.linear_distilled, tokens)) / 2

    def auxiliary(self, tokens: Tensor) -> Tensor | None:
        """Logits (B, C) of the distillation token, where there is one."""
        if self.linear_distilled is None:
            return None
        return self._distilled(self.linear_distilled, tokens)

    def _distilled(self, linear: nn.Module, tokens: Tensor) -> Tensor:
        return linear(self.dropout(self.norm(tokens[:, 1])))


class RegressionHead(TokenHead):
    """One number (B,) of the whole image."""

    def __init__(
        self, *, dim: int, num_prefix_tokens: int, dropout: float = 0.0, norm_eps: float = 1e-6
    ) -> None:
        super().__init__(
            dim=dim,
            num_prefix_tokens=num_prefix_tokens,
            outputs=1,
            dropout=dropout,
            norm_eps=norm_eps,
        )

    @property
    def output(self) -> OutputSpec:
        return OutputSpec("regression", "vector", dense=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).squeeze(-1)
