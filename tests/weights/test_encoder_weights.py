"""Weights for the encoder alone: saved models of ours, timm's files, other grids, other things."""

import re

import pytest
import timm
import torch
from peer_cases import jolt
from peers_depth_anything import HubViT
from safetensors.torch import save_file
from timm.layers import resample_patch_embed
from timm.models.vision_transformer import checkpoint_filter_fn
from tiny import assert_equal, small_model

import dpt
from dpt.nn import TimmConfig, TimmEncoder, VisionTransformer, ViTConfig
from dpt.nn.vit import resize_positions
from dpt.weights import load_encoder_weights

LAST = {"indices": [3], "output_fmt": "NLC", "intermediates_only": True}


def small(image_size=(64, 64), **overrides):
    return small_model(heads={"depth": {}}, image_size=list(image_size), **overrides)


def timm_tiny(**options):
    return timm.create_model("vit_tiny_patch16_224", depth=4, **options).eval()


def our_vit(**options):
    defaults = {
        "image_size": (70, 70),
        "patch_size": 14,
        "embed_dim": 128,
        "num_heads": 2,
        "num_blocks": 4,
        "out_indices": (1, 2, 3),
        "layer_scale": 1.0,
    }
    return VisionTransformer(ViTConfig(**{**defaults, **options})).eval()


def tiny_vit(image_size=(64, 64), **options):
    sizes = {"embed_dim": 192, "num_heads": 3, "patch_size": 16, "layer_scale": None}
    return our_vit(image_size=image_size, **{**sizes, **options})


def hub_vit(**options):
    return jolt(HubViT(blocks=4, **options))


def timm_encoder(name, **options):
    encoder = {"kind": "timm", "name": name, **options}
    return dpt.create_model("dpt_tiny", heads={"depth": {}}, encoder=encoder)


def load(encoder, content, folder, name="file.pth"):
    """Loads what a model of ours saves, or tensors of a file."""
    if isinstance(content, dpt.DPT):
        content.save_pretrained(folder / "saved")
        return load_encoder_weights(encoder, folder / "saved")
    torch.save(content, folder / name)
    return load_encoder_weights(encoder, folder / name)


@torch.no_grad()
def patches(encoder, images):
    """The patch tokens of the last level."""
    return encoder.eval()(images).levels[-1][:, encoder.num_prefix_tokens[-1] :]


@torch.no_grad()
def assert_same_function(ours, theirs, size=(70, 70)):
    """The same tokens as those of DINOv2's ViT."""
    images = torch.randn(1, 3, *size)
    expected = theirs.levels(images, (1, 2, 3), norm=False)[-1][0]
    error = (patches(ours, images) - expected).abs().max()
    assert error <= 1e-5 * expected.abs().max()


# Saved models of ours


@pytest.mark.parametrize(
    ("old", "new", "is_bare"),
    [
        ((64, 64), (96, 96), False),
        ((64, 128), (96, 96), False),  # 32 codes are no square: the saved configuration knows
        ((64, 144), (96, 96), False),  # 36 codes for 36 places, in another shape
        ((64, 96), (64, 96), True),  # 24 codes of no square are taken as the encoder's 4 × 6
        ((96, 96), (64, 144), True),  # a square with as many places as the oblong grid
    ],
)
def test_positions_are_resized_to_another_grid(tmp_path, old, new, is_bare):
    source, target = small(old), small(new, position_resize="bicubic_antialias")
    report = load(target.encoder, source.encoder.state_dict() if is_bare else source, tmp_path)
    codes, loaded = source.encoder.pos_embed, target.encoder.pos_embed
    old, new = source.encoder.grid, target.encoder.grid
    assert torch.equal(loaded[:, 0], codes[:, 0])
    expected = resize_positions(codes[:, 1:], old, new, policy="bicubic_antialias")
    torch.testing.assert_close(loaded[:, 1:], expected, rtol=0, atol=0)
    sizes = f"pos_embed {old[0]}x{old[1]} to {new[0]}x{new[1]}"
    assert report.resized == ([sizes] if old != new else [])


