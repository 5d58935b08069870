"""Operations that save memory or time, each against its plain form."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dpt import functional
from dpt.functional import (
    act_linear,
    chunked_argmax,
    chunked_cross_entropy,
    exporting,
    norm_linear,
    norm_relu_conv2d,
    recompute,
    resize,
    same_size,
    upsample,
    upsample_conv2d,
)
from dpt.losses import CrossEntropyLoss
from dpt.nn.vit import Block, ViTConfig, swiglu

DOUBLE = {"dtype": torch.float64}


def whole(maps, size):
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=True)


# --- Resizing


@pytest.mark.parametrize(("function", "aligned"), [(upsample, True), (resize, False)])
def test_resizing_is_bilinear(function, aligned):
    maps = torch.randn(2, 3, 4, 5, **DOUBLE)
    wanted = F.interpolate(maps, size=(7, 9), mode="bilinear", align_corners=aligned)
    assert torch.equal(function(maps, (7, 9)), wanted)
    assert function(maps, (4, 5)) is maps


def test_sizes_compared_during_export_are_equal_only_for_every_size():
    answers = {}

    class Comparison(nn.Module):
        def forward(self, x):
            answers["exporting"] = exporting()
            answers["same symbol"] = same_size(x.shape, x.shape)
            answers["equal in the example"] = same_size(x.shape[:1], (5,))
            answers["constant"] = same_size(x.shape[1:], (3,))
            return x + 1

    free = ({0: torch.export.Dim.DYNAMIC},)
    x = torch.zeros(5, 3)
    program = torch.export.export(Comparison(), (x,), dynamic_shapes=free, strict=False)
    assert list(answers.values()) == [True, True, False, True]
    assert program.module()(torch.zeros(8, 3)).shape == (8, 3)
    assert not exporting()
    assert not same_size((3, 4), (4, 3))


# --- Recomputation


def batch_norm(**options):
    norm = nn.BatchNorm2d(3, **options)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.uniform_(norm.bias, -1, 1)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


def norm_case(norm):
    modules = nn.ModuleList([norm or nn.Identity(), nn.Linear(8, 6)])
    return (
        modules,
        (2, 5, 8),
        lambda m, x: norm_linear(m[0] if norm else None, m[1], x),
        lambda m, x: m[1](m[0](x)),
    )


def act_case(act, width=8):
    modules = nn.ModuleList([nn.Linear(width, 6)])
    return (
        modules,
        (2, 5, 8),
        lambda m, x: act_linear(act, m[0], x),
        lambda m, x: m[0](act(x)),
    )


def upsample_case(**options):
    modules = nn.ModuleList([nn.Conv2d(3, 3, 3, **options)])
    return (
        modules,
        (2, 3, 4, 5),
        lambda m, x: upsample_conv2d(x, (7, 10), m[0]),
        lambda m, x: m[0](whole(x, (7, 10))),
    )


def unit_case(norm, dropout=None):
    modules = nn.ModuleList([norm, nn.Conv2d(3, 2, 3, padding=1), dropout or nn.Identity()])
    return (
        modules,
        (2, 3, 4, 5),
        lambda m, x: norm_relu_conv2d(m[0], m[1], x, dropout=m[2] if dropout else None),
        lambda m, x: m[1](m[2](F.relu(m[0](x)))),
    )


CASES = {
    "norm_linear": lambda: norm_case(nn.LayerNorm(8)),
    "norm_linear, no parameters": lambda: norm_case(nn.LayerNorm(8, elementwise_affine=False)),
    "norm_linear, no norm": lambda: norm_case(None),
    "act_linear": lambda: act_case(F.gelu),
    "act_linear, gated": lambda: act_case(swiglu, 4),
    "upsample_conv2d": lambda: upsample_case(padding=1),
    "upsample_conv2d, other geometry": lambda: upsample_case(
        padding=2, dilation=2, groups=3, padding_mode="reflect"
    ),
    "norm_relu_conv2d": lambda: unit_case(batch_norm()),
    "norm_relu_conv2d, cumulative": lambda: unit_case(batch_norm(momentum=None)),
    "norm_relu_conv2d, evaluation": lambda: unit_case(batch_norm().eval()),
    "norm_relu_conv2d, no norm": lambda: unit_case(nn.Identity()),
    "norm_relu_conv2d, dropout": lambda: unit_case(batch_norm(), nn.Dropout(0.3)),
}


def run(modules, function, x):
    """Output, gradients of input and parameters, and buffers after one step."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    out = function(modules, x)
    torch.rand(7)  # random numbers drawn before backward must not change the dropout mask
    (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    grads = {"input": x.grad} | {n: p.grad for n, p in modules.named_parameters()}
    return {"output": out.detach()} | grads | dict(modules.named_buffers())


@pytest.mark.parametrize("case", CASES)
def test_values_gradients_and_statistics_are_those_of_the_plain_form(case):
    modules, shape, ours, plain = CASES[case]()
    modules = modules.double()
    x = torch.randn(shape, **DOUBLE)
    found, wanted = run(deepcopy(modules), ours, x), run(deepcopy(modules), plain, x)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12, msg=name)
    if "dropout" in case:
        assert (found["input"] != 0).any()


