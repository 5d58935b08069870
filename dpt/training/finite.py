"""Gradient clipping, and optimiser steps skipped because a gradient is not finite."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

log = logging.getLogger("dpt")


class StepGuard:
    """Clips gradients, and skips steps whose gradient is not finite.

    A skipped step changes neither weights, nor the optimiser's state, nor BatchNorm's running
    statistics; its samples are listed in ``nonfinite.csv``. All ranks have the same averaged
    gradient, so they skip the same steps.

    Args:
        model: its BatchNorm statistics are restored.
        limit: skipped steps in a row after which the run stops.
    """

    def __init__(self, model: nn.Module, *, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"max_skipped_steps={limit} must be at least 1")
        self.model = model
        self.limit = limit
        self.total = 0
        self.in_a_row = 0
        self.batches: list[tuple[Tensor, Sequence[str]]] = []
        self.keep_statistics()

    def keep_statistics(self) -> None:
        """Copies BatchNorm's statistics; to be called when training starts, on its device."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self.buffers = [b for norm in norms for b in norm.buffers()]
        self.kept = [b.clone() for b in self.buffers]

    def add_batch(self, loss: Tensor, names: Sequence[str]) -> None:
        """Notes the loss and the samples of a batch of the current step."""
        self.batches.append((loss.detach(), names))

    def clip(
        self, trainer: L.Trainer, optimizer: Optimizer, limit: float | None, algorithm: str | None
    ) -> Tensor:
        """Clips the gradients to ``limit`` (None: no limit), or zeroes all if one is not finite.

        Returns:
            The norm of all gradients before clipping, a scalar.

        Raises:
            ValueError: this was the last of too many skipped steps in a row.
        """
        batches, self.batches = self.batches, []
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        # Lightning neither unscales nor clips for fused optimisers, which unscale in their step
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        by_norm = limit if limit and algorithm != "value" else math.inf
        sharded = isinstance(trainer.strategy, FSDPStrategy)
        if sharded:  # each rank holds a part of every gradient
            whole: Any = trainer.strategy.model
            norm = whole.clip_grad_norm_(by_norm)
        else:
            norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        finite = bool(norm.isfinite())
        source, target = (self.buffers, self.kept) if finite else (self.kept, self.buffers)
        for a, b in zip(source, target, strict=True):
            b.copy_(a)
        # float16's scaler skips steps that overflow, and halves its scale, which helps down to 1
        if not finite and (scaler is None or scaler.get_scale() < 1):
            optimizer.zero_grad()  # sets gradients to None, so that the step changes nothing
            self._skip(trainer, float(norm), batches)
            return norm
        self.in_a_row = 0
        if limit and algorithm == "value":
            clip_grad_value_(parameters, limit)
        elif limit and not sharded:
            clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def _skip(
        self, trainer: L.Trainer, norm: float, batches: Sequence[tuple[Tensor, Sequence[str]]]
    ) -> None:
        self.total += 1
        self.in_a_row += 1
        step, path = trainer.global_step, Path(trainer.default_root_dir) / "nonfinite.csv"
        with path.open("a", newline="") as file:
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(["step", "rank", "loss", "gradient_norm", "sample"])
            for loss, names in batches:
                start = (step, trainer.global_rank, float(loss), norm)
                rows.writerows([*start, name] for name in names)
        if self.total & (self.total - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            losses = ", ".join(f"{float(loss):g}" for loss, _ in batches)
            log.warning(
                "step %d: loss %s, gradient norm %g: step skipped (%d so far); its samples are in "
                "%s", step, losses, norm, self.total, path,
            )  # fmt: skip
        if self.in_a_row >= self.limit:
            raise ValueError(
                f"loss or gradient not finite in {self.in_a_row} steps in a row; the samples are "
                f"in {path}. Check those files (dpt data check), lower optim.lr, or set "
                f"trainer.precision=32-true; resume=RUN continues from the last checkpoint"
            )
