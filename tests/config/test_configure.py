"""Every file of conf/ composes, and everything it names exists and takes what it is given."""

import inspect
import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from omegaconf import OmegaConf
from tiny import slow_after
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import dpt
from dpt.config.data import LOADER_KEYS
from dpt.config.objectives import split_settings
from dpt.config.objects import check_arguments, make, read_part
from dpt.data import Dataset, TrainTransform
from dpt.files import config_dir
from dpt.losses import CombinedLoss, SILogLoss
from dpt.model_config import ModelConfig, make_config
from dpt.nn import ENCODERS, Encoder
from dpt.objectives import DepthObjective, Objective
from dpt.objectives.teacher import Teacher
from dpt.plugins import REGISTERED
from dpt.validation import validate

CONF = config_dir()
FILL = {"data.root": "somewhere", "model.encoder.name": "vit_tiny_patch16_224"}
"""Values for keys that a user must give."""


def choices(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml") if not p.stem.startswith("_"))


def groups() -> list[str]:
    folders = sorted({p.parent.relative_to(CONF).as_posix() for p in CONF.rglob("*.yaml")})
    return [g for g in folders if g != "." and choices(g)]


ELSEWHERE = {"experiment", "first_run", "protocol", "task/depth_loss", "task/segmentation_loss"}
"""Groups with a test of their own, below or in tests/evaluation/test_protocols.py."""
GROUPS = [group for group in groups() if group not in ELSEWHERE]
ROUNDS = [dict(zip(GROUPS, row, strict=True)) for row in zip_longest(*map(choices, GROUPS))]
"""One choice of every group, until all are taken: None where a group has no more."""


@pytest.fixture(scope="module", autouse=True)
def _hydra():
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str, command: str = "train") -> dict[str, Any]:
    """The resolved configuration; keys that a user must give are filled in."""
    return deepcopy(_composed(command, *overrides))


@cache
def _composed(command: str, *overrides: str) -> dict[str, Any]:
    cfg = compose(command, overrides=["run_dir=run", *overrides])
    if "overrides" in cfg:  # Hydra fills it in for a command
        cfg.overrides = []
    for key, value in FILL.items():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(cfg, parent)
        if node is not None and OmegaConf.is_missing(node, name):
            node[name] = value
    values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(values, dict)
    return values


def check_parts(cfg: dict[str, Any]) -> int:
    """Checks every description of a part, and returns their number."""
    nodes: dict[str, tuple[Any, type]] = {}
    data = cfg["data"]
    for where, node in {"data": data, **(data.get("sets") or {})}.items():
        assert set(LOADER_KEYS) <= set(node)
        plain = {k: v for k, v in node.items() if k not in (*LOADER_KEYS, "sets", "unlabelled")}
        plain |= {"sets": {}} if "sets" in node else {}
        nodes[where] = (plain | node["train"] | node["val"], Dataset)
    if "task" in cfg:
        objectives = cfg["task"]["objectives"].items()
        nodes |= {f"task.objectives.{name}": (node, Objective) for name, node in objectives}
        nodes["task.teacher"] = (cfg["task"]["teacher"], Teacher)
        nodes["optim"] = (cfg["optim"], Optimizer)
        nodes["schedule"] = (cfg["schedule"], LRScheduler)
        for group, base in {"callbacks": Callback, "logger": Logger}.items():
            nodes |= {f"{group}.{n}": ({"kind": n, **c}, base) for n, c in cfg[group].items()}
    for where, (node, base) in nodes.items():
        read_part(node, where, base)
    return len(nodes)


# --- conf/


@pytest.mark.parametrize("taken", ROUNDS, ids=lambda taken: taken["data"])
def test_every_choice_composes_and_names_things_that_exist(taken):
    taken = {group: choice for group, choice in taken.items() if choice}
    given = ["task.teacher.path=FILE"] if taken.get("task/teacher") == "trained" else []
    cfg = composed(*(f"{group}={choice}" for group, choice in taken.items()), *given)
    assert check_parts(cfg) >= 8
    assert cfg["run_dir"] == "run"
    for group, choice in taken.items():
        text = (CONF / group / f"{choice}.yaml").read_text()
        own = re.search(r"^(\w+): [^$?\n{\[]", text, re.M)
        if own and "@package" not in text and group in cfg:
            assert own[1] in cfg[group]


