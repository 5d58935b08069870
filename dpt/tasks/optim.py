"""Parameter groups, optimisers and learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

CODES = ("cls_token", "reg_token", "pos_embed", "relative_position_bias_table")


def parameter_groups(
    model: nn.Module, *, lr: float, encoder_lr: float | None, weight_decay: float
) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: encoder or rest, with decay or without.

    Norms, biases, tokens and position codes are not decayed.

    Args:
        model: has an attribute ``encoder``.
        lr: learning rate of everything outside the encoder.
        encoder_lr: of the encoder; None means ``lr``.
    """
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part = "encoder" if name.startswith("encoder.") else "decoder"
        decayed = parameter.ndim > 1 and name.rpartition(".")[2] not in CODES
        groups.setdefault((part, decayed), []).append(parameter)
    rates = {"encoder": lr if encoder_lr is None else encoder_lr, "decoder": lr}
    return [
        {
            "params": parameters,
            "lr": rates[part],
            "weight_decay": weight_decay if decayed else 0.0,
            "name": part if decayed else f"{part}_no_decay",
        }
        for (part, decayed), parameters in groups.items()
    ]


def adamw(
    model: nn.Module,
    *,
    lr: float,
    encoder_lr: float | None = None,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Optimizer:
    """AdamW, fused into one kernel; ``encoder_lr`` None means ``lr`` throughout."""
    groups = parameter_groups(model, lr=lr, encoder_lr=encoder_lr, weight_decay=weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def sgd(
    model: nn.Module,
    *,
    lr: float,
    encoder_lr: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> Optimizer:
    """SGD with momentum; ``encoder_lr`` None means ``lr`` throughout."""
    groups = parameter_groups(model, lr=lr, encoder_lr=encoder_lr, weight_decay=weight_decay)
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


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
        total_steps: optimiser steps of the whole run.
        decay: ``poly`` is (1 - t)^power, ``cosine`` is (1 + cos πt) / 2, t from 0 to 1.
        warmup: steps (>= 1) or share of ``total_steps`` (< 1).
        final: factor at the end, of the full rate.
    """
    if decay not in ("poly", "cosine", "constant"):
        raise ValueError(f"schedule.decay={decay!r}: choose poly, cosine or constant")
    if warmup < 0 or total_steps < 1:
        raise ValueError(
            f"schedule: warmup={warmup} and total_steps={total_steps} must be positive"
        )
    warmup_steps = int(warmup) if warmup >= 1 else round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        t = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        if decay == "constant":
            return 1.0
        shape = (1 - t) ** power if decay == "poly" else 0.5 * (1 + math.cos(math.pi * t))
        return final + (1 - final) * shape

    return LambdaLR(optimizer, factor)
