"""Resumes a run exactly where it stopped, from its checkpoint, also inside an epoch.

The configuration of a resumed run is that of :mod:`dpt.config.resumed_config`.
"""

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from dpt.config.run_folder import MISTAKES, remove_run, save_config
from dpt.data import EpochSampler
from dpt.files import reason
from dpt.process import lack_of_memory
from dpt.training.checkpoints import read_checkpoint
from dpt.training.lightning_internals import (
    count_epoch_as_started,
    discard_fetched_batch,
    end_training_at,
    optimizer_steps,
    overfits_batches,
    set_logged_step,
)
from dpt.training.optim import StepSchedule
from dpt.training.task import OR_NEW_RUN, Task
from dpt.types.samples import Batch
from dpt.validation import Plain, PlainMapping, validate
from dpt.weights.files import check_archive

log = logging.getLogger("dpt")

KEY = "dpt_run"
Number = Annotated[int, Field(strict=True, ge=0, le=10**12)]  # of a position in a run


class RunState(Callback):
    """Saves and restores what Lightning does not: the position in the epoch and random states, the
    latter just before the first resumed step.

    Settings of the optimiser, such as the rate, are those configured now, not the checkpoint's.
    The rate is a function of the step, see :class:`dpt.training.optim.StepSchedule`.

    Args:
        cfg: the run's configuration; saved when training starts, after all checks.
        sampler: of the training loader.
        batch_size: of one rank.
    """

    def __init__(self, *, cfg: PlainMapping, sampler: EpochSampler, batch_size: int) -> None:
        self.cfg = cfg
        self.sampler = sampler
        self.batch_size = batch_size
        self.resumed = False
        self.started = False
        self.random_state: Plain | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: object, checkpoint: Plain) -> None:
        ranks: list[Plain | None] = [random_state()] * trainer.world_size
        if dist.is_initialized():
            dist.all_gather_object(ranks, random_state())
        batches = discard_fetched_batch(checkpoint)
        if not trainer.state.finished:
            count_epoch_as_started(checkpoint, trainer.current_epoch)
        epoch_is_done = batches >= trainer.num_training_batches
        checkpoint[KEY] = {
            "epoch": trainer.current_epoch + epoch_is_done,
            "batches": 0 if epoch_is_done else batches,  # of this epoch, on each rank
            "batch_size": self.batch_size,
            "world_size": trainer.world_size,
            "samples": self.sampler.length,
            "ranks": ranks,
        }

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: object, checkpoint: Plain) -> None:
        """Sets the position to continue from; ValueError if the checkpoint does not fit the run."""
        state = checkpoint[KEY]
        self._require_same_batches(trainer, state)
        if not isinstance(trainer.strategy, FSDPStrategy):
            (saved,) = checkpoint["optimizer_states"]
            require_same_parameters(saved, cast(Task, pl_module).new_optimizer())
        step, last_epoch = checkpoint["global_step"], trainer.max_epochs or -1
        count = optimizer_steps(checkpoint)
        if count != step:
            raise ValueError(  # the run would be over at once, or never
                f"resume: the .ckpt is of step {step}, but counts {count} steps of the optimiser: "
                f"copy it again, {OR_NEW_RUN}"
            )
        if 0 <= trainer.max_steps <= step or 0 <= last_epoch <= state["epoch"]:
            end_training_at(trainer, step)
            log.info("resume: this run is finished; trainer.max_steps or max_epochs extends it")
        # set here, because Lightning creates the loader's iterator before it sets the epoch
        self.sampler.set_epoch(state["epoch"])
        self.sampler.start = state["batches"] * self.batch_size
        self.random_state = state["ranks"][trainer.global_rank]
        self.resumed = True

    def _require_same_batches(self, trainer: L.Trainer, state: PlainMapping) -> None:
        """Raises ValueError if the epoch cannot be continued with the batches configured now."""
        if overfits_batches(trainer):  # Lightning replaces the sampler
            raise ValueError("resume: a run with trainer.overfit_batches must be started again")
        for name, now in (("world_size", trainer.world_size), ("batch_size", self.batch_size)):
            if state[name] != now:
                raise ValueError(
                    f"resume: the run had {name} {state[name]} and now has {now}; restore "
                    f"data.batch_size and trainer.devices, {OR_NEW_RUN}"
                )
        if state["samples"] != self.sampler.length and trainer.is_global_zero:
            log.warning(
                "resume: the run had %d training samples and now has %d: the rest of this epoch is "
                "in another order, some samples may occur twice and some not at all",
                state["samples"],
                self.sampler.length,
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        self.started = True
        if trainer.is_global_zero:
            folder = Path(self.cfg["run_dir"])
            if self.cfg["overwrite"] and not self.resumed:
                remove_run(folder)
            save_config(self.cfg, folder)
        if self.resumed:
            self._set_rates(trainer, pl_module)

    def _set_rates(self, trainer: L.Trainer, pl_module: object) -> None:
        """Sets the optimiser's settings to those configured now, at the step of the checkpoint.

        A schedule that is no function of the step continues from its own state, with the settings
        of the checkpoint.
        """
        (optimizer,), (config,) = trainer.optimizers, trainer.lr_scheduler_configs
        if not isinstance(config.scheduler, StepSchedule):
            name = type(config.scheduler).__name__
            log.info("resume: %s and the optimiser's settings are the checkpoint's", name)
            return
        task = cast(Task, pl_module)
        for group, settings in zip(optimizer.param_groups, task.optimizer_settings, strict=True):
            parameters = group["params"]
            group.clear()
            group.update(settings, params=parameters)
        schedule = task.make_schedule(optimizer)
        assert isinstance(schedule, StepSchedule)
        config.scheduler = schedule.at(trainer.global_step)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: object, batch: Batch, batch_idx: int
    ) -> None:
        if self.random_state is not None:
            set_random_state(self.random_state)
            self.random_state = None
            set_logged_step(trainer, trainer.global_step)


