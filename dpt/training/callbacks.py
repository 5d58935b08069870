"""What happens beside the training loop: pictures, progress, throughput, an orderly end."""

from __future__ import annotations

import logging
import signal
import sys
import time
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar

from dpt.training.checkpoints import is_accumulating
from dpt.training.task import Task
from dpt.types import Batch

log = logging.getLogger("dpt")


class Throughput(Callback):
    """Logs ``train/images_per_s`` over all ranks, validation left out."""

    def __init__(self) -> None:
        self.images = 0
        self.since = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restart()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restart()

    def _restart(self) -> None:
        self.images, self.since = 0, time.monotonic()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        self.images += len(batch["image"]) * trainer.world_size
        if trainer.global_step % 10 == 0 and self.images:
            rate = self.images / (time.monotonic() - self.since)
            pl_module.log("train/images_per_s", rate, batch_size=1)


class Progress(Callback):
    """Progress in a log without a terminal: a line ``lines`` times a run, and at validations."""

    def __init__(self, *, lines: int = 20) -> None:
        self.lines = lines

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if is_accumulating(trainer, batch_idx + 1) and not trainer.is_last_batch:
            return
        total = total_steps(trainer)
        every = max(1, total // self.lines) if total else 50
        if trainer.is_global_zero and trainer.global_step % every == 0:
            metrics = trainer.callback_metrics
            parts = [f"{k.removeprefix('train/')} {float(v):.4g}" for k, v in metrics.items()
                     if k in ("train/loss", "train/images_per_s")]  # fmt: skip
            log.info("step %d%s: %s", trainer.global_step, f"/{total}" if total else "",
                     ", ".join(parts))  # fmt: skip

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Task)
        if trainer.is_global_zero and pl_module.monitor in pl_module.scores:
            score = pl_module.scores[pl_module.monitor]
            log.info("step %d: %s %.4f", trainer.global_step, pl_module.monitor, score)


def make_progress() -> Callback:
    """A bar with loss and main metric in a terminal, lines where there is none."""
    return RichProgressBar(leave=False) if sys.stdout.isatty() else Progress()


def total_steps(trainer: L.Trainer) -> int | None:
    """Optimiser steps of the run; None where time ends it."""
    total = trainer.estimated_stepping_batches
    return int(total) if total != float("inf") else None


class StopOnSignal(Callback):
    """Ctrl-C, SIGTERM and SIGUSR1 end the run after the current step, so that it can save.

    Under SLURM the signal of its preemption (``#SBATCH --signal=SIGUSR1@90``) has Lightning save
    and put the job back into the queue, but between two steps instead of in the midst of one.
    A second Ctrl-C interrupts at once. Of several processes, all do what one of them was told.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.before: dict[signal.Signals, Any] = {}
        self.requeued = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self.before[number] = signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        log.info("%s: stopping after this step", self.received.name)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if is_accumulating(trainer, batch_idx + 1) and not trainer.is_last_batch:
            return  # gradients on their way are in no checkpoint
        if trainer.world_size > 1:  # ranks hear signals at different steps, but must stop together
            told = torch.tensor(int(self.received or 0), device=trainer.strategy.root_device)
            told = trainer.strategy.reduce(told, reduce_op="max")
            if not told:
                return
            self.received = signal.Signals(int(told))
        if self.received is not None:
            trainer.should_stop = True
            slurm = getattr(trainer._accelerator_connector, "cluster_environment", None)
            number = getattr(slurm, "requeue_signal", None)
            if number is not None and getattr(slurm, "auto_requeue", False):
                self._requeue(trainer, number)

    def _requeue(self, trainer: L.Trainer, number: signal.Signals) -> None:
        handler = self.before.get(number)
        if self.received == number and callable(handler):
            handler(number, None)  # Lightning's: saves on every rank, then calls scontrol
            self.requeued = True
            trainer.fit_loop.epoch_loop._skip_next_val = True  # there may be seconds left

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