@pytest.mark.parametrize("slots", [(False, True), (True, False)])
def test_cls_token_keeps_its_code_with_and_without_a_slot(tmp_path, slots):
    source, target = (small(cls_position=s) for s in slots)
    report = load(target.encoder, source, tmp_path)
    old, new = map(int, slots)
    assert report.moved == [f"pos_embed {old} to {new} codes before the patches"]
    images = torch.randn(1, 3, 64, 64)
    expected = patches(source.encoder, images)
    torch.testing.assert_close(patches(target.encoder, images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"blocks.0.norm1.weight": torch.ones(48)}, r"blocks\.0\.norm1\.weight is \(48,\), not"),
        ({"pos_embed": torch.ones(1, 15, 32)}, "pos_embed has 15 slots.*image_size .*to the file"),
        (
            {"blocks.0.norm1.weight": torch.full((32,), torch.nan)},
            "norm1.*NaN.*: download it again",
        ),
        ([("conv1.weight", torch.ones(3))], "no tensor of this encoder.*has conv1"),
        ([("dpt_config", {}), ("state_dict", {})], "model.encoder must be given"),
    ],
)
def test_what_does_not_fit_changes_nothing(content, message, tmp_path):
    target = small()
    before = {k: v.clone() for k, v in target.encoder.state_dict().items()}
    is_change = isinstance(content, dict)
    content = {**small().encoder.state_dict(), **content} if is_change else dict(content)
    with pytest.raises(ValueError, match=rf"file\.pth: .*{message}") as caught:
        load(target.encoder, content, tmp_path)
    assert "\n" not in str(caught.value)
    assert_equal(target.encoder.state_dict(), before)


@pytest.mark.parametrize(
    ("option", "stored"),
    [({"num_heads": 4}, 2), ({"norm_order": "post"}, "pre"), ({"rope_theta": 9.0}, 100.0)],
)
def test_settings_that_no_shape_tells_must_be_those_of_the_file(option, stored, tmp_path):
    ((key, value),) = option.items()
    fault = rf"model\.encoder\.{key}={value}: must be {stored}"
    with pytest.raises(ValueError, match=fault):
        load(small(**option).encoder, small(), tmp_path)


@pytest.mark.parametrize("blocks", [3, 5])
def test_a_file_of_another_number_of_blocks(tmp_path, blocks):
    indices = list(range(blocks))[-4:]
    other = small(num_blocks=blocks, out_indices=indices, reassemble_channels=[8] * len(indices))
    with pytest.raises(ValueError, match=rf"holds {blocks} blocks: .*num_blocks={blocks} "):
        load(small().encoder, other.encoder.state_dict(), tmp_path)


# timm's files and encoders


@pytest.mark.peers
def test_timm_state_dict(tmp_path):
    theirs, ours = timm_tiny(img_size=64), tiny_vit()
    save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    report = load_encoder_weights(ours, tmp_path / "vit.safetensors")
    assert report.missing == []
    assert report.unused == ["head.bias", "head.weight", "norm.bias", "norm.weight"]
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = theirs.forward_intermediates(images, **LAST)[0]
    torch.testing.assert_close(patches(ours, images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("convnext_atto", {}), ("vit_tiny_patch16_224", {"depth": 4, "img_size": [64, 96]})],
)
def test_timm_encoders_take_their_own_weights(tmp_path, name, options):
    source = timm_encoder(name, **options)
    for content in (source, source.encoder.model.state_dict()):
        target = timm_encoder(name, **options)
        report = load(target.encoder, content, tmp_path)
        assert report.missing == report.resized == []
        assert_equal(target.encoder.state_dict(), source.encoder.state_dict())


