"""The wired model: any image size, any set of heads, every parameter trained."""

import pytest
import torch
from tiny import HEADS, small_model

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


@pytest.mark.parametrize("size", [(48, 80), (65, 63), (1, 1), (17, 128)])
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


def test_outputs_declare_what_is_predicted():
    model = tiny().eval()
    with torch.no_grad():
        predicted = model(torch.randn(2, 3, 32, 48))
    assert list(model.outputs) == list(predicted)
    for name, spec in model.outputs.items():
        shape = [2, *([] if spec.channels is None else [spec.channels])]
        assert spec.name == name
        assert list(predicted[name].shape) == shape + [32, 48] * spec.dense
