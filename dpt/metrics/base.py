"""A torchmetrics ``Metric`` whose states are sums that keep their precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torchmetrics import Metric


def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on devices that have no float64 (Apple's mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


class SumMetric(Metric):
    """States are added over updates and over processes.

    Sums of reals are float64, so that neither the number of images nor their order over processes
    shows in the result; counts are int64. They follow the model from device to device, but not to
    another precision: ``model.to(torch.bfloat16)``, which Lightning calls for true half-precision
    runs, would otherwise leave sums with three digits.

    What one image adds to the states is therefore all there is to know about it: see
    :meth:`vector` and :meth:`scores_of`.
    """

    is_differentiable = False
    full_state_update = False

    def add_sum(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add_count(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum")

    def vector(self) -> Tensor:
        """All states of this process, one after the other: float64 (S,) on the CPU."""
        states = [getattr(self, name).detach().flatten() for name in self._defaults]
        return torch.cat([state.cpu().double() for state in states])

    def states_of(self, vector: Tensor) -> dict[str, Tensor]:
        """The states by name, of a vector as :meth:`vector` gives it."""
        shapes = {name: getattr(self, name).shape for name in self._defaults}
        pieces = vector.split([shape.numel() for shape in shapes.values()])
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
        }

    def scores_of(self, vector: Tensor) -> dict[str, float]:
        """What :meth:`compute` would give for states as :meth:`vector` gives them.

        Of one image, of the sum over all, or of any sample of images. No process waits for another.
        """
        before = {name: getattr(self, name) for name in self._defaults}
        try:
            for name, state in self.states_of(vector).items():
                setattr(self, name, state)
            # of the class, not of the instance, where torchmetrics adds caches and processes
            return {key: float(value) for key, value in type(self).compute(self).items()}
        finally:
            for name, state in before.items():
                setattr(self, name, state)

    def _apply(self, fn: Callable, exclude_state: Sequence[str] = "") -> nn.Module:
        def move(state: Tensor) -> Tensor:
            device = fn(torch.zeros((), device=state.device)).device  # where fn takes its tensors
            return state.to(device, sum_dtype(device) if state.is_floating_point() else state.dtype)

        return super()._apply(move, exclude_state)
