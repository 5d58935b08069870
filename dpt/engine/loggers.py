"""Loggers that need more than their own arguments."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("dpt")


def make_wandb(
    *,
    save_dir: str,
    project: str = "dpt",
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
) -> Any:
    """A W&B logger that needs no account: offline unless logged in or ``WANDB_MODE`` is set."""
    # Lightning passes an argument that W&B warns about before any setting of the run is read
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    mode = os.environ.get("WANDB_MODE")
    if mode is None:
        mode = "online" if wandb.login(prompt=False) else "offline"
        if mode == "offline":
            log.info(
                "W&B: not logged in, so this run is kept in %s; `wandb sync` uploads it", save_dir
            )
    return WandbLogger(
        save_dir=save_dir,
        project=project,
        name=name,
        group=group,
        tags=list(tags),
        mode=mode,
        settings=wandb.Settings(console="off", silent=True, init_timeout=60),
    )
