"""Depth: metric (metres) or relative (inverse depth up to scale and shift)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpt.depthmath import valid_range
from dpt.losses.depth import ScaleShiftInvariantLoss, SILogLoss
from dpt.metrics.depth import DepthMetrics
from dpt.metrics.protocols import DepthProtocol
from dpt.nn.enlarge import upsample
from dpt.objectives.base import Objective
from dpt.types import Batch

DepthKind = Literal["metric", "relative"]


def default_loss(*, kind: DepthKind) -> nn.Module:
    """SILog for metres, the trimmed scale-and-shift-invariant loss for relative depth."""
    return SILogLoss() if kind == "metric" else ScaleShiftInvariantLoss()


class DepthObjective(Objective):
    """Trains ``outputs["depth"]`` (B, H, W) and scores it in metres.

    Args:
        kind: ``metric`` predictions are scored as they are; ``relative`` ones after a least-squares
            fit of scale and shift to each image's inverse depth.
        max_depth: in metres; bounds the head's output and the pixels that count.
        min_depth: in metres; nearer pixels do not count.
        loss: called with prediction, target and valid, each (B, H, W); None takes the kind's own.
        activation: of a metric head, ``sigmoid`` (bounded by ``max_depth``) or ``softplus``.
        weight: factor of the loss.
        protocol: how predictions are scored; None: as ``kind`` says, between ``min_depth`` and
            ``max_depth``.
        detailed: more scores, see :class:`DepthMetrics`.
    """

    head = "depth"
    target = "depth"
    metrics: DepthMetrics

    def __init__(
        self,
        *,
        kind: DepthKind = "metric",
        max_depth: float,
        min_depth: float = 1e-3,
        loss: nn.Module | None = None,
        activation: Literal["sigmoid", "softplus"] = "sigmoid",
        weight: float = 1.0,
        protocol: DepthProtocol | None = None,
        detailed: bool = False,
    ) -> None:
        super().__init__()
        if kind not in ("metric", "relative"):
            raise ValueError(f"task.kind={kind!r}: choose metric or relative")
        self.kind = kind
        self.max_depth = max_depth
        self.activation = activation
        self.loss = loss or default_loss(kind=kind)
        self.weight = weight
        protocol = protocol or DepthProtocol(
            min_depth=min_depth,
            max_depth=max_depth,
            alignment="none" if kind == "metric" else "scale_shift",
        )
        self.metrics = DepthMetrics(protocol, prediction_kind=kind, detailed=detailed)

    @property
    def notes(self) -> dict[str, str]:
        return {"val/depth_alignment": self.metrics.protocol.alignment}

    def head_options(self) -> dict[str, Any]:
        if self.kind == "relative":
            return {"kind": "relative"}
        return {"kind": "metric", "max_depth": self.max_depth, "activation": self.activation}

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        loss = self.loss(outputs["depth"], batch["depth"], batch["valid"])
        return {"loss_depth": self.weight * loss}

    def refuse_teacher(self, options: Mapping[str, Any]) -> str | None:
        if self.kind == "metric" and options.get("kind", "relative") != "metric":
            return "its depth is relative, and cannot teach metres (task.kind=relative)"
        return None

    def distil(
        self, outputs: Mapping[str, Tensor], lesson: Mapping[str, Tensor], *, temperature: float
    ) -> Tensor:
        """The loss itself, with the teacher's depth as if it had been measured."""
        depth = lesson["depth"]
        limit = self.max_depth if self.kind == "metric" else torch.inf
        everywhere = torch.ones_like(depth, dtype=torch.bool)
        valid = valid_range(depth, everywhere, min_depth=0.0, max_depth=limit)
        return self.weight * self.loss(outputs["depth"], depth, valid)

    def predict(self, output: Tensor, size: tuple[int, int]) -> Tensor:
        """(1, h, w) to (1, H, W), bilinear; metres or relative inverse depth."""
        if output.shape[-2:] == torch.Size(size):
            return output
        return upsample(output.float().unsqueeze(1), size).squeeze(1)

    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        for output, depth, valid in zip(
            outputs["depth"].split(1), batch["depth"], batch["valid"], strict=True
        ):
            size = (depth.shape[-2], depth.shape[-1])
            self.metrics.update(self.predict(output, size), depth[None], valid[None])
