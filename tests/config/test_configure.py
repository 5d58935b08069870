"""Every file of conf/ composes, and everything it names exists and takes what it is given."""

import math
import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from itertools import zip_longest

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from tiny import slow_after
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

import dpt
from dpt.config.compose import compose
from dpt.config.objects import read_part
from dpt.config.schema import Config, EvaluateConfig, RunConfig
from dpt.data import TrainTransform
from dpt.files import config_dir
from dpt.losses import CombinedLoss, SILogLoss
from dpt.model_config import ModelConfig, make_config
from dpt.nn import ENCODERS, Encoder
from dpt.objectives import DepthObjective
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


@cache
def composed(*overrides: str, command: str = "train") -> Config:
    """The configuration of a command; keys that a user must give are filled in."""
    composition = compose(command, ["run_dir=run", *overrides])
    for key, value in FILL.items():
        parent, _, name = key.rpartition(".")
        node = OmegaConf.select(composition.cfg, parent)
        if node is not None and OmegaConf.is_missing(node, name):
            composition = composition.with_values({key: value}, [])
    return (RunConfig if command == "train" else EvaluateConfig).read(composition.values())


# --- conf/


@pytest.mark.parametrize("taken", ROUNDS, ids=lambda taken: taken["data"])
def test_every_choice_composes_and_names_things_that_exist(taken):
    taken = {group: choice for group, choice in taken.items() if choice}
    given = ["task.teacher.path=FILE"] if taken.get("task/teacher") == "trained" else []
    config = composed(*(f"{group}={choice}" for group, choice in taken.items()), *given)
    assert config.run_dir.endswith("/run")
    for group, choice in taken.items():
        text = (CONF / group / f"{choice}.yaml").read_text()
        own = re.search(r"^(\w+): [^$?\n{\[]", text, re.M)
        if own and "@package" not in text and group in config.values:
            assert own[1] in config.values[group]


@pytest.mark.parametrize("kind", ENCODERS)
def test_encoder_files_repeat_no_default(kind):
    """A default stands in the dataclass alone; the file of a kind says what the data decide."""
    path = CONF / f"model/encoder/{kind}.yaml"
    values = yaml.safe_load(path.read_text()) if path.is_file() else {}
    assert values.keys() <= {"defaults", "kind", "name", "weights", "image_size"}


@pytest.mark.parametrize("name", dpt.list_models())
def test_a_model_by_name_and_the_composed_configuration_are_equal(name):
    size = [f"data.{key}=[384,384]" for key in ("image_size", "eval_size")]
    model = composed(f"model={name}", *size).values["model"]
    settings = {key: model[key] for key in ("name", "encoder", "decoder", "preprocessing")}
    settings["encoder"] = {**settings["encoder"]}
    assert str(settings["encoder"].pop("weights") or "timm:").startswith("timm:")
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 7}}
    found = ModelConfig.from_dict({**settings, "heads": heads})
    assert found == make_config(name, heads=heads)


def test_losses_are_groups():
    losses = ("task/segmentation_loss=dice", "task/depth_loss=ssi", "task.kind=relative")
    objectives = composed("task=joint", *losses).task.objectives
    names = [objectives[name].settings["loss"].name for name in ("segmentation", "depth")]
    assert names == ["dice", "ssi"]


@pytest.mark.parametrize("choice", slow_after(1, choices("data")))
def test_every_data_set_can_be_evaluated_on(choice):
    config = composed(f"data={choice}", "checkpoint=some.ckpt", command="evaluate")
    assert config.checkpoint == "some.ckpt"


def loss_of(file, kind="metric"):
    """The loss of a file below conf/task/."""
    node = OmegaConf.load(CONF / f"task/{file}.yaml")
    values = OmegaConf.to_container(
        OmegaConf.create({"task": {"kind": kind, "loss": node}}), resolve=True
    )
    return read_part(values["task"]["loss"], "loss", nn.Module).build()


@pytest.mark.parametrize("loss", choices("task/segmentation_loss"))
def test_segmentation_losses_can_be_chosen(loss):
    made = loss_of(f"segmentation_loss/{loss}")
    value = made(torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)))
    assert value.ndim == 0
    assert value > 0
    if loss == "cross_entropy_dice":
        assert isinstance(made, CombinedLoss)


KINDS = {"ssi": "relative", "si": "up_to_scale"}


@pytest.mark.parametrize("loss", choices("task/depth_loss"))
def test_depth_losses_can_be_chosen(loss):
    kind, other = KINDS.get(loss, "metric"), "relative" if loss != "ssi" else "metric"
    made = loss_of(f"depth_loss/{loss}", kind)
    depth = torch.rand(2, 8, 8) + 1
    value = made(torch.rand(2, 8, 8), depth, depth > 0)
    assert value.ndim == 0
    assert value > 0
    if loss == "auto":
        assert isinstance(made, SILogLoss)
    else:
        with pytest.raises(ValueError, match=f"task.kind={kind}"):
            DepthObjective(max_depth=10.0, kind=other, loss=CombinedLoss({"a": made}))


