"""What happens beside the training loop: pictures, progress, throughput, an orderly end."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, RichProgressBar
from torch import Tensor

from dpt.engine.checkpoints import is_accumulating
from dpt.engine.pictures import panel_row
from dpt.tasks import Task
from dpt.tasks.base import take
from dpt.types import Batch
from dpt.viz import save_png, stack

log = logging.getLogger("dpt")


class Panels(Callback):
    """Pictures of validation images: photo, truth, prediction, error.

    Args:
        folder: where ``<index>.png`` is written at each validation, over the one before.
        count: how many images, spread evenly over the data set.
    """

    def __init__(self, *, folder: str, count: int = 8) -> None:
        self.folder = Path(folder)
        self.count = count
        self.pictures: dict[int, np.ndarray] = {}

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        assert isinstance(pl_module, Task)
        loader: Any = trainer.val_dataloaders
        wanted = spread(self.count, len(loader.dataset))
        images = {int(i): image for i, image in zip(batch["index"], batch["image"], strict=True)}
        for predictions, labels in outputs["groups"]:
            for k, index in enumerate(labels["index"].tolist()):
                if index not in wanted:
                    continue
                photo = images[index].permute(1, 2, 0).cpu().numpy()
                one = {name: output[k : k + 1] for name, output in predictions.items()}
                rows = panel_rows(pl_module, photo, one, take(labels, [k]), loader.dataset)
                if rows:
                    self.pictures[index] = stack(rows)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.pictures:
            return
        for index, picture in self.pictures.items():
            save_png(self.folder / f"{index:05d}.png", picture)
        for logger in trainer.loggers:
            if hasattr(logger, "log_image"):
                images = [self.pictures[i] for i in sorted(self.pictures)]
                kinds = ["jpg"] * len(images)
                logger.log_image("panels/val", images, step=trainer.global_step, file_type=kinds)
        self.pictures.clear()


def spread(count: int, length: int) -> set[int]:
    """``count`` positions spread evenly over ``length``."""
    return {int(i) for i in np.linspace(0, length - 1, min(count, length)).round()}


def panel_rows(
    task: Task, photo: np.ndarray, outputs: Mapping[str, Tensor], labels: Batch, dataset: Any
) -> list[np.ndarray]:
    """A row of pictures for each dense head, at the label's resolution."""
    palette = dataset.dataset.info.palette or None
    rows = [panel_row(o, photo, outputs, labels, palette) for o in task.objectives.values()]
    return [row for row in rows if row is not None]


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


class FailedFiles(Callback):
    """Says which files could not be read, each once, and counts them (``data.on_error=skip``).

    A resumed run counts on, and names them in its own log again.
    """

    def __init__(self) -> None:
        self.messages: set[str] = set()
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self._note(batch)

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._note(batch)

    def _note(self, batch: Batch) -> None:
        for message in batch.get("failed", ()):
            self.count += 1
            if message not in self.messages:
                self.messages.add(message)
                log.warning("skipped (%d so far): %s", self.count, message)


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
