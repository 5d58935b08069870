"""Tiny runs, started in this process as the command line starts them, and steps of a task."""

import logging
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dpt
from dpt.cli import main
from dpt.config.compose import compose
from dpt.config.schema import RunConfig
from dpt.nn import HEADS as HEAD_CONFIGS
from dpt.weights.formats import CONFIG_KEY

TINY_MODEL = (
    "model.encoder.num_blocks=4",
    "model.encoder.out_indices=[0,1,2,3]",
    "model.encoder.embed_dim=48",
    "model.decoder.reassemble_channels=[8,8,16,16]",
    "model.decoder.fusion_channels=16",
)
TINY_VIT = ("model=dpt_tiny", *TINY_MODEL)
TINY_DATA = ("data.image_size=[32,48]", "data.batch_size=4", "data.num_workers=0")
TINY_SCENES = ("data.train.length=8", "data.val.length=5")
ON_CPU = ("trainer.accelerator=cpu", "trainer.precision=32-true")  # the same on every machine
TINY_RUN = (*TINY_MODEL, *TINY_DATA, *ON_CPU, "logger=none", "trainer.max_steps=2")

HEADS = {
    "depth": {"kind": "metric", "max_depth": 10.0},
    "segmentation": {"num_classes": 5},
    "classification": {"num_classes": 7},
    "regression": {},
}


def slow_after(count: int, cases) -> list[Any]:
    """The cases of a parametrised test: those after the first ``count`` are slow."""
    cases = list(cases)
    rest = [case if isinstance(case, tuple) else (case,) for case in cases[count:]]
    return [*cases[:count], *(pytest.param(*case, marks=pytest.mark.slow) for case in rest)]


def small_model(**overrides):
    """A model with all ``HEADS`` but for what ``overrides`` say, at its first weights."""
    options = {
        "heads": HEADS,
        "embed_dim": 32,
        "num_blocks": 4,
        "num_heads": 2,
        "out_indices": [0, 1, 2, 3],
        "image_size": [64, 64],
        "reassemble_channels": [8, 8, 12, 16],
        "fusion_channels": 8,
    }
    return dpt.create_model("dpt_tiny", **(options | overrides))


def heads_of(*objectives) -> dict[str, dict[str, Any]]:
    """Returns the settings of heads that objectives share, as a run's configuration gives them."""
    heads = {}
    for objective in objectives:
        make_config = HEAD_CONFIGS[objective.head]
        names = make_config.__dataclass_fields__.keys() & vars(objective).keys()
        settings = {name: getattr(objective, name) for name in names} | objective.head_settings
        config = make_config(**settings)
        heads[objective.head] = {name: getattr(config, name) for name in settings}
    return heads


def random_norms(module):
    """Running statistics and affine maps away from their defaults, so that BN is no identity."""
    for bn in module.modules():
        if isinstance(bn, nn.BatchNorm2d):
            nn.init.uniform_(bn.running_mean, -1, 1)
            nn.init.uniform_(bn.running_var, 0.5, 2)
            nn.init.uniform_(bn.weight, 0.5, 2)
            nn.init.uniform_(bn.bias, -1, 1)
    return module


def assert_equal(found, wanted) -> None:
    """Equality of two dictionaries of tensors, bit for bit."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def save_checkpoint(model, path, **changed) -> None:
    """Writes what a run's checkpoint holds of ``model``, but for tensors that are given."""
    state = model.state_dict() | changed
    content = {CONFIG_KEY: model.config.to_dict()}
    torch.save(content | {"state_dict": {f"model.{k}": v for k, v in state.items()}}, path)


def checkpoint_of(run: Path, name: str = "last") -> dict[str, Any]:
    """What the checkpoint ``name`` in a run's folder holds."""
    return torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)


def step_of(path: Path) -> int:
    """The step of a checkpoint; 0 without one."""
    return torch.load(path, weights_only=True, mmap=True)["global_step"] if path.is_file() else 0


def words_of(*arguments: object) -> list[str]:
    """The arguments of a command, from texts of one argument or of several ``KEY=VALUE``."""
    return [
        word
        for text in map(str, arguments)
        for word in (text.split(" ") if re.fullmatch(r"(\S+=\S* )+\S+=\S*", text) else [text])
    ]


def call(*arguments: object) -> None:
    """What ``dpt ARGUMENTS`` does; the log and the process are as before afterwards."""
    log, typed = logging.getLogger("dpt"), sys.argv
    before = log.level, log.propagate, log.handlers[:]
    sys.argv = ["dpt", *words_of(*arguments)]
    try:
        main()
    finally:
        sys.argv = typed
        for handler in log.handlers:
            handler.close()
        log.setLevel(before[0])
        log.propagate, log.handlers[:] = before[1:]


@cache
def _composed(*overrides: str) -> RunConfig:
    return RunConfig.read(compose("train", ["run_dir=run", *overrides]).values())


def run_config(*overrides: str, **groups: object) -> RunConfig:
    """The configuration of a training run, with other groups or keys."""
    return _composed(*overrides).changed(**groups)
