"""Encoders other than the plain ViT: any timm backbone, and the official hybrid."""

import pytest
import timm
import torch

import dpt
from dpt.nn import TimmConfig, TimmEncoder
from dpt.nn.encoders import CnnVisionTransformer, HybridConfig, StemConfig

DECODER = {"reassemble_channels": [8, 8, 12, 16], "fusion_channels": 8}
# name, arguments, strides, prefix tokens
BACKBONES = {
    "vit_tiny_patch16_224": ({"depth": 4}, (16,) * 4, 1),
    "vit_small_patch14_dinov2": ({"img_size": 56, "depth": 4}, (14,) * 4, 1),
    "vit_small_patch14_reg4_dinov2": ({"img_size": 56, "depth": 4}, (14,) * 4, 5),
    "swin_tiny_patch4_window7_224": ({"depths": (1, 1, 1, 1)}, (4, 8, 16, 32), 0),
    "convnext_atto": ({"depths": (1, 1, 1, 1)}, (4, 8, 16, 32), 0),
    "resnet18": ({}, (4, 8, 16, 32), 0),
}


def timm_model(name, heads=None, **arguments):
    return dpt.create_model(
        "dpt_tiny",
        heads=heads or {"depth": {"kind": "metric", "max_depth": 10.0}},
        encoder={"kind": "timm", "name": name, **arguments},
        decoder=DECODER,
    )


@pytest.mark.parametrize("name", BACKBONES)
def test_timm_backbone(name):
    arguments, strides, prefix = BACKBONES[name]
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "classification": {"num_classes": 3}}
    model = timm_model(name, heads, **arguments)
    assert model.encoder.strides == strides
    assert model.encoder.num_prefix_tokens == (prefix,) * 4
    outputs = model(torch.randn(2, 3, 40, 53))
    assert outputs["depth"].shape == (2, 40, 53)
    assert outputs["classification"].shape == (2, 3)
    sum((value * torch.randn_like(value)).sum() for value in outputs.values()).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_timm_tokens_are_the_backbones_features():
    """The tokens of a pyramid are timm's own feature maps, and strides tell their sizes."""
    encoder = TimmEncoder(TimmConfig(name="resnet18")).eval()
    plain = timm.create_model("resnet18", features_only=True, out_indices=(1, 2, 3, 4)).eval()
    plain.load_state_dict(encoder.model.state_dict(), strict=False)
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        levels, grids = encoder(images)
        wanted = plain(images)
    assert grids == [(64 // s, 96 // s) for s in encoder.strides]
    for level, w in zip(levels, wanted, strict=True):
        torch.testing.assert_close(level, w.flatten(2).transpose(1, 2))


def test_registers_without_cls_are_not_read_as_one():
    encoder = TimmEncoder(TimmConfig(name="vit_little_patch16_reg4_gap_256", img_size=64, depth=4))
    assert encoder.num_prefix_tokens == (0,) * 4
    levels, grids = encoder(torch.randn(1, 3, 64, 64))
    assert [level.shape[1] for level in levels] == [16] * 4
    assert grids == [(4, 4)] * 4


def test_timm_models_without_stochastic_depth_are_taken():
    with torch.device("meta"):
        assert TimmConfig(name="repvit_m0_9").build().strides == (4, 8, 16, 32)
        with pytest.raises(ValueError, match=r"repvit_m0_9 refused .*drop_path_rate"):
            TimmConfig(name="repvit_m0_9", drop_path=0.1).build()
        swin = TimmConfig(name="swin_tiny_patch4_window7_224").build()  # timm's default is 0.1
    assert not any(isinstance(m, timm.layers.DropPath) for m in swin.modules())


@pytest.mark.parametrize("name", ["cait_xxs24_224", "coatnet_nano_rw_224", "convit_tiny"])
def test_timm_models_of_one_size_say_so(name):
    encoder = TimmConfig(name=name).build().eval()
    with pytest.raises(ValueError, match=rf"name={name}: .* not 64x96 \(.*img_size") as e:
        encoder(torch.zeros(1, 3, 64, 96))
    assert "\n" not in str(e.value)


def hybrid():
    return dpt.create_model(
        "dpt_hybrid",
        heads={"depth": {"kind": "metric", "max_depth": 10.0}},
        embed_dim=32,
        num_blocks=3,
        num_heads=2,
        out_indices=[1, 2],
        image_size=[64, 64],
        reassemble_channels=[None, None, 12, 16],
        fusion_channels=8,
    )


def test_hybrid_levels_and_gradients():
    model = hybrid()
    assert model.encoder.embed_dims == (256, 512, 32, 32)
    assert model.encoder.num_prefix_tokens == (0, 0, 1, 1)
    tokens = model.encoder(torch.randn(1, 3, 64, 96))
    assert tokens.grids == [(16, 24), (8, 12), (4, 6), (4, 6)]
    assert [level.shape[1] for level in tokens.levels] == [384, 96, 25, 25]
    depth = model(torch.randn(1, 3, 34, 50))["depth"]
    assert depth.shape == (1, 34, 50)
    (depth * torch.randn_like(depth)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (HybridConfig, {"patch_size": 8}),
        (StemConfig, {"patch_size": 8}),
        (StemConfig, {"stem_blocks": (1, 1000)}),
    ],
)
def test_sizes_of_a_cnn_are_bounded(config, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        config(**options)


def stem(**options):
    config = StemConfig(
        embed_dim=32,
        num_heads=2,
        num_blocks=4,
        image_size=(64, 96),
        out_indices=(1, 3),
        stem_channels=(4, 8, 16),
        **options,
    )
    return CnnVisionTransformer(config)


def test_stem_levels_and_gradients():
    encoder = stem()
    assert encoder.embed_dims == (8, 16, 32, 32)
    assert encoder.strides == (4, 8, 16, 16)
    tokens = encoder(torch.randn(2, 3, 64, 96))
    assert tokens.grids == [(16, 24), (8, 12), (4, 6), (4, 6)]
    assert [tuple(level.shape[1:]) for level in tokens.levels] == [
        (384, 8),
        (96, 16),
        (25, 32),
        (25, 32),
    ]
    sum(level.square().sum() for level in tokens.levels).backward()
    assert [n for n, p in encoder.named_parameters() if p.grad is None] == []


BEIT = {
    "image_size": [64, 96],
    "embed_dim": 32,
    "num_blocks": 4,
    "num_heads": 2,
    "layer_scale": 0.1,
    "out_indices": (0, 1, 2, 3),
}


def test_beit_trains_every_tensor_at_any_size():
    model = dpt.create_model(
        "dpt_tiny",
        heads={"depth": {"kind": "metric", "max_depth": 10.0}},
        encoder={"kind": "beit", **BEIT},
    )
    depth = model(torch.randn(2, 3, 70, 101))["depth"]
    assert depth.shape == (2, 70, 101)
    (depth * torch.randn_like(depth)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    tables = [p for n, p in model.named_parameters() if n.endswith("bias_table")]
    assert len(tables) == 4
    assert all(p.shape == ((2 * 4 - 1) * (2 * 6 - 1) + 3, 2) for p in tables)
