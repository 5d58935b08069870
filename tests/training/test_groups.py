"""Parameter groups: each parameter in one, rates by part and depth, who is decayed."""

from functools import cache

import pytest
import torch
from torch import nn

import dpt
from dpt.nn import HEADS
from dpt.training.optim import sgd

SMALL = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3]}
ENCODERS = {
    "vit": {**SMALL, "num_register_tokens": 2, "layer_scale": 0.1, "final_norm": True},
    "beit": {**SMALL, "kind": "beit", "layer_scale": 0.1},
    "timm": {"kind": "timm", "name": "test_vit"},
}
TIMM = tuple(
    (
        "vit_small_patch14_reg4_dinov2 vit_small_patch16_dinov3 beit_base_patch16_224 "
        "deit_tiny_distilled_patch16_224 swin_tiny_patch4_window7_224 convnext_atto "
        "swinv2_tiny_window8_256 resnet18"
    ).split()
)
NEEDED = {
    "depth": {"kind": "metric", "max_depth": 10.0},
    "segmentation": {"num_classes": 3},
    "panoptic": {"num_classes": 2, "things": [True, False]},
    "instance": {"num_classes": 1, "things": [True]},
    "classification": {"num_classes": 4},
}
ALL_HEADS = {name: NEEDED.get(name, {}) for name in HEADS}


@cache
def model_of(name):
    """The model of that name, or a tiny one with that encoder."""
    size, encoder = name, {}
    if name not in dpt.list_models():
        size, encoder = "dpt_tiny", ENCODERS.get(name, {"kind": "timm", "name": name})
    decoder = {} if size != "dpt_tiny" else {"reassemble_channels": [8] * 4, "fusion_channels": 8}
    names = ("panoptic", "classification") if size.startswith("eomt") else ALL_HEADS
    heads = {name: ALL_HEADS[name] for name in names}
    with torch.device("meta"):
        return dpt.create_model(size, heads=heads, encoder=encoder, decoder=decoder)


def groups_of(model, **options):
    options = {"lr": 1.0, "encoder_lr": 0.1, "weight_decay": 0.5, "layer_decay": None, **options}
    return sgd(model, **options).param_groups


def by_name(model, groups, key):
    """{parameter's name: value of its group}"""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group[key] for group in groups for p in group["params"]}


# ------------------------------------------------------------------------------ one group each


@pytest.mark.parametrize("layer_decay", [pytest.param(None, marks=pytest.mark.slow), 0.8])
@pytest.mark.parametrize("name", [*dpt.list_models(), *ENCODERS, *TIMM])
def test_every_parameter_of_every_model_is_in_exactly_one_group(name, layer_decay):
    model = model_of(name)
    groups = groups_of(model, layer_decay=layer_decay)
    found = [id(p) for group in groups for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters()}
    labels = [group["name"] for group in groups]
    assert len(labels) == len(set(labels))  # or the monitor of learning rates refuses them
    assert (len(groups) == 4) == (layer_decay is None)


# ------------------------------------------------------------------------------ weight decay

UNDECAYED = tuple(
    (
        ".bias decoder.queries decoder.codes cls_token reg_token dist_token pos_embed .gamma "
        "gamma_1 gamma_2 position_bias_table q_bias v_bias logit_scale clip.positions "
        "clip.log_scale in_proj_bias bytes.weight"
    ).split()
)


@pytest.mark.parametrize("encoder", [*ENCODERS, *TIMM])
def test_norms_biases_tokens_codes_and_gains_are_not_decayed(encoder):
    model = model_of(encoder)
    decay = by_name(model, groups_of(model), "weight_decay")
    norms = (nn.LayerNorm, nn.modules.batchnorm._BatchNorm, nn.GroupNorm)
    spared = {
        f"{name}.{p}"
        for name, module in model.named_modules()
        if isinstance(module, norms)
        for p, _ in module.named_parameters(recurse=False)
    }
    spared |= {name for name in decay if name.endswith(UNDECAYED)}
    for name, value in decay.items():
        assert value == (0.0 if name in spared else 0.5), name
    if encoder == "vit":
        assert {
            "encoder.cls_token",
            "encoder.reg_token",
            "encoder.pos_embed",
            "encoder.blocks.0.ls1.gamma",
        } <= spared


# ------------------------------------------------------------------------------ layer decay


@pytest.mark.peers
@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "convnext_atto"]
)
def test_rates_are_timms(name):
    import timm
    from timm.optim import param_groups_layer_decay

    with torch.device("meta"):
        peer = timm.create_model(name, num_classes=7)
    scales = {
        id(p): group["lr_scale"]
        for group in param_groups_layer_decay(peer, layer_decay=0.7)
        for p in group["params"]
    }
    model = model_of(name)
    rates = by_name(model, groups_of(model, layer_decay=0.7, encoder_lr=1.0), "lr")
    compared = 0
    for part, parameter in peer.named_parameters():
        if (ours := rates.get(f"encoder.model.{part}")) is not None:
            assert ours == pytest.approx(scales[id(parameter)]), part
            compared += 1
    assert compared == sum(n.startswith("encoder.") for n in rates)
