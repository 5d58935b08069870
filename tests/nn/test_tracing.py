"""Sizes as symbols: what an exported graph computes equals what the model computes."""

import pytest
import torch
from dpt.nn.tracing import exporting, same_size

from dpt.nn.positions import resize_by_products, resize_positions

GRIDS = [(4, 4), (24, 24), (3, 7), (1, 1), (30, 41), (60, 20), (5, 9)]


@pytest.mark.parametrize("policy", ["bilinear", "bicubic", "bicubic_antialias", "dinov2"])
@pytest.mark.parametrize("old", [(4, 4), (24, 24), (5, 9)])
def test_products_interpolate_as_torch_does(policy, old):
    torch.manual_seed(0)
    codes = torch.randn(1, old[0] * old[1], 3, dtype=torch.float64)
    for new in GRIDS:
        found = resize_by_products(codes, old, new, policy=policy)
        wanted = resize_positions(codes, old, new, policy=policy)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_sizes_are_compared_as_ever_outside_of_an_export():
    assert not exporting()
    assert same_size((3, 4), torch.Size([3, 4]))
    assert not same_size((3, 4), (4, 3))


def test_in_an_export_only_what_holds_for_all_sizes_is_equal():
    answers = {}

    class Asks(torch.nn.Module):
        def forward(self, x):
            answers["exporting"] = exporting()
            answers["itself"] = same_size(x.shape, x.shape)
            answers["by chance"] = same_size(x.shape[:1], (5,))
            answers["known"] = same_size(x.shape[1:], (3,))
            return x + 1

    free = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        Asks(), (torch.zeros(5, 3),), dynamic_shapes=(free,), strict=False
    )
    assert answers == {"exporting": True, "itself": True, "by chance": False, "known": True}
    assert program.module()(torch.zeros(8, 3)).shape == (8, 3)
