"""The Vision Transformer: timm's function under timm's names, and what its options promise."""

import pytest
import torch
from torch import nn

from dpt.nn import VisionTransformer, ViTConfig
from dpt.nn.vit import Block, DropPath

SMALL = {"image_size": (32, 32), "patch_size": 8, "embed_dim": 16, "num_blocks": 4, "num_heads": 2}
KINDS = ("learned", "sincos_1d", "sincos_2d", "concat", "none")


def small(**arguments):
    arguments = {"out_indices": (0, 1, 2, 3), "position_dim": 4, **SMALL, **arguments}
    return VisionTransformer(ViTConfig(**arguments)).eval()


def randomize(model, std=0.1):
    """Weights that let every tensor matter: fresh models have zero biases and unit norms."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(torch.randn_like(p) * (1.0 if "pos_embed" in name or "token" in name else std))


def timm_pair(name, *, ours, **arguments):
    """A timm ViT with random weights and ours with the same."""
    import timm

    theirs = timm.create_model(name, num_classes=0, dynamic_img_size=True, **arguments).eval()
    randomize(theirs)
    state = {k: v for k, v in theirs.state_dict().items() if not k.startswith(("norm.", "head."))}
    mine = VisionTransformer(ViTConfig(position_resize="bicubic_antialias", **ours)).eval()
    mine.load_state_dict(state, strict=True)
    return theirs, mine


def assert_levels_equal(theirs, mine, images):
    with torch.no_grad():
        pairs = theirs.forward_intermediates(
            images,
            indices=list(mine.config.out_indices),
            norm=False,
            output_fmt="NLC",
            return_prefix_tokens=True,
            intermediates_only=True,
        )
        tokens = mine(images)
    for (patches, prefix), found, grid in zip(pairs, *tokens, strict=True):
        wanted = torch.cat((prefix, patches), dim=1)
        scale = wanted.abs().max()
        assert (found - wanted).abs().max() <= 1e-5 * scale
        assert grid == tuple(side // mine.config.patch_size for side in images.shape[-2:])


TINY = {"image_size": (224, 224), "embed_dim": 192, "num_heads": 3}
REGISTERS = {
    "image_size": (112, 112),
    "patch_size": 14,
    "embed_dim": 384,
    "num_heads": 6,
    "num_blocks": 4,
    "num_register_tokens": 4,
    "cls_position": False,
    "layer_scale": 1e-5,
    "out_indices": (0, 1, 2, 3),
}


@pytest.mark.peers
def test_timm_vit_with_registers_and_layer_scale():
    theirs, mine = timm_pair("vit_small_patch14_reg4_dinov2", img_size=112, depth=4, ours=REGISTERS)
    for size in ((112, 112), (84, 140)):
        assert_levels_equal(theirs, mine, torch.randn(2, 3, *size))


def test_blocks_after_the_last_level_are_not_built():
    vit = small(num_blocks=4, out_indices=(0, 2))
    assert len(vit.blocks) == 3
    assert not any(k.startswith(("norm", "blocks.3")) for k in vit.state_dict())
    assert vit.embed_dims == (16, 16)
    assert len(vit(torch.zeros(1, 3, 32, 32)).levels) == 2


@pytest.mark.parametrize("indices", [(3, 1), (1, 1), (0, 4), (-1, 2)])
def test_levels_must_ascend_within_the_blocks(indices):
    with pytest.raises(ValueError, match=r"must ascend within 0\.\.3"):
        small(out_indices=indices)


def test_concat_appends_position_after_patch_embedding():
    vit = small(position="concat", position_dim=6)
    randomize(vit)
    assert vit.patch_embed.proj.out_channels == 10
    assert vit.pos_embed.shape == (1, 16, 6)
    map_BDhw = torch.randn(2, 10, 4, 4)
    tokens = vit.embed(map_BDhw)[:, 1:]
    torch.testing.assert_close(tokens[..., :10], map_BDhw.flatten(2).transpose(1, 2))
    torch.testing.assert_close(tokens[..., 10:], vit.pos_embed.expand(2, -1, -1))


@pytest.mark.parametrize("order", ["pre", "post"])
def test_block_with_layer_scale_by_formula(order):
    settings = {"norm_order": order, "layer_scale": 1.0, "qkv_bias": False}
    block = Block(ViTConfig(embed_dim=8, num_heads=2, **settings)).double()
    randomize(block, std=0.5)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    wanted = x
    for norm, f, scale in (
        (block.norm1, block.attn, block.ls1),
        (block.norm2, block.mlp, block.ls2),
    ):
        if order == "pre":
            wanted = wanted + scale.gamma * f(norm(wanted))
        else:
            wanted = norm(wanted + scale.gamma * f(wanted))
    assert (block.ls1.gamma - 1).abs().max() > 0.1
    torch.testing.assert_close(block(x), wanted, rtol=0, atol=1e-12)


def test_drop_path_rates_grow_over_all_blocks_of_the_architecture():
    vit = small(num_blocks=5, drop_path=0.4, out_indices=(0, 1, 2, 3))
    assert [b.drop_path.rate for b in vit.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_drop_path_keeps_the_expectation_and_drops_whole_samples():
    x = torch.ones(20000, 2, 3)
    found = DropPath(0.25).train()(x)
    per_sample = found.flatten(1)
    assert ((per_sample == 0).all(1) | torch.isclose(per_sample, torch.tensor(4 / 3)).all(1)).all()
    assert found.mean().item() == pytest.approx(1, abs=0.02)  # 5 standard errors


def test_initial_weights():
    vit = VisionTransformer(ViTConfig(embed_dim=192, num_heads=3))
    for module in vit.modules():
        if isinstance(module, nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
            assert (module.bias == 0).all()
    assert vit.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    assert vit.cls_token.abs().max() > 0
