"""Lightning's Trainer, made from ``conf/trainer`` with its unset parts filled in."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, WeightAveraging

from dpt.engine.checkpoints import AtomicCheckpointIO
from dpt.engine.configure import check_arguments, convert, make
from dpt.engine.loggers import never_fatal

log = logging.getLogger("dpt")

VALIDATIONS = 10
"""How often a run validates where the trainer's own settings do not say."""


def pick_precision(accelerator: str) -> str:
    """``bf16-mixed`` where the device multiplies in bf16 by itself, else ``32-true``."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        known = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")  # of no public name yet
        native = any(getattr(torch.cpu, name, lambda: False)() for name in known)
    else:
        native = False
    return "bf16-mixed" if native else "32-true"


def trainer_arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """The checked arguments; the progress bar is for terminals alone unless asked for."""
    if node.get("precision") == "auto":
        node = {**node, "precision": pick_precision(str(node.get("accelerator")))}
        log.info("trainer.precision=auto: %s on this machine", node["precision"])
    if node.get("precision") in ("bf16-true", "16-true"):  # Lightning casts whole batches
        raise ValueError(
            f"trainer.precision={node['precision']} would round depth labels too, to three digits: "
            "take bf16-mixed or 16-mixed, which round neither labels nor weights"
        )
    arguments = check_arguments(L.Trainer, node, "trainer")
    if arguments["enable_progress_bar"] is None:
        arguments["enable_progress_bar"] = sys.stdout.isatty()
    return arguments


def make_trainer(
    cfg: Mapping[str, Any],
    batches_per_epoch: int,
    first: Sequence[Callback] = (),
    last: Sequence[Callback] = (),
) -> L.Trainer:
    """Lightning's trainer, its unset length and validation interval filled in.

    Args:
        cfg: the run as plain data.
        batches_per_epoch: of all ranks.
        first, last: callbacks that come before and after the configured ones.
    """
    node = trainer_arguments(cfg["trainer"])
    if node["max_steps"] == -1 and node["max_epochs"] is None and node["max_time"] is None:
        node["max_steps"] = convert(cfg["steps"], int, "steps")
    if node["max_epochs"] is None:
        node["max_epochs"] = -1  # no limit: steps or time end the run
    if node["max_steps"] == -1 and node["max_epochs"] == -1:
        raise ValueError(
            "trainer.max_time alone does not tell the schedule how long the run is: also give "
            "trainer.max_steps or trainer.max_epochs, where the learning rate reaches its end"
        )
    if isinstance(node["val_check_interval"], float) and node["check_val_every_n_epoch"] is None:
        node["check_val_every_n_epoch"] = 1  # a share of each epoch
    is_unset = node["val_check_interval"] is None and node["check_val_every_n_epoch"] is None
    if is_unset:
        node["val_check_interval"] = 1  # until the number of ranks is known
    loggers = [never_fatal(make(c, f"logger.{n}")) for n, c in cfg["logger"].items() if c]
    wanted = {name: c for name, c in cfg["callbacks"].items() if c}
    if not loggers:
        wanted.pop("learning_rate", None)  # it has nowhere to write
    callbacks = [make(c, f"callbacks.{name}") for name, c in wanted.items()]
    sharded = "fsdp" in str(node["strategy"])
    if sharded and any(isinstance(c, WeightAveraging) for c in callbacks):
        raise ValueError("callbacks.ema needs whole weights and trainer.strategy=fsdp shards them")
    node["plugins"] = [*(node["plugins"] or []), AtomicCheckpointIO()]
    trainer = build_trainer(**node, logger=loggers or False, callbacks=[*first, *callbacks, *last])
    if is_unset:
        timed = bool(node["max_time"])
        trainer.val_check_interval = validation_interval(trainer, batches_per_epoch, timed=timed)
    return trainer


def validation_interval(trainer: L.Trainer, batches_per_epoch: int, *, timed: bool) -> int:
    """Batches of a rank between validations: ``VALIDATIONS`` a run, each behind a whole step.

    Args:
        trainer: knows ``max_steps``, ``max_epochs`` and the number of ranks.
        batches_per_epoch: of all ranks.
        timed: the run may also end by ``max_time``: every 100 batches, if that is sooner.
    """
    accumulate = trainer.accumulate_grad_batches
    limits: list[float] = [VALIDATIONS * 100] if timed else []
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps * accumulate)
    if trainer.max_epochs is not None and trainer.max_epochs != -1:
        limits.append(trainer.max_epochs * batches_per_epoch / trainer.world_size)
    batches = max(1, math.ceil(min(limits) / VALIDATIONS))
    return math.ceil(batches / accumulate) * accumulate


def require_images(trainer: L.Trainer, count: int) -> None:
    """A process without an image would leave the others waiting for it."""
    if count < trainer.world_size:
        raise ValueError(
            f"{count} images to validate on are too few for {trainer.world_size} processes: each "
            f"needs one; lower trainer.devices"
        )


def require_batches(trainer: L.Trainer, count: int, batch_size: int) -> None:
    """Of several processes, each drops a batch that is not whole, and would have no other."""
    ranks = trainer.world_size
    if ranks > 1 and math.ceil(count / ranks) < batch_size:
        raise ValueError(
            f"{count} images to train on are too few for {ranks} processes: each needs a batch of "
            f"{batch_size}; lower data.batch_size or trainer.devices"
        )


def build_trainer(**arguments: Any) -> L.Trainer:
    """Lightning's trainer; what it refuses is a mistake of the user's."""
    try:
        return L.Trainer(**arguments)
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise ValueError(f"trainer: {error}") from error
