"""Lightning's Trainer from its part of the configuration."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException

from dpt.config.objects import check_arguments

log = logging.getLogger("dpt")


def pick_precision(accelerator: str) -> str:
    """``bf16-mixed`` if the device has bf16 matrix instructions, else ``32-true``."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    elif accelerator in ("auto", "cpu") and not torch.backends.mps.is_available():
        found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # since torch 2.10
        native = bool(found.get("amx_bf16") or found.get("avx512_bf16"))
    else:
        native = False
    return "bf16-mixed" if native else "32-true"


def trainer_arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    """The checked arguments of the Trainer; by default a progress bar only in a terminal."""
    if node.get("precision") == "auto":
        node = {**node, "precision": pick_precision(str(node.get("accelerator")))}
        log.info("trainer.precision=auto: %s on this machine", node["precision"])
    if node.get("precision") in ("bf16-true", "16-true"):  # Lightning casts whole batches
        raise ValueError(
            f"trainer.precision={node['precision']} would round depth labels to three digits: "
            f"use bf16-mixed or 16-mixed, which round neither labels nor weights"
        )
    arguments = check_arguments(L.Trainer, node, "trainer")
    if arguments["enable_progress_bar"] is None:
        arguments["enable_progress_bar"] = sys.stdout.isatty()
    return arguments


def build_trainer(**arguments: Any) -> L.Trainer:
    """Lightning's trainer; ``ValueError`` for arguments that it refuses."""
    try:
        return L.Trainer(**arguments)
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise ValueError(f"trainer: {error}") from error


def require_images(trainer: L.Trainer, count: int) -> None:
    """Every rank needs an image to validate on; otherwise the others would wait for it forever."""
    if count < trainer.world_size:
        raise ValueError(
            f"{count} images to validate on are too few for {trainer.world_size} processes: each "
            f"needs one; lower trainer.devices"
        )


def require_batches(trainer: L.Trainer, count: int, batch_size: int) -> None:
    """Every one of several ranks needs a whole batch to train on."""
    ranks = trainer.world_size
    if ranks > 1 and math.ceil(count / ranks) < batch_size:
        raise ValueError(
            f"{count} images to train on are too few for {ranks} processes: each needs a batch of "
            f"{batch_size}; lower data.batch_size or trainer.devices"
        )
