"""Callbacks of a run: throughput, progress, frozen parts, and a clean stop on a signal."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn

from dpt.training.task import Task
from dpt.types import Batch

log = logging.getLogger("dpt")


class StepCallback(Callback):
    """A callback with a hook after each optimiser step, when no accumulated gradients remain."""

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        """Runs after an optimiser step."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if completes_step(trainer, batch_idx):
            self.on_step(trainer, pl_module)


def completes_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether the optimiser steps after this batch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


class Throughput(Callback):
    """Logs ``train/images_per_s`` over all ranks, without the time of validation.

    Lightning's ``ThroughputMonitor`` refuses most values of ``accumulate_grad_batches``.
    """

    def __init__(self) -> None:
        self.images, self.since = 0, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.images, self.since = 0, time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.images += len(batch["image"]) * trainer.world_size
        if trainer.global_step % 10 == 0:
            rate = self.images / (time.monotonic() - self.since)
            pl_module.log("train/images_per_s", rate, batch_size=1)


class ProgressLines(StepCallback):
    """Progress without a terminal: 20 log lines per run, and one per validation."""

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        total = trainer.estimated_stepping_batches  # inf where max_time alone ends the run
        every = max(1, int(total) // 20) if total != float("inf") else 50
        if trainer.is_global_zero and trainer.global_step % every == 0:
            shown = ("train/loss", "train/images_per_s")
            values = {k: float(v) for k, v in trainer.callback_metrics.items() if k in shown}
            text = ", ".join(f"{k.removeprefix('train/')} {v:.4g}" for k, v in values.items())
            log.info("step %d/%s: %s", trainer.global_step, total, text)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        name, scores = pl_module.monitor, pl_module.scores
        if trainer.is_global_zero and name in scores:
            log.info("step %d: %s %.4f", trainer.global_step, name, scores[name])


def make_progress() -> Callback:
    """A progress bar with loss and monitored metric in a terminal, log lines elsewhere."""
    return RichProgressBar(leave=False) if sys.stdout.isatty() else ProgressLines()


class Freeze(Callback):
    """Keeps parts of the model constant for the whole run.

    Their parameters require no gradient and are not in the optimiser; the parts run in evaluation
    mode (BatchNorm, dropout).

    Args:
        parts: modules of the model by name: ``encoder``, ``decoder``, ``heads.depth``,
            ``encoder.blocks.0``, ...
    """

    def __init__(self, *, parts: Sequence[str] = ()) -> None:
        self.parts = tuple(parts)
        self.modules: list[nn.Module] = []

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Runs before the optimiser and DDP are created."""
        if stage != "fit" or not self.parts:
            return
        modules = dict(pl_module.model.named_modules())
        if unknown := [name for name in self.parts if not name or name not in modules]:
            known = [n for n in modules if n != "heads" and "." not in n.removeprefix("heads.")][1:]
            raise ValueError(
                f"callbacks.freeze.parts: the model has no {unknown[0]!r}; there are "
                f"{', '.join(known)}, and modules inside of them"
            )
        self.modules = [modules[name].requires_grad_(False) for name in self.parts]
        if trainer.is_global_zero:
            count = sum(p.numel() for module in self.modules for p in module.parameters())
            log.info("frozen: %s (%.1f M parameters)", ", ".join(self.parts), count / 1e6)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for module in self.modules:
            module.eval()


class StopOnSignal(StepCallback):
    """Ctrl-C, SIGTERM and SIGUSR1 stop the run after the current step; a second Ctrl-C at once.

    The run then saves, validates and writes its metrics. SIGUSR1 under SLURM
    (``#SBATCH --signal=SIGUSR1@90``) saves, puts the job back into the queue and exits, since the
    job may have only seconds left. If one rank receives a signal, all ranks stop at the same step.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.handlers: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self.handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        log.info("%s: stopping after this step", self.received.name)

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        if trainer.world_size > 1:
            own = torch.tensor(int(self.received or 0), device=trainer.strategy.root_device)
            if number := int(trainer.strategy.reduce(own, reduce_op="max")):
                self.received = signal.Signals(number)
        if self.received is not None:
            trainer.should_stop = True  # RunCheckpoints writes last.ckpt now

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.received == signal.SIGUSR1 and SLURMEnvironment.detect():
            if trainer.is_global_zero:
                requeue()
            raise SystemExit(128 + self.received)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def on_exception(self, trainer: L.Trainer, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)


def requeue() -> None:
    """Asks SLURM to run this job, or this task of a job array, again."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    code = subprocess.run(["scontrol", "requeue", job], check=False).returncode
    outcome = "SLURM starts the job again" if code == 0 else f"scontrol requeue failed ({code})"
    log.info("saved for SLURM's signal; %s", outcome)
