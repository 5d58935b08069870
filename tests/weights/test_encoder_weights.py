"""Weights for the encoder alone: saved models of ours, timm's files, other grids, other things."""

import re

import pytest
import torch
from tiny import assert_equal, small_model

import dpt
from dpt.nn import TimmConfig, TimmEncoder, VisionTransformer, ViTConfig, resize_positions
from dpt.weights import load_encoder_weights


def small(image_size=(64, 64), **overrides):
    return small_model(heads={"depth": {}}, image_size=list(image_size), **overrides)


def test_from_a_saved_folder(tmp_path):
    source, target = small(), small()
    source.save_pretrained(tmp_path)
    report = load_encoder_weights(target.encoder, tmp_path)
    assert_equal(target.encoder.state_dict(), source.encoder.state_dict())
    assert report.loaded == len(source.encoder.state_dict())
    assert report.resized == report.missing == report.unused == []
    assert str(tmp_path) in str(report)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((64, 64), (96, 96)),
        ((64, 128), (96, 96)),  # 32 codes are no square: the saved spec knows
        ((64, 144), (128, 128)),  # 36 codes could be 6 × 6
        ((64, 144), (96, 96)),  # 36 codes for 36 places, in another shape
        ((64, 144), (144, 64)),
    ],
)
def test_another_grid_from_a_saved_folder(tmp_path, old, new):
    source, target = small(old), small(new, position_resize="bicubic_antialias")
    source.save_pretrained(tmp_path)
    report = load_encoder_weights(target.encoder, tmp_path)
    codes, found = source.encoder.pos_embed, target.encoder.pos_embed
    old, new = source.encoder.grid, target.encoder.grid
    assert torch.equal(found[:, 0], codes[:, 0])
    wanted = resize_positions(codes[:, 1:], old, new, policy="bicubic_antialias")
    torch.testing.assert_close(found[:, 1:], wanted, rtol=0, atol=0)
    assert report.resized == [f"pos_embed {old[0]}x{old[1]} to {new[0]}x{new[1]}"]
    assert "resized to this grid: pos_embed" in str(report)


def test_another_grid_means_the_same_function_at_the_old_size(tmp_path):
    """Codes resized by the policy at loading give what the policy gives at run time."""
    source, target = small((64, 64)), small((96, 64))
    source.save_pretrained(tmp_path)
    load_encoder_weights(target.encoder, tmp_path)
    images = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        found, wanted = target.encoder(images).levels[-1], source.encoder(images).levels[-1]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("wrapper", "suffix"), [(None, ".safetensors"), ("model", ".pth"), ("state_dict", ".pth")]
)
def test_from_a_timm_state_dict(tmp_path, wrapper, suffix):
    import timm
    from safetensors.torch import save_file

    theirs = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=4).eval()
    state = theirs.state_dict()
    path = tmp_path / f"vit{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, path)
    mine = VisionTransformer(
        ViTConfig(
            image_size=(64, 64), embed_dim=192, num_heads=3, num_blocks=4, out_indices=(0, 1, 2, 3)
        )
    ).eval()
    report = load_encoder_weights(mine, path)
    assert report.missing == []
    assert report.unused == ["head.bias", "head.weight", "norm.bias", "norm.weight"]
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = theirs.forward_intermediates(
            images, indices=[3], output_fmt="NLC", intermediates_only=True
        )[0]
        found = mine(images).levels[-1][:, 1:]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.peers
def test_from_a_timm_file_with_another_grid(tmp_path):
    import timm
    from timm.layers import resample_abs_pos_embed

    theirs = timm.create_model("vit_tiny_patch16_224", depth=4)
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    mine = VisionTransformer(
        ViTConfig(
            image_size=(64, 96),
            embed_dim=192,
            num_heads=3,
            num_blocks=4,
            out_indices=(0, 1, 2, 3),
            position_resize="bicubic_antialias",
        )
    )
    report = load_encoder_weights(mine, tmp_path / "vit.pth")
    assert report.resized == ["pos_embed 14x14 to 4x6"]
    wanted = resample_abs_pos_embed(theirs.pos_embed, [4, 6])
    torch.testing.assert_close(mine.pos_embed, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("convnext_atto", {}),
        ("vit_tiny_patch16_224", {"depth": 4, "img_size": 64}),
        pytest.param(
            "swin_tiny_patch4_window7_224", {"depths": (1, 1, 1, 1)}, marks=pytest.mark.slow
        ),
    ],
)
def test_timm_encoders_take_their_own_weights(tmp_path, name, arguments):
    def make():
        encoder = {"kind": "timm", "name": name, **arguments}
        return dpt.create_model("dpt_tiny", heads={"depth": {}}, encoder=encoder)

    source = make()
    source.save_pretrained(tmp_path / "ours")
    torch.save(source.encoder.model.state_dict(), tmp_path / "timm.pth")
    for path in (tmp_path / "ours", tmp_path / "timm.pth"):
        target = make()
        assert not load_encoder_weights(target.encoder, path).missing
        assert_equal(target.encoder.state_dict(), source.encoder.state_dict())


