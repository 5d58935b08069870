"""Callbacks of validation: pictures, and files that could not be read."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger

from dpt.evaluation.scoring import PanelPicture
from dpt.objectives.base import take
from dpt.plugins import register
from dpt.process import log
from dpt.types.samples import Batch
from dpt.viz import save_png, stack


@register("panels")
class Panels(Callback):
    """Pictures of validation images, a row for each dense head: see :meth:`Objective.panel`.

    Args:
        folder: of the files ``<index>.png``, overwritten at each validation.
        count: number of images, spread evenly over the data set.
    """

    def __init__(self, *, folder: str, count: int = 8) -> None:
        self.folder = Path(folder)
        self.count = count
        self.pictures: dict[int, PanelPicture] = {}  # of the last validation, by the image's index

    def on_validation_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.pictures.clear()

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: object
    ) -> None:
        if not trainer.is_global_zero or trainer.sanity_checking:
            return
        loader: Any = trainer.val_dataloaders
        shown = spread(self.count, len(loader.dataset))
        images = dict(zip(batch["index"].tolist(), batch["image"], strict=True))
        for outputs_of_heads, group in outputs["groups"]:
            for k, index in enumerate(group["index"].tolist()):
                if index not in shown:
                    continue
                image = pl_module.model.preprocessing.picture(images[index])
                labels, rows = take(group, [k]), []
                for objective in pl_module.objectives.values():
                    output = outputs_of_heads[objective.head].image(k)
                    spec = pl_module.model.outputs[objective.head]
                    rows.append(objective.panel(image, output, labels, spec))
                rows = [row for row in rows if row is not None]
                if rows:
                    name = labels["name"][0] or str(index)
                    self.pictures[index] = PanelPicture(name, stack(rows))

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.pictures = dict(sorted(self.pictures.items()))
        pictures = [*self.pictures.values()]
        for index, picture in self.pictures.items():
            save_png(self.folder / f"{index:05d}.png", picture.rgb)
        for logger in trainer.loggers if pictures else ():
            if isinstance(logger, WandbLogger):
                logger.log_image(
                    "panels/val",
                    [picture.rgb for picture in pictures],
                    step=trainer.global_step,
                    caption=[Path(picture.caption).name for picture in pictures],
                    file_type=["jpg"] * len(pictures),
                )


def spread(count: int, length: int) -> set[int]:
    """Returns ``count`` positions spread evenly over ``length``."""
    return {int(i) for i in np.linspace(0, length - 1, min(count, length)).round()}


class FailedFiles(Callback):
    """Logs each file that could not be read, once (``data.on_error=skip``)."""

    def __init__(self) -> None:
        self.messages: set[str] = set()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, *_: object
    ) -> None:
        for message in batch.get("failed", ()):
            if message not in self.messages:
                self.messages.add(message)
                log.warning("skipped: %s", message)

    def on_validation_batch_start(self, *arguments: Any) -> None:
        self.on_train_batch_start(*arguments)
