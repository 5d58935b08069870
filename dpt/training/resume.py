"""Going on exactly where a run stopped: which checkpoint, and what Lightning's lacks."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from dpt.config.compose import ENDED
from dpt.data import EpochSampler
from dpt.run_log import write_json
from dpt.training.checkpoints import read_checkpoint
from dpt.training.task import Task
from dpt.types import Batch

log = logging.getLogger("dpt")

KEY = "dpt_run"
GOES_ON = "goes on"
"""In metrics.json, in place of FINISHED."""


class RunState(Callback):
    """Keeps what a run is besides weights: the place in the epoch and every random state.

    Everything is saved as plain containers and tensors, for each rank, and put back at the first
    step after a resume: nothing that happens in between (building the model, validating) shows.

    Args:
        sampler: of the training loader; it is told how many samples of the epoch are used up.
        batch_size: of one rank.
    """

    def __init__(self, *, sampler: EpochSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.waiting: dict[str, Any] | None = None
        self.validated = False  # since the last step before the resume

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert isinstance(pl_module, Task)
        own = {"random": random_state(), "task": pl_module.run_state()}
        ranks: list[Any] = [own]
        if dist.is_initialized():
            ranks = [None] * trainer.world_size
            dist.all_gather_object(ranks, own)
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        between_steps = progress["current"]["ready"] > progress["current"]["processed"]
        if between_steps:  # the batch to come is fetched, and will be again
            for scope in ("total", "current"):
                progress[scope]["ready"] = progress[scope]["processed"]
            progress["is_last_batch"] = False
        batches = progress["current"]["processed"]
        epoch_is_done = batches >= trainer.num_training_batches
        checkpoint[KEY] = {
            "epoch": trainer.current_epoch + epoch_is_done,
            "batches": 0 if epoch_is_done else batches,  # of this epoch, on each rank
            "batch_size": self.batch_size,
            "world_size": trainer.world_size,
            "samples": self.sampler.length,
            # a resumed run begins behind it
            "validation_is_due": not between_steps and validation_is_due(trainer),
            "ranks": ranks,
        }

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        state = checkpoint.get(KEY)
        if state is None:
            return
        for name, now in (("world_size", trainer.world_size), ("batch_size", self.batch_size)):
            if state[name] != now:
                raise ValueError(
                    f"resume: the run had {name} {state[name]} and now has {now}; inside an epoch "
                    f"it continues with the same alone (data.batch_size, trainer.devices)"
                )
        samples = state.get("samples", self.sampler.length)
        if samples != self.sampler.length and trainer.is_global_zero:
            log.warning(
                "resume: the run had %d training samples and now has %d: the rest of this epoch is "
                "in another order, some samples may come twice and some not", samples,
                self.sampler.length,
            )  # fmt: skip
        # Lightning makes the loader's iterator before it tells the sampler the epoch
        self.sampler.set_epoch(state["epoch"])
        self.sampler.start = state["batches"] * self.batch_size
        self.waiting = state["ranks"][trainer.global_rank]
        self.validated = state.get("validation_is_due", False)
        assert isinstance(pl_module, Task)
        pl_module.set_run_state(self.waiting["task"])  # a finished run takes no further step

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        if self.waiting is None:
            return
        assert isinstance(pl_module, Task)
        set_random_state(self.waiting["random"])
        pl_module.set_run_state(self.waiting["task"])
        if self.validated:
            pl_module.recent_losses.clear()
        # the step that loggers are told; Lightning restores it one off, see its comment there
        trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step
        self.waiting = None


def validation_is_due(trainer: L.Trainer) -> bool:
    """Whether the trainer's rhythm has it validate after this batch, stop or no stop."""
    loop = trainer.fit_loop
    stop, trainer.should_stop = trainer.should_stop, False
    due = loop._data_fetcher is not None and loop.epoch_loop._should_check_val_fx(
        loop._data_fetcher
    )
    trainer.should_stop = stop
    return due


def random_state() -> dict[str, Any]:
    """The state of every generator that is not a function of (seed, epoch, index)."""
    kind, keys, *rest = np.random.get_state()
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []  # this rank's own
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Puts back what :func:`random_state` gave."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def checkpoint_of(folder: Path) -> Path | None:
    """The checkpoint that a run continues from, None if it has none yet.

    ``last.ckpt``; ``best.ckpt`` where that cannot be read. What SLURM's requeueing left, if it is
    newer, becomes ``last.ckpt`` first. Half-written files are removed.

    Raises:
        ValueError: there are checkpoints, but none can be read.
    """
    checkpoints = folder / "checkpoints"
    for leftover in (*checkpoints.glob(".*.tmp"), *folder.glob(".hpc_ckpt_*.tmp")):
        leftover.unlink(missing_ok=True)
    last = checkpoints / "last.ckpt"
    _adopt_requeued(folder, last)
    broken: list[Path] = []
    for path in (last, checkpoints / "best.ckpt"):
        if not path.is_file():
            continue
        if step_of(path) is not None:
            if broken:
                log.warning("%s cannot be read: continuing from %s", broken[0], path)
            return path
        broken.append(path)
    if broken:
        raise ValueError(f"{broken[0]}: damaged, and there is no other checkpoint: start anew")
    return None


def _adopt_requeued(folder: Path, last: Path) -> None:
    """Lightning's SLURM support saves ``hpc_ckpt_N.ckpt`` beside the others."""
    found = sorted(folder.glob("hpc_ckpt_*.ckpt"), key=lambda p: step_of(p) or -1)
    if found and (step_of(found[-1]) or -1) >= (step_of(last) or -1):
        last.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another process of the run has done it
            os.replace(found[-1], last)
        found.pop()
    for older in found:
        older.unlink(missing_ok=True)


def step_of(path: Path) -> int | None:
    """The step a checkpoint was written at, None if it cannot be read."""
    values = read_checkpoint(path)
    return None if values is None else int(values["global_step"])


def without_weight_files(model: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """``model`` of a run's configuration, for a run that goes on from its own checkpoint.

    Where its first weights came from is then of no interest, and may be gone. A whole model that it
    went on from said how its parts are made; now the checkpoint does.
    """
    encoder = {k: v for k, v in model["encoder"].items() if k not in ("weights", "pretrained")}
    weights = None if model.get("weights") is None else str(checkpoint)
    return {**model, "encoder": encoder, "weights": weights}


def mark_going_on(folder: Path) -> None:
    """Takes back what metrics.json says of the end of a run that is continued."""
    path = folder / "metrics.json"
    with suppress(FileNotFoundError, json.JSONDecodeError):
        write_json(path, {**json.loads(path.read_text()), ENDED: GOES_ON})
