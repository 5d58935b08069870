"""Every file of conf/ composes, and everything it names exists and takes what it is given."""

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from itertools import zip_longest
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from tiny import slow_after
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import dpt
from dpt.config.data import LOADER_KEYS
from dpt.config.objectives import split_settings
from dpt.config.objects import SLOTS, check_arguments, find, make
from dpt.data import TrainTransform
from dpt.files import config_dir
from dpt.losses import CombinedLoss, SILogLoss
from dpt.model_config import ModelConfig, make_config
from dpt.nn import ENCODERS, Encoder
from dpt.objectives import DepthObjective, Objective
from dpt.validation import validate

CONF = config_dir()
FILL = {"data.root": "somewhere", "model.encoder.name": "vit_tiny_patch16_224"}
"""Values for keys that a user must give."""


def choices(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml") if not p.stem.startswith("_"))


def groups() -> list[str]:
    folders = sorted({p.parent.relative_to(CONF).as_posix() for p in CONF.rglob("*.yaml")})
    return [g for g in folders if g != "." and choices(g)]


ELSEWHERE = {"experiment", "protocol", "task/depth_loss", "task/segmentation_loss"}
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


def calls(node: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping with a ``_target_`` and its key."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield where, node
        for key, value in node.items():
            yield from calls(value, f"{where}.{key}".lstrip("."))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from calls(value, f"{where}.{i}")


def check_calls(cfg: dict[str, Any]) -> int:
    """Finds every target and checks its keys, and the types of values that are set."""
    found = list(calls(cfg))
    for where, node in found:
        target = find(node["_target_"], where, *SLOTS)
        if re.fullmatch(r"data(\.sets\.\w+)?", where):
            assert set(LOADER_KEYS) <= set(node)
            splits = node["train"] | node["val"]
            node = {k: v for k, v in node.items() if k not in LOADER_KEYS} | splits
        given = {k: v for k, v in node.items() if k != "_target_"}
        if isinstance(target, type) and issubclass(target, Objective):
            given, _ = split_settings(target, given)
        parameters = inspect.signature(target).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            assert set(given) <= set(parameters), where
        plain = {k: v for k, v in given.items() if v is not None and not list(calls(v))}
        check_arguments(target, plain, where, is_partial=True)
    return len(found)


# --- conf/


@pytest.mark.parametrize("taken", ROUNDS, ids=lambda taken: taken["data"])
def test_every_choice_composes_and_names_things_that_exist(taken):
    taken = {group: choice for group, choice in taken.items() if choice}
    given = ["task.teacher.path=FILE"] if taken.get("task/teacher") == "trained" else []
    cfg = composed(*(f"{group}={choice}" for group, choice in taken.items()), *given)
    assert check_calls(cfg) >= 8
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
    assert check_calls(cfg) == 1
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
    node = cfg["task"]["objectives"]["depth"]
    arguments, _ = split_settings(DepthObjective, node | {"max_depth": 10.0})
    objective = make(arguments, "depth", Objective)
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
    optimizer = make(cfg["optim"], "optim", Optimizer)(model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5, 0.1}
    scheduler = make(cfg["schedule"], "schedule", LRScheduler)(optimizer, total_steps=10)
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
    check_calls(cfg)
    assert cfg["trainer"]["max_steps"] == 2
    assert cfg["logger"] == {}


def test_trainer_lists_every_argument_of_lightnings_trainer():
    arguments = set(inspect.signature(L.Trainer).parameters) - {"logger", "callbacks"}
    assert arguments <= set(composed()["trainer"])


# --- make


class Wheel(nn.Module):
    """A target, which seems to be defined in the package of losses."""

    def __init__(
        self, *, size: int, colour: str = "black", shape: tuple[int, int] = (1, 1), hub: Any = None
    ) -> None:
        super().__init__()
        self.size, self.colour, self.shape, self.hub = size, colour, shape, hub


@pytest.fixture
def wheel(monkeypatch):
    import dpt.losses

    monkeypatch.setattr(dpt.losses, "Wheel", Wheel, raising=False)
    monkeypatch.setattr(Wheel, "__module__", "dpt.losses")
    return "dpt.losses.Wheel"


def make_wheel(node, where):
    return make(node, where, nn.Module)


def test_make_calls_the_target_with_typed_arguments(wheel):
    made = make_wheel({"_target_": wheel, "size": 3, "shape": [2, 4]}, "w")
    assert (made.size, made.colour, made.shape) == (3, "black", (2, 4))


def test_make_does_not_write_to_its_node(wheel):
    node = {"_target_": wheel, "size": 3, "hub": {"_target_": wheel, "size": 1}}
    make_wheel(node, "w")
    assert node == {"_target_": wheel, "size": 3, "hub": {"_target_": wheel, "size": 1}}


def test_nested_targets_are_built_first(wheel):
    inner = {"_target_": wheel, "size": 1}
    made = make_wheel({"_target_": wheel, "size": 2, "hub": inner}, "w")
    assert (made.hub.size, made.size) == (1, 2)
    made = make_wheel({"_target_": wheel, "size": 2, "hub": {"a": [inner, 7]}}, "w")
    assert (made.hub["a"][0].size, made.hub["a"][1]) == (1, 7)
    with pytest.raises(ValueError, match=r"there is no w\.hub\.a\.0\.sise\. Did you mean size\?"):
        make_wheel({"_target_": wheel, "size": 2, "hub": {"a": [{**inner, "sise": 1}]}}, "w")


def test_optimisers_and_schedules_wait_for_the_rest():
    node = {"_target_": "torch.optim.lr_scheduler.LinearLR", "total_iters": 7}
    schedule = make(node, "schedule", LRScheduler)(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert schedule.total_iters == 7
    with pytest.raises(ValueError, match=r"schedule\.total_iters='x'"):
        make({**node, "total_iters": "x"}, "schedule", LRScheduler)


def test_unknown_key(wheel):
    with pytest.raises(ValueError) as error:
        make_wheel({"_target_": wheel, "size": 1, "color": "red"}, "car.wheel")
    assert str(error.value) == (
        "there is no car.wheel.color. Did you mean colour? Allowed here: colour, hub, shape, size"
    )
    with pytest.raises(ValueError, match=r"no w\.zzz\. Allowed"):
        make_wheel({"_target_": wheel, "size": 1, "zzz": 1}, "w")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"size": "big"}, r"^w\.size='big': must be a valid integer"),
        ({"size": 1.5}, r"^w\.size=1\.5: must be a valid integer"),
        ({"size": None}, r"^w\.size=None: must be a valid integer"),
        ({"size": 1, "colour": 3}, r"^w\.colour=3: must be a valid string"),
        ({"size": 1, "shape": [1]}, r"^w\.shape=\[1\]: must have more entries"),
        ({}, "^w needs size$"),
    ],
)
def test_wrong_types_are_one_line(wheel, values, says):
    with pytest.raises(ValueError, match=says) as error:
        make_wheel({"_target_": wheel, **values}, "w")
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
