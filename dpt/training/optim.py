"""Optimisers, parameter groups and learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def make_optimizer(
    model: nn.Module,
    *,
    kind: Literal["adamw", "sgd"],
    lr: float,
    encoder_lr: float | None = None,
    layer_decay: float | None = None,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    momentum: float = 0.9,
    fused: bool = True,
) -> Optimizer:
    """``torch.optim.AdamW`` or ``SGD`` over every trainable parameter.

    Each parameter is in one group: encoder or rest, with decay or without. Weight matrices and
    kernels are decayed; norms, biases, tokens, position embeddings and layer scales are not.
    (timm's ``param_groups_layer_decay`` knows neither a second rate nor FSDP.)

    Args:
        model: has an attribute ``encoder``.
        kind: ``adamw`` uses ``betas`` and ``fused``, ``sgd`` uses ``momentum``.
        lr: learning rate of everything outside the encoder.
        encoder_lr: learning rate of the encoder; None means ``lr``.
        layer_decay: d in (0, 1]: layer k of the encoder has ``encoder_lr`` · d^(top - k) (Clark et
            al. 2020, ELECTRA; BEiT, MAE); None means one rate for the whole encoder.
        weight_decay: of weight matrices and kernels.

    Raises:
        ValueError: a setting is out of range, or the order of the layers is unknown.
    """
    for name, value in {"lr": lr, "encoder_lr": encoder_lr, "weight_decay": weight_decay}.items():
        if value is not None and not 0 <= value <= 1000:  # more overflows within a few steps
            raise ValueError(f"optim.{name}={value:g}: must lie in 0..1000")
    if not all(0 <= share < 1 for share in (momentum, *betas)):
        raise ValueError(f"optim: {momentum=} and betas={list(betas)} must lie in 0..1, 1 excluded")
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(f"optim.layer_decay={layer_decay}: must lie in 0..1, 0 excluded")
    encoder: Any = model.encoder
    layers = {} if layer_decay is None else encoder.layer_ids()
    top = max(layers.values(), default=0) + 1
    no_weight_decay = {f"encoder.{name}" for name in encoder.no_weight_decay()}
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
    if kind == "sgd":
        return torch.optim.SGD(list(groups.values()), lr=lr, momentum=momentum)
    return torch.optim.AdamW(list(groups.values()), lr=lr, betas=betas, fused=fused)


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

    Raises:
        ValueError: a setting is negative, or the run has no step.
    """
    if min(warmup, power, final) < 0 or total_steps < 1:
        raise ValueError(
            f"schedule: {warmup=}, {power=} and {final=} must be at least 0, and the steps of the "
            f"run ({total_steps}) at least 1"
        )
    warmup_steps = int(warmup) if warmup >= 1 else round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        if decay == "constant":
            return 1.0
        t = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        shape = (1 - t) ** power if decay == "poly" else 0.5 * (1 + math.cos(math.pi * t))
        return final + (1 - final) * shape

    return LambdaLR(optimizer, factor)
