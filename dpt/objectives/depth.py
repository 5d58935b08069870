"""Depth: metric (metres) or relative (inverse depth up to scale and shift)."""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.depthmath import valid_range
from dpt.losses.depth import ScaleShiftInvariantLoss, SILogLoss
from dpt.metrics.depth import DepthMetrics
from dpt.metrics.protocols import PredictionKind, Protocol
from dpt.objectives.base import Objective, nearest
from dpt.types import Batch, HeadOutput, OutputSpec
from dpt.validation import Metres, Plain, PlainMapping
from dpt.viz import depth_panel

log = logging.getLogger("dpt")

_LOSSES: dict[PredictionKind, type[nn.Module]] = {
    "metric": SILogLoss,
    "relative": ScaleShiftInvariantLoss,
}


def default_loss(*, kind: PredictionKind) -> nn.Module:
    """Returns SILog for metric depth, the scale-and-shift-invariant loss for relative depth."""
    return _LOSSES[kind]()


class DepthObjective(Objective):
    """Trains depth (B, H, W) and scores it in metres.

    Args:
        kind: ``metric`` predictions are scored as they are; ``relative`` ones after a least-squares
            fit of scale and shift to each image's inverse depth.
        max_depth: in metres; bounds the head's output. Pixels beyond are not scored, nor trained on
            if the kind is ``metric``.
        min_depth: in metres; likewise for nearer pixels.
        loss: called with prediction, target and valid, each (B, H, W); None for the kind's default.
    """

    head = "depth"
    target = "depth"
    takes_pseudo_labels = True
    metrics: DepthMetrics

    def __init__(
        self,
        *,
        kind: PredictionKind = "metric",
        max_depth: Metres,
        min_depth: Metres = 1e-3,
        loss: nn.Module | None = None,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.kind, self.max_depth, self.min_depth = kind, max_depth, min_depth
        self.head_settings = {"kind": kind}
        if kind == "metric":
            self.head_settings |= {"max_depth": max_depth, "activation": "sigmoid"}
        self.loss = loss or default_loss(kind=kind)
        types = [type(module) for module in self.loss.modules()]
        for loss_kind, loss_type in _LOSSES.items():
            if loss_kind != kind and loss_type in types:
                raise ValueError(
                    f"{loss_type.__name__} is a loss for {loss_kind} depth: set "
                    f"task.kind={loss_kind} or task/depth_loss=auto"
                )
        self.metrics = DepthMetrics(prediction_kind=kind, min_depth=min_depth, max_depth=max_depth)

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        return {"max_depth": data.info.max_depth} if settings.get("max_depth") is None else {}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        kind: PredictionKind = "relative" if output.is_inverse_depth else "metric"
        limit = data.info.max_depth or math.inf
        max_depth = protocol.max_depth or limit
        if max_depth > limit:
            log.warning(
                "protocol.max_depth=%g m, but the data ends at data.max_depth=%g m",
                max_depth,
                limit,
            )
        objective = cls(kind=kind, max_depth=max_depth)
        objective.metrics = DepthMetrics(
            replace(protocol, max_depth=max_depth), prediction_kind=kind, all_pooled=True
        )
        return objective

    @property
    def notes(self) -> Plain:
        return self.metrics.protocol.depth_notes()

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        depth, valid = batch["depth"], self.within_range(batch["depth"], batch["valid"])
        if "mixed" in batch:
            rows, kept = batch["mixed"].unlabelled[:, None, None], batch["mixed"].kept
            if self.kind == "relative":  # measured depth has another scale than the teacher's
                valid = valid & ~(rows & kept)
            else:
                is_pseudo = valid & rows & ~kept
                valid = valid & ~self.worst_pixels(output.tensor, depth, is_pseudo)
        return {"loss_depth": self.weight * self.loss(output.tensor, depth, valid)}

    @torch.no_grad()
    def worst_pixels(self, prediction: Tensor, depth: Tensor, is_pseudo: Tensor) -> Tensor:
        """Returns the tenth of each image's pseudo labels with the largest errors, bool (B, H, W).

        These labels of metric depth are likely to be wrong (Yang et al. 2024, Depth Anything
        V2, section 5). The loss of relative depth leaves out its largest residuals itself.
        """
        ratio = prediction.float().clamp(min=1e-3) / depth.clamp(min=1e-3)
        error = torch.where(is_pseudo, ratio.log().abs(), torch.nan).flatten(1)
        limit = error.nanquantile(0.9, dim=1, keepdim=True)
        return (error > limit).view_as(is_pseudo)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, fraction: float
    ) -> dict[str, Tensor]:
        return {"depth": teacher.float(), "valid": teacher > 0}

    def within_range(self, depth: Tensor, valid: Tensor) -> Tensor:
        """Returns ``valid`` (B, H, W) without depths that a metric head cannot reach."""
        if self.kind == "relative":
            return valid_range(depth, valid, min_depth=0.0, max_depth=math.inf)
        return valid_range(depth, valid, min_depth=self.min_depth, max_depth=self.max_depth)

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        if self.kind == "metric" and output.is_inverse_depth:
            return "its depth is relative and has no metres: set task.kind=relative"
        return None

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's depth in place of measured depth."""
        valid = self.within_range(teacher, teacher > 0)
        loss: Tensor = self.loss(output.tensor, teacher, valid)
        return self.weight * loss

    def panel(
        self, image: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray:
        """Returns pictures of depth as it is scored, aligned and on the pixels that count."""
        depth, valid = self.ground_truth(labels, 0)
        prediction = self.predict(output.prediction, depth.shape[-2:])
        metres, counted = self.metrics.in_metres(prediction, depth, valid)
        return depth_panel(
            image,
            depth[0].numpy(force=True),
            counted[0].numpy(force=True),
            metres[0].numpy(force=True),
        )

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the median in place of the mean."""
        maps = torch.cat([nearest(self.masked_target(labels), size) for labels in samples])
        overall, per_position = maps.nanmedian(), maps.nanmedian(dim=0, keepdim=True).values
        per_position = torch.where(per_position.isnan(), overall, per_position)
        if self.kind == "relative":
            overall, per_position = overall.reciprocal(), per_position.reciprocal()
        return {"constant": overall.expand_as(per_position), "per position": per_position}
