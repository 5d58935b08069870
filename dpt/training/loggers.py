"""Loggers: W&B without an account, and no failure of a logger ends a run."""

import functools
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from dpt.files import read_text, reason, write_bytes
from dpt.plugins import register
from dpt.process import log


@register("wandb")
def make_wandb(
    *,
    save_dir: str,
    project: str = "dpt",
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
) -> Logger:
    """Makes a W&B logger, offline unless logged in or ``WANDB_MODE`` is set, or if the service
    cannot be reached. ``save_dir`` keeps the run's id, so that a resumed run continues it."""
    # set before the import: Lightning passes an argument that W&B warns about
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    if getattr(rank_zero_only, "rank", 0) != 0:
        return WandbLogger(save_dir=save_dir, project=project)  # logs nothing on this rank
    options: dict[str, Any] = {"project": project, "name": name, "group": group, "tags": list(tags)}
    options |= {"dir": save_dir, "id": wandb_id(Path(save_dir)), "resume": "allow"}
    options["settings"] = wandb.Settings(console="off", silent=True, init_timeout=60)
    mode, cause = os.environ.get("WANDB_MODE"), "not logged in"
    try:
        wandb.setup()  # reads a stored key
        is_online = mode is not None or wandb.login(prompt=False)
        run = wandb.init(mode=cast(Any, mode or "online"), **options) if is_online else None
    except Exception as error:  # network, service, key
        run, cause = None, reason(error)
    if run is None:
        log.info("W&B: %s, so this run is logged to %s; `wandb sync` uploads it", cause, save_dir)
        try:
            run = wandb.init(mode="offline", **options)
        except Exception as error:  # W&B refuses the project, name, group, tags or settings
            remedy = "check its settings and the variables WANDB_*, or choose logger=csv"
            raise ValueError(f"logger.wandb: {reason(error)}: {remedy}") from error
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run, save_dir=save_dir, project=project)


def wandb_id(folder: Path) -> str:
    """Returns the id in the ``wandb_id.txt`` of a run's folder. Writes a new one if there is none:
    a link, or a file that holds something else, is replaced."""
    file = folder / "wandb_id.txt"
    if file.is_file() and not file.is_symlink():
        stored = read_text(file, limit=100).strip() if file.stat().st_size <= 100 else ""
        if re.fullmatch("[0-9a-z]{8}", stored):
            return stored
    new = secrets.token_hex(4)
    write_bytes(file, f"{new}\n".encode())
    return new


register("csv")(CSVLogger)
register("tensorboard")(TensorBoardLogger)

METHODS = "log_metrics", "log_hyperparams", "log_image", "save", "finalize", "after_save_checkpoint"


def ignore_errors(logger: Logger) -> Logger:
    """Returns the same logger; its first exception is reported, and none stops the training."""
    failed: list[str] = []

    def guarded(method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def call(*arguments: object, **options: object) -> None:
            try:
                method(*arguments, **options)
            except Exception as error:  # network, disk, service, library
                if not failed:
                    text = "%s: %s failed (%s); training continues"
                    log.warning(text, type(logger).__name__, method.__name__, reason(error))
                failed.append(method.__name__)

        return call

    for name in METHODS:
        if hasattr(logger, name):
            setattr(logger, name, guarded(getattr(logger, name)))
    return logger
