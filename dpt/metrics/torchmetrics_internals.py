"""Names of torchmetrics that are not in its documentation, each with the reason for its use.

Tested with torchmetrics 1.9.0. Everything else in the package uses torchmetrics' public names.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor
from torchmetrics import Metric

from dpt.functional import sum_dtype


class MovableMetric(Metric):
    """A metric whose states follow the module to another device, but not to another precision.

    ``Metric.set_dtype`` keeps float64 as it is, which a device without float64 cannot take.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        def move(state: Tensor) -> Tensor:
            device = fn(torch.zeros((), device=state.device)).device
            return state.to(device, sum_dtype(device) if state.is_floating_point() else state.dtype)

        super()._apply(move, exclude_state)
        return self