def test_between_our_vit_and_timms_at_another_grid(tmp_path):
    """Same names, so weights pass either way; each side resizes codes by its own policy."""
    ours = dpt.create_model(
        "dpt_tiny",
        heads={"depth": {}},
        image_size=[96, 64],
        num_blocks=4,
        out_indices=[0, 1, 2, 3],
        position_resize="bicubic_antialias",
    )
    ours.save_pretrained(tmp_path / "ours")
    timms = TimmEncoder(TimmConfig(name="vit_tiny_patch16_224", depth=4, img_size=128)).eval()
    report = load_encoder_weights(timms, tmp_path / "ours")
    assert report.resized == ["pos_embed 6x4 to 8x8"]
    assert report.missing == []
    wanted = resize_positions(
        ours.encoder.pos_embed[:, 1:], (6, 4), (8, 8), policy="bicubic_antialias"
    )
    torch.testing.assert_close(timms.model.pos_embed[:, 1:], wanted, rtol=0, atol=0)

    saved = dpt.create_model(
        "dpt_tiny",
        heads={"depth": {}},
        encoder={"kind": "timm", "name": "vit_tiny_patch16_224", "depth": 4, "img_size": 128},
    )
    saved.save_pretrained(tmp_path / "timms")
    report = load_encoder_weights(ours.encoder, tmp_path / "timms")
    assert report.resized == ["pos_embed 8x8 to 6x4"]
    assert torch.equal(
        ours.encoder.blocks[3].mlp.fc2.weight, saved.encoder.model.blocks[3].mlp.fc2.weight
    )


def test_more_and_fewer_blocks_are_reported(tmp_path):
    source = small()
    source.save_pretrained(tmp_path)
    target = VisionTransformer(
        ViTConfig(image_size=(64, 64), embed_dim=32, num_heads=2, num_blocks=2, out_indices=(0, 1))
    )
    report = load_encoder_weights(target, tmp_path)
    assert report.missing == []
    assert len(report.unused) == 24
    assert all(name.startswith(("blocks.2", "blocks.3")) for name in report.unused)
    assert "and 16 more" in str(report)
    longer = VisionTransformer(
        ViTConfig(image_size=(64, 64), embed_dim=32, num_heads=2, num_blocks=5, out_indices=(4,))
    )
    report = load_encoder_weights(longer, tmp_path)
    assert len(report.missing) == 12
    assert all(name.startswith("blocks.4") for name in report.missing)


def test_what_does_not_fit_changes_nothing(tmp_path):
    target = small()
    before = {k: v.clone() for k, v in target.encoder.state_dict().items()}
    wide = dict(small().encoder.state_dict())
    wide["blocks.0.norm1.weight"] = torch.ones(48)
    torch.save(wide, tmp_path / "wide.pt")
    torch.save({"conv1.weight": torch.ones(3), "fc.bias": torch.ones(2)}, tmp_path / "other.pt")
    torch.save({"cls_token": target.encoder.cls_token.detach() + 1}, tmp_path / "almost.pt")
    odd = dict(small().encoder.state_dict())
    odd["pos_embed"] = torch.ones(1, 1 + 14, 32)
    torch.save(odd, tmp_path / "odd.pt")
    for name, config in {"empty": {}, "patchless": {"encoder": {"patch_size": 0}}}.items():
        torch.save({"dpt_config": config, "state_dict": {}}, tmp_path / f"{name}.ckpt")
    for name, message in {
        "wide.pt": r"another architecture: blocks\.0\.norm1\.weight is \(48,\), not \(32,\)",
        "other.pt": r"no tensor of this encoder found; the file has conv1\.weight, fc\.bias",
        "almost.pt": "no tensor of this encoder found",
        "odd.pt": "pos_embed has 15 slots, which are not those of a square",
        "absent.pt": "no such file",
        "empty.ckpt": "model has no encoder",
        "patchless.ckpt": "model has no heads",
    }.items():
        with pytest.raises(ValueError, match=rf"{name.replace('.', '[.]')}: {message}") as caught:
            load_encoder_weights(target.encoder, tmp_path / name)
        assert "\n" not in str(caught.value)
        assert_equal(target.encoder.state_dict(), before)


