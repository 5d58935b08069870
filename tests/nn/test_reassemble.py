"""Read, Assemble, Project, Resample: each step against the paper's formula."""

import pytest
import torch
from torch import nn

from dpt.nn.reassemble import Read, Resample


def tokens(prefix=1, count=6, dim=4):
    return torch.randn(2, prefix + count, dim, dtype=torch.float64)


def test_read_modes_that_cannot_be():
    for mode in ("add", "project"):
        with pytest.raises(ValueError, match="needs a CLS token"):
            Read(dim=4, num_prefix_tokens=0, mode=mode)


@pytest.mark.parametrize(
    ("scale", "layer", "kernel"),
    [
        (8, nn.ConvTranspose2d, 8),
        (4, nn.ConvTranspose2d, 4),
        (2, nn.ConvTranspose2d, 2),
        (1, nn.Identity, None),
        (0.5, nn.Conv2d, 3),
        (0.25, nn.Conv2d, 3),
    ],
)
def test_resample_scales(scale, layer, kernel):
    resample = Resample(channels=3, scale=scale)
    assert type(resample.conv) is layer
    if kernel:
        assert resample.conv.kernel_size == (kernel, kernel)
        assert resample.conv.bias is not None
    assert resample(torch.randn(2, 3, 8, 12)).shape == (2, 3, 8 * scale, 12 * scale)
    if scale < 1:  # odd grids round up
        assert resample(torch.randn(1, 3, 37, 1)).shape[-2:] == (-(-37 // int(1 / scale)), 1)


@pytest.mark.parametrize("scale", [0, -1, 1.5, 0.3, 0.75])
def test_resample_scales_that_no_layer_has(scale):
    with pytest.raises(ValueError, match="resample scale"):
        Resample(channels=3, scale=scale)
