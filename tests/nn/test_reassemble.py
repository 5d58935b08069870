"""Read, Assemble, Project, Resample: each step against the paper's formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpt.nn.reassemble import Assemble, Read, Reassemble, Resample


def tokens(prefix=1, count=6, dim=4):
    return torch.randn(2, prefix + count, dim, dtype=torch.float64)


@pytest.mark.parametrize("prefix", [1, 5])
def test_read_by_formula(prefix):
    """Registers are dropped in every mode."""
    x = tokens(prefix)
    patches, cls_token = x[:, prefix:], x[:, :1]
    ignore, add, project = (
        Read(dim=4, num_prefix_tokens=prefix, mode=mode).double()
        for mode in ("ignore", "add", "project")
    )
    assert torch.equal(ignore(x), patches)
    assert torch.equal(add(x), patches + cls_token)
    pairs = torch.cat((patches, cls_token.expand_as(patches)), dim=-1)
    torch.testing.assert_close(project(x), F.gelu(project.linear(pairs)), rtol=0, atol=1e-14)


def test_read_modes_that_cannot_be():
    for mode in ("add", "project"):
        with pytest.raises(ValueError, match="needs a CLS token"):
            Read(dim=4, num_prefix_tokens=0, mode=mode)


def test_assemble_puts_tokens_back_row_by_row():
    places = torch.arange(12.0).reshape(1, 12, 1).expand(1, 12, 2)
    found = Assemble()(places, (3, 4))
    assert found.shape == (1, 2, 3, 4)
    assert torch.equal(found[0, 1], torch.arange(12.0).reshape(3, 4))


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


def test_reassemble_without_projection_keeps_the_channels():
    step = Reassemble(dim=4, num_prefix_tokens=0, readout="ignore", channels=None, scale=1)
    assert not list(step.parameters())
    x = torch.randn(1, 6, 4)
    assert torch.equal(step(x, (2, 3)).flatten(2).transpose(1, 2), x)
