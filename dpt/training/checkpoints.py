"""Checkpoints that a kill, a full disk or a power cut cannot break."""

from __future__ import annotations

import errno
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from dpt.training.task import Task
from dpt.types import Batch


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, waits for the disk, then renames: a file is whole or the old one.

    Lightning's own makes the file in memory, then in the system's temporary folder, from where a
    move to another disk is a copy that can be cut off.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Raises ``OSError`` naming the file where the disk is full or not writable."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (OSError, RuntimeError) as error:  # torch's writer turns the one into the other
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _explained(error, path) from error
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename too is on disk now
        finally:
            os.close(folder)


def _explained(error: Exception, path: Path) -> OSError:
    text = str(error)
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or "No space left" in text or "PytorchStreamWriter" in text or "enforce fail" in text:
        reason = "the disk is full: free some space"
    else:
        reason = f"{getattr(error, 'strerror', None) or text}: check the folder's rights"
    kept = "; the checkpoint before it is unharmed, resume=RUN continues from it"
    return OSError(f"{path}: cannot be written, {reason}{kept if path.exists() else ''}")


class LastCheckpoint(Checkpoint):
    """Writes ``last.ckpt``, from which ``resume`` continues, by steps, by time, and at the end.

    It is written between two steps, after a validation that belongs to the first of them, and
    never while gradients are being accumulated: what it holds is all there is.

    Args:
        dirpath: the folder.
        every_n_train_steps: optimiser steps from one to the next; None leaves it to time.
        every_n_minutes: minutes from one to the next; None leaves it to steps.
    """

    def __init__(
        self,
        *,
        dirpath: str,
        every_n_train_steps: int | None = None,
        every_n_minutes: float | None = 15.0,
    ) -> None:
        for name, value in (
            ("every_n_train_steps", every_n_train_steps),
            ("every_n_minutes", every_n_minutes),
        ):
            if value is not None and value <= 0:
                raise ValueError(f"callbacks.checkpoint.{name}={value} must be above 0, or null")
        self.path = Path(dirpath) / "last.ckpt"
        self.every_n_train_steps = every_n_train_steps
        self.every_n_minutes = every_n_minutes
        self.saved_step = 0
        self.saved_time = time.monotonic()
        self.stop_wanted = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.saved_step, self.saved_time = trainer.global_step, time.monotonic()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        fresh = trainer.global_step > self.saved_step
        if fresh and not is_accumulating(trainer, batch_idx) and self._is_due(trainer):
            self._save(trainer)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        if is_accumulating(trainer, batch_idx + 1) and not trainer.is_last_batch:
            # a wish to stop, such as Lightning's timer has, waits until the step is whole
            self.stop_wanted |= trainer.should_stop
            trainer.should_stop = False
            return
        trainer.should_stop |= self.stop_wanted
        # here and not in on_train_end, where Lightning counts a cut-off epoch as a whole one
        if trainer.global_step > self.saved_step and is_last_step(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.should_stop and trainer.global_step > self.saved_step:
            self._save(trainer)  # it was this validation that ended the run

    def _is_due(self, trainer: L.Trainer) -> bool:
        step = trainer.global_step
        if self.every_n_train_steps is not None and step % self.every_n_train_steps == 0:
            return True
        if self.every_n_minutes is None:
            return False
        due = time.monotonic() - self.saved_time >= 60 * self.every_n_minutes
        if trainer.world_size > 1:  # clocks differ, but all ranks must save together
            return step % 10 == 0 and trainer.strategy.reduce_boolean_decision(due, all=False)
        return due

    def _save(self, trainer: L.Trainer) -> None:
        self.saved_step, self.saved_time = trainer.global_step, time.monotonic()
        for logger in trainer.loggers:
            logger.save()  # what was logged up to here is not to be lost with what comes after
        trainer.save_checkpoint(self.path)


class BestCheckpoint(Checkpoint):
    """Writes ``best.ckpt`` after the validation with the run's best score.

    The file itself holds that score, so that the two cannot part: Lightning's own callback forgets
    the score of a run that was moved, does not hear of a validation after the last step, and
    resumes with the score from before the validation that an orderly stop brings.

    Args:
        dirpath: the folder.
        monitor: the metric that decides.
        mode: whether the best is its ``min`` or its ``max``.
    """

    def __init__(self, *, dirpath: str, monitor: str, mode: Literal["min", "max"]) -> None:
        self.path = Path(dirpath) / "best.ckpt"
        self.monitor = monitor
        self.mode = mode
        self.score: float | None = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        assert isinstance(pl_module, Task)
        if self.monitor not in pl_module.scores:
            raise ValueError(
                f"task.monitor={self.monitor}: there is no such score; choose from "
                f"{', '.join(k for k in pl_module.scores if k.count('/') == 1)}"
            )
        score = pl_module.scores[self.monitor]
        if trainer.strategy.broadcast(self._is_best(score)):
            self.score = score
            trainer.save_checkpoint(self.path)

    def _is_best(self, score: float) -> bool:
        if self.score is None or math.isnan(self.score):
            return True
        return score < self.score if self.mode == "min" else score > self.score

    def state_dict(self) -> dict[str, Any]:
        return {"score": self.score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.score = state_dict["score"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Asks the file, unless it is of a later step, which the run will come to again."""
        known = checkpoint.get("callbacks", {})
        best = read_checkpoint(self.path)
        if best is not None and best["global_step"] <= checkpoint["global_step"]:
            known[self.state_key] = best["callbacks"].get(self.state_key, {"score": None})


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """What a checkpoint holds, its tensors left on disk until they are used; None if damaged."""
    try:
        values = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        return values if "global_step" in values else None
    except Exception:  # a damaged archive fails in many ways
        return None


def is_accumulating(trainer: L.Trainer, batch_idx: int) -> bool:
    """Whether gradients of batches before ``batch_idx`` still wait for their optimiser step."""
    return batch_idx % trainer.accumulate_grad_batches != 0


def is_last_step(trainer: L.Trainer) -> bool:
    """Whether the step just done is the run's last: by steps, by epochs, or by a wish to stop."""
    if trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step:
        return True
    epochs = trainer.max_epochs
    ends = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
    return ends and trainer.is_last_batch
