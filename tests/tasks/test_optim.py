"""Parameter groups and learning rates."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import dpt
from dpt.tasks.optim import adamw, parameter_groups, sgd, warmup_then_decay

ENCODERS = {
    "vit": {
        "num_register_tokens": 2,
        "layer_scale": 0.1,
        "embed_dim": 48,
        "num_blocks": 4,
        "out_indices": [0, 1, 2, 3],
    },
    "timm": {"kind": "timm", "name": "test_vit"},
}


def model_of(encoder="vit"):
    return dpt.create_model(
        "dpt_tiny",
        heads={"depth": {"kind": "relative"}, "segmentation": {"num_classes": 3},
               "classification": {"num_classes": 4}},
        encoder=ENCODERS[encoder],
        decoder={"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16},
    )  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return model_of()


def names_of(model, groups):
    """{group's name: names of its parameters}"""
    names = {id(p): name for name, p in model.named_parameters()}
    return {g["name"]: {names[id(p)] for p in g["params"]} for g in groups}


# ------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_parameter_is_in_exactly_one_group(encoder):
    model = model_of(encoder)
    groups = parameter_groups(model, lr=1.0, encoder_lr=0.1, weight_decay=0.5)
    found = [id(p) for group in groups for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in model.parameters()}
    assert len(groups) == 4


@pytest.mark.parametrize("encoder", ENCODERS)
def test_norms_biases_tokens_and_codes_are_not_decayed(encoder):
    model = model_of(encoder)
    groups = parameter_groups(model, lr=1.0, encoder_lr=None, weight_decay=0.5)
    decay = {n: g["weight_decay"] for g in groups for n in names_of(model, [g])[g["name"]]}
    norms = (nn.LayerNorm, nn.BatchNorm2d, nn.GroupNorm)
    spared = {f"{name}.{p}" for name, module in model.named_modules() if isinstance(module, norms)
              for p, _ in module.named_parameters(recurse=False)}  # fmt: skip
    spared |= {name for name in decay if name.endswith(".bias")}
    spared |= {n for n in decay if n.endswith(("cls_token", "reg_token", "pos_embed", ".gamma"))}
    assert any(n.endswith("pos_embed") for n in spared)
    if encoder == "vit":
        assert {"encoder.cls_token", "encoder.reg_token"} <= spared
    for name, value in decay.items():
        assert value == (0.0 if name in spared else 0.5), name


def test_frozen_parameters_are_left_out(model):
    model = model_of()
    model.encoder.requires_grad_(False)
    groups = parameter_groups(model, lr=1.0, encoder_lr=0.1, weight_decay=0.5)
    assert {g["name"] for g in groups} == {"decoder", "decoder_no_decay"}


@pytest.mark.parametrize("make", [adamw, sgd])
@pytest.mark.parametrize(("encoder_lr", "expected"), [(0.01, 0.01), (None, 0.1), (0.0, 0.0)])
def test_the_encoder_has_its_own_rate(model, make, encoder_lr, expected):
    optimizer = make(model, lr=0.1, encoder_lr=encoder_lr)
    for group in optimizer.param_groups:
        names = names_of(model, [group])[group["name"]]
        inside = [name.startswith("encoder.") for name in names]
        assert all(inside) or not any(inside)
        assert group["lr"] == (expected if inside[0] else 0.1)


def test_an_encoder_at_rate_zero_stays(model):
    model = model_of()
    before = {k: v.clone() for k, v in model.named_parameters()}
    optimizer = adamw(model, lr=0.1, encoder_lr=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("encoder."), name


def test_options_reach_the_optimisers(model):
    assert adamw(model, lr=0.1, betas=(0.8, 0.95)).param_groups[0]["betas"] == (0.8, 0.95)
    assert sgd(model, lr=0.1, momentum=0.7).param_groups[0]["momentum"] == 0.7


# ------------------------------------------------------------------------------ schedules


def rates(total, **options):
    """The rate of each optimiser step of a run, and the one after its end; the full rate is 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = warmup_then_decay(optimizer, total_steps=total, **options)
    values = []
    for _ in range(total + 1):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def test_cosine():
    values = rates(12, decay="cosine", warmup=2)
    assert values[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert values[7] == pytest.approx(0.5)  # halfway from step 2 to step 12
    assert values[4] == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.2)))
    assert values[12] == pytest.approx(0.0, abs=1e-12)
    assert values[11] > 0  # the last step still learns


def test_poly():
    values = rates(10, decay="poly", warmup=0, power=0.9)
    assert values == pytest.approx([(1 - t / 10) ** 0.9 for t in range(11)])
    assert rates(10, decay="poly", warmup=0, power=2)[5] == pytest.approx(0.25)


def test_constant():
    assert rates(10, decay="constant", warmup=2) == pytest.approx([1 / 3, 2 / 3] + [1.0] * 9)


@pytest.mark.parametrize("decay", ["poly", "cosine"])
def test_final_is_a_factor_of_the_full_rate(decay):
    values = rates(10, decay=decay, warmup=0, final=0.2)
    assert values[0] == 1.0
    assert values[10] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(values))


@pytest.mark.parametrize(("warmup", "steps"), [(0.25, 5), (0.0, 0), (5, 5), (1, 1)])
def test_warmup_is_a_share_or_a_number_of_steps(warmup, steps):
    values = rates(20, decay="constant", warmup=warmup)
    assert sum(v < 1 for v in values) == steps


def test_rates_keep_their_ratio():
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": parameters[:1], "lr": 0.1},
                                 {"params": parameters[1:], "lr": 0.4}])  # fmt: skip
    schedule = warmup_then_decay(optimizer, total_steps=8, decay="cosine")
    for _ in range(4):
        optimizer.step()
        schedule.step()
    small, large = (group["lr"] for group in optimizer.param_groups)
    assert 0 < small < 0.1
    assert large == pytest.approx(4 * small)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decay": "linear"}, r"schedule\.decay='linear': choose poly, cosine or constant"),
        ({"decay": "poly", "warmup": -1}, "warmup=-1"),
    ],
)
def test_wrong_schedules(options, says):
    with pytest.raises(ValueError, match=says):
        rates(10, **options)
