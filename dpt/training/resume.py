"""Resumes a run exactly where it stopped, from its checkpoint, also inside an epoch.

The configuration of a resumed run is that of :mod:`dpt.config.resumed_config`.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import lightning as L
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.strategies import FSDPStrategy
from pydantic import Field

from dpt.config.run_folder import MISTAKES, remove_run, save_config
from dpt.config.schema import RunConfig
from dpt.data import EpochSampler
from dpt.files import reason
from dpt.process import lack_of_memory, log
from dpt.training import lightning_internals
from dpt.training.optim import StepSchedule
from dpt.training.task import OR_NEW_RUN, Task
from dpt.validation import Plain, PlainMapping, validate
from dpt.weights.files import check_archive, load_pickles

KEY = "dpt_run"
Number = Annotated[int, Field(strict=True, ge=0, le=10**12)]  # of a position in a run


@dataclass(eq=False, repr=False)
class RunState(L.Callback):
    """Saves and restores what Lightning does not: the position in the epoch and random states, the
    latter just before the first resumed step.

    Settings of the optimiser, such as the rate, are those configured now, not the checkpoint's.
    The rate is a function of the step, see :class:`dpt.training.optim.StepSchedule`.

    Args:
        config: saved when training starts, after all checks.
        sampler: of the training loader.
        checkpoint: what the run continues from, if anything.
    """

    config: RunConfig
    sampler: EpochSampler
    checkpoint: Path | None
    started: bool = False
    random_state: Plain | None = None  # of a resumed run, until its first step

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: object, checkpoint: Plain) -> None:
        ranks: list[Plain | None] = [random_state()] * trainer.world_size
        if torch.distributed.is_initialized():
            torch.distributed.all_gather_object(ranks, random_state())
        is_validating = trainer.validating
        batches = lightning_internals.discard_fetched_batch(checkpoint, is_validating=is_validating)
        if not trainer.state.finished:
            lightning_internals.count_epoch_as_started(checkpoint, trainer.current_epoch)
        epoch_is_done = batches >= trainer.num_training_batches
        checkpoint[KEY] = {
            "epoch": trainer.current_epoch + epoch_is_done,
            "batches": 0 if epoch_is_done else batches,  # of this epoch, on each rank
            "batch_size": self.config.data.loader.batch_size,
            "world_size": trainer.world_size,
            "samples": self.sampler.length,
            "ranks": ranks,
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: object, checkpoint: Plain) -> None:
        """Sets the position to continue from; ValueError if the checkpoint does not fit the run."""
        state, step, length = checkpoint[KEY], checkpoint["global_step"], self.sampler.length
        batch_size = self.config.data.loader.batch_size  # of one rank
        for name, now in (("world_size", trainer.world_size), ("batch_size", batch_size)):
            if state[name] != now:
                fault = f"the run had {name} {state[name]} and now has {now}"
                raise ValueError(f"resume: {fault}: restore it, {OR_NEW_RUN}")
        if state["samples"] != length:
            text = "resume: the run had %d training samples and now has %d: this epoch is reordered"
            log.warning(text, state["samples"], length)
        if self.config.trainer.settings.get("overfit_batches"):  # Lightning replaces the sampler
            raise ValueError("resume: a run with trainer.overfit_batches must be started again")
        if not isinstance(trainer.strategy, FSDPStrategy):
            (saved,) = checkpoint["optimizer_states"]
            require_same_parameters(saved, cast(Task, pl_module).new_optimizer())
        log.info("resume: from %s, step %d", self.checkpoint, step)
        if 0 <= trainer.max_steps <= step or 0 <= (trainer.max_epochs or -1) <= state["epoch"]:
            lightning_internals.end_training_at(trainer, step)
            log.info("resume: this run is finished; trainer.max_steps or max_epochs extends it")
        # set here, because Lightning creates the loader's iterator before it sets the epoch
        self.sampler.set_epoch(state["epoch"])
        self.sampler.start = state["batches"] * batch_size
        self.random_state = state["ranks"][trainer.global_rank]
        set_random_state(self.random_state)  # raises an error here if it is damaged

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        self.started = True
        if trainer.is_global_zero:
            if self.config.overwrite and self.random_state is None:
                remove_run(self.config.folder)
            save_config(self.config.values, self.config.folder)
        if self.random_state is not None:
            self._set_rates(trainer, cast(Task, pl_module))

    def _set_rates(self, trainer: L.Trainer, task: Task) -> None:
        """Sets the optimiser's settings to those configured now, at the step of the checkpoint.

        A schedule that is no function of the step continues from its own state, with the settings
        of the checkpoint.
        """
        (optimizer,), (config,) = trainer.optimizers, trainer.lr_scheduler_configs
        if not isinstance(config.scheduler, StepSchedule):
            log.info("resume: the schedule and the optimiser's settings are the checkpoint's")
            return
        for group, settings in zip(optimizer.param_groups, task.optimizer_settings, strict=True):
            group.update(settings)
        config.scheduler.set_step(trainer.global_step)

    def on_train_batch_start(self, trainer: L.Trainer, *_: object) -> None:
        if self.random_state is not None:
            set_random_state(self.random_state)
            self.random_state = None
            lightning_internals.set_logged_step(trainer, trainer.global_step)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Turns what any library raises about the content of the checkpoint, so before the first
        step, into a ValueError that names the file."""
        try:
            yield
        except Exception as error:
            is_clear = isinstance(error, (*MISTAKES, MisconfigurationException))
            if self.checkpoint is None or self.started or is_clear or lack_of_memory(error):
                raise
            fault = f"{self.checkpoint}: cannot be resumed from ({reason(error)})"
            raise ValueError(f"{fault}: restore model, task and callbacks, {OR_NEW_RUN}") from error


