"""Low-rank adaptation (LoRA, Hu et al. 2022): trained updates of frozen linear layers.

peft is not used, because its public interface cannot keep what runs promise here. BEiT, EVA (timm's
DINOv3) and SwinV2 read the weight of a layer instead of calling the layer: peft's layers then have
no effect and get no gradient. peft computes W x + B (A x), but the merged model (W + B A) x, so the
scores of a validation would not be those of the saved model to the bit. And it renames tensors.
Here a parametrization of torch computes W + B A wherever the weight is read. A step therefore takes
as long as one that trains the whole encoder (on a CPU, peft is no faster), but neither gradients
nor the optimiser's state are kept for the encoder's weights.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dpt.functional import without_autocast

PART = ".parametrizations.weight."
"""Between the names of a layer and of a tensor of its parametrization."""


def low_rank_sum(weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Returns W + B A (out, in) of W (out, in), B = ``up`` (out, rank), A = ``down`` (rank, in)."""
    with without_autocast(weight.device):  # bf16 would lose small updates
        return torch.addmm(weight, up, down)


class LowRank(nn.Module):
    """Adds B A to a frozen weight (section 4.1, with α = r); it is zero at first."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.up = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        self.down = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as in the authors' code

    def forward(self, weight: Tensor) -> Tensor:
        return low_rank_sum(weight, self.up, self.down)


def add_low_rank(layer: nn.Linear, rank: int) -> None:
    """Freezes the weight of a layer, and adds a trained update of low rank to it."""
    layer.weight.requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))


def merge_low_rank(module: nn.Module) -> None:
    """Adds the updates of all layers to their weights, in place.

    torch's ``remove_parametrizations`` would also change the model of which this one is a copy.
    """
    for layer in list(module.modules()):
        if isinstance(layer, nn.Linear) and parametrize.is_parametrized(layer, "weight"):
            weight = layer.weight.detach()
            layer.__class__ = parametrize.type_before_parametrizations(layer)
            del layer.parametrizations
            layer.weight = nn.Parameter(weight, requires_grad=False)


def low_rank_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a state that :func:`merged_state` merges."""
    return {name: tensor for name, tensor in state.items() if PART in name}


def merged_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the state of an equal model without updates: they are added to their weights."""
    merged = {}
    for name, tensor in state.items():
        layer, _, part = name.partition(PART)
        if part == "original":
            up, down = state[f"{layer}{PART}0.up"], state[f"{layer}{PART}0.down"]
            merged[f"{layer}.weight"] = low_rank_sum(tensor, up, down)
        elif not part:
            merged[name] = tensor
    return merged


def unmerged_state(
    state: Mapping[str, Tensor], low_rank: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Returns the state that was merged; ``low_rank`` are its :func:`low_rank_tensors`."""
    merged = {f"{name.partition(PART)[0]}.weight" for name in low_rank}
    return {name: tensor for name, tensor in state.items() if name not in merged} | {**low_rank}