def require_same_parameters(saved: PlainMapping, optimizer: Optimizer) -> None:
    """Raises ValueError if a checkpoint's optimiser state is of other parameters or another kind.

    torch would read past the end of tensors that are too small.
    """
    groups = [
        [(group.get("name"), group.get("kind"), len(group["params"])) for group in param_groups]
        for param_groups in (saved["param_groups"], optimizer.param_groups)
    ]
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    shapes = dict(enumerate(parameter.shape for parameter in parameters))
    # a user's own optimiser has no kinds, and may keep tensors of other shapes
    is_own = "kind" not in optimizer.param_groups[0]
    fits = is_own or all(
        value.shape == shapes.get(index)
        for index, moments in saved["state"].items()
        for value in moments.values()
        if isinstance(value, Tensor) and value.ndim
    )
    if groups[0] != groups[1] or not fits:
        raise ValueError(
            "resume: other parameters are trained, in other groups or by another optimiser: "
            f"restore optim, callbacks.freeze.parts and callbacks.lora.rank, {OR_NEW_RUN}"
        )


@contextmanager
def restoring(checkpoint: Path | None, state: RunState) -> Iterator[None]:
    """Turns what any library raises about the content of a checkpoint, so before the first step,
    into a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        is_clear = isinstance(error, (*MISTAKES, MisconfigurationException))
        if checkpoint is None or state.started or is_clear or lack_of_memory(error):
            raise
        fault = f"{checkpoint}: cannot be resumed from ({reason(error)})"
        raise ValueError(f"{fault}: copy it again, {OR_NEW_RUN}") from error


def random_state() -> Plain:
    """Returns the states of the global generators, as plain data; samples do not depend on them."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None  # of this rank's GPU
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
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
    before = random_state()
    try:
        check_archive(path)
        values = read_checkpoint(path)
        if values is None:
            return "cannot be read"
        validate(Number, values["global_step"], "global_step")
        position = {name: value for name, value in values[KEY].items() if name != "ranks"}
        validate(dict[str, Number], position, KEY)
        for state in values[KEY]["ranks"]:
            set_random_state(state)
    except Exception as error:  # damaged archives and random states raise many kinds
        return reason(error)
    finally:
        set_random_state(before)
    return None


def step_of(path: Path) -> int | None:
    """Returns the step of a checkpoint; None if it cannot be read."""
    values = read_checkpoint(path)
    return None if values is None else int(values["global_step"])


def without_weight_files(model: PlainMapping, checkpoint: Path) -> Plain:
    """Returns a run's ``model`` configuration without the weight files that the run started from.

    They are not needed to resume and may be gone. If the run started from a whole model's file, the
    checkpoint replaces it, since that file defined the architecture.
    """
    encoder = {k: v for k, v in model["encoder"].items() if k != "weights"}
    weights = None if model.get("weights") is None else str(checkpoint)
    return {**model, "encoder": encoder, "weights": weights}
