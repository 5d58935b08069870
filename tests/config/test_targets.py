"""What a configuration may name: registered classes, of one kind in each place."""

import inspect
import re
import sys

import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.config.compose import compose
from dpt.config.objects import SLOTS, named, read_part, registered, slot_of
from dpt.config.overrides import as_text, parse
from dpt.data import Dataset
from dpt.objectives import Objective
from dpt.plugins import REGISTERED, load_plugins, register

ATTACKS = [
    "lightning.pytorch.callbacks.EarlyStopping",
    "ModelCheckpoint",
    "os.system",
    "dpt.cli.main",
    "torch.nn." + "a." * 100_000,
    {"silog": 1},
    None,
    3,
]


@pytest.mark.parametrize("name", ATTACKS, ids=lambda t: str(t)[:80])
@pytest.mark.parametrize("base", SLOTS)
def test_other_code_is_refused_everywhere(base, name):
    key = slot_of(base).key
    with pytest.raises(ValueError, match=rf"^x\.{key}=.*: choose from") as error:
        read_part({key: name}, "x", base)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"^x"):  # a file's own path of a class
        read_part({"_target_": name}, "x", base)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("early_stopping", Callback),
        ("progress", Callback),
        ("wandb", Logger),
        ("muon", Optimizer),
        ("OneCycleLR", LRScheduler),
        ("tum", Dataset),
        ("depth", Objective),
        ("silog", nn.Module),
        ("auto", nn.Module),
    ],
)
def test_each_place_takes_its_own_kind(name, base):
    assert name in registered(base)
    for other in SLOTS.keys() - {base}:
        assert registered(other).get(name) is not registered(base)[name]


def test_only_what_is_listed_makes_an_object():
    functions = {t.__name__ for ts in REGISTERED.values() for t in ts if inspect.isfunction(t)}
    makers = {"make_progress", "make_wandb", "default_loss", "adamw", "sgd", "muon"}
    assert functions == makers | {"constant", "cosine", "poly"}
    for base in SLOTS:
        for target in registered(base).values():
            assert inspect.isfunction(target) or issubclass(target, base)


MODULE = """
import os
from os import system
from torch import nn
from lightning.pytorch.callbacks import Callback

class Mine(nn.Module):
    def __init__(self, *, part: nn.Module, others: dict[str, nn.Module] | None = None):
        super().__init__()
        self.part, self.others = part, others

def make_mine(*, size: int) -> nn.Module:
    return nn.Linear(size, size)

def undeclared(size):
    return nn.Linear(size, size)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DPT_PLUGINS", "parts_of_mine")
    for base in SLOTS:
        registered(base)  # all that is built in
    before = dict(REGISTERED)
    load_plugins()
    yield "parts_of_mine"
    REGISTERED.clear()
    REGISTERED.update(before)
    sys.modules.pop("parts_of_mine", None)


def typed(value):
    """The value of an override, with names in place of classes."""
    return named(*parse([f"x={as_text(value)}"])).value


def test_a_class_on_the_command_line(own_module):
    node = {"_target_": f"{own_module}.make_mine", "size": 3}
    value = typed({"_target_": f"{own_module}.Mine", "part": node, "others": {"a": node}})
    part = {"kind": "make_mine", "size": 3}
    assert value == {"kind": "Mine", "part": part, "others": {"a": part}}
    built = read_part(value, "x", nn.Module).build()
    assert built.part.in_features == built.others["a"].in_features == 3
    for name in ("system", "os", "undeclared", "nothing"):
        with pytest.raises(ValueError, match=rf"x\._target_=parts_of_mine\.{name}: (must|not)"):
            typed({"_target_": f"{own_module}.{name}", "size": 3})


def test_a_run_keeps_the_name_of_a_class_and_not_its_path(own_module):
    path = f"{own_module}.make_mine"
    key = "task.objectives.depth.loss"
    typed = ["task=depth", f"{key}={{_target_:{path},size:3}}"]
    values = compose("train", [*typed, "run_dir=run"]).values()
    assert values["overrides"][:2] == ["task=depth", f"++{key}={{size:3,kind:make_mine}}"]
    assert path not in str(values)
    values = compose("train", ["task=depth", f"{key}._target_={path}"]).values()
    assert values["overrides"] == ["task=depth", f"++{key}.kind=make_mine"]
    REGISTERED.pop("make_mine")
    with pytest.raises(ValueError, match=rf"^{key}\.kind='make_mine'.*{key}\._target_="):
        read_part(values["task"]["objectives"]["depth"]["loss"], key, nn.Module)


def test_two_classes_of_one_name_are_refused(monkeypatch):
    monkeypatch.setitem(REGISTERED, "dice", REGISTERED["dice"][:])
    register("dice")(type("Mine", (nn.Module,), {}))
    with pytest.raises(ValueError, match="have the same name, dice"):
        registered(nn.Module)


def test_a_nested_object_is_of_the_declared_type(own_module):
    wrong = {"kind": "early_stopping", "monitor": "x"}
    with pytest.raises(ValueError, match=r"x\.part\.kind='early_stopping': choose from"):
        read_part(typed({"_target_": f"{own_module}.Mine", "part": wrong}), "x", nn.Module)


def test_nothing_is_built_where_a_value_is_expected():
    with pytest.raises(ValueError, match=r"^x\.eps=.*must be a valid number"):
        read_part({"kind": "silog", "eps": {"kind": "dice"}}, "x", nn.Module)


def test_a_value_that_the_class_refuses():
    node = {"kind": "early_stopping", "monitor": "x", "mode": "sideways"}
    with pytest.raises(ValueError, match=r"^x: .*sideways|^x: `mode`"):
        read_part(node, "x", Callback).build()


@pytest.mark.parametrize("value", [5, None, "silog", []])
def test_what_is_no_mapping(value):
    with pytest.raises(ValueError, match=re.escape(f"x={value!r}: must be a mapping")):
        read_part(value, "x", nn.Module)
