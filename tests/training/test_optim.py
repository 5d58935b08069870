"""Optimisers and learning rates over a run."""

import math
from itertools import pairwise

import pytest
import timm
import torch
from timm.optim.muon import zeropower_via_newtonschulz
from tiny import small_model
from torch import nn

from dpt.training import optim
from dpt.training.optim import adamw, constant, cosine, muon, poly, sgd

SCHEDULES = {"constant": constant, "cosine": cosine, "poly": poly}


def model_of():
    return small_model(heads={"depth": {"kind": "relative"}, "segmentation": {"num_classes": 3}})


@pytest.fixture(scope="module")
def model():
    return model_of()


def names_of(model, groups):
    """{group's name: names of its parameters}"""
    names = {id(p): name for name, p in model.named_parameters()}
    return {g["name"]: {names[id(p)] for p in g["params"]} for g in groups}


@pytest.mark.parametrize("make", [adamw, muon, sgd])
@pytest.mark.parametrize(("encoder_lr", "expected"), [(0.01, 0.01), (None, 0.1), (0.0, 0.0)])
def test_the_encoder_has_its_own_rate(model, make, encoder_lr, expected):
    optimizer = make(model, lr=0.1, encoder_lr=encoder_lr)
    for group in optimizer.param_groups:
        names = names_of(model, [group])[group["name"]]
        inside = [name.startswith("encoder.") for name in names]
        assert all(inside) or not any(inside)
        assert group["lr"] == (expected if inside[0] else 0.1)


def test_muon_leaves_an_encoder_with_a_rate_of_its_own_to_nadam(model):
    for encoder_lr, names in [(None, {"encoder", "decoder"}), (0.01, {"decoder"})]:
        groups = muon(model, lr=0.1, encoder_lr=encoder_lr).param_groups
        assert {group["name"] for group in groups if group["momentum"] is not None} == names


def low_rank(rows, columns):
    return torch.randn(rows, 3) @ torch.randn(3, columns) + 1e-6 * torch.randn(rows, columns)


@pytest.mark.parametrize("make", [torch.randn, low_rank, torch.zeros])
@pytest.mark.parametrize("shape", [(48, 192), (192, 48), (64, 64), (4, 900)])
def test_in_fp32_matrices_are_orthogonalised_as_by_timm(monkeypatch, make, shape):
    """Compared in float64; timm's own fp32 is as inexact."""
    monkeypatch.setattr(optim, "has_bf16", lambda device: False)
    torch.manual_seed(0)
    matrices = torch.stack([make(*shape), 1e-4 * make(*shape)])
    expected = zeropower_via_newtonschulz(
        matrices, 5, optim.NEWTON_SCHULZ, dtype=torch.float64
    ).float()
    found = optim.orthogonalized(matrices)
    assert (found - expected).norm() <= 2e-3 * expected.norm()


@pytest.mark.peers
def test_muon_equals_timm():
    """Three steps, with decay; timm computes in bf16."""
    ours, theirs = model_of(), model_of()
    theirs.load_state_dict(ours.state_dict())
    start = {k: v.detach().clone() for k, v in ours.named_parameters()}
    first = muon(ours, lr=1e-3, weight_decay=0.1, momentum=0.95, betas=(0.9, 0.95))
    names = {id(p): name for name, p in ours.named_parameters()}
    parameters = dict(theirs.named_parameters())
    second = timm.optim.Muon(
        [
            {
                "params": [parameters[names[id(p)]] for p in group["params"]],
                "weight_decay": group["weight_decay"],
                "use_fallback": group["momentum"] is None,
            }
            for group in first.param_groups
        ],
        lr=1e-3,
        momentum=0.95,
        nesterov=True,
        betas=(0.9, 0.95),
    )
    torch.manual_seed(0)
    for _ in range(3):
        for name, parameter in ours.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            parameters[name].grad = parameter.grad.clone()
        first.step()
        second.step()
    for name, parameter in ours.named_parameters():
        step, expected = parameter - start[name], parameters[name] - start[name]
        assert (step - expected).norm() <= 0.02 * expected.norm(), name


# ------------------------------------------------------------------------------ schedules


def rates(total, decay, **options):
    """The rate of each optimiser step of a run, and the one after its end; the full rate is 1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = SCHEDULES[decay](optimizer, total_steps=total, **options)
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
