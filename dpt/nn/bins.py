"""Depth as a weighted mean of bins (AdaBins, Bhat et al. 2021, section 3.3), with fixed bins.

Shapes: B batch, K bins, (H, W) a map.
"""

import math
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from dpt.nn.base import STRICT
from dpt.validation import Metres, NonNegative


@dataclass(kw_only=True, config=STRICT)
class DepthBins:
    """Depths in metres, K ``count``, and how the logits of a pixel weight them.

    Attributes:
        count: K.
        min_depth, max_depth: the first and the last of the depths, in metres.
        spacing: of the depths: ``linear``, ``log`` (evenly spaced logarithms), or ``mixed``, which
            passes evenly from ``log`` at the first depth to ``linear`` at the last (CHMv2).
        weights: ``relu`` is relu(x) + eps, as in DINOv3's and TIPSv2's heads; or ``softmax`` or
            ``sigmoid``. The weights of a pixel are divided by their sum.
        eps: of ``relu``.
    """

    count: int = Field(256, ge=2, le=10_000)
    min_depth: Metres = 1e-3
    max_depth: Metres
    spacing: Literal["linear", "log", "mixed"] = "linear"
    weights: Literal["relu", "softmax", "sigmoid"] = "relu"
    eps: NonNegative = 0.1

    def __post_init__(self) -> None:
        if self.min_depth >= self.max_depth:
            raise ValueError(
                f"min_depth={self.min_depth:g} must be below max_depth={self.max_depth:g}"
            )
        if self.weights == "relu" and not self.eps:
            raise ValueError("eps=0: must be above 0, as relu(x) may be 0 for all bins of a pixel")
        if self.weights != "relu":
            self.eps = 0.0

    def depths(self, like: Tensor) -> Tensor:
        """Returns the depths (K,) in metres, with the dtype and on the device of ``like``."""
        first, last = self.min_depth, self.max_depth
        steps = torch.linspace(0, 1, self.count, dtype=like.dtype, device=like.device)
        linear = first + (last - first) * steps
        if self.spacing == "linear":
            return linear
        log = first * (math.log(last / first) * steps).exp()
        return log if self.spacing == "log" else torch.lerp(log, linear, steps)

    def to_depth(self, logits: Tensor) -> Tensor:
        """Maps logits (B, K, H, W) to depth (B, 1, H, W) in metres."""
        if self.weights == "relu":
            weights = torch.relu(logits) + self.eps
        else:
            weights = logits.softmax(1) if self.weights == "softmax" else logits.sigmoid()
        # both sums in one product: normalised weights would be another tensor of this size
        depths = self.depths(logits)
        factors = torch.stack((depths, torch.ones_like(depths)), dim=1)
        sums = torch.einsum("bkhw,ks->bshw", weights, factors)
        return sums[:, :1] / sums[:, 1:]
