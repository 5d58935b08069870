"""Prediction alone: the same function by fewer operations."""

import os
import subprocess
import sys

import pytest
import torch
from tiny import assert_equal, random_norms
from torch import nn

import dpt
from dpt.nn.network import Compiled

HEADS = {"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5}}
TINY = {
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 4,
    "out_indices": [0, 1, 2, 3],
    "image_size": [64, 64],
}
STEM = {"num_blocks": 2, "out_indices": [0, 1], "image_size": [64, 64]}
DECODER = {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}
COMPILED = """
import torch, dpt
from dpt.nn import network
seconds = iter([2.0, 1.0])
network._seconds = lambda *_: next(seconds)
torch.manual_seed(0)
model = dpt.create_model("dpt_tiny", heads={heads}, encoder={tiny}, decoder={decoder}).eval()
fast = model.optimize_for_inference()
for size in ((64, 64), (64, 96), (80, 112)):
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        wanted, found = model(images), fast(images)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
print("compiled:", fast.forward.chosen is not fast.forward.function)
"""


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = dpt.create_model("dpt_tiny", heads=HEADS, encoder=TINY, decoder=DECODER)
    return random_norms(made).eval()


def fused(model, height, width):
    """The optimised copy, which predicts the same without batch norms."""
    fast, images = model.optimize_for_inference(compiled=False), torch.randn(2, 3, height, width)
    with torch.no_grad():
        wanted, found = model(images), fast(images)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fast.modules())
    return fast


def test_the_copy_predicts_the_same_without_batch_norms(model):
    fast = fused(model, 70, 90)
    assert not any(p.requires_grad for p in fast.parameters())
    assert fast.heads["segmentation"].auxiliary_layers is None


def test_the_stems_batch_norms_are_fused_and_projections_removed():
    torch.manual_seed(0)
    model = dpt.create_model("dpt_stem", heads={"depth": {}, "dino": {}}, encoder=STEM)
    random_norms(model.eval())
    fast = fused(model, 64, 64)
    assert not any("projection" in name for name in fast.state_dict())


@pytest.mark.parametrize("standardization", ["sqrt", "official"])
def test_the_hybrids_weights_are_standardised_once(standardization):
    torch.manual_seed(0)
    model = dpt.create_model(
        "dpt_hybrid",
        heads={"depth": {}},
        encoder={**TINY, "out_indices": [2, 3], "weight_standardization": standardization},
        decoder={"reassemble_channels": [None, None, 16, 16], "fusion_channels": 16},
    ).eval()
    fast = model.optimize_for_inference(compiled=False)
    assert not any(hasattr(m, "standardized") for m in fast.modules())
    images = torch.randn(1, 3, 33, 50)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)


def test_the_model_itself_is_left_alone(model):
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.optimize_for_inference(compiled=False)
    assert_equal(model.state_dict(), before)
    assert all(p.requires_grad for p in model.parameters())


# --- Compiled


def run_compiled(**environment):
    code = COMPILED.format(heads=HEADS, tiny=TINY, decoder=DECODER)
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )


@pytest.mark.slow
def test_compiled_predictions_are_the_same():
    assert "compiled: True" in run_compiled().stdout


@pytest.mark.slow
def test_without_a_compiler_it_warns_and_goes_on(tmp_path):
    done = run_compiled(CXX="/nonexistent/c++", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert "compiled: False" in done.stdout
    assert "torch.compile does not work here" in done.stderr


@pytest.mark.parametrize("seconds", [0.02, 0.005])
def test_compiled_keeps_the_faster_function(monkeypatch, seconds):
    def double(images):
        return 2 * images

    def compiled(images):
        return 2 * images

    times = {double: 0.01, compiled: seconds}
    monkeypatch.setattr(torch, "compile", lambda function, options: compiled)
    monkeypatch.setattr("dpt.nn.network._seconds", lambda function, *_: times[function])
    function, images = Compiled(double), torch.ones(1, 3, 4, 4)
    assert torch.equal(function(images), 2 * images)
    assert function.chosen is min(times, key=times.get)


def test_a_size_that_cannot_be_compiled_is_computed_without(monkeypatch, caplog):
    def compiled(images):
        if images.shape[-1] > 4:
            raise torch._dynamo.exc.Unsupported("nonzero")
        return 2 * images

    monkeypatch.setattr(torch, "compile", lambda function, options: compiled)
    monkeypatch.setattr("dpt.nn.network._seconds", lambda function, *_: function is not compiled)
    function = Compiled(lambda images: 2 * images)
    for side in (4, 8):
        images = torch.ones(1, 3, side, side)
        assert torch.equal(function(images), 2 * images)
    assert "nonzero" in caplog.text


# --- Limits of a copy


def test_an_optimised_copy_is_not_saved(model, tmp_path):
    fast = model.optimize_for_inference(compiled=False)
    again = fast.optimize_for_inference()
    assert again is not fast
    assert again.predicts_only
    with pytest.raises(ValueError, match="save the model it was made of"):
        fast.save_pretrained(tmp_path)
