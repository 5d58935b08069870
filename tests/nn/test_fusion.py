"""The residual unit, the fusion block and the decoder against the paper's order of steps."""

import pytest
import torch
import torch.nn.functional as F
from tiny import random_norms

from dpt.functional import upsample
from dpt.nn import Decoder, DecoderConfig, Encoder
from dpt.nn.fusion import Fusion
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


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_any_number_of_levels(levels):
    with torch.no_grad():
        assert decoder(levels)(tokens((2, 2), levels=levels)).shape == (1, 6, 16, 16)


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
