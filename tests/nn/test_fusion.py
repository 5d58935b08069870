"""The residual unit, the fusion block and the decoder against the paper's order of steps."""

import pytest
import torch
import torch.nn.functional as F
from tiny import random_norms

from dpt.functional import upsample
from dpt.nn import Decoder, DecoderConfig, Encoder
from dpt.nn.fusion import Fusion, ResidualConvUnit
from dpt.types.outputs import Tokens


def decoder(levels=4, *, embed_dims=None, num_prefix_tokens=None, **settings):
    settings = {
        "reassemble_channels": (4, 6, 8, 10)[:levels],
        "scales": (4, 2, 1, 0.5)[:levels],
        "fusion_channels": 6,
        "batch_norm": False,
        "unit_bias": True,
        **settings,
    }
    encoder = Encoder()
    encoder.embed_dims = embed_dims or (8,) * levels
    encoder.num_prefix_tokens = num_prefix_tokens or (1,) * levels
    return Decoder(DecoderConfig(**settings), encoder).eval()


def fusion(**settings):
    return Fusion(5, **{"batch_norm": False, "unit_bias": True, **settings})


def tokens(grid, batch=1, levels=4, prefix=1, dim=8):
    shape = (batch, prefix + grid[0] * grid[1], dim)
    return Tokens([torch.randn(shape) for _ in range(levels)], [grid] * levels)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_residual_unit_by_formula(batch_norm):
    unit = ResidualConvUnit(5, batch_norm=batch_norm, bias=not batch_norm)
    random_norms(unit).double().eval()
    x = torch.randn(2, 5, 6, 7, dtype=torch.float64)
    kept = x.clone()
    y = F.conv2d(F.relu(x), unit.conv1.weight, unit.conv1.bias, padding=1)
    y = unit.bn1(y) if batch_norm else y
    y = F.conv2d(F.relu(y), unit.conv2.weight, unit.conv2.bias, padding=1)
    y = unit.bn2(y) if batch_norm else y
    torch.testing.assert_close(unit(x), x + y, rtol=0, atol=1e-12)
    assert torch.equal(x, kept)  # no ReLU in place: the skip carries x
    assert (unit.conv1.bias is None) == (unit.conv2.bias is None) == batch_norm


@pytest.mark.parametrize("size", [(8, 12), (7, 11), (4, 6)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_fusion_then_upsampling_equals_the_papers_order(batch_norm, size):
    """Refine, upsample, then project; projecting first commutes, as bilinear weights sum to 1."""
    block = random_norms(fusion(batch_norm=batch_norm)).eval()
    lateral, above = torch.randn(2, 2, 5, 4, 6).unbind(0)
    x = block.rcu2(above + block.rcu1(lateral))
    wanted = block.project(F.interpolate(x, size=size, mode="bilinear", align_corners=True))
    found = upsample(block(lateral, above), size)
    assert found.shape == (2, 5, *size)
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()


def test_deepest_fusion_refines_once_and_has_no_unit_for_a_lateral():
    block = fusion(deepest=True)
    assert block.rcu1 is None
    assert not any("rcu1" in name for name in block.state_dict())
    x = torch.randn(1, 5, 4, 4)
    torch.testing.assert_close(block(x, None), block.project(block.rcu2(x)))


def test_only_the_deepest_level_lacks_the_unit_by_default():
    units = [block.rcu1 is None for block in decoder().fusion]
    assert units == [False, False, False, True]
    model, x = decoder(deepest_unit=True), tokens((2, 2))
    assert all(block.rcu1 is not None for block in model.fusion)
    lateral = model.layer_rn[3](model.reassemble[3](x.levels[3], x.grids[3]))
    block = model.fusion[3]
    wanted = block.project(block.rcu2(block.rcu1(lateral)))
    torch.testing.assert_close(model.fuse(x)[0].map, wanted)


def test_decoder_is_its_parts_from_deep_to_shallow():
    model = decoder(batch_norm=True, unit_bias=False)
    x = tokens((2, 3))
    laterals = [model.layer_rn[i](model.reassemble[i](x.levels[i], x.grids[i])) for i in range(4)]
    assert all(conv.bias is None for conv in model.layer_rn)
    above, maps = None, []
    for i in (3, 2, 1, 0):
        maps.append(model.fusion[i](laterals[i], above))
        above = upsample(maps[-1], tuple(laterals[i - 1].shape[-2:]) if i else (16, 24))
    for fused, wanted in zip(model.fuse(x), maps, strict=True):
        torch.testing.assert_close(fused.map, wanted, rtol=0, atol=0)
    torch.testing.assert_close(model(x), above, rtol=0, atol=0)


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_any_number_of_levels(levels):
    with torch.no_grad():
        assert decoder(levels)(tokens((2, 2), levels=levels)).shape == (1, 6, 16, 16)


def test_levels_without_cls_are_read_by_ignore():
    model = decoder(num_prefix_tokens=(0, 0, 1, 1), readout="project")
    assert [r.read.mode for r in model.reassemble] == ["ignore", "ignore", "project", "project"]


def test_pyramid_levels_with_their_own_grids_and_widths():
    model = decoder(
        embed_dims=(4, 8, 12, 16),
        num_prefix_tokens=(0,) * 4,
        reassemble_channels=(None, None, 6, 6),
        scales=(1,) * 4,
    )
    grids = [(16, 24), (8, 12), (4, 6), (2, 3)]
    x = [torch.randn(1, h * w, d) for (h, w), d in zip(grids, (4, 8, 12, 16), strict=True)]
    with torch.no_grad():
        assert model(Tokens(x, grids)).shape == (1, 6, 32, 48)


@pytest.mark.parametrize("align", ["to_lateral", "resize_lateral"])
def test_align_setting_of_unequal_maps(align):
    """On odd grids the map at half the size is larger than half of the next."""
    model, x = decoder(align=align), tokens((3, 5))
    sizes = [fused.size for fused in model.fuse(x)]
    height, width = x.grids[0]
    if align == "resize_lateral":  # the deepest map is 2 × 3 and always doubled
        assert sizes == [(2 * k, 3 * k) for k in (2, 4, 8, 16)]
    else:
        assert sizes == [(height * k, width * k) for k in (1, 2, 4, 8)]


def test_a_projected_output_is_convolved_at_full_size():
    model, x = decoder(output_project=True), tokens((2, 3))
    found = model(x)
    projected, model.output_project = model.output_project, None
    torch.testing.assert_close(found, F.relu(projected(model(x))))


@pytest.mark.parametrize(
    ("strides", "scales"),
    [
        ((16,) * 4, (4, 2, 1, 0.5)),
        ((14,) * 4, (4, 2, 1, 0.5)),
        ((4, 8, 16, 16), (1, 1, 1, 0.5)),
        ((4, 8, 16, 32), (1, 1, 1, 1)),
    ],
)
def test_auto_settings_follow_the_encoder_and_the_heads(strides, scales):
    encoder = Encoder()
    encoder.strides = strides
    for segmentation in (False, True):
        config = DecoderConfig()
        config.resolve(encoder, batch_norm=segmentation)
        assert config.scales == scales
        assert (config.batch_norm, config.unit_bias) == (segmentation, not segmentation)