@pytest.mark.parametrize("kind", ENCODERS)
def test_encoder_files_repeat_no_default(kind):
    """A default stands in the dataclass alone; the file of a kind says what the data decide."""
    path = CONF / f"model/encoder/{kind}.yaml"
    values = yaml.safe_load(path.read_text()) if path.is_file() else {}
    assert values.keys() <= {"defaults", "kind", "name", "weights", "image_size"}


@pytest.mark.parametrize("name", dpt.list_models())
def test_a_model_by_name_and_the_composed_configuration_are_equal(name):
    size = [f"data.{key}=[384,384]" for key in ("image_size", "eval_size")]
    model = composed(f"model={name}", *size)["model"]
    settings = {key: model[key] for key in ("name", "encoder", "decoder", "preprocessing")}
    assert settings["encoder"].pop("weights") is None
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 7}}
    found = ModelConfig.from_dict({**settings, "heads": heads})
    assert found == make_config(name, heads=heads)


@pytest.mark.parametrize("choice", slow_after(1, choices("data")))
def test_every_data_set_can_be_evaluated_on(choice):
    cfg = composed(f"data={choice}", "checkpoint=some.ckpt", command="evaluate")
    assert check_parts(cfg) == 1
    assert cfg["checkpoint"] == "some.ckpt"


@pytest.mark.parametrize("loss", choices("task/segmentation_loss"))
@pytest.mark.parametrize("task", slow_after(1, ["segmentation", "joint"]))
def test_segmentation_losses_can_be_chosen(task, loss):
    cfg = composed(f"task={task}", f"task/segmentation_loss={loss}")
    node = cfg["task"]["objectives"]["segmentation"]["loss"]
    value = make(node, "loss", nn.Module)(torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)))
    assert value.ndim == 0
    assert value > 0
    if loss == "cross_entropy_dice":
        assert isinstance(make(node, "loss", nn.Module), CombinedLoss)


KINDS = {"ssi": "relative", "si": "up_to_scale"}


@pytest.mark.parametrize("loss", choices("task/depth_loss"))
@pytest.mark.parametrize("task", slow_after(1, ["depth", "joint"]))
def test_depth_losses_can_be_chosen(task, loss):
    kind, other = KINDS.get(loss, "metric"), "relative" if loss != "ssi" else "metric"
    cfg = composed(f"task={task}", f"task/depth_loss={loss}", f"task.kind={kind}")
    part = read_part(cfg["task"]["objectives"]["depth"] | {"max_depth": 10.0}, "depth", Objective)
    arguments, _ = split_settings(DepthObjective, part.settings)
    objective = replace(part, settings=arguments).build()
    depth = torch.rand(2, 8, 8) + 1
    value = objective.loss(torch.rand(2, 8, 8), depth, depth > 0)
    assert value.ndim == 0
    assert value > 0
    if loss != "auto":
        with pytest.raises(ValueError, match=f"loss for {kind} depth: set task.kind={kind}"):
            DepthObjective(max_depth=10.0, kind=other, loss=CombinedLoss({"a": objective.loss}))


def test_the_default_depth_loss_follows_the_kind():
    losses = {}
    for kind in ("metric", "relative", "up_to_scale"):
        cfg = composed("task=depth", f"task.kind={kind}")
        losses[kind] = make(cfg["task"]["objectives"]["depth"]["loss"], "loss", nn.Module)
    assert isinstance(losses["metric"], SILogLoss)
    assert len({*map(type, losses.values())}) == 3