def test_weights_pass_between_our_vit_and_timms(tmp_path):
    """Same names; each side resizes codes by its own policy."""
    sizes = {"num_blocks": 4, "out_indices": [0, 1, 2, 3], "image_size": [96, 64]}
    policy = {"position_resize": "bicubic_antialias"}
    ours = dpt.create_model("dpt_tiny", heads={"depth": {}}, **sizes, **policy)
    timms = timm_encoder("vit_tiny_patch16_224", depth=4, img_size=128)
    report = load(timms.encoder, ours, tmp_path)
    assert (report.resized, report.missing) == (["pos_embed 6x4 to 8x8"], [])
    codes = ours.encoder.pos_embed[:, 1:]
    expected = resize_positions(codes, (6, 4), (8, 8), policy="bicubic_antialias")
    torch.testing.assert_close(timms.encoder.model.pos_embed[:, 1:], expected, rtol=0, atol=0)
    torch.nn.init.normal_(timms.encoder.model.blocks[3].mlp.fc2.weight)
    assert load(ours.encoder, timms, tmp_path).resized == ["pos_embed 8x8 to 6x4"]
    loaded, expected = ours.encoder.blocks[3], timms.encoder.model.blocks[3]
    assert torch.equal(loaded.mlp.fc2.weight, expected.mlp.fc2.weight)


def test_a_model_of_timm_tells_its_grid(monkeypatch):
    source = timm_tiny(img_size=(64, 144))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: source)
    report = load_encoder_weights(tiny_vit((96, 96)), "timm:vit_tiny_patch16_224")
    assert report.resized == ["pos_embed 4x9 to 6x6"]


@pytest.mark.parametrize(
    "name",
    ["local-dir:{}", "LOCAL-DIR:{}", "hf-hub:a/b", "hf_hub:a/b", "file:{}", "{}", "a/b", ":"],
)
def test_other_sources_of_timm_are_refused(tmp_path, name):
    """timm unpickles what it finds there."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nmkdir\n(S'" + bytes(tmp_path) + b"/x'\ntR.")
    (tmp_path / "config.json").write_text('{"architecture": "vit_tiny_patch16_224"}')
    name = "timm:" + name.format(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"{name}: timm: takes the name")):
        load_encoder_weights(our_vit(), name)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["timm:vit_of_nobody", "hf:not a name"])
def test_names_that_cannot_be_fetched(name):
    with pytest.raises(ValueError, match=f"{name.partition(':')[2]}: .*check the name"):
        load_encoder_weights(our_vit(), name)


# DINOv2, DeiT, DINOv3: other names, other tokens before the patches


@pytest.mark.parametrize(
    ("theirs", "ours", "prefix"),
    [
        ({}, {"position_resize": "dinov2"}, "pretrained."),
        ({"gated": True}, {"position_resize": "dinov2", "swiglu": True}, "backbone."),
        (
            {"registers": 4},
            {"position_resize": "bicubic_antialias", "num_register_tokens": 4},
            "backbone.",
        ),
    ],
    ids=["ViT", "SwiGLU", "registers"],
)
def test_dinov2_under_the_hubs_names(tmp_path, theirs, ours, prefix):
    theirs, ours = hub_vit(**theirs), our_vit(**ours)
    content = {f"{prefix}{k}": v for k, v in theirs.state_dict().items()}
    content = {"teacher": content} if prefix == "backbone." else content
    report = load(ours, content, tmp_path)
    assert report.missing == report.resized == []
    assert report.unused == ["mask_token", "norm.bias", "norm.weight"]
    assert_same_function(ours, theirs)
    assert_same_function(ours, theirs, (56, 84))


@pytest.mark.parametrize("has_gains", [True, False])
def test_gains_that_only_one_side_has(tmp_path, has_gains):
    """LayerScale goes into the layers before it, or starts at one: the same function."""
    theirs, ours = hub_vit(), our_vit(layer_scale=None if has_gains else 1e-5)
    if not has_gains:
        for block in theirs.blocks:
            block.ls1, block.ls2 = torch.nn.Identity(), torch.nn.Identity()
    report = load(ours, theirs.state_dict(), tmp_path)
    assert report.missing == []
    assert "8 LayerScale gains" in report.moved[0]
    assert_same_function(ours, theirs)


def test_blocks_in_chunks_are_counted_through(tmp_path):
    theirs, ours = hub_vit(), our_vit()
    chunk = re.compile(r"blocks\.(\d)")
    content = {
        chunk.sub(lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", k): v
        for k, v in theirs.state_dict().items()
    }
    assert load(ours, content, tmp_path).missing == []
    assert torch.equal(ours.blocks[3].mlp.fc2.weight, theirs.blocks[3].mlp.fc2.weight)


def test_another_patch_size_and_grid(tmp_path):
    theirs, ours = hub_vit(), our_vit(image_size=(64, 96), patch_size=16)
    report = load(ours, theirs.state_dict(), tmp_path)
    kernel = "patch_embed.proj.weight 14x14 to 16x16"
    assert report.resized == [kernel, "pos_embed 5x5 to 4x6"]
    expected = resample_patch_embed(theirs.patch_embed.proj.weight, [16, 16])
    torch.testing.assert_close(ours.patch_embed.proj.weight, expected)


@pytest.mark.peers
def test_dinov2_with_registers_into_timms(tmp_path):
    """timm keeps no code for CLS there: it becomes part of the token, as in timm's own reader."""
    theirs = hub_vit(registers=4)
    sizes = {"embed_dim": 128, "depth": 4, "num_heads": 2, "img_size": 70}
    ours = TimmEncoder(
        TimmConfig(name="vit_small_patch14_reg4_dinov2", out_indices=[1, 2, 3], **sizes)
    )
    report = load(ours, theirs.state_dict(), tmp_path)
    assert report.missing == []
    assert report.moved == ["pos_embed 1 to 0 codes before the patches"]
    converted = checkpoint_filter_fn(dict(theirs.state_dict()), ours.model)
    assert_equal(ours.model.state_dict(), {k: converted[k] for k in ours.model.state_dict()})
    assert_same_function(ours, theirs)