class LinearEncoder(Encoder):
    """An encoder with two parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("optim", "schedule"), zip(choices("optim"), choices("schedule"), strict=True)
)
def test_every_optimiser_and_every_schedule_runs(optim, schedule):
    rates = ("optim.lr=0.5", "optim.encoder_lr=0.1")
    config = composed(f"optim={optim}", f"schedule={schedule}", *rates)
    model = nn.ModuleDict({"encoder": LinearEncoder(), "heads": nn.Linear(3, 3)})
    optimizer = config.optim.factory()(model)
    assert {group["lr"] for group in optimizer.param_groups} == {0.5, 0.1}
    scheduler = config.schedule.factory()(optimizer, total_steps=10)
    before = model["heads"].weight.clone()
    model["heads"](model["encoder"].linear(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    scheduler.step()
    assert not torch.equal(model["heads"].weight, before)


@pytest.mark.parametrize("optim", choices("optim"))
def test_a_pretrained_encoder_has_a_tenth_of_the_rate(optim):
    options = (f"optim={optim}", "optim.lr=0.002")
    assert composed(*options).optim.settings["encoder_lr"] is None
    pretrained = (*options, "model.encoder.weights=FILE")
    config = composed(*pretrained)
    assert config.optim.settings["encoder_lr"] == config.values["optim"]["encoder_lr"] == 0.0002
    assert composed(*pretrained, "optim.encoder_lr=0.001").optim.settings["encoder_lr"] == 0.001


def test_a_recipe_that_follows_a_paper_keeps_its_one_rate():
    optim = composed("experiment=dpt_ade20k", "paths.data_dir=DIR").optim.settings
    assert optim["encoder_lr"] == optim["lr"] == 0.002


@pytest.mark.parametrize("choice", choices("augment"))
def test_every_augmentation_can_be_built_and_repeats_no_default(choice):
    augment = composed(f"augment={choice}").augment
    changed = vars(augment.build(image_size=(32, 48)))
    assert all(changed[key] != getattr(TrainTransform, key) for key in augment.settings)


@pytest.mark.parametrize("choice", choices("experiment"))
def test_every_experiment_says_its_command_and_has_a_tiny_twin(choice):
    text = (CONF / "experiment" / f"{choice}.yaml").read_text()
    assert f"python train.py experiment={choice}" in text.partition("defaults")[0]
    config = composed(f"experiment={choice}", "debug=tiny")
    assert config.trainer.settings["max_steps"] == 2
    assert config.logger == {}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("trainr", 1, "there is no trainr. Did you mean trainer?"),
        ("task.monitr", "x", "there is no task.monitr. Did you mean monitor?"),
        ("optim.momentm", 0.9, "there is no optim.momentm. Did you mean momentum?"),
        ("data.root", "x", "there is no data.root. Allowed here: fov, length, seed, size"),
        ("data.image_size", [1, 2, 3], "data.image_size=[1, 2, 3]: "),
        ("model.encoder.embed_dims", 3, "there is no model.encoder.embed_dims. Did you mean"),
        ("trainer.max_steps", "x", "trainer.max_steps='x': must be a valid integer"),
        ("trainer.precision", "bf16-true", "trainer.precision='bf16-true': must be 'auto', "),
        ("trainer.callbacks", [], "there is no trainer.callbacks."),
        ("callbacks.freeze", 7, "callbacks.freeze=7: must be a mapping"),
        ("callbacks.freze", {}, "callbacks.freze.kind='freze': choose from checkpoint, "),
        ("logger.csv", {"kind": "csv", "x": 1, "save_dir": "."}, "there is no logger.csv.x. "),
        ("task.objectives.normals", {"weight": 1}, "task.objectives.normals.head='None': choose"),
        ("task.objectives.depth.loss.trim", 2, "there is no task.objectives.depth.loss.trim."),
        ("seed", -1, "seed=-1: must be greater than or equal to 0"),
        ("steps", True, "steps=true: must be a number"),
    ],
)
def test_a_mistake_is_one_line_with_its_full_key(key, value, says):
    values = node = deepcopy(composed().values)
    *parents, last = key.split(".")
    for name in parents:
        node = node[name]
    node[last] = value
    with pytest.raises(ValueError) as error:
        RunConfig.read(values)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_what_has_no_effect_on_files_is_a_warning(caplog):
    composed("data=scenes", "predictions=DIR", "image_size=[64,64]", command="evaluate")
    assert "image_size: no effect on DIR" in caplog.text


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
    return read_part({"kind": "wheel", **settings}, where, nn.Module).build()


def test_optimisers_and_schedules_wait_for_the_rest():
    node = {"kind": "LinearLR", "total_iters": 7}
    part = read_part(node, "schedule", LRScheduler)
    assert part.factory()(torch.optim.SGD([torch.zeros(1)], lr=0.1)).total_iters == 7
    with pytest.raises(ValueError, match=r"schedule\.total_iters='x'"):
        read_part({**node, "total_iters": "x"}, "schedule", LRScheduler)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"size": "big"}, r"^w\.size='big': must be a valid integer"),
        ({"size": 1, "colour": 3}, r"^w\.colour=3: must be a valid string"),
        ({"size": 1, "shape": [1]}, r"^w\.shape=\[1\]: must have more entries"),
        ({}, r"^w\.size must be given$"),
        ({"size": 1, "color": "red"}, r"^there is no w\.color\. Did you mean colour\?"),
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
        (tuple[int, int], 192, "w=192: must be a list"),
    ],
)
def test_values_that_are_no_numbers(target, value, says):
    with pytest.raises(ValueError, match=says):
        validate(target, value, "w")
    assert validate(bool | None, True, "w") is True
