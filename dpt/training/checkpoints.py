"""Checkpoints: ``last.ckpt`` to resume from, ``best.ckpt`` by the monitored score."""

import os
import time
from pathlib import Path
from typing import cast

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from dpt.files import replacing
from dpt.plugins import register
from dpt.process import log
from dpt.training.callbacks import completes_step
from dpt.training.lightning_internals import batch_index
from dpt.training.task import Task
from dpt.types.samples import Batch
from dpt.validation import Count, Plain, Positive
from dpt.weights.files import load_pickles, writing


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a temporary file, flushes it to disk and renames it.

    Lightning's own class moves the file from the system's temporary folder; across file systems
    that is a copy, which a kill can interrupt.
    """

    def save_checkpoint(
        self, checkpoint: Plain, path: str | Path, storage_options: object = None
    ) -> None:
        """Raises ValueError naming the file if the disk is full or the folder not writable."""
        path = Path(path)
        with writing(path), replacing(path) as temporary, temporary.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())


@register("checkpoint")
class RunCheckpoints(Checkpoint):
    """Writes ``last.ckpt`` by steps, by time and at the end, and ``best.ckpt`` after validation.

    ``best.ckpt`` is chosen by ``task.monitor`` (``conf/task/*.yaml``), see ``Task.improves``.

    Lightning's ``ModelCheckpoint`` saves while gradients are being accumulated, takes either steps
    or minutes, loses the best score of a moved run, and does not see the validation after the last
    step. ``last.ckpt`` is written between two optimiser steps, after the validation that belongs to
    the first. The best score is stored in ``best.ckpt``.

    Args:
        dirpath: folder of the checkpoints.
        every_n_train_steps: optimiser steps between two saves of ``last.ckpt``; None: by time only.
        every_n_minutes: minutes between two saves of ``last.ckpt``; None: by steps only.
    """

    def __init__(
        self,
        *,
        dirpath: str,
        every_n_train_steps: Count | None,
        every_n_minutes: Positive | None,
    ) -> None:
        self.last, self.best = Path(dirpath) / "last.ckpt", Path(dirpath) / "best.ckpt"
        self.every_n_train_steps, self.every_n_minutes = every_n_train_steps, every_n_minutes
        self.best_score: float | None = None
        self.monitor = ""  # the name of the score
        self.saved_step, self.saved_time = 0, time.monotonic()
        self.should_stop = False

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        self.saved_step, self.saved_time = trainer.global_step, time.monotonic()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: object, batch: Batch, batch_idx: int
    ) -> None:
        if batch_idx % trainer.accumulate_grad_batches == 0 and self._is_due(trainer):
            self._save_last(trainer)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: object, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        # not in on_train_end, where Lightning counts an interrupted epoch as completed
        if self._is_between_steps(trainer, batch_idx) and is_last_step(trainer):
            self._save_last(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: object) -> None:
        if trainer.sanity_checking:
            return
        task = cast(Task, pl_module)
        self.monitor = name = task.monitor
        is_fitting = trainer.state.fn == "fit"
        is_of_stop = trainer.should_stop and not is_fitting  # the undisturbed run has none here
        if trainer.strategy.broadcast(task.improves(self.best_score) and not is_of_stop):
            self.best_score = task.scores[name]
            trainer.save_checkpoint(self.best)
        is_between = is_fitting and self._is_between_steps(trainer, batch_index(trainer))
        if is_between and is_last_step(trainer):
            self._save_last(trainer)  # again, with what this validation has changed

    def _is_between_steps(self, trainer: L.Trainer, batch_idx: int) -> bool:
        """Returns whether no gradients are being accumulated: checkpoints do not store them.

        Also delays a stop, such as that of ``max_time``, to the end of the step.
        """
        self.should_stop |= trainer.should_stop
        complete = completes_step(trainer, batch_idx)
        trainer.should_stop = complete and self.should_stop
        return complete

    def _is_due(self, trainer: L.Trainer) -> bool:
        step = trainer.global_step
        if step == self.saved_step:
            return False
        if self.every_n_train_steps is not None and step % self.every_n_train_steps == 0:
            return True
        if self.every_n_minutes is None:
            return False
        due = time.monotonic() - self.saved_time >= 60 * self.every_n_minutes
        if trainer.world_size > 1:  # clocks differ, but all ranks must save together
            return step % 10 == 0 and trainer.strategy.reduce_boolean_decision(due, all=False)
        return due

    def _save_last(self, trainer: L.Trainer) -> None:
        self.saved_step, self.saved_time = trainer.global_step, time.monotonic()
        for logger in trainer.loggers:
            logger.save()  # a killed run keeps what it logged up to its checkpoint
        trainer.save_checkpoint(self.last)

    def state_dict(self) -> Plain:
        return {"best_score": self.best_score, "monitor": self.monitor}

    def load_state_dict(self, state_dict: Plain) -> None:
        self.best_score = state_dict.get("best_score")

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: object, checkpoint: Plain) -> None:
        """Takes the best score from ``best.ckpt``, unless that is of a later step.

        A score of another ``task.monitor`` is forgotten.
        """
        best = read_checkpoint(self.best)
        state = checkpoint.setdefault("callbacks", {}).setdefault(self.state_key, {})
        if best is not None and best["global_step"] <= checkpoint["global_step"]:
            of_best = best["callbacks"].get(self.state_key, {})
            state |= {key: of_best.get(key) for key in ("best_score", "monitor")}
        before, self.monitor = state.get("monitor"), cast(Task, pl_module).monitor
        if before and before != self.monitor:
            log.info("resume: the next validation replaces best.ckpt, the best by %s", before)
            state["best_score"] = None


def read_checkpoint(path: Path) -> Plain | None:
    """Returns the content of a checkpoint, memory-mapped; None if it is absent or damaged."""
    if not path.is_file():  # a FIFO would block
        return None
    try:
        values = load_pickles(path, mmap=True)
        return values if "global_step" in values else None
    except Exception:  # a damaged archive raises errors of many types
        return None


def ends_by_stop(trainer: L.Trainer) -> bool:
    """Returns whether a stop was asked for that ``min_steps`` and ``min_epochs`` do not delay."""
    steps, epochs = trainer.min_steps or 0, trainer.min_epochs or 0
    return trainer.should_stop and trainer.global_step >= steps and trainer.current_epoch >= epochs


def is_last_step(trainer: L.Trainer) -> bool:
    """Returns whether the step just taken is the run's last: by a stop, ``max_steps`` or
    ``max_epochs``."""
    is_last_epoch = 0 <= (trainer.max_epochs or -1) <= trainer.current_epoch + 1
    return (
        ends_by_stop(trainer)
        or 0 <= trainer.max_steps <= trainer.global_step
        or (is_last_epoch and trainer.is_last_batch)
    )