def test_running_statistics_are_updated_once_a_step():
    modules, shape, ours, _ = CASES["norm_relu_conv2d"]()
    before = modules[0].running_mean.clone()
    for count in (1, 2):
        run(modules, ours, torch.randn(shape) + 3)
        assert modules[0].num_batches_tracked == count
        assert modules[0].momentum == 0.1
    assert not torch.allclose(modules[0].running_mean, before)


@pytest.mark.parametrize("case", CASES)
def test_a_graph_that_is_retained_can_be_differentiated_again(case):
    modules, shape, ours, _ = CASES[case]()
    x = torch.randn(shape).requires_grad_()
    total = ours(modules, x).square().sum()
    first, second = (torch.autograd.grad(total, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("case", ["norm_linear", "norm_relu_conv2d"])
def test_recomputation_under_autocast_takes_the_same_precision(case):
    modules, shape, ours, plain = CASES[case]()
    x = torch.randn(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = run(deepcopy(modules), ours, x), run(deepcopy(modules), plain, x)
    assert found["output"].dtype == torch.bfloat16
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("frozen", ["weights", "input"])
def test_only_what_needs_a_gradient_gets_one(frozen):
    linear, norm = nn.Linear(4, 3), nn.LayerNorm(4)
    x = torch.randn(2, 4, requires_grad=frozen != "input")
    for parameter in [*linear.parameters(), *norm.parameters()]:
        parameter.requires_grad_(frozen != "weights")
    norm_linear(norm, linear, x).sum().backward()
    assert (x.grad is None) == (frozen == "input")
    assert (linear.weight.grad is None) == (norm.weight.grad is None) == (frozen == "weights")


def test_the_product_itself_is_not_recomputed():
    calls = []

    class Counted(nn.Linear):
        def forward(self, x):
            calls.append("linear")
            return super().forward(x)

    norm, linear, x = nn.LayerNorm(4), Counted(4, 3), torch.randn(2, 4, requires_grad=True)
    norm.register_forward_hook(lambda *_: calls.append("norm"))
    after = []
    out = recompute(lambda x: after.append(linear(norm(x))) or after[-1], x)
    out.sum().backward()
    assert calls == ["norm", "linear", "norm", "linear"]
    assert len(after) == 1  # stopped inside the second call of `linear`, before its product


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
        ("act_linear", 2 * 5 * 8),
        ("upsample_conv2d", 2 * 3 * 7 * 10),
        ("norm_relu_conv2d", 2 * 3 * 4 * 5),
    ],
)
def test_less_is_kept_for_backward(case, saved):
    modules, shape, ours, plain = CASES[case]()
    x = torch.randn(shape, requires_grad=True)
    for form in (plain, ours):  # lazy allocations of the first call
        form(modules, x)
    difference = kept_bytes(lambda: plain(modules, x)) - kept_bytes(lambda: ours(modules, x))
    assert difference >= 4 * saved


@pytest.mark.parametrize("gated", [False, True])
def test_a_transformer_block_keeps_eleven_of_sixteen_maps(gated):
    """Per token and channel: x, Q, K, V, attention, x again, the MLP's hidden (4), and the sum."""
    block = Block(ViTConfig(embed_dim=64, num_heads=2, swiglu=gated))
    x = torch.randn(2, 50, 64, requires_grad=True)
    block(x)
    kept = kept_bytes(lambda: block(x)) / (4 * x.numel())
    assert kept < (12.5 if gated else 11)


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
def test_argmax(low, high):
    logits = torch.randn(2, 3, *low, **DOUBLE)
    for layout in (torch.contiguous_format, torch.channels_last):
        found = chunked_argmax(logits.to(memory_format=layout), high)
        assert torch.equal(found, whole(logits, high).argmax(1))


@pytest.mark.parametrize("rule", ["bilinear_aligned", "bilinear", "bicubic"])
@pytest.mark.parametrize("most", [1, 200, 2**26])  # one class at once, two of seven, all
def test_argmax_by_every_rule(rule, most, monkeypatch):
    monkeypatch.setattr(functional, "MOST_AT_ONCE", most)
    logits = torch.randn(1, 7, 4, 5, **DOUBLE) - 5
    wanted = resize(logits, (8, 12), rule).argmax(1)
    assert torch.equal(chunked_argmax(logits, (8, 12), rule), wanted)
    assert chunked_argmax(logits, (8, 12), rule, dtype=torch.uint8).dtype == torch.uint8


def test_few_classes_of_a_large_image_are_not_upsampled_at_once(monkeypatch):
    logits = torch.randn(1, 3, 4, 5, **DOUBLE)
    wanted = whole(logits, (8, 10)).argmax(1)
    monkeypatch.setattr(functional, "MOST_AT_ONCE", 10)
    calls, rows = [], functional.upsample_rows
    monkeypatch.setattr(functional, "upsample_rows", lambda *a: calls.append(a) or rows(*a))
    found = chunked_argmax(logits, (8, 10), dtype=torch.uint8)
    assert calls
    assert found.dtype == torch.uint8
    assert torch.equal(found.long(), wanted)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize(("low", "high"), SIZES)
def test_cross_entropy(low, high, weights):
    logits = torch.randn(2, 3, *low, **DOUBLE, requires_grad=True)
    labels = torch.randint(3, (2, *high))
    labels[0, 0] = 255
    labels[1] = torch.where(torch.rand(high) < 0.3, 255, labels[1])
    options = {
        "ignore_index": 255,
        "label_smoothing": 0.1,
        "class_weights": None if weights is None else torch.tensor(weights, **DOUBLE),
    }
    scale = torch.tensor([0.5, 0.1], **DOUBLE)
    found = chunked_cross_entropy(logits, labels, scale=scale, **options)
    (grad,) = torch.autograd.grad(3 * found, logits)
    options["weight"] = options.pop("class_weights")
    pixels = F.cross_entropy(whole(logits, high), labels, reduction="none", **options)
    wanted = (pixels.sum((1, 2)) * scale).sum()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(grad, torch.autograd.grad(3 * wanted, logits)[0])


@pytest.mark.usefixtures("way")
def test_the_cross_entropy_loss_is_the_mean_over_images_of_labelled_pixels():
    logits = torch.randn(2, 3, 4, 5, requires_grad=True)
    labels = torch.randint(3, (2, 8, 10))
    labels[0, :3] = 255
    found = CrossEntropyLoss(label_smoothing=0.1)(logits, labels)
    options = {"ignore_index": 255, "label_smoothing": 0.1}
    upsampled = whole(logits, (8, 10))
    wanted = sum(
        F.cross_entropy(upsampled[k : k + 1], labels[k : k + 1], **options) for k in (0, 1)
    )
    torch.testing.assert_close(found, wanted / 2)
    loss = CrossEntropyLoss()(logits, torch.full((2, 8, 8), 255))
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
