"""Objectives of a run, made from the task's part of the configuration."""

import inspect
from dataclasses import replace
from typing import Any

from torch import nn

from dpt.config.objects import Part, read_part
from dpt.data import Dataset
from dpt.metrics import SumMetric
from dpt.nn import HEADS
from dpt.objectives import Objective
from dpt.types.samples import DatasetInfo
from dpt.validation import Plain, PlainMapping, validate

LABEL_NAMES = {
    "depth": "depth maps",
    "normals": "surface normals",
    "labels": "class masks",
    "objects": "object masks",
    "class_id": "a class for each image",
    "value": "a number for each image",
    "caption": "a caption for each image",
    "K": "cameras",
}


def make_objectives(task: PlainMapping, data: Dataset) -> dict[str, Objective]:
    """Makes the objective of each head. The data give class counts and depth range if not set."""
    info: DatasetInfo = data.info
    objectives = {}
    for key, kind in {"name": str, "objectives": dict[str, Plain]}.items():
        validate(kind, task.get(key), f"task.{key}")
    for name, node in task["objectives"].items():
        if not name.isidentifier() or name in dir(nn.ModuleDict):
            raise ValueError(f"task.objectives.{name}: cannot be the name of one: rename it")
        if "head" not in node:  # the experiment sets options of a head that this task lacks
            raise ValueError(
                f"task={task['name']} has no task.objectives.{name}: the experiment, or an "
                f"argument, is for another task"
            )
        part: Part[Objective] = read_part(node, f"task.objectives.{name}", Objective)
        cls: Any = part.target
        if cls.target and cls.target not in info.targets:
            remedy = "data=scenes has all; data=folder: set data.labels, depth or objects"
            if cls.target == "caption":
                remedy = "data=imagetable data.caption_column=NAME reads them from a CSV"
            if cls.target == "K":
                remedy = "data=scenes has them; data=folder: set data.intrinsics or data.fov"
            if cls.target == "labels":
                remedy = data.labels_remedy or remedy
            given = ", ".join(LABEL_NAMES[t] for t in info.targets) or "pictures"
            raise ValueError(
                f"task={task['name']} needs {LABEL_NAMES[cls.target]}, and this data gives only "
                f"{given}. Choose data that has them ({remedy})"
            )
        objective = objectives[name] = _make_objective(part, data)
        if not isinstance(objective.metrics, SumMetric):
            raise ValueError(
                f"task.objectives.{name}: its metrics are a {type(objective.metrics).__name__}, "
                f"which cannot be scored image by image: derive it from dpt.metrics.SumMetric"
            )
    return objectives


def _make_objective(part: Part[Objective], data: Dataset) -> Objective:
    """Returns the objective of a part, with the settings of its head."""
    cls: Any = part.target
    of_data = cls.from_data(data, part.settings)
    arguments, settings = split_settings(cls, {**part.settings, **of_data})
    objective: Objective = replace(part, settings=arguments).build()
    refuse_decided(settings, objective.head_settings, part.where)
    objective.head_settings = {**settings, **objective.head_settings}
    if cls.head in HEADS:
        validate(HEADS[cls.head], objective.head_settings, part.where)
    return objective


def refuse_decided(settings: PlainMapping, decided: PlainMapping, where: str) -> None:
    """Raises ValueError for a setting of a head that its objective decides otherwise."""
    for key in settings.keys() & decided.keys():
        if settings[key] != decided[key]:
            raise ValueError(
                f"{where}.{key}={settings[key]} has no effect: task and data decide that it is "
                f"{decided[key]}: leave it out"
            )


def split_settings(cls: type[Objective], node: PlainMapping) -> tuple[Plain, Plain]:
    """Returns the arguments of an objective and the settings of its head.

    The latter are fields of the head's configuration, which the objective may take too.
    """
    of_objective = inspect.signature(cls).parameters
    of_head = inspect.signature(HEADS[cls.head]).parameters if cls.head in HEADS else {}
    settings = {k: v for k, v in node.items() if k in of_head}
    arguments = {k: v for k, v in node.items() if k in of_objective or k not in of_head}
    return arguments, settings