def require_same_parameters(saved: PlainMapping, optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError if a checkpoint's optimiser state is of other parameters or another kind.

    torch would read past the end of tensors that are too small. A user's own optimiser has no
    kinds, and may keep tensors of other shapes.
    """
    groups = optimizer.param_groups
    layout, saved_layout = (
        [(group.get("name"), group.get("kind"), len(group["params"])) for group in param_groups]
        for param_groups in (groups, saved["param_groups"])
    )
    shapes = [parameter.shape for group in groups for parameter in group["params"]]
    has_other_shapes = "kind" in groups[0] and any(
        isinstance(value, torch.Tensor) and value.ndim and value.shape != shapes[index]
        for index, moments in saved["state"].items()
        for value in moments.values()
    )
    if layout != saved_layout or has_other_shapes:
        fault = "other parameters are trained, in other groups or by another optimiser"
        raise ValueError(f"resume: {fault}: restore optim and callbacks, {OR_NEW_RUN}")


def random_state() -> Plain:
    """Returns the states of the global generators and of this rank's GPU, as plain data; samples do
    not depend on them."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "numpy": [str(kind), np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: PlainMapping) -> None:
    """Restores what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(tuple(state["numpy"]))
    random.setstate(state["python"])


def checkpoint_of(folder: Path, resume: str = "auto") -> Path | None:
    """Returns the checkpoint to continue from: ``last.ckpt``, or ``best.ckpt`` if that is damaged;
    None if the run in ``folder`` has none yet.

    Args:
        resume: as on the command line; a file with the suffix ``.ckpt`` is the checkpoint itself.
    """
    paths = [folder / "checkpoints" / name for name in ("last.ckpt", "best.ckpt")]
    candidates = [Path(resume)] if resume.endswith(".ckpt") else paths
    existing = [path for path in candidates if path.is_file()]
    for path in existing:
        fault = fault_of(path)
        if fault is None:
            return path
        log.warning("%s is damaged (%s)", path, fault)
    if existing:
        raise ValueError(f"{existing[0]} is damaged, and there is no other checkpoint: start anew")
    log.warning("resume: %s holds no checkpoint: starting from the first step", folder)
    return None


def fault_of(path: Path) -> str | None:
    """Returns what is missing or damaged in a checkpoint, by its checksums too; None if it is
    complete."""
    try:
        check_archive(path)
        values = load_pickles(path, mmap=True)
        numbers = {**values[KEY], "step": values["global_step"]}
        del numbers["ranks"]  # random states
        validate(dict[str, Number], numbers, KEY)
        if lightning_internals.optimizer_steps(values) != values["global_step"]:
            return "its counts of steps differ"
    except Exception as error:  # damaged archives raise many kinds
        return reason(error)
    return None


def without_weight_files(model: PlainMapping, checkpoint: Path) -> Plain:
    """Returns a run's ``model`` configuration without the weight files that the run started from.

    They are not needed to resume and may be gone. If the run started from a whole model's file, the
    checkpoint replaces it, since that file defined the architecture.
    """
    weights = None if model.get("weights") is None else str(checkpoint)
    return {**model, "encoder": {**model["encoder"], "weights": None}, "weights": weights}
