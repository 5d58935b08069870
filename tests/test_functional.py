"""Operations that save memory or time, each against its plain form."""

from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dpt import functional
from dpt.functional import (
    act_linear,
    chunked_argmax,
    chunked_pixel_loss,
    norm_linear,
    norm_relu_conv2d,
    resize,
    upsample_conv2d,
)
from dpt.nn.vit import swiglu

DOUBLE = {"dtype": torch.float64}


def whole(maps, size):
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=True)


# --- Resizing


# --- Recomputation


def batch_norm(**options):
    norm = nn.BatchNorm2d(3, **options)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def plain_norm_linear(norm, linear, x):
    return linear(norm(x))


def plain_swiglu_linear(linear, x):
    return linear(swiglu(x))


def swiglu_linear(linear, x):
    return act_linear(swiglu, linear, x)


def plain_upsample_conv2d(conv, x):
    return conv(whole(x, (7, 10)))


def upsample_by_two(conv, x):
    return upsample_conv2d(x, (7, 10), conv)


def plain_unit(norm, conv, dropout, x):
    return conv(dropout(F.relu(norm(x))))


def unit(norm, conv, dropout, x):
    dropped = None if isinstance(dropout, nn.Identity) else dropout
    return norm_relu_conv2d(norm, conv, x, dropout=dropped)


def unit_modules(norm, dropout=None):
    return [norm, nn.Conv2d(3, 2, 3, padding=1), dropout or nn.Identity()]


TOKENS, MAP = (2, 5, 8), (2, 3, 4, 5)
UNIT = (MAP, unit, plain_unit)
GEOMETRY = {"padding": 2, "dilation": 2, "groups": 3, "padding_mode": "reflect"}
CASES = {  # modules, shape of the input, the saving form and the plain form
    "norm_linear": ([nn.LayerNorm(8), nn.Linear(8, 6)], TOKENS, norm_linear, plain_norm_linear),
    "act_linear": ([nn.Linear(4, 6)], TOKENS, swiglu_linear, plain_swiglu_linear),
    "conv2d": ([nn.Conv2d(3, 3, 3, **GEOMETRY)], MAP, upsample_by_two, plain_upsample_conv2d),
    "norm_relu_conv2d": (unit_modules(batch_norm()), *UNIT),
    "norm_relu_conv2d, cumulative": (unit_modules(batch_norm(momentum=None)), *UNIT),
    "norm_relu_conv2d, evaluation": (unit_modules(batch_norm().eval()), *UNIT),
    "norm_relu_conv2d, no norm": (unit_modules(nn.Identity()), *UNIT),
    "norm_relu_conv2d, dropout": (unit_modules(batch_norm(), nn.Dropout(0.3)), *UNIT),
}


def case_of(name):
    modules, shape, ours, plain = CASES[name]
    return deepcopy(nn.ModuleList(modules)), shape, ours, plain


def run(modules, function, x):
    """Output, gradients of input and parameters, and buffers after one step."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    out = function(*modules, x)
    torch.rand(7)  # random numbers drawn before backward must not change the dropout mask
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    grads = {"input": x.grad} | {n: p.grad for n, p in modules.named_parameters()}
    return {"output": out.detach()} | grads | dict(modules.named_buffers())


@pytest.mark.parametrize("case", CASES)
def test_recompute_gives_what_the_plain_form_gives(case):
    modules, shape, ours, plain = case_of(case)
    modules = modules.double()
    same_modules = deepcopy(modules)
    for _ in range(2):  # statistics and gradients accumulate
        x = torch.randn(shape, **DOUBLE)
        actual, expected = run(modules, ours, x), run(same_modules, plain, x)
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=0, atol=1e-12, msg=name)
    if "dropout" in case:
        assert (actual["input"] != 0).any()


@pytest.mark.parametrize("case", ["norm_linear", "norm_relu_conv2d"])
def test_recompute_under_autocast_takes_the_same_precision(case):
    modules, shape, ours, plain = case_of(case)
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = run(deepcopy(modules), ours, x), run(deepcopy(modules), plain, x)
    assert actual["output"].dtype == torch.bfloat16
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=0, msg=name)


def kept_bytes(function):
    """Memory that is allocated when ``function`` returns, its output included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = function()
    used = sum(e.self_cpu_memory_usage for e in profiler.key_averages())
    del out
    return used


@pytest.mark.parametrize(
    ("case", "saved"),
    [
        ("norm_linear", 2 * 5 * 8),
        ("act_linear", 2 * 5 * 4),
        ("conv2d", 2 * 3 * 7 * 10),
        ("norm_relu_conv2d", 2 * 3 * 4 * 5),
    ],
)
def test_recompute_keeps_less_for_backward(case, saved):
    modules, shape, ours, plain = case_of(case)
    x = torch.randn(shape, requires_grad=True)
    for form in (plain, ours):  # lazy allocations of the first call
        form(*modules, x)
    difference = kept_bytes(lambda: plain(*modules, x)) - kept_bytes(lambda: ours(*modules, x))
    assert difference >= 4 * saved


# --- Full-size logits, a band of rows at a time

SIZES = [((4, 5), (8, 10)), ((3, 7), (13, 9)), ((6, 6), (6, 6)), ((1, 1), (3, 4)), ((5, 4), (2, 3))]


@pytest.fixture(params=["bands", "one band", "few classes"])
def way(request, monkeypatch):
    """Each of the ways that the number of classes and of pixels choose between."""
    if request.param != "few classes":
        monkeypatch.setattr(functional, "FEW_CLASSES", 1)
    if request.param == "bands":
        monkeypatch.setitem(functional.VALUES_AT_ONCE, "cpu", 30)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("low", "high"), SIZES)
def test_chunked_argmax(low, high):
    logits = torch.randn(2, 3, *low, **DOUBLE)
    for layout in (torch.contiguous_format, torch.channels_last):
        actual = chunked_argmax(logits.to(memory_format=layout), high)
        assert torch.equal(actual, whole(logits, high).argmax(1))


@pytest.mark.parametrize("rule", ["bilinear_aligned", "bilinear", "bicubic"])
@pytest.mark.parametrize("most", [1, 200, 2**26])  # one class at once, two of seven, all
def test_chunked_argmax_by_every_rule(rule, most, monkeypatch):
    monkeypatch.setattr(functional, "MOST_AT_ONCE", most)
    logits = torch.randn(1, 7, 4, 5, **DOUBLE) - 5
    expected = resize(logits, (8, 12), rule).argmax(1)
    assert torch.equal(chunked_argmax(logits, (8, 12), rule), expected)
    assert chunked_argmax(logits, (8, 12), rule, dtype=torch.uint8).dtype == torch.uint8


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize(("low", "high"), SIZES)
def test_chunked_pixel_loss(low, high, weights):
    logits = torch.randn(2, 3, *low, **DOUBLE, requires_grad=True)
    labels = torch.randint(3, (2, *high))
    labels[0, 0] = 255
    labels[1] = torch.where(torch.rand(high) < 0.3, 255, labels[1])
    options = {
        "ignore_index": 255,
        "label_smoothing": 0.1,
        "weight": None if weights is None else torch.tensor(weights, **DOUBLE),
        "reduction": "none",
    }
    scale = torch.tensor([0.5, 0.1], **DOUBLE)
    actual = chunked_pixel_loss(logits, labels, scale, partial(F.cross_entropy, **options))
    (grad,) = torch.autograd.grad(3 * actual, logits)
    pixels = F.cross_entropy(whole(logits, high), labels, **options)
    expected = (pixels.sum((1, 2)) * scale).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(grad, torch.autograd.grad(3 * expected, logits)[0])
