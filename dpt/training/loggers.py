"""Loggers that need more than their own arguments."""

from __future__ import annotations

import csv
import functools
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.fabric.loggers.logger import _DummyExperiment
from lightning.pytorch.loggers import CSVLogger, Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

log = logging.getLogger("dpt")


def make_wandb(
    *,
    save_dir: str,
    project: str = "dpt",
    name: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
) -> Any:
    """A W&B logger that needs no account: offline unless logged in or ``WANDB_MODE`` is set.

    The id of the run is kept in ``save_dir``: a resumed run goes on under it.
    """
    # Lightning passes an argument that W&B warns about before any setting of the run is read
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    class OfflineIfNeeded(WandbLogger):
        """Goes on offline where the service cannot be reached: a run is not lost to the network."""

        @property
        def experiment(self) -> Any:
            try:
                return super().experiment
            except Exception as error:  # of a network, a service, a library
                self._wandb_init["mode"] = "offline"
                _say_offline(_short(error), save_dir)
            try:
                return super().experiment
            except Exception as error:
                log.warning("W&B: %s; training goes on without it", _short(error))
                # else it would be tried anew at every step
                self._experiment = cast(Any, _DummyExperiment())
                return self._experiment

    wandb.setup()  # reads it
    mode = os.environ.get("WANDB_MODE")
    if mode is None:
        try:
            mode = "online" if wandb.login(prompt=False) else "offline"
            reason = "not logged in"
        except Exception as error:  # asked for a key's owner, no answer came, or none that fits
            mode, reason = "offline", _short(error)
        if mode == "offline":
            _say_offline(reason, save_dir)
    kept = Path(save_dir) / "wandb_id.txt"
    if getattr(rank_zero_only, "rank", 0) == 0 and not kept.is_file():  # the process that logs
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(secrets.token_hex(4) + "\n")
    return OfflineIfNeeded(
        save_dir=save_dir,
        id=kept.read_text().strip() if kept.is_file() else None,
        resume="allow",
        project=project,
        name=name,
        group=group,
        tags=list(tags),
        mode=mode,
        settings=wandb.Settings(console="off", silent=True, init_timeout=60),
    )


def _say_offline(reason: str, folder: str) -> None:
    log.info("W&B: %s, so this run is kept in %s; `wandb sync` uploads it", reason, folder)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class OneFileCSVLogger(CSVLogger):
    """Lightning's CSV logger, but a resumed run goes on in the file it began.

    Rows of steps that are about to be done again are left out.
    """

    def resume_at(self, step: int) -> None:
        """Keeps what was logged up to ``step``; to be called before anything is logged."""
        path = Path(self.log_dir) / "metrics.csv"
        if not path.is_file():
            return
        with path.open(newline="") as file:
            whole = [row for row in csv.DictReader(file) if (row["step"] or "").isdigit()]
        rows = [row for row in whole if int(row["step"]) < step]  # a full disk tears a line
        self.experiment.metrics = [{k: v for k, v in row.items() if k and v} for row in rows]
        self.save()  # the first use of a writer removes the file of the run before


METHODS = ("log_metrics", "log_hyperparams", "log_image", "save", "finalize",
           "after_save_checkpoint")  # fmt: skip


def never_fatal(logger: Logger) -> Logger:
    """The same logger; what goes wrong in it is said once and ends no training."""

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                return method(*arguments, **options)
            except Exception as error:  # of a network, a disk, a service, a library
                if not said:
                    said.append(True)
                    log.warning(
                        "%s: %s failed (%s); training goes on without what it would have kept",
                        type(logger).__name__, method.__name__, _short(error),
                    )  # fmt: skip
                return None

        return call

    said: list[bool] = []
    for name in METHODS:
        if hasattr(logger, name):
            setattr(logger, name, guarded(getattr(logger, name)))
    return logger
