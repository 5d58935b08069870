"""The parts of a run, each made from its own part of the configuration."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from dpt.data import EvalTransform, TrainTransform, make_loader
from dpt.engine.configure import check_arguments, convert, find, make
from dpt.model import DPT, create_model
from dpt.nn import Decoder
from dpt.tasks import OBJECTIVES, Objective, Task
from dpt.types import DatasetInfo, Preprocessing
from dpt.weights import load_encoder_weights, load_model_weights
from dpt.weights.formats import read
from dpt.zoo import ENCODERS

log = logging.getLogger("dpt")

LOADER_KEYS = (
    "image_size", "eval_size", "batch_size", "num_workers", "on_error", "train", "val", "download",
)  # fmt: skip
"""Keys of ``data`` that every data set has and none takes as an argument."""
LABEL_NAMES = {
    "depth": "depth maps",
    "labels": "class masks",
    "class_id": "a class for each image",
    "value": "a number for each image",
}


SWITCHES = ("compile", "checkpoint_activations", "channels_last")


@dataclass(frozen=True)
class LoaderSettings:
    """How samples are batched; the part of ``data`` that every data set shares."""

    image_size: tuple[int, int]
    eval_size: tuple[int, int]
    batch_size: int
    num_workers: int
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        if min(self.image_size + self.eval_size) < 1 or self.batch_size < 1 or self.num_workers < 0:
            raise ValueError(
                f"data: image_size={list(self.image_size)}, eval_size={list(self.eval_size)} and "
                f"batch_size={self.batch_size} must be positive, num_workers={self.num_workers} "
                f"at least 0"
            )


def loader_settings(data: Mapping[str, Any]) -> LoaderSettings:
    values = {k: data[k] for k in LoaderSettings.__dataclass_fields__ if k in data}
    if values["eval_size"] is None:
        values["eval_size"] = values["image_size"]
    return LoaderSettings(**check_arguments(LoaderSettings, values, "data"))


def make_dataset(data: Mapping[str, Any], split: str, *, where: str = "data") -> Any:
    """The data set of one split. ``data.train`` and ``data.val`` hold arguments of one alone.

    A mix gets its ``sets`` as functions of the split: each is described as it would be alone, and
    the mix decides which splits it needs.
    """
    node = {k: v for k, v in data.items() if k not in LOADER_KEYS}
    node |= {"split": split} | (data.get(split) or {})
    if "sets" in node:
        node["sets"] = {
            name: partial(make_dataset, part, where=f"{where}.sets.{name}")
            for name, part in node["sets"].items()
        }
    return make(node, where)


def make_objectives(task: Mapping[str, Any], data: Any) -> dict[str, Objective]:
    """What each head learns; class counts and the depth range come from the data where unset."""
    info: DatasetInfo = data.info
    objectives = {}
    for name, node in task["objectives"].items():
        cls: Any = find(node["_target_"], f"task.objectives.{name}")
        if cls.target not in info.targets:
            remedy = getattr(data, "remedies", {}).get(
                cls.target, "data=scenes has all; data=folder: set data.labels or data.depth"
            )
            raise ValueError(
                f"task={task['name']} needs {LABEL_NAMES[cls.target]}, and this data gives only "
                f"{', '.join(LABEL_NAMES[t] for t in info.targets)}. Choose data that has them "
                f"({remedy})"
            )
        node = {**node, **_from_data(node, data)}
        objectives[name] = make(node, f"task.objectives.{name}")
    return objectives


def _from_data(node: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Arguments of an objective that the data decides."""
    info: DatasetInfo = data.info
    filled: dict[str, Any] = {}
    if "max_depth" in node and node["max_depth"] is None:
        filled["max_depth"] = info.max_depth
    if "num_classes" in node:
        kind = node["_target_"].rpartition(".")[2]
        names = info.class_names if kind == "SegmentationObjective" else data.class_id_names
        if node["num_classes"] is None:
            filled["num_classes"] = len(names)
        elif node["num_classes"] != len(names):
            raise ValueError(
                f"num_classes={node['num_classes']}, but the data has {len(names)} classes "
                f"({', '.join(names[:4])}, ...): leave it out, or set data.num_classes"
            )
        if kind == "SegmentationObjective":
            filled["class_names"] = names
    return filled


def make_model(
    model: Mapping[str, Any], objectives: Mapping[str, Objective], settings: LoaderSettings
) -> DPT:
    """The model with a head for each objective, its weights from a file if one is set.

    Null values are left to the size table, or to the model that it goes on from.
    """
    if model.get("weights") is not None:
        return _make_from_weights(model, objectives, settings)
    encoder = _set_values(model["encoder"])
    weights = encoder.pop("weights", None)
    if encoder["kind"] in ENCODERS:
        encoder |= _converted(ENCODERS[encoder["kind"]], encoder, "model.encoder")
    decoder = _set_values(model["decoder"])
    decoder |= _converted(Decoder, decoder, "model.decoder")
    if encoder["kind"] != "timm":
        encoder.setdefault("image_size", list(settings.image_size))
    net = create_model(
        model["name"],
        heads={o.head: o.head_options() for o in objectives.values()},
        encoder=encoder,
        decoder=decoder,
        preprocessing=_preprocessing(model, settings),
    )
    if weights is not None:
        log.info("encoder weights: %s", load_encoder_weights(net.encoder, weights))
    _set_switches(net, model)
    return net


