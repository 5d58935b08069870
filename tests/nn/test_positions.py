"""Position codes against their formulas, and resizing against a cubic kernel written out."""

import math

import numpy as np
import pytest
import torch
from cubic import cubic_reference

from dpt.nn.vit import axial_rotation, resize_dinov2, resize_positions, sincos_1d, sincos_2d


def codes(height, width, dim=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, height * width, dim, generator=generator, dtype=dtype)


def test_sincos_2d_is_row_code_then_column_code():
    found = sincos_2d(2, 3, 8)
    for row in range(2):
        for column in range(3):
            parts = [sincos_1d(torch.tensor(float(p)), 4) for p in (row, column)]
            torch.testing.assert_close(found[row * 3 + column], torch.cat(parts), rtol=0, atol=0)


@pytest.mark.parametrize("new", [(7, 3), (4, 6), (12, 17)])
@pytest.mark.parametrize(("policy", "offset"), [("bicubic", 0.0), ("dinov2", 0.1)])
def test_bicubic_policies_are_cubic_convolution(policy, offset, new):
    x = codes(5, 4)
    found = resize_positions(x, (5, 4), new, policy=policy).numpy()
    np.testing.assert_allclose(found, cubic_reference(x, (5, 4), new, offset), atol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize("new", [(5, 9), (10, 3), (20, 20)])
def test_bicubic_antialias_is_timms(new):
    from timm.layers import resample_abs_pos_embed

    x = codes(8, 8, dtype=torch.float32)
    wanted = resample_abs_pos_embed(x, list(new), num_prefix_tokens=0)
    found = resize_positions(x, (8, 8), new, policy="bicubic_antialias")
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("old", [(4, 4), (24, 24), (5, 9)])
def test_the_exported_form_of_dinov2_interpolates_as_torch_does(old):
    x = codes(*old)
    maps = x.reshape(1, *old, -1).permute(0, 3, 1, 2)
    # of each old grid: itself, and grids with one of its sides
    for new in [(4, 4), (24, 24), (5, 9), (3, 7), (1, 1), (60, 20), (4, 9), (5, 4), (24, 30)]:
        found = resize_dinov2(maps, new).flatten(2).mT
        wanted = resize_positions(x, old, new, policy="dinov2")
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_axial_rotation_of_a_grid_of_two_by_one():
    """Rows -1/2 and 1/2, column 0; frequencies 2π and 2π / 100^(1/2)."""
    cos, sin = axial_rotation(2, 1, 8, theta=100.0, like=torch.zeros(0, dtype=torch.float64))
    angles = torch.tensor([[-math.pi, -math.pi / 10, 0, 0], [math.pi, math.pi / 10, 0, 0]])
    torch.testing.assert_close(cos, angles.double().cos(), atol=1e-7, rtol=0)
    torch.testing.assert_close(sin, angles.double().sin(), atol=1e-7, rtol=0)
