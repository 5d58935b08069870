"""LoRA: the sum of a frozen weight and a trained update, wherever the weight is read."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import dpt
from dpt.nn.network import add_low_rank, merged_state

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
HEADS = {"depth": {}}
SMALL = {"embed_dim": 32, "depth": 4, "num_heads": 2, "out_indices": [0, 1, 2, 3]}
TIMM = {"kind": "timm", "name": "vit_tiny_patch16_224", **SMALL}
DINOV3 = {**TIMM, "name": "vit_small_patch16_dinov3_qkvb"}  # reads the weights of its layers
ENCODERS = {
    "vit": {},
    "swiglu": {"swiglu": True, "layer_scale": 0.5},
    "beit": {"kind": "beit", "position": "none"},
    "timm": TIMM,
    "dinov3": DINOV3,
}


def adapted(encoder, rank=2, **overrides):
    """A model with updates that change it."""
    torch.manual_seed(0)
    if encoder.get("kind") == "timm":
        options = {"reassemble_channels": [8, 8, 12, 16], "fusion_channels": 8}
        model = dpt.create_model("dpt_tiny", heads=HEADS, encoder=encoder, **options)
    else:
        sizes = {"embed_dim": 32, "num_blocks": 4, "num_heads": 2, "out_indices": [0, 1, 2, 3]}
        settings = sizes | {"image_size": [64, 64], "patch_size": 16} | encoder
        options = {"reassemble_channels": [8, 8, 12, 16], "fusion_channels": 8}
        model = dpt.create_model("dpt_tiny", heads=HEADS, encoder=settings, **options, **overrides)
    plain = deepcopy(model)
    model.encoder.requires_grad_(False)
    for layer in model.encoder.lora_layers().values():
        if min(layer.weight.shape) > rank:
            add_low_rank(layer, rank)
    return plain.eval(), model.eval()


def with_updates(model):
    for name, parameter in model.named_parameters():
        if name.endswith(".up"):
            nn.init.normal_(parameter, std=0.1)
    return model


@torch.no_grad()
def depth(model):
    return model(IMAGES)["depth"]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_the_merged_model_predicts_the_same_to_the_bit(encoder, tmp_path):
    plain, model = adapted(encoder)
    assert torch.equal(depth(plain), depth(model))  # updates are zero at first
    with_updates(model).save_pretrained(tmp_path / "saved")
    merged = dpt.DPT.from_pretrained(tmp_path / "saved")
    assert merged.state_dict().keys() == plain.state_dict().keys()
    assert not torch.equal(depth(plain), depth(model))
    assert torch.equal(depth(merged), depth(model))


@pytest.mark.parametrize(
    ("encoder", "recomputes"), [*((e, False) for e in ENCODERS.values()), ({}, True), (TIMM, True)]
)
def test_every_update_gets_the_gradient_of_its_weight(encoder, recomputes):
    """With W + B A, the gradient of B is that of the weight times Aᵀ; that of A is Bᵀ times it."""
    plain, model = adapted(encoder)
    plain.load_state_dict(merged_state(with_updates(model).state_dict()))
    for net in (plain, model):
        net.encoder.set_grad_checkpointing(recomputes)
        net.train()(IMAGES)["depth"].square().mean().backward()
    layers = {n: m for n, m in model.encoder.named_modules() if hasattr(m, "parametrizations")}
    assert len(layers) >= 16
    for name, layer in layers.items():
        update, gradient = layer.parametrizations.weight[0], plain.encoder.get_submodule(name)
        gradient = gradient.weight.grad
        torch.testing.assert_close(update.up.grad, gradient @ update.down.mT)
        torch.testing.assert_close(update.down.grad, update.up.mT @ gradient)
    trained = {n for n, p in model.encoder.named_parameters() if p.grad is not None}
    assert trained == {
        n for n, _ in model.encoder.named_parameters() if n.endswith((".up", ".down"))
    }


def test_small_updates_survive_autocast():
    layer = nn.Linear(8, 8)
    add_low_rank(layer, 1)
    nn.init.constant_(layer.parametrizations.weight[0].up, 1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        change = layer.weight - layer.parametrizations.weight.original
        assert layer.weight.dtype == torch.float32
    assert (change != 0).all()
