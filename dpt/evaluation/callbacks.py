"""Callbacks of validation: pictures, and files that could not be read."""

import logging
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback

from dpt.objectives.base import as_photo, take
from dpt.types import Batch
from dpt.viz import save_png, stack

log = logging.getLogger("dpt")


class Panels(Callback):
    """Pictures of validation images, a row for each dense head: see :meth:`Objective.panel`.

    Args:
        folder: of the files ``<index>.png``, overwritten at each validation.
        count: number of images, spread evenly over the data set.
    """

    def __init__(self, *, folder: str, count: int = 8) -> None:
        self.folder = Path(folder)
        self.count = count
        self.pictures: dict[int, tuple[str, np.ndarray]] = {}  # of the last validation, with names

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.pictures.clear()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        loader: Any = trainer.val_dataloaders
        declared = pl_module.model.outputs
        wanted = spread(self.count, len(loader.dataset))
        images = {int(i): image for i, image in zip(batch["index"], batch["image"], strict=True)}
        for outputs_of_heads, labels in outputs["groups"]:
            for k, index in enumerate(labels["index"].tolist()):
                if index not in wanted:
                    continue
                photo = as_photo(images[index])
                truth = take(labels, [k])
                rows = [
                    objective.panel(
                        photo,
                        outputs_of_heads[objective.head].image(k),
                        truth,
                        declared[objective.head],
                    )
                    for objective in pl_module.objectives.values()
                ]
                if rows := [row for row in rows if row is not None]:
                    self.pictures[index] = labels["name"][k] or str(index), stack(rows)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.pictures:
            return
        for index, (_, picture) in self.pictures.items():
            save_png(self.folder / f"{index:05d}.png", picture)
        names, images = zip(*(shown for _, shown in sorted(self.pictures.items())), strict=True)
        for logger in trainer.loggers:
            if hasattr(logger, "log_image"):
                logger.log_image(
                    "panels/val",
                    list(images),
                    step=trainer.global_step,
                    caption=[Path(name).name for name in names],
                    file_type=["jpg"] * len(images),
                )


def spread(count: int, length: int) -> set[int]:
    """``count`` positions spread evenly over ``length``."""
    return {int(i) for i in np.linspace(0, length - 1, min(count, length)).round()}


class FailedFiles(Callback):
    """Logs each file that could not be read, once (``data.on_error=skip``)."""

    def __init__(self) -> None:
        self.messages: set[str] = set()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        for message in batch.get("failed", ()):
            if message not in self.messages:
                self.messages.add(message)
                log.warning("skipped: %s", message)

    def on_validation_batch_start(self, *arguments: Any, **_: Any) -> None:
        self.on_train_batch_start(*arguments[:4])