def _set_switches(net: DPT, model: Mapping[str, Any]) -> None:
    """How the model is computed, which changes what it costs and not what it gives."""
    switches = {k: convert(model.get(k, False), bool, f"model.{k}") for k in SWITCHES}
    if switches["checkpoint_activations"]:
        net.encoder.set_grad_checkpointing()
    if switches["channels_last"]:
        net.to(memory_format=torch.channels_last)
    if switches["compile"]:
        net.compile(dynamic=None)


def _make_from_weights(
    model: Mapping[str, Any], objectives: Mapping[str, Objective], settings: LoaderSettings
) -> DPT:
    """A model like the one in ``model.weights``, but for its heads and what is set beside it."""
    path = model["weights"]
    encoder, decoder = _set_values(model["encoder"]), _set_values(model["decoder"])
    if encoder.pop("weights", None) is not None:
        raise ValueError("model.weights and model.encoder.weights: give one of the two")
    other, state = read(path)
    kind = other["encoder"]["kind"]
    if encoder.pop("kind") != kind and encoder:
        raise ValueError(
            f"model.weights={path} has an encoder of kind {kind}: leave model/encoder out, or set "
            f"model/encoder={kind}"
        )
    sizes = {} if kind == "timm" else {"image_size": list(settings.image_size)}
    fetched = {k: v for k, v in other["encoder"].items() if k != "pretrained"}
    normalization = {
        k: v for k, v in other.get("preprocessing", {}).items() if k in ("mean", "std")
    }
    heads = {o.head: o.head_options() for o in objectives.values()}
    net = DPT(
        {
            "name": other["name"],
            "encoder": fetched | sizes | _converted(ENCODERS[kind], encoder, "model.encoder"),
            "decoder": other["decoder"] | _converted(Decoder, decoder, "model.decoder"),
            "heads": {k: other["heads"].get(k, {}) | v for k, v in heads.items()},
            "preprocessing": normalization | _preprocessing(model, settings),
        }
    )
    report = load_model_weights(net, other, state, source=str(path))
    log.info("weights of a %s: %s", other["name"], report)
    return net


def _preprocessing(model: Mapping[str, Any], settings: LoaderSettings) -> dict[str, Any]:
    values = _set_values(model.get("preprocessing") or {})
    values = check_arguments(Preprocessing, values, "model.preprocessing", is_partial=True)
    return {**values, "image_size": list(settings.eval_size)}


def _set_values(node: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in node.items() if v is not None}


def _converted(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values as the types that ``cls`` or its parents declare; what none declares is left out."""
    converted: dict[str, Any] = {}
    for owner in cls.__mro__:
        declared = inspect.signature(owner).parameters if "__init__" in vars(owner) else {}
        known = {k: v for k, v in values.items() if k in declared and k not in converted}
        converted |= check_arguments(owner, known, where, is_partial=True)
    return converted


def make_task(cfg: Mapping[str, Any], objectives: Mapping[str, Objective], model: DPT) -> Task:
    return Task(
        model=model,
        objectives=objectives,
        optimizer=make(cfg["optim"], "optim"),
        schedule=make(cfg["schedule"], "schedule"),
        monitor=cfg["task"]["monitor"],
        max_skipped_steps=convert(cfg["max_skipped_steps"], int, "max_skipped_steps"),
    )


def train_loader(
    dataset: Any, settings: LoaderSettings, augment: Mapping[str, Any], seed: int, targets: Any
) -> DataLoader:
    values = check_arguments(
        TrainTransform, {"image_size": settings.image_size, **augment}, "augment"
    )
    return make_loader(
        dataset,
        TrainTransform(**values),
        training=True,
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        seed=seed,
        targets=targets,
        skip_broken=settings.on_error == "skip",
    )


def eval_loader(
    dataset: Any, settings: LoaderSettings, preprocessing: Preprocessing, targets: Any
) -> DataLoader:
    return make_loader(
        dataset,
        EvalTransform(preprocessing),
        training=False,
        batch_size=settings.batch_size,
        num_workers=settings.num_workers,
        seed=0,
        targets=targets,
        skip_broken=settings.on_error == "skip",
    )


def objectives_of(model: DPT, data: Any) -> dict[str, Objective]:
    """Objectives for scoring a finished model on data: one for each head that can be scored."""
    info: DatasetInfo = data.info
    objectives: dict[str, Objective] = {}
    for name, options in model.spec["heads"].items():
        cls: Any = OBJECTIVES[name]
        if cls.target not in info.targets:
            continue
        if name == "depth":
            max_depth = info.max_depth
            objectives[name] = cls(kind=options["kind"], max_depth=max_depth)
        elif name == "regression":
            objectives[name] = cls()
        else:
            names = info.class_names if name == "segmentation" else data.class_id_names
            found = options["num_classes"]
            if len(names) != found:
                raise ValueError(
                    f"the checkpoint's {name} head has {found} classes, but the data has "
                    f"{len(names)}: evaluate on the data it was trained for"
                )
            extra = {"class_names": names} if name == "segmentation" else {}
            objectives[name] = cls(num_classes=found, **extra)
    if not objectives:
        raise ValueError(
            f"nothing to score: the checkpoint predicts {', '.join(model.spec['heads'])}, the data "
            f"gives {', '.join(LABEL_NAMES[t] for t in info.targets)}"
        )
    return objectives