class LinearEncoder(Encoder):
    """An encoder with two parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)


@pytest.mark.parametrize("schedule", choices("schedule"))
@pytest.mark.parametrize("optim", choices("optim"))
def test_every_optimiser_runs_with_every_schedule(optim, schedule):
    cfg = composed(f"optim={optim}", "optim.lr=0.5", "optim.encoder_lr=0.1")
    cfg["schedule"] = composed(f"schedule={schedule}")["schedule"]
    model = nn.ModuleDict({"encoder": LinearEncoder(), "heads": nn.Linear(3, 3)})
    optimizer = read_part(cfg["optim"], "optim", Optimizer).factory()(model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5, 0.1}
    factory = read_part(cfg["schedule"], "schedule", LRScheduler).factory()
    scheduler = factory(optimizer, total_steps=10)
    before = model["heads"].weight.clone()
    model["heads"](model["encoder"].linear(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    scheduler.step()
    assert not torch.equal(model["heads"].weight, before)


@pytest.mark.parametrize("choice", choices("augment"))
def test_every_augmentation_can_be_built_and_repeats_no_default(choice):
    values = composed(f"augment={choice}")["augment"]
    checked = check_arguments(TrainTransform, {"image_size": [32, 48], **values}, "augment")
    changed = vars(TrainTransform(**checked))
    assert all(changed[key] != getattr(TrainTransform, key) for key in values)


@pytest.mark.parametrize("choice", choices("experiment"))
def test_every_experiment_says_its_command_and_has_a_tiny_twin(choice):
    text = (CONF / "experiment" / f"{choice}.yaml").read_text()
    assert f"python train.py experiment={choice}" in text.partition("defaults")[0]
    cfg = composed(f"experiment={choice}", "debug=tiny")
    check_parts(cfg)
    assert cfg["trainer"]["max_steps"] == 2
    assert cfg["logger"] == {}


def test_trainer_lists_every_argument_of_lightnings_trainer():
    arguments = set(inspect.signature(L.Trainer).parameters) - {"logger", "callbacks"}
    assert arguments <= set(composed()["trainer"])


# --- parts


class Wheel(nn.Module):
    """A part for the tests."""

    def __init__(
        self, *, size: int, colour: str = "black", shape: tuple[int, int] = (1, 1)
    ) -> None:
        super().__init__()
        self.size, self.colour, self.shape = size, colour, shape


@pytest.fixture(autouse=True)
def _wheel(monkeypatch):
    monkeypatch.setitem(REGISTERED, "wheel", [Wheel])


def make_wheel(settings, where):
    return make({"kind": "wheel", **settings}, where, nn.Module)


def test_make_calls_the_class_with_typed_arguments():
    made = make_wheel({"size": 3, "shape": [2, 4]}, "w")
    assert (made.size, made.colour, made.shape) == (3, "black", (2, 4))


def test_optimisers_and_schedules_wait_for_the_rest():
    node = {"kind": "LinearLR", "total_iters": 7}
    part = read_part(node, "schedule", LRScheduler)
    assert part.factory()(torch.optim.SGD([torch.zeros(1)], lr=0.1)).total_iters == 7
    with pytest.raises(ValueError, match=r"schedule\.total_iters='x'"):
        read_part({**node, "total_iters": "x"}, "schedule", LRScheduler)


def test_unknown_key():
    with pytest.raises(ValueError) as error:
        make_wheel({"size": 1, "color": "red"}, "car.wheel")
    assert str(error.value) == (
        "there is no car.wheel.color. Did you mean colour? Allowed here: colour, shape, size"
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"size": "big"}, r"^w\.size='big': must be a valid integer"),
        ({"size": None}, r"^w\.size=None: must be a valid integer"),
        ({"size": 1, "colour": 3}, r"^w\.colour=3: must be a valid string"),
        ({"size": 1, "shape": [1]}, r"^w\.shape=\[1\]: must have more entries"),
        ({}, r"^w\.size must be given$"),
    ],
)
def test_wrong_types_are_one_line(values, says):
    with pytest.raises(ValueError, match=says) as error:
        make_wheel(values, "w")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("target", "value", "says"),
    [
        (float, math.nan, "w=nan: must be a finite number"),
        (float | None, -math.inf, "w=-inf: must be a finite number"),
        (Mapping[str, float], {"a": math.inf}, r"w\.a=inf: must be a finite number"),
        (int, True, "w=true: must be a number"),
        (tuple[float, float], [0.5, False], r"w\.1=false: must be a number"),
        (tuple[int, int], 192, r"w=192: .*such as \[192, 192\]"),
    ],
)
def test_values_that_are_no_numbers(target, value, says):
    with pytest.raises(ValueError, match=says):
        validate(target, value, "w")
    assert validate(bool | None, True, "w") is True
