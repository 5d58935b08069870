"""Lightning's Trainer from its part of the configuration."""

import inspect
import logging
import math
import sys
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.strategies import FSDPStrategy

from dpt.functional import EMULATED, has_bf16
from dpt.validation import Plain, PlainMapping

log = logging.getLogger("dpt")


def pick_precision(accelerator: str) -> str:
    """Returns ``bf16-mixed`` if the device has bf16 matrix instructions, otherwise ``32-true``."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        native = has_bf16("cuda")
    elif accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        native = has_bf16("cpu")
    else:
        native = False
    return "bf16-mixed" if native else "32-true"


def with_precision(settings: PlainMapping) -> Plain:
    """Returns the settings of the Trainer with this machine's precision in place of ``auto``.

    A run stores it, so that it is resumed in the same precision on another machine.
    """
    if settings.get("precision") != "auto":
        return {**settings}
    best = pick_precision(str(settings.get("accelerator")))
    log.info("trainer.precision=auto: %s on this machine", best)
    return {**settings, "precision": best}


def trainer_arguments(settings: PlainMapping) -> Plain:
    """Returns the arguments of the Trainer, with a progress bar only in a terminal."""
    settings = with_precision(settings)
    is_emulated = pick_precision(str(settings.get("accelerator"))) != "bf16-mixed"
    is_emulated &= not torch.backends.mps.is_available()
    if settings.get("precision") == "bf16-mixed" and is_emulated:
        log.warning("trainer.precision=bf16-mixed: %s", EMULATED)
    strategy = str(settings.get("strategy"))
    if strategy.endswith(("_spawn", "_fork", "_notebook")):  # loggers cannot be sent to processes
        raise ValueError(f"trainer.strategy={strategy}: use {strategy.partition('_')[0]}")
    defaults = {name: p.default for name, p in inspect.signature(L.Trainer).parameters.items()}
    arguments = {**defaults, **settings}
    del arguments["logger"], arguments["callbacks"]
    if arguments["enable_progress_bar"] is None:
        arguments["enable_progress_bar"] = sys.stdout.isatty()
    return arguments


def build_trainer(**arguments: Any) -> L.Trainer:
    """Makes Lightning's trainer; ``ValueError`` for arguments that it refuses."""
    try:
        left = Timer(arguments["max_time"]).time_remaining()
        if left is not None and left <= 0:
            raise ValueError("max_time must be above 0")
        return L.Trainer(**arguments)
    except (MisconfigurationException, ImportError, OverflowError, TypeError, ValueError) as error:
        remedy = " Set trainer.accelerator=auto" if "backend found" in str(error) else ""
        raise ValueError(f"trainer: {error}{remedy}") from error


def takes_bf16_weights(trainer: L.Trainer) -> bool:
    """Whether images are scored by a copy of the model with bf16 weights, which is faster than
    autocast: with ``bf16-mixed`` on devices that have bf16 instructions, unless FSDP shards the
    weights."""
    is_mixed = trainer.precision == "bf16-mixed" and not isinstance(trainer.strategy, FSDPStrategy)
    return is_mixed and has_bf16(trainer.strategy.root_device.type)


def require_images(trainer: L.Trainer, count: int) -> None:
    """Raises ValueError if a rank has no image to validate on: the others would wait for it."""
    if count < trainer.world_size:
        raise ValueError(
            f"{count} images to validate on are too few for {trainer.world_size} processes: each "
            f"needs one; lower trainer.devices"
        )


def require_batches(trainer: L.Trainer, count: int, batch_size: int) -> None:
    """Raises ValueError if one of several ranks has no whole batch to train on."""
    ranks = trainer.world_size
    if ranks > 1 and math.ceil(count / ranks) < batch_size:
        raise ValueError(
            f"{count} images to train on are too few for {ranks} processes: each needs a batch of "
            f"{batch_size}; lower data.batch_size or trainer.devices"
        )