@pytest.mark.parametrize("slots", [(False, True), (True, False)])
def test_a_cls_token_keeps_its_code_with_and_without_a_slot(tmp_path, slots):
    source, target = (small(cls_position=s).eval() for s in slots)
    source.save_pretrained(tmp_path)
    report = load_encoder_weights(target.encoder, tmp_path)
    old, new = map(int, slots)
    assert report.moved == [f"pos_embed {old} to {new} codes before the patches"]
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        found, wanted = target.encoder(images).levels[-1], source.encoder(images).levels[-1]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_bare_file_for_the_same_oblong_grid(tmp_path):
    """Nothing in such a file tells the grid: 24 codes, which are no square, are taken as 4x6."""
    source, target = small((64, 96)), small((64, 96))
    torch.save(source.encoder.state_dict(), tmp_path / "bare.pt")
    report = load_encoder_weights(target.encoder, tmp_path / "bare.pt")
    assert report.resized == []
    assert_equal(target.encoder.state_dict(), source.encoder.state_dict())


def test_a_square_grid_with_as_many_places_as_the_oblong_one(tmp_path):
    source, target = small((96, 96)), small((64, 144))
    torch.save(source.encoder.state_dict(), tmp_path / "bare.pt")
    report = load_encoder_weights(target.encoder, tmp_path / "bare.pt")
    assert report.resized == ["pos_embed 6x6 to 4x9"]


def test_a_model_of_timm_tells_its_grid(monkeypatch):
    import timm

    source = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=(64, 144))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: source)
    target = our_vit(image_size=(96, 96), patch_size=16, embed_dim=192, num_heads=3)
    report = load_encoder_weights(target, "timm:vit_tiny_patch16_224")
    assert report.resized == ["pos_embed 4x9 to 6x6"]


def test_an_oblong_encoder_of_timm_takes_its_own_weights(tmp_path):
    encoder = {"kind": "timm", "name": "vit_tiny_patch16_224", "depth": 4, "img_size": [64, 144]}
    source = dpt.create_model("dpt_tiny", heads={"depth": {}}, encoder=encoder)
    source.save_pretrained(tmp_path)
    assert load_encoder_weights(source.encoder, tmp_path).resized == []


