"""Gradient clipping, and optimiser steps skipped because a gradient is not finite."""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from dpt.library_internals import set_skipped_on_device, skips_on_device, unscales_gradients
from dpt.run_log import csv_cell
from dpt.training.lightning_internals import clip_shards, loss_scaler
from dpt.types.outputs import HeadOutput

log = logging.getLogger("dpt")

Batches = list[tuple[Tensor, Sequence[str]]]  # loss and sample names of each batch of a step
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHECK_EVERY = 10  # steps after which the results of a fused optimiser are fetched


class StepGuard:
    """Clips gradients, and skips steps whose gradient is not finite.

    A skipped step changes neither weights, nor the optimiser's state, nor BatchNorm's running
    statistics; its samples are listed in ``nonfinite.csv``. All ranks have the same averaged
    gradient, so they skip the same steps. PyTorch's fused Adam skips a step on the device, so the
    results are fetched every ``CHECK_EVERY`` steps; for other optimisers each step is waited for.

    Args:
        model: its BatchNorm statistics are restored.
        limit: skipped steps in a row after which the run stops.
    """

    def __init__(self, model: nn.Module, *, limit: int) -> None:
        self.model = model
        self.limit = limit
        self.total = 0
        self.in_a_row = 0
        self.batches: Batches = []
        self.steps: list[tuple[int, Tensor, Batches]] = []  # whose results are not fetched
        self.keep_statistics()

    def keep_statistics(self) -> None:
        """Copies BatchNorm's statistics; to be called when training starts, on its device."""
        norms = [m for m in self.model.modules() if isinstance(m, BATCH_NORMS)]
        self.buffers = [b for norm in norms for b in norm.buffers()]
        self.kept = [b.clone() for b in self.buffers]

    def checked(
        self, loss: Tensor, outputs: Mapping[str, HeadOutput], names: Sequence[str]
    ) -> Tensor:
        """Returns the loss of a batch, or NaN if an output or a BatchNorm statistic is not finite.

        The loss itself may be finite: its mask may leave out such pixels, and BatchNorm divides by
        an infinite variance. The gradient of the result is not finite either, on all ranks.
        """
        values = [tensor for output in outputs.values() for tensor in output.tensors()]
        values += [buffer for buffer in self.buffers if buffer.is_floating_point()]
        sums = torch.stack([v.detach().sum(dtype=torch.float32) for v in values])
        loss = loss * torch.where(sums.isfinite().all(), 1.0, torch.nan)
        self.batches.append((loss.detach(), names))
        return loss

    def clip(
        self, trainer: L.Trainer, optimizer: Optimizer, limit: float | None, algorithm: str | None
    ) -> Tensor:
        """Clips the gradients to ``limit`` (None: no limit); no step follows if one is not finite.

        Returns the norm of all gradients before clipping, a scalar.
        """
        scaler = loss_scaler(trainer)
        # Lightning neither unscales nor clips for fused optimisers, which unscale in their step
        if scaler is not None and unscales_gradients(optimizer):
            scaler.unscale_(optimizer)
        norm = clipped_norm(trainer, optimizer, limit, algorithm)
        is_finite = norm.isfinite()
        for now, kept in zip(self.buffers, self.kept, strict=True):
            kept.copy_(torch.where(is_finite, now, kept))
            now.copy_(kept)
        step, self.batches = (trainer.global_step, norm, self.batches), []
        if scaler is not None and scaler.get_scale() >= 1 and not is_finite:
            return norm  # an overflow of float16: GradScaler skips the step and halves its scale
        self.steps.append(step)
        if scaler is None and skips_on_device(optimizer):
            set_skipped_on_device(optimizer, ~is_finite)
            if len(self.steps) >= min(CHECK_EVERY, self.limit):
                self.fetch(trainer)
            return norm
        if not is_finite:
            optimizer.zero_grad()  # sets gradients to None, so that the step changes nothing
        self.fetch(trainer)
        return norm

    def fetch(self, trainer: L.Trainer) -> None:
        """Fetches the results of the latest steps, and reports those that were skipped."""
        if not self.steps:
            return
        steps, self.steps = self.steps, []
        norms = torch.stack([norm for _, norm, _ in steps]).tolist()
        for norm, (number, _, batches) in zip(norms, steps, strict=True):
            if math.isfinite(norm):
                self.in_a_row = 0
            else:
                self._report(trainer, number, norm, batches)

    def _report(self, trainer: L.Trainer, step: int, norm: float, batches: Batches) -> None:
        self.total += 1
        self.in_a_row += 1
        path = Path(trainer.default_root_dir) / "nonfinite.csv"
        with path.open("a", newline="", errors="backslashreplace") as file:
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(["step", "rank", "loss", "gradient_norm", "sample"])
            for loss, names in batches:
                start = (step, trainer.global_rank, float(loss), norm)
                rows.writerows([*start, csv_cell(name)] for name in names)
        if self.total & (self.total - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            losses = ", ".join(f"{float(loss):g}" for loss, _ in batches)
            text = "step %d: loss %s, gradient norm %g: step skipped (%d so far), see %s"
            log.warning(text, step, losses, norm, self.total, path)
        if self.in_a_row >= self.limit:
            fault = f"loss or gradient not finite in {self.in_a_row} steps in a row, see {path}"
            raise ValueError(f"{fault}: lower optim.lr, or set trainer.precision=32-true")


def clipped_norm(
    trainer: L.Trainer, optimizer: Optimizer, limit: float | None, algorithm: str | None
) -> Tensor:
    """Clips the gradients, see :meth:`StepGuard.clip`; returns their norm before, a scalar."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    by_value = algorithm == "value"
    is_sharded = isinstance(trainer.strategy, FSDPStrategy)
    if is_sharded:  # each rank holds a part of every gradient
        norm = clip_shards(trainer, limit if limit and not by_value else math.inf)
    else:
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit and by_value:
        clip_grad_value_(parameters, limit)
    elif limit and not is_sharded:
        clip_grads_with_norm_(parameters, limit, norm)
    return norm
