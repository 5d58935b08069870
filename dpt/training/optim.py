"""Optimisers, parameter groups and learning-rate schedules."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR


def adamw(
    model: nn.Module,
    *,
    lr: float,
    encoder_lr: float | None = None,
    layer_decay: float | None = None,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    fused: bool = True,
) -> Optimizer:
    """``torch.optim.AdamW`` over the groups of :func:`parameter_groups`."""
    groups = parameter_groups(model, lr, encoder_lr, layer_decay, weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)


def sgd(
    model: nn.Module,
    *,
    lr: float,
    encoder_lr: float | None = None,
    layer_decay: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> Optimizer:
    """``torch.optim.SGD`` over the groups of :func:`parameter_groups`."""
    groups = parameter_groups(model, lr, encoder_lr, layer_decay, weight_decay)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


def parameter_groups(
    model: nn.Module,
    lr: float,
    encoder_lr: float | None,
    layer_decay: float | None,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: encoder or rest, with decay or without.

    Weight matrices and kernels are decayed; norms, biases, tokens, position embeddings and layer
    scales are not. (timm's ``param_groups_layer_decay`` knows neither a second rate nor FSDP.)

    Args:
        model: has an attribute ``encoder``.
        lr: learning rate of everything outside the encoder.
        encoder_lr: learning rate of the encoder; None means ``lr``.
        layer_decay: d in (0, 1]: layer k of the encoder has ``encoder_lr`` · d^(top - k), see
            :func:`layer_ids`; None means one rate for the whole encoder.
        weight_decay: of weight matrices and kernels.

    Raises:
        ValueError: ``layer_decay`` is out of range, or the order of the layers is unknown.
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(f"optim.layer_decay={layer_decay}: must lie in 0..1, 0 excluded")
    encoder: Any = model.encoder
    layers = {} if layer_decay is None else layer_ids(encoder)
    top = max(layers.values(), default=0) + 1
    backbone, prefix = _backbone(encoder)
    excluded = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    no_weight_decay = {f"encoder.{prefix}{name}" for name in excluded}
    linear = {n for n, m in model.named_modules() if isinstance(m, (nn.Linear, _ConvNd))}
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part, rate = "decoder", lr
        if name.startswith("encoder."):
            part, rate = "encoder", lr if encoder_lr is None else encoder_lr
            if layer_decay is not None:
                layer = layers[name.removeprefix("encoder.")]
                part, rate = f"encoder_{layer}", rate * layer_decay ** (top - layer)
        # the parent counts besides the shape: FSDP shows a flat piece of a weight
        is_matrix = parameter.ndim > 1 or name.rpartition(".")[0] in linear
        decayed = is_matrix and name.endswith("weight") and name not in no_weight_decay
        label = part if decayed else f"{part}_no_decay"
        empty = {"params": [], "lr": rate, "weight_decay": weight_decay * decayed, "name": label}
        groups.setdefault(label, empty)["params"].append(parameter)
    return list(groups.values())


VIT_LAYERS = {
    "stem": r"^(?:cls_token|reg_token|pos_embed|patch_embed)",
    "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
}
"""The layers of this project's encoders, in the form of timm's ``group_matcher``."""


def layer_ids(encoder: nn.Module) -> dict[str, int]:
    """Layer of each of an encoder's parameters, by name (Clark et al. 2020, ELECTRA; BEiT, MAE).

    Embeddings, tokens and a hybrid's CNN are layer 0, block i is layer i + 1, and a final norm
    belongs to the last block, as in timm.

    Raises:
        ValueError: neither an encoder of this project nor a timm model with ``group_matcher``.
    """
    from timm.models import group_parameters

    backbone, prefix = _backbone(encoder)
    if hasattr(backbone, "group_matcher"):
        matcher = backbone.group_matcher(coarse=False)
    elif isinstance(getattr(backbone, "blocks", None), nn.ModuleList):
        matcher = VIT_LAYERS
    else:
        name = type(backbone).__name__
        raise ValueError(f"optim.layer_decay: {name} does not define an order of its layers")
    found: dict[str, int] = group_parameters(backbone, matcher, reverse=True)
    return {f"{prefix}{name}": layer for name, layer in found.items()}


def _backbone(encoder: nn.Module) -> tuple[Any, str]:
    """The timm model inside an encoder, or the encoder itself, and the prefix of its names."""
    inner = getattr(encoder, "model", None)
    return (encoder, "") if inner is None else (inner, "model.")


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Settings of each group, such as rate, decay and betas, as plain data."""
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def restart_schedule(
    optimizer: Optimizer,
    settings: Sequence[Mapping[str, Any]],
    make_schedule: Callable[[Optimizer], LRScheduler],
    *,
    step: int,
) -> LRScheduler:
    """Gives a restored optimiser these settings and a new schedule, advanced to ``step``."""
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        parameters = group["params"]
        group.clear()  # also of what the previous schedule added
        group.update(values, params=parameters)
    scheduler = make_schedule(optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step.*")
        for _ in range(step):
            scheduler.step()
    return scheduler


def warmup_then_decay(
    optimizer: Optimizer,
    *,
    total_steps: int,
    decay: Literal["poly", "cosine", "constant"],
    warmup: float = 0.05,
    power: float = 0.9,
    final: float = 0.0,
) -> LambdaLR:
    """A linear warm-up, then a decay that ends at the last step.

    Args:
        decay: ``poly`` is (1 - t)^power, ``cosine`` is (1 + cos πt) / 2, t from 0 to 1.
        warmup: number of steps (>= 1) or share of ``total_steps`` (< 1).
        final: factor of the full rate at the end.
    """
    if decay not in ("poly", "cosine", "constant"):
        raise ValueError(f"schedule.decay={decay!r}: choose poly, cosine or constant")
    warmup_steps = _warmup_steps(warmup, total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        t = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        if decay == "constant":
            return 1.0
        shape = (1 - t) ** power if decay == "poly" else 0.5 * (1 + math.cos(math.pi * t))
        return final + (1 - final) * shape

    return LambdaLR(optimizer, factor)


def one_cycle(
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    cycle_momentum: bool = True,
) -> OneCycleLR:
    """``torch.optim.lr_scheduler.OneCycleLR`` (Smith and Topin 2018); the peak is a group's rate.

    Args:
        warmup: steps until the peak (>= 1) or share of ``total_steps`` (< 1).
        div_factor: peak rate / first rate.
        final_div_factor: first rate / last rate.
        cycle_momentum: momentum (beta1) falls from 0.95 to 0.85 until the peak and rises again.
    """
    # the peak is at step pct_start * total_steps - 1; a phase of no steps would divide by 0
    peak = min(_warmup_steps(warmup, total_steps), total_steps - 2)
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=total_steps,
        pct_start=(peak + 1) / total_steps if peak > 0 else 0.0,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
        cycle_momentum=cycle_momentum,
    )


def _warmup_steps(warmup: float, total_steps: int) -> int:
    if warmup < 0 or total_steps < 1:
        raise ValueError(
            f"schedule: warmup={warmup} and total_steps={total_steps} must be positive"
        )
    return int(warmup) if warmup >= 1 else round(warmup * total_steps)