class OwnEncoder(torch.nn.Module):
    """An encoder that keeps its layers in ``model``, under names of its own."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 3))


def test_names_of_an_encoders_layers_are_free(tmp_path):
    source, target = OwnEncoder(), OwnEncoder()
    torch.save(source.state_dict(), tmp_path / "bare.pt")
    assert load_encoder_weights(target, tmp_path / "bare.pt").missing == []
    assert_equal(target.state_dict(), source.state_dict())


@pytest.mark.parametrize(
    ("name", "value"), [("cls_token", torch.ones(32)), ("blocks.0.ls1.gamma", torch.ones(5))]
)
def test_a_damaged_tensor_is_told_in_one_line(tmp_path, name, value):
    torch.save({**small().encoder.state_dict(), name: value}, tmp_path / "damaged.pt")
    with pytest.raises(ValueError, match=r"damaged\.pt: "):
        load_encoder_weights(small().encoder, tmp_path / "damaged.pt")


# DINOv2, DeiT, DINOv3: other names, other tokens before the patches


def hub_vit(**options):
    from peer_cases import jolt
    from peers_depth_anything import HubViT

    return jolt(HubViT(blocks=4, **options))


def our_vit(**options):
    arguments = {
        "image_size": (70, 70),
        "patch_size": 14,
        "embed_dim": 128,
        "num_heads": 2,
        "num_blocks": 4,
        "out_indices": (1, 2, 3),
        "layer_scale": 1.0,
    }
    return VisionTransformer(ViTConfig(**{**arguments, **options})).eval()


def hub_tokens(theirs, size):
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        return images, [x for x, _ in theirs.levels(images, (1, 2, 3), norm=False)]


@pytest.mark.parametrize(
    ("theirs", "ours", "prefix"),
    [
        ({}, {"position_resize": "dinov2"}, "pretrained."),
        ({"gated": True}, {"position_resize": "dinov2", "swiglu": True}, "teacher"),
        (
            {"registers": 4},
            {"position_resize": "bicubic_antialias", "num_register_tokens": 4},
            "teacher",
        ),
    ],
    ids=["ViT", "SwiGLU", "registers"],
)
def test_dinov2_under_the_hubs_names(tmp_path, theirs, ours, prefix):
    theirs, ours = hub_vit(**theirs), our_vit(**ours)
    content = {
        f"{prefix.replace('teacher', 'backbone.')}{k}": v for k, v in theirs.state_dict().items()
    }
    torch.save({"teacher": content} if prefix == "teacher" else content, tmp_path / "dino.pth")
    report = load_encoder_weights(ours, tmp_path / "dino.pth")
    assert report.missing == report.resized == []
    assert report.unused == ["mask_token", "norm.bias", "norm.weight"]
    for size in ((70, 70), (56, 84)):
        images, wanted = hub_tokens(theirs, size)
        with torch.no_grad():
            found = [x[:, -w.shape[1] :] for x, w in zip(ours(images).levels, wanted, strict=True)]
        for f, w in zip(found, wanted, strict=True):
            assert (f - w).abs().max() <= 1e-5 * w.abs().max()


@pytest.mark.parametrize("gains", [True, False])
def test_gains_that_only_one_side_has(tmp_path, gains):
    """LayerScale goes into the layers before it, or starts at one: the same function."""
    theirs, ours = hub_vit(), our_vit(layer_scale=None if gains else 1e-5)
    if not gains:
        for block in theirs.blocks:
            block.ls1, block.ls2 = torch.nn.Identity(), torch.nn.Identity()
    torch.save(theirs.state_dict(), tmp_path / "dino.pth")
    report = load_encoder_weights(ours, tmp_path / "dino.pth")
    assert report.missing == []
    assert "moved, for the same function: 8 LayerScale gains" in str(report)
    images, wanted = hub_tokens(theirs, (70, 70))
    with torch.no_grad():
        found = ours(images).levels[-1][:, 1:]
    assert (found - wanted[-1]).abs().max() <= 1e-5 * wanted[-1].abs().max()


def test_blocks_in_chunks_are_counted_through(tmp_path):
    theirs, ours = hub_vit(), our_vit()
    content = {
        k.replace("blocks.", f"blocks.{int(k.split('.')[1]) // 2}.") if "blocks" in k else k: v
        for k, v in theirs.state_dict().items()
    }
    torch.save(content, tmp_path / "chunks.pth")
    assert load_encoder_weights(ours, tmp_path / "chunks.pth").missing == []
    assert torch.equal(ours.blocks[3].mlp.fc2.weight, theirs.blocks[3].mlp.fc2.weight)


def test_registers_for_an_encoder_without_any_and_the_other_way(tmp_path):
    torch.save(hub_vit(registers=4).state_dict(), tmp_path / "four.pth")
    torch.save(hub_vit().state_dict(), tmp_path / "none.pth")
    report = load_encoder_weights(our_vit(), tmp_path / "four.pth")
    assert "reg_token" in report.unused
    assert report.missing == []
    for name in ("none.pth", "four.pth"):
        ours = our_vit(num_register_tokens=2)
        before = ours.reg_token.clone()
        report = load_encoder_weights(ours, tmp_path / name)
        assert report.missing == ["reg_token"]
        assert torch.equal(ours.reg_token, before)


def test_another_patch_size_and_grid(tmp_path):
    from timm.layers import resample_patch_embed

    theirs, ours = hub_vit(), our_vit(image_size=(64, 96), patch_size=16)
    torch.save(theirs.state_dict(), tmp_path / "dino.pth")
    report = load_encoder_weights(ours, tmp_path / "dino.pth")
    kernel = "patch_embed.proj.weight 14x14 to 16x16"
    assert report.resized == [kernel, "pos_embed 5x5 to 4x6"]
    wanted = resample_patch_embed(theirs.patch_embed.proj.weight, [16, 16])
    torch.testing.assert_close(ours.patch_embed.proj.weight, wanted)


@pytest.mark.peers
def test_dinov2_with_registers_into_timms(tmp_path):
    """timm keeps no code for CLS there: it becomes part of the token, as in timm's own reader."""
    from timm.models.vision_transformer import checkpoint_filter_fn

    theirs = hub_vit(registers=4)
    torch.save(theirs.state_dict(), tmp_path / "dino.pth")
    sizes = {"embed_dim": 128, "depth": 4, "num_heads": 2, "img_size": 70}
    ours = TimmEncoder(
        TimmConfig(name="vit_small_patch14_reg4_dinov2", out_indices=[1, 2, 3], **sizes)
    ).eval()
    report = load_encoder_weights(ours, tmp_path / "dino.pth")
    assert report.missing == []
    assert report.moved == ["pos_embed 1 to 0 codes before the patches"]
    converted = checkpoint_filter_fn(dict(theirs.state_dict()), ours.model)
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, converted[name]), name
    images, wanted = hub_tokens(theirs, (70, 70))
    with torch.no_grad():
        found = ours(images).levels[-1][:, 5:]
    assert (found - wanted[-1]).abs().max() <= 1e-5 * wanted[-1].abs().max()


