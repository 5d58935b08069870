"""Read, Assemble, Project, Resample: each step against the paper's formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpt.nn import Assemble, Project, Read, Reassemble, Resample


def tokens(prefix=1, count=6, dim=4):
    return torch.randn(2, prefix + count, dim, dtype=torch.float64)


@pytest.mark.parametrize("prefix", [1, 5])
def test_read_ignore_drops_cls_and_registers(prefix):
    x = tokens(prefix)
    read = Read(dim=4, num_prefix_tokens=prefix, mode="ignore")
    torch.testing.assert_close(read(x), x[:, prefix:], rtol=0, atol=0)
    assert not list(read.parameters())


@pytest.mark.parametrize("prefix", [1, 5])
def test_read_add_adds_cls_alone(prefix):
    x = tokens(prefix)
    read = Read(dim=4, num_prefix_tokens=prefix, mode="add")
    torch.testing.assert_close(read(x), x[:, prefix:] + x[:, :1], rtol=0, atol=0)


@pytest.mark.parametrize("prefix", [1, 5])
def test_read_project_is_gelu_of_linear_of_patch_then_cls(prefix):
    x = tokens(prefix)
    read = Read(dim=4, num_prefix_tokens=prefix, mode="project").double()
    patches = x[:, prefix:]
    pairs = torch.cat((patches, x[:, :1].expand_as(patches)), dim=-1)
    torch.testing.assert_close(read(x), F.gelu(read.linear(pairs)), rtol=0, atol=1e-14)


def test_read_modes_that_cannot_be():
    for mode in ("add", "project"):
        with pytest.raises(ValueError, match="needs a CLS token"):
            Read(dim=4, num_prefix_tokens=0, mode=mode)


def test_assemble_puts_tokens_back_row_by_row():
    places = torch.arange(12.0).reshape(1, 12, 1).expand(1, 12, 2)
    found = Assemble()(places, (3, 4))
    assert found.shape == (1, 2, 3, 4)
    assert torch.equal(found[0, 1], torch.arange(12.0).reshape(3, 4))


def test_assemble_undoes_the_patch_embedding():
    conv = nn.Conv2d(3, 5, kernel_size=4, stride=4)
    maps = conv(torch.randn(2, 3, 8, 12))
    patches = maps.flatten(2).transpose(1, 2)
    assert torch.equal(Assemble()(patches, (2, 3)), maps)


def test_project_is_a_linear_map_of_each_place():
    project = Project(in_channels=4, out_channels=7).double()
    x = torch.randn(1, 4, 2, 3, dtype=torch.float64)
    wanted = torch.einsum("oc,bchw->bohw", project.weight[:, :, 0, 0], x)
    wanted = wanted + project.bias[:, None, None]
    torch.testing.assert_close(project(x), wanted, rtol=0, atol=1e-13)


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
