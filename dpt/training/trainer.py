"""Lightning's Trainer from ``conf/trainer``, with unset values filled in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint, WeightAveraging
from lightning.pytorch.loggers import Logger

from dpt.config.objects import make
from dpt.config.trainer import build_trainer, trainer_arguments
from dpt.training.checkpoints import AtomicCheckpointIO
from dpt.training.loggers import never_fatal

VALIDATIONS = 10  # per run, unless the trainer's settings say otherwise


def make_trainer(
    cfg: Mapping[str, Any],
    batches_per_epoch: int,
    first: Sequence[Callback] = (),
    last: Sequence[Callback] = (),
) -> L.Trainer:
    """Lightning's trainer with the configured loggers and callbacks.

    Args:
        cfg: the run's configuration, plain data.
        batches_per_epoch: of all ranks together.
        first, last: callbacks before and after the configured ones.
    """
    node = trainer_arguments(cfg["trainer"])
    if node["max_steps"] == -1 and node["max_epochs"] is None and node["max_time"] is None:
        node["max_steps"] = int(cfg["steps"])
    if node["max_epochs"] is None:
        node["max_epochs"] = -1  # no limit: steps or time end the run
    if node["max_steps"] == -1 and node["max_epochs"] == -1:
        raise ValueError(
            "trainer.max_time alone does not define the length of the schedule: also set "
            "trainer.max_steps or trainer.max_epochs, where the learning rate reaches its end"
        )
    if isinstance(node["val_check_interval"], float) and node["check_val_every_n_epoch"] is None:
        node["check_val_every_n_epoch"] = 1  # a share of each epoch
    is_unset = node["val_check_interval"] is None and node["check_val_every_n_epoch"] is None
    if is_unset:
        node["val_check_interval"] = 1  # replaced below, when the number of ranks is known
    loggers = [never_fatal(make(c, f"logger.{n}", Logger)) for n, c in cfg["logger"].items() if c]
    wanted = {name: c for name, c in cfg["callbacks"].items() if c}
    if not loggers:
        wanted.pop("learning_rate", None)  # Lightning's monitor needs a logger
    callbacks = [make(c, f"callbacks.{name}", Callback) for name, c in wanted.items()]
    if "fsdp" in str(node["strategy"]) and any(isinstance(c, WeightAveraging) for c in callbacks):
        raise ValueError("callbacks.ema needs whole weights, but trainer.strategy=fsdp shards them")
    if node["enable_checkpointing"] is None:  # Lightning would add a callback of its own
        node["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in callbacks)
    node["plugins"] = [*(node["plugins"] or []), AtomicCheckpointIO()]
    trainer = build_trainer(**node, logger=loggers or False, callbacks=[*first, *callbacks, *last])
    if is_unset:
        timed = bool(node["max_time"])
        trainer.val_check_interval = validation_interval(trainer, batches_per_epoch, timed=timed)
    return trainer


def validation_interval(trainer: L.Trainer, batches_per_epoch: int, *, timed: bool) -> int:
    """Batches of a rank between validations: ``VALIDATIONS`` per run, each after a whole step.

    If the run is ``timed``, it may end early, and validates every 100 batches at least.
    """
    accumulate = trainer.accumulate_grad_batches
    limits: list[float] = [VALIDATIONS * 100] if timed else []
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps * accumulate)
    if trainer.max_epochs is not None and trainer.max_epochs != -1:
        share, batches = trainer.limit_train_batches, batches_per_epoch / trainer.world_size
        batches = min(share, batches) if isinstance(share, int) else share * batches
        limits.append(trainer.max_epochs * batches)
    interval = max(1, math.ceil(min(limits) / VALIDATIONS))
    return math.ceil(interval / accumulate) * accumulate
