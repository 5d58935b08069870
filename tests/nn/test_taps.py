"""A convolution of an enlarged map that is never made."""

import pytest
import torch
from benchmarks.models import LiveBytes
from torch import nn

from dpt.nn import enlarge, taps
from dpt.nn.enlarge import Enlarged, convolve

SIZES = [((4, 5), (8, 10)), ((3, 7), (13, 9)), ((1, 1), (2, 2)), ((6, 6), (6, 12)),
         ((5, 4), (2, 1)), ((30, 20), (60, 41))]  # fmt: skip


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("low", "high"), SIZES)
def test_it_is_the_convolution_of_the_enlarged_map(low, high, bias):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 2, 3, padding=1, bias=bias).double()
    maps = torch.randn(2, 3, *low, dtype=torch.float64, requires_grad=True)
    found, wanted = taps.convolve_by_taps(conv, maps, high), conv(Enlarged(maps, high).full())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)
    grad, leaves = torch.randn_like(found), [maps, *conv.parameters()]
    found, wanted = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_gradients(monkeypatch):
    monkeypatch.setattr(taps, "ROWS", 4)  # several bands
    monkeypatch.setattr(taps, "COLUMNS", 3)
    torch.manual_seed(0)
    maps = torch.randn(2, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: taps.TapConv.apply(*x, (9, 6)), (maps, weights))


@pytest.mark.parametrize("frozen", ["maps", "weights"])
def test_only_what_needs_a_gradient_gets_one(frozen):
    conv, maps = nn.Conv2d(64, 8, 3, padding=1), torch.randn(1, 64, 4, 4, requires_grad=True)
    (maps if frozen == "maps" else conv).requires_grad_(False)
    convolve(conv, Enlarged(maps, (8, 8))).sum().backward()
    assert (maps.grad is None) == (frozen == "maps")
    assert (conv.weight.grad is None) == (frozen == "weights")


def test_where_it_is_faster_no_enlarged_map_is_made(monkeypatch):
    low = torch.randn(1, 64, 128, 32).to(memory_format=torch.channels_last)
    conv, maps = nn.Conv2d(64, 64, 3, padding=1), Enlarged(low, (256, 64))
    enlarged = 64 * 256 * 64 * 4

    def run():
        with torch.no_grad(), LiveBytes() as live:
            return convolve(conv, maps), live.peak

    found, peak = run()
    monkeypatch.setattr(enlarge, "_taps_are_faster", lambda conv, maps: False)
    wanted, plain = run()
    assert peak < 2 * enlarged <= plain
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(64, 4, 3, padding=1, stride=2),
        nn.Conv2d(64, 4, 5, padding=2),
        nn.Conv2d(64, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(64, 4, 3),
        nn.Conv2d(64, 4, 3, padding=1).bfloat16(),
    ],
)
def test_other_convolutions_stay_what_they_are(conv):
    maps = Enlarged(torch.randn(1, 64, 6, 6, dtype=conv.weight.dtype), (12, 12))
    assert torch.equal(convolve(conv, maps), conv(maps.full()))


@pytest.mark.parametrize("bias", [True, False])
def test_a_compiler_sees_one_well_formed_operation(bias):
    low, weight = torch.randn(2, 3, 4, 5), torch.randn(6, 3, 3, 3)
    args = (low, weight, torch.randn(6) if bias else None, 8, 10)
    torch.library.opcheck(taps.one_operation, args)