@pytest.mark.peers
def test_deit_with_its_distillation_token(tmp_path):
    sizes = {"img_size": 64, "embed_dim": 64, "depth": 4, "num_heads": 2}
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", **sizes).eval()
    torch.nn.init.normal_(theirs.pos_embed)
    content, ours = {"model": theirs.state_dict()}, tiny_vit(embed_dim=64, num_heads=2)
    report = load(ours, content, tmp_path)
    assert report.missing == report.moved == []
    assert report.unused[:3] == ["code of dist_token", "dist_token", "head.bias"]
    assert torch.equal(ours.pos_embed[:, :1], theirs.pos_embed[:, :1])
    assert torch.equal(ours.pos_embed[:, 1:], theirs.pos_embed[:, 2:])
    again = TimmEncoder(TimmConfig(name="deit_tiny_distilled_patch16_224", **sizes))
    report = load(again, content, tmp_path)
    assert report.missing == report.resized == []
    assert torch.equal(again.model.pos_embed, theirs.pos_embed)


@pytest.mark.peers
def test_dinov3_under_the_hubs_names(tmp_path):
    name, sizes = "vit_small_patch16_dinov3", {"embed_dim": 64, "depth": 4, "num_heads": 2}
    source, target = (TimmEncoder(TimmConfig(name=name, **sizes)).eval() for _ in range(2))
    with torch.no_grad():
        for p in source.parameters():
            p.normal_(std=0.1)
    content = {"rope_embed.periods": torch.ones(4), "mask_token": torch.zeros(1, 64)}
    for key, value in source.model.state_dict().items():
        key = key.replace("reg_token", "storage_tokens").replace("gamma_", "ls")
        content[f"{key}.gamma" if key[-3:-1] == "ls" else key] = value
    for i in range(4):
        content[f"blocks.{i}.attn.qkv.bias"] = torch.zeros(192)
        content[f"blocks.{i}.attn.qkv.bias_mask"] = torch.zeros(192)
    content["norm.weight"], content["norm.bias"] = torch.ones(64), torch.zeros(64)
    assert load(target, content, tmp_path).missing == []
    assert_equal(target.state_dict(), source.state_dict())
    with pytest.raises(ValueError, match=r"of DINOv3, EVA or BEiT.*encoder=dinov3_small"):
        load(our_vit(embed_dim=64, patch_size=16), content, tmp_path)
