"""Products that keep less for backward: the same numbers, the same gradients, fewer bytes."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from dpt.nn.enlarge import Enlarged, convolve
from dpt.nn.recompute import ConvOf, LinearOf, conv_of_norm_relu, linear_of, linear_of_norm
from torch import nn

import dpt

DOUBLE = {"dtype": torch.float64}


def layer_norm(x, gain, bias):
    return F.layer_norm(x, gain.shape, gain, bias, 1e-6)


def normed(x, gain, bias):
    return F.relu(F.batch_norm(x, None, None, gain, bias, True, 0.0, 1e-5))


def leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, **DOUBLE, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize(
    ("cheap", "shapes"),
    [
        (layer_norm, [(2, 5, 8), (8,), (8,)]),
        (F.gelu, [(2, 5, 8)]),
        (partial(F.gelu, approximate="tanh"), [(2, 5, 8)]),
    ],
)
def test_gradients_of_a_linear_map(cheap, shapes):
    weight, bias, *inputs = leaves((6, 8), (6,), *shapes)
    assert torch.autograd.gradcheck(partial(LinearOf.apply, cheap), (weight, bias, *inputs))
    assert torch.autograd.gradcheck(
        lambda weight, *inputs: LinearOf.apply(cheap, weight, None, *inputs), (weight, *inputs)
    )


@pytest.mark.parametrize(
    ("cheap", "shapes"),
    [
        (partial(F.interpolate, size=(7, 6), mode="bilinear", align_corners=True), [(2, 3, 4, 3)]),
        (normed, [(2, 3, 4, 3), (3,), (3,)]),
    ],
)
def test_gradients_of_a_convolution(cheap, shapes):
    weight, bias, *inputs = leaves((2, 3, 3, 3), (2,), *shapes)
    apply = partial(ConvOf.apply, cheap, cheap, (1, 1))
    assert torch.autograd.gradcheck(apply, (weight, bias, *inputs))


@pytest.mark.parametrize("frozen", ["nothing", "weights", "input"])
def test_only_what_needs_a_gradient_gets_one(frozen):
    linear, norm, x = nn.Linear(4, 3), nn.LayerNorm(4), torch.randn(2, 4, requires_grad=True)
    for parameter in [*linear.parameters(), *norm.parameters()]:
        parameter.requires_grad_(frozen != "weights")
    x.requires_grad_(frozen != "input")
    linear_of_norm(norm, linear, x).sum().backward()
    assert (x.grad is None) == (frozen == "input")
    assert (linear.weight.grad is None) == (norm.weight.grad is None) == (frozen == "weights")


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_users_own_module_runs_as_it_is():
    layer, x = Doubled(4, 3), torch.randn(2, 4)
    assert torch.equal(linear_of(F.gelu, layer, x), layer(F.gelu(x)))
    hooked, calls = nn.Linear(4, 3), []
    hooked.register_forward_hook(lambda *_: calls.append(1))
    linear_of(F.gelu, hooked, x)
    assert calls == [1]


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_move_once(training):
    torch.manual_seed(0)
    norm, twin = nn.BatchNorm2d(3).train(training), nn.BatchNorm2d(3).train(training)
    conv, x = nn.Conv2d(3, 2, 1), torch.randn(4, 3, 5, 5, requires_grad=True)
    conv_of_norm_relu(norm, conv, x).sum().backward()
    found, x.grad = x.grad, None
    conv(F.relu(twin(x))).sum().backward()
    torch.testing.assert_close(found, x.grad)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(norm, name), getattr(twin, name))


def test_dropout_is_the_same_in_backward():
    torch.manual_seed(0)
    norm, conv = nn.BatchNorm2d(3).eval(), nn.Conv2d(3, 1, 1, bias=False)
    nn.init.ones_(conv.weight)
    x = torch.rand(1, 3, 40, 40, requires_grad=True)
    out = conv_of_norm_relu(norm, conv, x, dropout=0.25)
    out.sum().backward()
    kept = x.grad > 0
    assert kept.float().mean() == pytest.approx(0.75, abs=0.03)
    wanted = (x * kept / 0.75).sum(1, keepdim=True) / (1 + norm.eps) ** 0.5
    torch.testing.assert_close(out, wanted)


def test_a_map_is_convolved_as_if_enlarged():
    torch.manual_seed(0)
    conv, low = nn.Conv2d(3, 2, 3, padding=1), torch.randn(1, 3, 4, 5, requires_grad=True)
    maps = Enlarged(low, (8, 10))
    torch.testing.assert_close(convolve(conv, maps), conv(maps.full()))
    assert Enlarged.of(low).full() is low


def kept_bytes(run, model):
    own = {t.data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept = {}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = run()
    del out
    return sum(kept.values())


@pytest.mark.parametrize("swiglu", [False, True])
def test_a_block_keeps_eleven_of_sixteen(swiglu):
    """Per token and channel: x, qkv (3), attention, x again, the MLP's hidden (4), and scraps."""
    block = dpt.nn.vit.Block(64, num_heads=2, swiglu=swiglu)
    x = torch.randn(2, 50, 64, requires_grad=True)
    kept = kept_bytes(lambda: block(x), block) / (4 * x.numel())
    assert kept < (12.5 if swiglu else 11)


def test_compiled_and_plain_agree_under_autocast():
    torch.manual_seed(0)
    block = dpt.nn.vit.Block(32, num_heads=2)
    x = torch.randn(2, 9, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = block(x)
        with torch.no_grad():
            plain = block(x)
    assert kept.dtype == plain.dtype
    torch.testing.assert_close(kept.detach(), plain)


def test_a_users_activation_learns():
    """Its parameters are not inputs of the recomputed part: it must run as it is."""
    mlp = dpt.nn.vit.MLP(8, hidden=16, gelu="exact")
    mlp.act = nn.PReLU()
    mlp(torch.randn(2, 3, 8)).sum().backward()
    assert mlp.act.weight.grad is not None


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 2, "dilation": 2},
        {"padding": "same"},
        {"padding": 1, "groups": 3},
    ],
)
def test_a_users_convolution_keeps_its_geometry(options):
    torch.manual_seed(0)
    conv, maps = nn.Conv2d(3, 3, 3, **options), Enlarged(torch.randn(1, 3, 5, 5), (10, 10))
    torch.testing.assert_close(convolve(conv, maps), conv(maps.full()))


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4, bias=False), nn.LayerNorm(4, elementwise_affine=False)]
)
def test_norms_without_parameters(norm):
    linear, x = nn.Linear(4, 2), torch.randn(3, 4, requires_grad=True)
    linear_of_norm(norm, linear, x).sum().backward()
    assert x.grad is not None
