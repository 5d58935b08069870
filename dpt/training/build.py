"""The LightningModule of a run, made from its configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dpt.config.build import loader_settings
from dpt.config.objects import convert, make
from dpt.model import DPT
from dpt.objectives import Objective
from dpt.training.task import Task
from dpt.training.teacher import Teacher

log = logging.getLogger("dpt")


def _lr_scale(cfg: Mapping[str, Any]) -> float | None:
    """One batch in units of the batch that the learning rates were chosen for; None: no scaling."""
    reference = convert(cfg["reference_batch"], int | None, "reference_batch")
    if reference is None:
        return None
    if reference < 1:
        raise ValueError(f"reference_batch={reference} must be at least 1 image, or null")
    return loader_settings(cfg["data"]).batch_size / reference


def make_task(cfg: Mapping[str, Any], objectives: Mapping[str, Objective], model: DPT) -> Task:
    return Task(
        model=model,
        objectives=objectives,
        teacher=make_teacher(cfg["task"], objectives),
        optimizer=make(cfg["optim"], "optim"),
        schedule=make(cfg["schedule"], "schedule"),
        monitor=cfg["task"]["monitor"],
        max_skipped_steps=convert(cfg["max_skipped_steps"], int, "max_skipped_steps"),
        lr_scale=_lr_scale(cfg),
    )


def make_teacher(task: Mapping[str, Any], objectives: Mapping[str, Objective]) -> Teacher | None:
    """The model in ``task.teacher``, if there is one."""
    path = task.get("teacher")
    if path is None:
        if any(getattr(o, "distillation_token", False) for o in objectives.values()):
            raise ValueError("distillation_token: who should train it? Set task.teacher")
        return None
    prefix = "teacher_"
    settings = {
        k.removeprefix(prefix): convert(v, float, f"task.{k}")
        for k, v in task.items()
        if k.startswith(prefix)
    }
    teacher = Teacher(model=DPT.from_pretrained(path), objectives=objectives, **settings)
    heads = ", ".join(o.head for o in teacher.objectives)
    log.info("teacher: %s (%s) teaches %s", path, teacher.model.spec["name"], heads)
    return teacher
