"""Names of Lightning that are not in its documentation, each with the reason for its use.

Tested with lightning 2.6.6. Everything else in the package uses Lightning's public names.
"""

import signal
from typing import cast

import lightning as L
import torch
from lightning.pytorch.callbacks import RichProgressBar
from torch.distributed.fsdp import FullyShardedDataParallel

from dpt.validation import Plain

OPTIMIZER_PROGRESS = "epoch_loop.automatic_optimization.optim_progress"


class ProgressBar(RichProgressBar):
    """Shows optimiser steps in place of epochs, which Lightning offers no public hook for."""

    def _get_train_description(self, current_epoch: int) -> str:
        done, total = self.trainer.global_step, self.trainer.estimated_stepping_batches
        return f"epoch {current_epoch}, from step {done} of {total}"


def discard_fetched_batch(checkpoint: Plain, *, is_validating: bool) -> int:
    """Counts a batch that is fetched but not processed as not fetched: a resumed run fetches it
    again. Returns the number of batches that are processed in this epoch.

    A checkpoint of a validation has the counts of one right after the batch: from those after the
    validation at an epoch's end, Lightning resumes with another schedule.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    if progress["current"]["ready"] > progress["current"]["processed"]:
        for scope in ("total", "current"):
            progress[scope]["ready"] = progress[scope]["processed"]
        progress["is_last_batch"] = False
    processed: int = progress["current"]["processed"]
    if is_validating and processed:
        for scope in ("total", "current"):
            progress[scope]["completed"] = progress[scope]["processed"] - 1
    return processed


def count_epoch_as_started(checkpoint: Plain, epoch: int) -> None:
    """Counts the running epoch as started: after resuming at an epoch's end Lightning may not."""
    counts = {"ready": epoch + 1, "started": epoch + 1, "processed": epoch, "completed": epoch}
    for scope in ("total", "current"):
        checkpoint["loops"]["fit_loop"]["epoch_progress"][scope] |= counts


def optimizer_steps(checkpoint: Plain) -> int:
    """Returns the steps that Lightning resumes from, which a damaged file may contradict."""
    progress = checkpoint["loops"]["fit_loop"][OPTIMIZER_PROGRESS]["optimizer"]
    steps: int = progress["step"]["total"]["completed"]
    return steps


def end_training_at(trainer: L.Trainer, step: int) -> None:
    """Ends training at ``step``, whatever the minimum; ``Trainer.should_stop`` alone would train
    another step."""
    trainer.fit_loop.epoch_loop.max_steps = step


def set_logged_step(trainer: L.Trainer, step: int) -> None:
    """Sets the step that loggers show: on resuming, Lightning may have added 1 to it."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def batch_index(trainer: L.Trainer) -> int:
    """Returns the index of the latest training batch in its epoch, which validation hooks lack."""
    return trainer.fit_loop.batch_idx


def kill_other_ranks(trainer: L.Trainer) -> None:
    """Kills the processes that this one has started: they would wait for it and hold their GPUs."""
    launcher = trainer.strategy.launcher
    if launcher is not None:
        launcher.kill(signal.SIGKILL)


def clip_shards(trainer: L.Trainer, limit: float) -> torch.Tensor:
    """Clips gradients of which each rank holds a part (FSDP); returns the norm of the whole."""
    model = cast(FullyShardedDataParallel, trainer.strategy.model)
    return model.clip_grad_norm_(limit)


def loss_scaler(trainer: L.Trainer) -> torch.amp.GradScaler | None:
    """Returns the scaler of float16 losses; None in other precisions."""
    scaler: torch.amp.GradScaler | None = getattr(trainer.precision_plugin, "scaler", None)
    return scaler
