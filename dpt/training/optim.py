"""Optimisers and learning-rate schedules."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from dpt.training.groups import parameter_groups


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
    """AdamW, ``fused`` into one kernel; rates: :func:`dpt.training.groups.parameter_groups`."""
    groups = parameter_groups(
        model, lr=lr, encoder_lr=encoder_lr, weight_decay=weight_decay, layer_decay=layer_decay
    )
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
    """SGD with momentum; for the rates see :func:`dpt.training.groups.parameter_groups`."""
    groups = parameter_groups(
        model, lr=lr, encoder_lr=encoder_lr, weight_decay=weight_decay, layer_decay=layer_decay
    )
    return torch.optim.SGD(groups, lr=lr, momentum=momentum)


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What is configured of each group of a new optimiser, as plain data: rates, decay, betas."""
    return [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def require_same_groups(optimizer: Optimizer, saved: Sequence[Mapping[str, Any]]) -> None:
    """Moments belong to parameters: those of another division cannot be given back.

    Raises:
        ValueError: the groups that were saved have other names or numbers of parameters.
    """
    found, now = (
        {group.get("name"): len(group["params"]) for group in groups}
        for groups in (saved, optimizer.param_groups)
    )
    if found != now:
        raise ValueError(
            f"resume: the run trained {sum(found.values())} parameters in {len(found)} groups, and "
            f"is now to train {sum(now.values())} in {len(now)}, others or otherwise divided: take "
            f"back what was changed of optim.layer_decay or callbacks.freeze.parts, or start a new "
            f"run from its weights: model.weights=RUN/checkpoints/last.ckpt"
        )


def configure_again(
    optimizer: Optimizer,
    settings: Sequence[Mapping[str, Any]],
    schedule: Callable[[Optimizer], LRScheduler],
    *,
    step: int,
) -> LRScheduler:
    """Gives a restored optimiser other settings; its moments stay.

    Args:
        optimizer: with the settings that it was saved with.
        settings: the new ones, see :func:`settings_of`.
        schedule: makes a schedule from its first step.
        step: how far the schedule has come.

    Returns:
        A new schedule at that step.
    """
    for group, values in zip(optimizer.param_groups, settings, strict=True):
        for key in [k for k in group if k != "params"]:
            del group[key]  # also what the schedule before had put there
        group.update(values)
    scheduler = schedule(optimizer)
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
        total_steps: optimiser steps of the whole run.
        decay: ``poly`` is (1 - t)^power, ``cosine`` is (1 + cos πt) / 2, t from 0 to 1.
        warmup: steps (>= 1) or share of ``total_steps`` (< 1).
        final: factor at the end, of the full rate.
    """
    if decay not in ("poly", "cosine", "constant"):
        raise ValueError(f"schedule.decay={decay!r}: choose poly, cosine or constant")
    warmup_steps = _steps(warmup, total_steps)

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
    """Torch's one-cycle policy (Smith and Topin 2018); each group peaks at its own rate.

    Args:
        total_steps: optimiser steps of the whole run.
        warmup: until the peak, in steps (>= 1) or as a share of ``total_steps`` (< 1).
        div_factor: the first rate is the peak's by this.
        final_div_factor: the last rate is the first one by this.
        cycle_momentum: lower the momentum (beta1) from 0.95 to 0.85 and back while the rate rises
            and falls.
    """
    # it peaks at step pct_start * total_steps - 1; a phase without a step would divide by 0
    peak = min(_steps(warmup, total_steps), total_steps - 2)
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=total_steps,
        pct_start=(peak + 1) / total_steps if peak > 0 else 0.0,
        div_factor=div_factor,
        final_div_factor=final_div_factor,
        cycle_momentum=cycle_momentum,
    )


def _steps(warmup: float, total_steps: int) -> int:
    if warmup < 0 or total_steps < 1:
        raise ValueError(
            f"schedule: warmup={warmup} and total_steps={total_steps} must be positive"
        )
    return int(warmup) if warmup >= 1 else round(warmup * total_steps)
