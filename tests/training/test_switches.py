"""Switches that change what a step costs, and not what it gives."""

import shutil

import pytest
import torch
from benchmarks.models import kept_bytes
from tiny import checkpoint_of, small_model

from dpt import functional
from dpt.config.build import set_switches
from dpt.config.schema import ModelSettings

DROPPED = ["model.encoder.drop_path=0.2"]
# torch.compile draws other random numbers; val, which comes first, has images of another size
COMPILED = [
    "model.encoder.drop_path=0",
    "task.objectives.segmentation.dropout=0",
    "data.eval_size=[48,64]",
]


NEEDS_CPP = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "settings"),
    [
        ("checkpoint_activations", DROPPED),
        ("channels_last", DROPPED),
        pytest.param("compile", COMPILED, marks=NEEDS_CPP),
    ],
)
def test_a_switch_changes_nothing_but_the_cost(train, tmp_path, switch, settings):
    torch._dynamo.reset()
    plain = checkpoint_of(train(tmp_path / "plain", "task=joint", *settings))["state_dict"]
    run = train(tmp_path / "run", "task=joint", *settings, f"model.{switch}=true")
    found = checkpoint_of(run)["state_dict"]
    assert found.keys() == plain.keys()
    # two steps of Adam, whose first steps have the learning rate's size in whatever direction
    scale = 1e-3
    for name, value in plain.items():
        if value.is_floating_point():
            assert (found[name] - value).abs().mean() < 0.02 * scale, name


def test_recomputation_saves_memory_where_it_is_wanted(monkeypatch):
    model = small_model(heads={"depth": {"kind": "relative"}})

    def kept(setting, dtype=torch.float32):
        set_switches(
            model.to(dtype), ModelSettings(name="x", encoder={"kind": "vit"}, save_memory=setting)
        )
        return kept_bytes(lambda: model(torch.zeros(2, 3, 64, 96, dtype=dtype)))

    monkeypatch.setattr(functional, "save_memory", None)
    assert kept(True) == kept("auto") < kept(False)
    assert kept(True, torch.bfloat16) < kept("auto", torch.bfloat16) == kept(False, torch.bfloat16)


@pytest.mark.parametrize("kind", ["vit", "beit"])
def test_checkpointed_activations_are_fewer_and_gradients_the_same(kind):
    torch.manual_seed(0)
    model = small_model(heads={"depth": {"kind": "relative"}}, encoder={"kind": kind}).double()
    images = torch.randn(2, 3, 64, 96, dtype=torch.double)

    def gradients():
        model.zero_grad()
        model(images)["depth"].square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = gradients()
    before = kept_bytes(lambda: model(images))
    model.encoder.set_grad_checkpointing()
    assert kept_bytes(lambda: model(images)) < before
    for found, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, wanted)
