"""A weighted sum of losses that take the same arguments."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class CombinedLoss(nn.Module):
    """Σ weight · loss, for losses of one signature: all of depth, or all of segmentation.

    Args:
        losses: name to module.
        weights: name to factor. A name left out has weight 1; an unknown name is an error.
    """

    def __init__(
        self, losses: Mapping[str, nn.Module], weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        weights = weights or {}
        if not losses:
            raise ValueError("CombinedLoss needs at least one loss")
        if unknown := sorted(set(weights) - set(losses)):
            raise ValueError(f"weights for {unknown}, but the losses are {sorted(losses)}")
        self.losses = nn.ModuleDict(dict(losses))
        self.weights = {name: float(weights.get(name, 1.0)) for name in losses}

    def parts(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Each loss by name, before its weight: what a log wants to show."""
        return {name: loss(*inputs) for name, loss in self.losses.items()}

    def forward(self, *inputs: Tensor) -> Tensor:
        parts = self.parts(*inputs)
        return torch.stack([self.weights[name] * part for name, part in parts.items()]).sum()