@pytest.mark.peers
def test_deit_with_its_distillation_token(tmp_path):
    import timm

    sizes = {"img_size": 64, "embed_dim": 64, "depth": 4, "num_heads": 2}
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", **sizes)
    torch.nn.init.normal_(theirs.pos_embed)
    torch.nn.init.normal_(theirs.dist_token)
    torch.save({"model": theirs.state_dict()}, tmp_path / "deit.pth")

    def ours_with(registers):
        return VisionTransformer(
            ViTConfig(
                image_size=(64, 64),
                embed_dim=64,
                num_heads=2,
                num_blocks=4,
                out_indices=(3,),
                num_register_tokens=registers,
            )
        ).eval()

    ours = ours_with(0)
    report = load_encoder_weights(ours, tmp_path / "deit.pth")
    assert report.missing == report.moved == []
    assert "not used: code of dist_token, dist_token, head.bias" in str(report)
    assert torch.equal(ours.pos_embed[:, :1], theirs.pos_embed[:, :1])
    assert torch.equal(ours.pos_embed[:, 1:], theirs.pos_embed[:, 2:])
    ours = ours_with(1)  # a token with no slot of its own is what a register is
    report = load_encoder_weights(ours, tmp_path / "deit.pth")
    assert report.missing == []
    assert report.moved[0] == "dist_token into the register"
    assert not any("dist_token" in name for name in report.unused)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = theirs.eval().forward_intermediates(
            images, indices=[3], output_fmt="NLC", intermediates_only=True
        )[0]
        found = ours(images).levels[-1][:, 2:]
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    report = load_encoder_weights(ours_with(2), tmp_path / "deit.pth")
    assert report.missing == ["reg_token"]
    assert "dist_token" in report.unused
    again = TimmEncoder(TimmConfig(name="deit_tiny_distilled_patch16_224", **sizes))
    report = load_encoder_weights(again, tmp_path / "deit.pth")
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
    torch.save(content, tmp_path / "dinov3.pth")
    report = load_encoder_weights(target, tmp_path / "dinov3.pth")
    assert report.missing == []
    assert_equal(target.state_dict(), source.state_dict())
    with pytest.raises(ValueError, match=r"of DINOv3, EVA or BEiT.*encoder kind 'timm'"):
        load_encoder_weights(our_vit(embed_dim=64, patch_size=16), tmp_path / "dinov3.pth")


# dense checkpoints, of which the encoder alone is taken


def test_from_a_dense_checkpoint(tmp_path):
    from peer_cases import jolt
    from peers_depth_anything import HubDepthAnything

    theirs = jolt(HubDepthAnything())
    torch.save({"model": theirs.state_dict()}, tmp_path / "da.pth")
    ours = our_vit(num_blocks=8, out_indices=(1, 3, 5, 7), final_norm=True)
    report = load_encoder_weights(ours, tmp_path / "da.pth")
    assert report.missing == []
    assert report.unused == ["mask_token"]
    assert_equal(
        ours.state_dict(),
        {k: theirs.pretrained.state_dict()[k] for k in ours.state_dict()},
    )


@pytest.mark.peers
def test_from_a_folder_of_transformers(tmp_path):
    from peers_depth_anything import folder_model

    theirs = folder_model()
    theirs.save_pretrained(tmp_path)
    ours = our_vit(embed_dim=48, num_heads=4, num_blocks=8, out_indices=(7,), final_norm=True)
    report = load_encoder_weights(ours, tmp_path)
    assert report.missing == report.unused == []
    qkv = theirs.backbone.encoder.layer[7].state_dict()
    wanted = [v for k, v in qkv.items() if "weight" in k and ("q_proj" in k or "query" in k)]
    assert torch.equal(ours.blocks[7].attn.qkv.weight[:48], wanted[0])


def test_from_names_of_hubs():
    with pytest.raises(
        ValueError, match=r"vit_of_nobody: cannot be fetched from timm .*: check the name"
    ):
        load_encoder_weights(our_vit(), "timm:vit_of_nobody")
    with pytest.raises(ValueError, match=r"not a name: .*from the hub .*: check the name and"):
        load_encoder_weights(our_vit(), "hf:not a name")


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
