"""The wired model: any image size, any set of heads, every parameter trained."""

import pytest
import torch
from tiny import HEADS, small_model
from torch import nn

from dpt.functional import upsample
from dpt.nn import Features

SETS = [[name] for name in HEADS] + [["depth", "segmentation"], list(HEADS)]


def tiny(heads=HEADS, **overrides):
    return small_model(heads={name: HEADS[name] for name in heads}, **overrides)


def shapes(outputs):
    return {name: tuple(value.shape) for name, value in outputs.items()}


def wanted_shapes(heads, batch, height, width):
    everything = {
        "depth": (batch, height, width),
        "segmentation": (batch, 5, height, width),
        "classification": (batch, 7),
        "regression": (batch,),
    }
    return {name: everything[name] for name in heads}


@pytest.mark.parametrize(
    "size",
    [(64, 64), (48, 80), (65, 63), (64, 65), (9, 5), (1, 1), (160, 144), (17, 128)],
    ids=lambda s: f"{s[0]}x{s[1]}",
)
def test_any_image_size(size):
    model = tiny().eval()
    with torch.no_grad():
        outputs = model(torch.randn(1, 3, *size))
    assert shapes(outputs) == wanted_shapes(HEADS, 1, *size)
    assert all(value.isfinite().all() for value in outputs.values())


def test_padding_repeats_the_edge_and_is_cropped_away():
    model = tiny().eval()
    images = torch.randn(2, 3, 50, 61)
    rows = torch.arange(64).clamp(max=49)
    columns = torch.arange(64).clamp(max=60)
    with torch.no_grad():
        found = model(images)
        padded = model(images[:, :, rows][..., columns])
    for name in ("depth", "segmentation"):
        torch.testing.assert_close(found[name], padded[name][..., :50, :61], rtol=0, atol=0)
    torch.testing.assert_close(found["classification"], padded["classification"], rtol=0, atol=0)


def test_an_image_on_the_grid_is_untouched():
    images = torch.randn(2, 3, 64, 48)
    model = tiny().eval()
    assert model.pad(images)[0] is images
    with torch.no_grad():
        found = model(images)
        tokens = model.encoder(images)
        features = Features(model.encoder, tokens, model.decoder.fuse(tokens))
        assert torch.equal(features.map, model.decoder(tokens))
        wanted = {name: head(features, (64, 48)) for name, head in model.heads.items()}
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("heads", SETS, ids="+".join)
def test_every_parameter_is_trained_by_every_set_of_heads(heads):
    model = tiny(heads, num_register_tokens=2, layer_scale=0.5).train()
    outputs = model(torch.randn(2, 3, 64, 64), raw=True)
    values = [tensor for output in outputs.values() for tensor in output.tensors()]
    assert len(values) == len(heads) + ("segmentation" in heads)
    sum((value * torch.randn_like(value)).sum() for value in values).backward()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []
    assert all(p.grad.isfinite().all() for p in model.parameters())
    if not {"depth", "segmentation"} & set(heads):
        assert model.decoder is None


@pytest.mark.parametrize("mode", ["ignore", "add", "project"])
def test_every_readout_mode_trains_everything_and_uses_cls_or_not(mode):
    model = tiny(["depth"], readout=mode)
    assert {level.read.mode for level in model.decoder.reassemble} == {mode}
    model(torch.randn(1, 3, 64, 64))["depth"].mul(torch.randn(64, 64)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    model.eval()
    tokens = model.encoder(torch.randn(1, 3, 64, 64))
    with torch.no_grad():
        before = model.decoder(tokens)
        for level in tokens.levels:
            level[:, 0] += 1
        changed = (model.decoder(tokens) - before).abs().max() > 1e-4
    assert changed == (mode != "ignore")


@torch.no_grad()
def test_small_logits_are_those_that_are_upsampled():
    model, images = tiny().eval(), torch.randn(1, 3, 64, 96)
    full = model(images)
    small = {name: output.prediction for name, output in model(images, raw=True).items()}
    assert small["segmentation"].shape == (1, 5, 32, 48)
    assert torch.equal(upsample(small["segmentation"], (64, 96)), full["segmentation"])
    assert all(torch.equal(small[k], full[k]) for k in full if k != "segmentation")
    padded = model(torch.randn(1, 3, 70, 90), raw=True)
    assert padded["segmentation"].tensor.shape == (1, 5, 70, 90)


def test_outputs_declare_what_is_predicted():
    model = tiny().eval()
    with torch.no_grad():
        predicted = model(torch.randn(2, 3, 32, 48))
    assert list(model.outputs) == list(predicted)
    for name, spec in model.outputs.items():
        shape = [2, *([] if spec.channels is None else [spec.channels])]
        assert spec.name == name
        assert list(predicted[name].shape) == shape + [32, 48] * spec.dense


def test_batch_entries_are_independent():
    model = tiny().eval()
    images = torch.randn(3, 3, 48, 48)
    with torch.no_grad():
        together = model(images)
        for i in range(3):
            for name, value in model(images[i : i + 1]).items():
                torch.testing.assert_close(value[0], together[name][i], rtol=1e-4, atol=1e-5)


def test_bf16_autocast_stays_near_float32():
    model = tiny()
    images = torch.randn(2, 3, 64, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(images, raw=True).values()
        loss = sum(value.float().mean() for output in outputs for value in output.tensors())
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad():
        full = model(images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(images)
    for name, value in full.items():
        error = (half[name].float() - value).abs().max()
        assert error <= 0.05 * value.abs().max(), name


def test_float64_and_float32_agree():
    model = tiny().eval()
    images = torch.randn(1, 3, 80, 48)
    with torch.no_grad():
        single = model(images)
        double = model.double()(images.double())
    for name, value in double.items():
        assert (single[name] - value).abs().max() <= 1e-5 * value.abs().max()


def test_batch_norm_in_the_units_of_segmentation_alone():
    def norms(model):
        return [m for m in model.decoder.modules() if isinstance(m, nn.BatchNorm2d)]

    assert len(norms(tiny(["segmentation"]))) == 14  # 2 a unit, 7 units
    assert not norms(tiny(["depth"]))
    assert not norms(tiny(["segmentation"], batch_norm=False))
