"""What ``_target_`` may name: classes of one kind in each place, and no other code."""

import importlib
import inspect
import pkgutil
import re
import sys
import warnings

import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import dpt
from dpt.config.objects import SLOTS, find, make
from dpt.data import Dataset
from dpt.objectives import Objective
from dpt.plugins import load_plugins

ATTACKS = [
    "lightning.pytorch.trainer.connectors.signal_connector.call",
    "lightning.pytorch.callbacks.model_checkpoint.os.system",
    "lightning.pytorch.Trainer",
    "dpt.atomic.write_bytes",
    "dpt.cli.main",
    "dpt.plugins.load_plugins",
    "torch.nn.modules.module.torch",
    "torch.hub.load",
    "dpt.losses.depth.nn",
    "dpt.data.Dataset",
    "builtins.exec",
    "torch.nn." + "a." * 100_000,
    "dptx.evil",
    "dpt.losses.NoSuchLoss",
    "dpt.losses.nowhere.Loss",
    {"dpt.losses.SILogLoss": 1},
    None,
    3,
]


@pytest.mark.parametrize("target", ATTACKS, ids=lambda t: str(t)[:80])
def test_other_code_is_refused_everywhere(target):
    for base in SLOTS:
        with pytest.raises(ValueError, match=r"^x\._target_=.*: (must be|not found)") as error:
            make({"_target_": target}, "x", base)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("target", "base"),
    [
        ("lightning.pytorch.callbacks.EarlyStopping", Callback),
        ("dpt.training.callbacks.make_progress", Callback),
        ("lightning.pytorch.loggers.CSVLogger", Logger),
        ("dpt.training.loggers.make_wandb", Logger),
        ("dpt.training.optim.make_optimizer", Optimizer),
        ("torch.optim.lr_scheduler.OneCycleLR", LRScheduler),
        ("dpt.data.datasets.tum.TumDataset", Dataset),
        ("dpt.objectives.DepthObjective", Objective),
        ("dpt.losses.SILogLoss", nn.Module),
        ("dpt.objectives.depth.default_loss", nn.Module),
        ("torch.nn.CrossEntropyLoss", nn.Module),
    ],
)
def test_each_place_takes_its_own_kind(target, base):
    found = find(target, "x", base)
    assert found.__name__ == target.rpartition(".")[2]
    for other in set(SLOTS) - {base, *base.__mro__}:
        with pytest.raises(ValueError, match="must be"):
            find(target, "x", other)


def test_every_name_below_the_allowed_packages():
    """Whatever is accepted is a class of the right kind from there, or a function listed here."""
    packages = {package for places in SLOTS.values() for package in places}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(dpt.__path__, "dpt."):
            if module.name != "dpt.__main__":
                importlib.import_module(module.name)
    modules = [
        m for m in sorted(sys.modules) if f"{m}.".startswith((*packages, "lightning.", "dpt."))
    ]
    accepted, tried = set(), 0
    for module in modules:
        for name in vars(sys.modules[module]):
            tried += 1
            for base in SLOTS:
                try:
                    found = find(f"{module}.{name}", "x", base)
                except ValueError:
                    continue
                accepted.add(found)
                assert f"{found.__module__}.".startswith(SLOTS[base])
                assert inspect.isfunction(found) or issubclass(found, base)
    assert tried > 5000
    assert len(accepted) > 100
    functions = {f"{f.__module__}.{f.__name__}" for f in accepted if inspect.isfunction(f)}
    assert functions == {
        "dpt.training.callbacks.make_progress",
        "dpt.training.loggers.make_wandb",
        "dpt.training.loggers.ignore_errors",  # takes a logger and returns it
        "dpt.training.optim.make_optimizer",
        "dpt.training.optim.warmup_then_decay",
        "dpt.objectives.depth.default_loss",
    }


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
    load_plugins()
    yield "parts_of_mine"
    sys.modules.pop("parts_of_mine", None)


def test_a_users_own_module(own_module):
    node = {"_target_": f"{own_module}.make_mine", "size": 3}
    loss = make(
        {"_target_": f"{own_module}.Mine", "part": node, "others": {"a": node}}, "x", nn.Module
    )
    assert loss.part.in_features == loss.others["a"].in_features == 3
    for name in ("system", "os", "Callback", "undeclared"):
        with pytest.raises(ValueError, match=rf"x\._target_=parts_of_mine\.{name}: must be"):
            make({"_target_": f"{own_module}.{name}", "size": 3}, "x", nn.Module)


def test_a_nested_object_is_of_the_declared_type(own_module):
    wrong = {"_target_": "lightning.pytorch.callbacks.Timer"}
    with pytest.raises(ValueError, match=r"x\.part=.*must be an instance of Module"):
        make({"_target_": f"{own_module}.Mine", "part": wrong}, "x", nn.Module)


def test_a_value_that_the_class_refuses():
    node = {"_target_": "lightning.pytorch.callbacks.Timer", "duration": {"lots": 1}}
    with pytest.raises(ValueError, match=r"^x: 'lots' is an invalid keyword"):
        make(node, "x", Callback)


@pytest.mark.parametrize("value", [5, None, "dpt.losses.SILogLoss", []])
def test_what_is_no_mapping(value):
    with pytest.raises(ValueError, match=re.escape(f"x={value!r}: must be a mapping")):
        make(value, "x", nn.Module)
