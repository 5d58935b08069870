"""Optimisers, parameter groups and learning-rate schedules."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, cast

import torch
from pydantic import Field
from timm.optim import NAdamW
from timm.optim.muon import zeropower_via_newtonschulz
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.functional import has_bf16
from dpt.nn import Encoder
from dpt.plugins import register
from dpt.process import log
from dpt.validation import NonNegative, Plain, PlainMapping, Share

Rate = Annotated[float, Field(ge=0, le=1000)]  # more overflows within a few steps
LayerDecay = Annotated[float, Field(gt=0, le=1)]
LINEAR_MAPS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)


@register("adamw")
def adamw(
    model: nn.Module,
    *,
    lr: Rate,
    encoder_lr: Rate | None = None,
    layer_decay: LayerDecay | None = None,
    weight_decay: Rate = 0.0,
    betas: tuple[Share, Share] = (0.9, 0.999),
    fused: bool | None = None,
) -> Optimizer:
    """Makes ``torch.optim.AdamW`` of every trainable parameter; see :func:`parameter_groups`."""
    groups = parameter_groups(model, "adamw", lr, encoder_lr, layer_decay, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)


@register("sgd")
def sgd(
    model: nn.Module,
    *,
    lr: Rate,
    encoder_lr: Rate | None = None,
    layer_decay: LayerDecay | None = None,
    weight_decay: Rate = 0.0,
    momentum: Share = 0.0,
) -> Optimizer:
    """Makes ``torch.optim.SGD`` of every trainable parameter; see :func:`parameter_groups`."""
    groups = parameter_groups(model, "sgd", lr, encoder_lr, layer_decay, weight_decay)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


@register("muon")
def muon(
    model: nn.Module,
    *,
    lr: Rate,
    encoder_lr: Rate | None = None,
    layer_decay: LayerDecay | None = None,
    weight_decay: Rate = 0.0,
    momentum: Share = 0.95,
    betas: tuple[Share, Share] = (0.9, 0.999),
) -> Optimizer:
    """Makes :class:`Muon` of every trainable parameter; see :func:`parameter_groups`.

    An encoder with a rate of its own, such as a pretrained one, takes NAdam's steps, which were
    better in equal time: see "From pretrained weights" in the guide (``finetuning.md``).

    Args:
        momentum: of weight matrices and kernels.
        betas: of other parameters.
    """
    groups = parameter_groups(model, "muon", lr, encoder_lr, layer_decay, weight_decay)
    for group in groups:
        is_of_encoder = encoder_lr is not None and group["name"].startswith("encoder")
        is_vector = is_of_encoder or group["name"].endswith("no_decay")
        group["momentum"] = None if is_vector else momentum
    return Muon(groups, lr=lr, betas=betas)


def parameter_groups(
    model: nn.Module,
    kind: str,
    lr: float,
    encoder_lr: float | None,
    layer_decay: float | None,
    weight_decay: float,
) -> list[Plain]:
    """Returns the groups of trainable parameters: encoder or rest, with decay or without.

    Weight matrices and kernels are decayed; norms, biases, tokens, embeddings and layer scales are
    not. (timm's ``param_groups_layer_decay`` knows neither a second rate nor FSDP.)

    Args:
        model: has an attribute ``encoder``.
        kind: the optimiser's name, which a checkpoint holds.
        lr: learning rate of everything outside the encoder.
        encoder_lr: learning rate of the encoder; None means ``lr``.
        layer_decay: d in (0, 1]: layer k of the encoder has ``encoder_lr`` · d^(top - k) (Clark et
            al. 2020, ELECTRA; BEiT, MAE); None means one rate for the whole encoder.
        weight_decay: of weight matrices and kernels.

    Raises:
        ValueError: no parameter is trainable.
    """
    encoder = cast(Encoder, model.encoder)
    layers = {} if layer_decay is None else encoder.layer_ids()
    top = max(layers.values(), default=0) + 1
    modules = dict(model.named_modules())
    groups: dict[str, Plain] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        label, rate, decay = "decoder", lr, weight_decay
        if name.startswith("encoder."):
            label, rate = "encoder", lr if encoder_lr is None else encoder_lr
            if layer_decay is not None:
                layer = layers[name.removeprefix("encoder.")]
                label, rate = f"encoder_{layer}", rate * layer_decay ** (top - layer)
        owner, _, leaf = name.rpartition(".")
        if not _is_decayed(parameter, modules[owner], leaf):
            label, decay = f"{label}_no_decay", 0.0
        group = {"params": [], "lr": rate, "weight_decay": decay, "name": label, "kind": kind}
        groups.setdefault(label, group)["params"].append(parameter)
    if not groups:
        raise ValueError("callbacks.freeze.parts freezes all parameters: leave a part out")
    return list(groups.values())


def _is_decayed(parameter: nn.Parameter, owner: nn.Module, leaf: str) -> bool:
    """Returns whether a parameter is a weight matrix or a kernel, and no table of embeddings."""
    # the owner counts besides the shape: FSDP shows a flat piece of a weight
    is_matrix = parameter.ndim > 1 or isinstance(owner, LINEAR_MAPS)
    return is_matrix and leaf.endswith("weight") and not isinstance(owner, nn.Embedding)


NEWTON_SCHULZ = [
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
"""Coefficients of x, x³ and x⁵ in each step, those of timm's Muon (``quintic``)."""
VALUES_AT_ONCE = 2**19
"""In matrices of one shape that are orthogonalised together, which is faster if they are small."""


class Muon(NAdamW):
    """Steps along the orthogonalised momentum of matrices (Muon, Jordan et al. 2024).

    The steps have the size of AdamW's (Liu et al. 2025, section 2.2), so that rates carry over.
    They apply to groups with a ``momentum``; a kernel (out, in, h, w) counts as a matrix (out,
    in·h·w). timm's NAdamW steps for groups whose ``momentum`` is None, for depthwise kernels and
    for matrices with fewer than four rows or columns.

    Its author advises AdamW for the first and the last layer. Here these take Muon's steps too,
    where they are matrices of four rows and columns: see "What each part of the recipes gives" in
    the guide (``measured.md``).

    ``timm.optim.Muon(nesterov=True)`` makes the same steps, except for matrices whose sides differ
    by more than a factor of 128, which it leaves to NAdamW. It computes in bf16 on every device:
    where a CPU emulates bf16, that takes longer than the rest of a training step. Here such devices
    compute in fp32, and small matrices of one shape are orthogonalised together.
    """

    # torch declares overloads, without and with `closure`
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups, rest = self.param_groups, []
        for group in groups:
            vectors, matrices = [], defaultdict(list)
            for p in group["params"]:
                if group["momentum"] is None or p.shape[1] == 1 or min(p.flatten(1).shape) < 4:
                    vectors.append(p)
                elif p.grad is not None:
                    matrices[p.device, p.flatten(1).shape].append(p)
            for (_, shape), parameters in matrices.items():
                count = max(1, VALUES_AT_ONCE // shape.numel())
                for start in range(0, len(parameters), count):
                    self._step_matrices(parameters[start : start + count], group)
            rest.append({**group, "params": vectors})
        self.param_groups = rest
        super().step()  # type: ignore[no-untyped-call]
        self.param_groups = groups
        return loss

    def _step_matrices(self, parameters: list[nn.Parameter], group: Plain) -> None:
        """Steps along matrices of one shape, on one device."""
        updates = []
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            updates.append(parameter.grad.lerp(momentum, group["momentum"]).flatten(1))
        rate = group["lr"] * 0.2 * max(updates[0].shape) ** 0.5
        for parameter, update in zip(parameters, orthogonalized(torch.stack(updates)), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update.reshape(parameter.shape), alpha=-rate)


def orthogonalized(matrices: torch.Tensor) -> torch.Tensor:
    """Returns matrices (B, n, m) with the same singular vectors, but singular values of about one.

    In bf16 where the device has it, else in fp32 with fewer operations: after all steps, the matrix
    is multiplied by a product of polynomials of its Gram matrix, so that only two products have its
    long side. This is too inexact in bf16.
    """
    if has_bf16(matrices.device.type):
        return zeropower_via_newtonschulz(matrices, 5, NEWTON_SCHULZ)
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    gram, product = wide @ wide.mT, None
    for a, b, c in NEWTON_SCHULZ:
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else factor @ product
        gram = factor @ gram @ factor
    wide = product @ wide
    return wide.mT if is_tall else wide


class StepSchedule(LRScheduler):
    """Sets the rates as a function of the step alone: the configured rate times ``factor(step)``.

    A resumed run sets the step, so this schedule has no state of its own. (torch's ``LambdaLR``
    stores counts of its calls.)

    Attributes:
        pace: factor of the step; above 1 the schedule ends earlier than its last step.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        self.factor = factor
        self.pace = 1.0
        super().__init__(optimizer)  # and makes one step

    def get_lr(self) -> list[float | Tensor]:
        return [rate * self.factor(round(self.pace * self.last_epoch)) for rate in self.base_lrs]

    def set_pace(self, pace: float) -> None:
        """Changes the pace, and the rates of the next step with it."""
        self.pace = pace
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def set_step(self, step: int) -> None:
        """Changes the step, and the rates with it."""
        self.last_epoch = step
        self.set_pace(self.pace)

    def state_dict(self) -> Plain:
        return {}

    def load_state_dict(self, state_dict: PlainMapping) -> None:
        """Does nothing: see :meth:`set_step`."""


@register("constant")
def constant(optimizer: Optimizer, *, total_steps: int, warmup: NonNegative) -> StepSchedule:
    """Makes a schedule of a linear warm-up, then the full rate; see :func:`warmup_then_decay`."""
    return warmup_then_decay(optimizer, total_steps, warmup, lambda t: 1.0)


@register("cosine")
def cosine(
    optimizer: Optimizer, *, total_steps: int, warmup: NonNegative, final: NonNegative = 0.0
) -> StepSchedule:
    """Makes a schedule of a linear warm-up, then (1 + cos πt) / 2, t from 0 to 1; ``final`` is the
    factor of the full rate at the end. See :func:`warmup_then_decay`."""
    half = (1 - final) / 2
    return warmup_then_decay(
        optimizer, total_steps, warmup, lambda t: final + half * (1 + math.cos(math.pi * t))
    )


@register("poly")
def poly(
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup: NonNegative,
    power: NonNegative = 0.9,
    final: NonNegative = 0.0,
) -> StepSchedule:
    """Makes a schedule of a linear warm-up, then (1 - t)^power, t from 0 to 1; ``final`` is the
    factor of the full rate at the end. See :func:`warmup_then_decay`."""
    return warmup_then_decay(
        optimizer, total_steps, warmup, lambda t: final + (1 - final) * (1 - t) ** power
    )


def warmup_then_decay(
    optimizer: Optimizer, total_steps: int, warmup: float, decay: Callable[[float], float]
) -> StepSchedule:
    """Makes a schedule of a linear warm-up, then a decay that ends at the last step.

    Args:
        warmup: number of steps (>= 1) or fraction of ``total_steps`` (< 1).
        decay: the factor of the rate, of the fraction of the steps after the warm-up.
    """
    warmup_steps = int(warmup) if warmup >= 1 else round(warmup * total_steps)
    if warmup_steps >= total_steps:
        text = "schedule.warmup=%g: the run of %d steps ends before the full rate"
        log.warning(text, warmup, total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        return decay(min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))

    return StepSchedule(optimizer, factor)
