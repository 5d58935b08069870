"""Resuming a run exactly where it stopped, also inside an epoch."""

import logging
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import FSDPStrategy
from pydantic import Field
from torch import Tensor

from dpt.config.compose import MISTAKES, remove_run, save_config
from dpt.data import EpochSampler
from dpt.files import reason
from dpt.process import lack_of_memory
from dpt.training.checkpoints import read_checkpoint
from dpt.training.task import OR_NEW_RUN
from dpt.types import Batch
from dpt.validation import validate
from dpt.weights.files import check_archive

log = logging.getLogger("dpt")

KEY = "dpt_run"
OPTIMIZERS = "epoch_loop.automatic_optimization.optim_progress"  # Lightning's counts
Number = Annotated[int, Field(strict=True, ge=0, le=10**12)]  # of a place in a run


class RunState(Callback):
    """Saves and restores what Lightning does not: the place in the epoch and random states, the
    latter just before the first resumed step.

    Settings of the optimiser, such as the rate, are those configured now, not the checkpoint's.

    Args:
        cfg: the run's configuration; saved when training starts, after all checks.
        sampler: of the training loader.
        batch_size: of one rank.
    """

    def __init__(self, *, cfg: Mapping[str, Any], sampler: EpochSampler, batch_size: int) -> None:
        self.cfg = cfg
        self.sampler = sampler
        self.batch_size = batch_size
        self.resumed = False
        self.started = False
        self.random_state: dict[str, Any] | None = None

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        ranks: list[Any] = [random_state()]
        if dist.is_initialized():
            ranks = [None] * trainer.world_size
            dist.all_gather_object(ranks, random_state())
        # the format of Lightning's progress is private
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        current = progress["current"]
        if current["ready"] > current["processed"]:
            # the next batch is fetched but not processed: the resumed run fetches it again
            for scope in ("total", "current"):
                progress[scope]["ready"] = progress[scope]["processed"]
            progress["is_last_batch"] = False
        if not trainer.state.finished:
            # count this epoch as started: Lightning may not, after resuming at an epoch's end
            done = trainer.current_epoch
            counts = {"ready": done + 1, "started": done + 1, "processed": done, "completed": done}
            for scope in ("total", "current"):
                checkpoint["loops"]["fit_loop"]["epoch_progress"][scope] |= counts
        batches = current["processed"]
        epoch_is_done = batches >= trainer.num_training_batches
        checkpoint[KEY] = {
            "epoch": trainer.current_epoch + epoch_is_done,
            "batches": 0 if epoch_is_done else batches,  # of this epoch, on each rank
            "batch_size": self.batch_size,
            "world_size": trainer.world_size,
            "samples": self.sampler.length,
            "ranks": ranks,
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Sets the place to continue from; ValueError if the checkpoint does not fit the run."""
        state = checkpoint[KEY]
        if trainer.overfit_batches:  # Lightning replaces the sampler
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
                state["samples"], self.sampler.length,
            )  # fmt: skip
        if not isinstance(trainer.strategy, FSDPStrategy):
            saved = checkpoint["optimizer_states"][0]["param_groups"]
            new = pl_module.optimizer_factory(pl_module.model).param_groups
            groups = [
                [(g.get("name"), g.get("kind"), len(g["params"])) for g in each]
                for each in (saved, new)
            ]
            moments = checkpoint["optimizer_states"][0]["state"]  # by parameter index
            shapes = dict(enumerate(p.shape for g in new for p in g["params"]))
            # a user's own optimiser has no kinds, and may keep tensors of other shapes
            wrong = "kind" in new[0] and any(
                v.shape != shapes.get(place)
                for place, values in moments.items()
                for v in values.values()
                if isinstance(v, Tensor) and v.ndim  # too small, torch would read past its end
            )
            if groups[0] != groups[1] or wrong:
                raise ValueError(
                    "resume: other parameters are trained, in other groups or by another "
                    f"optimiser: restore optim and callbacks.freeze.parts, {OR_NEW_RUN}"
                )
        step, last_epoch = checkpoint["global_step"], trainer.max_epochs or -1
        optimizers = checkpoint["loops"]["fit_loop"][OPTIMIZERS]["optimizer"]
        if (count := optimizers["step"]["total"]["completed"]) != step:
            raise ValueError(  # the run would be over at once, or never
                f"resume: the .ckpt is of step {step}, but counts {count} steps of the optimiser: "
                f"copy it again, {OR_NEW_RUN}"
            )
        if 0 <= trainer.max_steps <= step or 0 <= last_epoch <= state["epoch"]:
            trainer.fit_loop.epoch_loop.max_steps = step  # ends training at once
            log.info("resume: this run is finished; trainer.max_steps or max_epochs extends it")
        checkpoint["lr_schedulers"] = []  # see on_train_start
        # set here, because Lightning creates the loader's iterator before it sets the epoch
        self.sampler.set_epoch(state["epoch"])
        self.sampler.start = state["batches"] * self.batch_size
        self.random_state = state["ranks"][trainer.global_rank]
        self.resumed = True

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.started = True
        if trainer.is_global_zero:
            folder = Path(self.cfg["run_dir"])
            if self.cfg["overwrite"] and not self.resumed:
                remove_run(folder)
            save_config(self.cfg, folder)
        if not self.resumed:
            return
        (optimizer,), (config,) = trainer.optimizers, trainer.lr_scheduler_configs
        for group, settings in zip(
            optimizer.param_groups, pl_module.optimizer_settings, strict=True
        ):
            parameters = group["params"]
            group.clear()  # also drops what the first schedule added
            group.update(settings, params=parameters)
        config.scheduler = schedule = pl_module.make_schedule(optimizer)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*step.*before.*optimizer.step.*")
            for _ in range(trainer.global_step):
                schedule.step()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.random_state is not None:
            set_random_state(self.random_state)
            self.random_state = None
            # loggers use this as their step; on resuming, Lightning may have added 1
            trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step


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


def random_state() -> dict[str, Any]:
    """States of the global generators, as plain data; samples do not depend on them."""
    kind, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None  # of this rank's GPU
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": [str(kind), np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restores what :func:`random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(tuple(state["numpy"]))
    random.setstate(state["python"])


def checkpoint_of(folder: Path, resume: str = "auto") -> Path | None:
    """The checkpoint to continue from: ``last.ckpt``, or ``best.ckpt`` if that is damaged; None if
    the run in ``folder`` has none yet.

    Args:
        resume: as on the command line; a file with the suffix ``.ckpt`` is the checkpoint itself.
    """
    paths = [folder / "checkpoints" / name for name in ("last.ckpt", "best.ckpt")]
    found = [p for p in ([Path(resume)] if resume.endswith(".ckpt") else paths) if p.is_file()]
    for path in found:
        if (fault := fault_of(path)) is None:
            return path
        log.warning("%s is damaged (%s)", path, fault)
    if found:
        raise ValueError(f"{found[0]} is damaged, and there is no other checkpoint: start anew")
    log.warning("resume: %s holds no checkpoint: starting from the first step", folder)
    return None


def fault_of(path: Path) -> str | None:
    """What is missing or damaged in a checkpoint, by its checksums too; None if it is complete."""
    before = random_state()
    try:
        check_archive(path)
        if (values := read_checkpoint(path)) is None:
            return "cannot be read"
        _ = values["state_dict"], values["skipped_steps"], int(values["global_step"])
        _ = values["optimizer_states"][0]["param_groups"]
        _ = values["loops"]["fit_loop"]["epoch_progress"]
        place = {name: value for name, value in values[KEY].items() if name != "ranks"}
        validate(dict[str, Number], place, KEY)
        first, *others = values[KEY]["ranks"]
        for state in (first, *others):
            set_random_state(state)
    except Exception as error:  # damaged archives and random states raise many kinds
        return reason(error)
    finally:
        set_random_state(before)
    return None


def step_of(path: Path) -> int | None:
    """The step of a checkpoint; None if it cannot be read."""
    values = read_checkpoint(path)
    return None if values is None else int(values["global_step"])


def without_weight_files(model: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """A run's ``model`` configuration without the weight files that the run started from.

    They are not needed to resume and may be gone. If the run started from a whole model's file, the
    checkpoint replaces it, since that file defined the architecture.
    """
    encoder = {k: v for k, v in model["encoder"].items() if k != "weights"}
    weights = None if model.get("weights") is None else str(checkpoint)
    return {**model, "encoder": encoder, "weights": weights}
