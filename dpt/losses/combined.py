"""A weighted sum of losses that take the same arguments."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpt.plugins import register
from dpt.validation import NonNegative


@register("combined")
class CombinedLoss(nn.Module):
    """Σ weight · loss, of depth losses or of segmentation losses.

    Args:
        losses: name to module.
        weights: name to factor; 1 for names left out.
    """

    def __init__(
        self, losses: Mapping[str, nn.Module], weights: Mapping[str, NonNegative] | None = None
    ) -> None:
        super().__init__()
        weights = weights or {}
        unknown_names = sorted(set(weights) - set(losses))
        if unknown_names:
            raise ValueError(f"weights for {unknown_names}, but the losses are {sorted(losses)}")
        self.losses = nn.ModuleDict(dict(losses))
        self.weights = {name: float(weights.get(name, 1.0)) for name in losses}

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns the sum, a scalar."""
        terms = [self.weights[name] * loss(*inputs) for name, loss in self.losses.items()]
        return torch.stack(terms).sum()
