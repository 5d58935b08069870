"""Scores a checkpoint on a data set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist

from dpt.engine import build
from dpt.engine.callbacks import FailedFiles, Panels
from dpt.engine.configure import convert
from dpt.engine.report import log_table, write_json
from dpt.engine.trainer import build_trainer, require_images, trainer_arguments
from dpt.model import DPT
from dpt.tasks import Task

log = logging.getLogger("dpt")


def evaluate(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Scores ``cfg["checkpoint"]`` on one split and writes ``metrics.json`` and pictures.

    Each image counts exactly once on any number of ranks.

    Args:
        cfg: as plain data (``conf/evaluate.yaml``).
    """
    folder = Path(cfg["run_dir"])
    L.seed_everything(convert(cfg["seed"], int, "seed"), verbose=False)
    image_size = convert(cfg["image_size"], tuple[int, int] | None, "image_size")
    model = DPT.from_pretrained(cfg["checkpoint"])
    settings = build.loader_settings(cfg["data"])
    dataset = build.make_dataset(cfg["data"], cfg["split"])
    objectives = build.objectives_of(model, dataset)
    if image_size is not None:
        model.preprocessing = replace(model.preprocessing, image_size=image_size)
    loader = build.eval_loader(
        dataset, settings, model.preprocessing, [o.target for o in objectives.values()]
    )
    task = Task(model=model, objectives=objectives)
    trainer = build_trainer(
        **trainer_arguments(cfg["trainer"]) | {"enable_checkpointing": False},
        logger=False,
        callbacks=[FailedFiles(), Panels(folder=str(folder / "panels"))],
    )
    require_images(trainer, len(dataset))
    trainer.validate(task, loader, verbose=False)
    scores = dict(task.scores)
    if dist.is_initialized():
        dist.destroy_process_group()
    if trainer.is_global_zero:
        write_json(folder / "metrics.json", {**scores, **task.notes})
        log_table({"model": scores}, title=f"{cfg['checkpoint']} on {cfg['split']}")
        log.info("%d images; pictures: %s", len(dataset), folder / "panels")
    return scores
