"""The public model: saved and loaded bit for bit, and damaged files told from whole ones."""

import json
import os
import resource
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import HEADS, assert_equal, save_checkpoint, small_model

import dpt
from dpt.weights.formats import CONFIG_KEY, convert


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = small_model().eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def test_saved_model_comes_back_bit_for_bit(saved):
    model, folder = saved
    again = dpt.DPT.from_pretrained(folder)
    assert not again.training
    assert again.config == model.config
    assert_equal(again.state_dict(), model.state_dict())
    images = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        assert_equal(again(images), model(images))
    assert isinstance(dpt.DPT.from_pretrained(str(folder)), dpt.DPT)


@pytest.mark.parametrize(
    "overrides",
    [
        {"readout": "add", "num_register_tokens": 2, "layer_scale": 0.1, "final_norm": True},
        {"position": "concat", "position_dim": 8, "norm_order": "post"},
        {"heads": {"classification": {"num_classes": 3}}},
        {"position_resize": "dinov2", "cls_position": False, "batch_norm": False, "patch_size": 14},
        {"align": "resize_lateral", "padding": "center", "output_project": True, "unit_bias": True},
        {"preprocessing": {"mean": (0.1, 0.2, 0.3), "resize": "minimal", "multiple_of": 32}},
        {"encoder": {"kind": "timm", "name": "resnet18"}},
    ],
    ids=lambda o: "+".join(o),
)
def test_every_option_is_saved_with_the_weights(tmp_path, overrides):
    if "encoder" in overrides:
        model = dpt.create_model("dpt_tiny", heads=HEADS, **overrides).eval()
    else:
        model = small_model(**overrides).eval()
    model.save_pretrained(tmp_path)
    again = dpt.DPT.from_pretrained(tmp_path)
    assert again.config == model.config
    assert again.preprocessing == model.preprocessing
    images = torch.randn(1, 3, 70, 90)  # off the trained grid, so the resize policy matters
    with torch.no_grad():
        assert_equal(again(images), model(images))


def test_a_loaded_timm_encoder_fetches_nothing(tmp_path):
    model = dpt.create_model("dpt_tiny", heads=HEADS, encoder={"kind": "timm", "name": "resnet18"})
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["pretrained"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"resnet18 refused .*pretrained"):
        dpt.DPT.from_pretrained(tmp_path)


def test_a_model_that_could_not_be_loaded_again_is_not_saved(saved):
    model, folder = saved
    before = snapshot(model)
    del model.heads["segmentation"]
    with pytest.raises(ValueError, match=r"model\.config: missing heads\.segmentation"):
        model.save_pretrained(folder)
    assert_equal(dpt.DPT.from_pretrained(folder).state_dict(), before)
    del model.config.heads["segmentation"]
    model.save_pretrained(folder)
    assert list(dpt.DPT.from_pretrained(folder).heads) == ["depth", "classification", "regression"]


def test_a_run_with_parameters_beside_the_models_is_read(saved, tmp_path):
    model, _ = saved
    save_checkpoint(model, tmp_path / "a.ckpt")
    content = torch.load(tmp_path / "a.ckpt", weights_only=True)
    content["state_dict"]["loss.x"] = torch.ones(1)
    torch.save(content, tmp_path / "a.ckpt")
    assert_equal(dpt.DPT.from_pretrained(tmp_path / "a.ckpt").state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.cls_token": None}, "missing encoder.cls_token$"),
        ({"encoder.cls_token": torch.ones(1, 1, 5)}, r"cls_token is \(1, 1, 5\), not \(1, 1, 32"),
    ],
)
def test_a_folder_whose_tensors_do_not_fit(saved, changes, message):
    _, folder = saved
    state = load_file(folder / "model.safetensors") | changes
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"saved: does not fit its own .*{message}"):
        dpt.DPT.from_pretrained(folder)


ODD = {
    "integer": (lambda v: v.long(), "is torch.int64, not torch.float32"),
    "NaN": (lambda v: v * torch.nan, "holds NaN"),
    "sparse": (lambda v: v.to_sparse(), "is sparse"),
    "without values": (lambda v: v.to("meta"), "lacks its values"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_tensors_are_refused(saved, tmp_path, kind):
    model, _ = saved
    make, message = ODD[kind]
    odd = {"encoder.cls_token": make(model.state_dict()["encoder.cls_token"])}
    save_checkpoint(model, tmp_path / "odd.ckpt", **odd)
    with pytest.raises(ValueError, match=f"odd.ckpt: .*encoder.cls_token .*{message}") as caught:
        dpt.DPT.from_pretrained(tmp_path / "odd.ckpt")
    assert "\n" not in str(caught.value)


def test_a_damaged_or_compressed_archive_is_refused(saved, tmp_path):
    model, _ = saved
    path = tmp_path / "run.ckpt"
    save_checkpoint(model, path)
    content = bytearray(path.read_bytes())
    offset = content.index(model.state_dict()["encoder.pos_embed"].numpy().tobytes())
    content[offset + 40] ^= 1  # still a number
    (tmp_path / "flipped.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=r"flipped\.ckpt: damaged.*checksum"):
        dpt.DPT.from_pretrained(tmp_path / "flipped.ckpt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "bomb.ckpt", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), compress_type=zipfile.ZIP_DEFLATED)
        new.writestr("run/data/zeros", bytes(10**7), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"bomb\.ckpt: damaged.*compressed"):
        dpt.DPT.from_pretrained(tmp_path / "bomb.ckpt")


HUGE = {
    "wide": {"embed_dim": 10**6},
    "deep": {"num_blocks": 10**9, "out_indices": [0, 1, 2, 10**9 - 1]},
    "of many cells": {"image_size": [10**7, 10**7]},
    "of timm, long": {"kind": "timm", "name": "convnext_tiny", "depths": [9000] * 4},
    "of timm, wide": {"kind": "timm", "name": "vit_tiny_patch16_224", "embed_dim": 9990},
}


@pytest.mark.parametrize(
    "size", [pytest.param(k, marks=pytest.mark.slow) if "long" in k else k for k in HUGE]
)
def test_a_huge_configuration_is_refused_before_it_is_built(saved, size):
    """That of the file alone would take gigabytes, or more than there are."""
    _, folder = saved
    old = HUGE[size] if "kind" in HUGE[size] else None
    change(
        folder / "config.json", lambda c: c.update(encoder=old or {**c["encoder"], **HUGE[size]})
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="saved: ") as caught:
        dpt.DPT.from_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.99])
@pytest.mark.parametrize("name", ["model.safetensors", "run.ckpt"])
def test_truncated_weights(saved, name, fraction):
    model, folder = saved
    path = folder / name
    save_checkpoint(model, folder / "run.ckpt")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(ValueError, match=rf"{name}: .*was not loaded") as caught:
        dpt.DPT.from_pretrained(path if name == "run.ckpt" else folder)
    assert "\n" not in str(caught.value)


class Malicious:
    """Runs a command when unpickled by anything that trusts its input."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["bad.pt", "bad.ckpt", "folder/pytorch_model.bin"])
def test_a_file_that_asks_to_run_code_is_refused(tmp_path, place, zipped):
    path, marker = tmp_path / place, tmp_path / "ran"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "config.json").write_text('{"model_type": "dpt"}')
    key = "pretrained.model.cls_token"  # as in an official file
    content = {CONFIG_KEY: {}, "state_dict": {key: Malicious(marker)}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    given = path.parent if "folder" in place else path
    for read in (dpt.DPT.from_pretrained, lambda p: convert(p, tmp_path / "out", to="dpt")):
        with pytest.raises(ValueError, match=rf"{path.name}: .*was not loaded") as caught:
            read(given)
        assert "\n" not in str(caught.value)
        assert not marker.exists()
    torch.load(path, weights_only=False)  # the file is armed
    assert marker.exists()


def change(path, edit):
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


DAMAGE = {
    "truncated": lambda p: p.write_text(p.read_text()[:60]),
    "not text": lambda p: p.write_bytes(b"\xff\xfe\x00{}"),
    "nested": lambda p: p.write_text("[" * 100_000),
    "unknown encoder": lambda p: change(p, lambda s: s["encoder"].update(kind="mamba")),
    "unknown argument": lambda p: change(p, lambda s: s["encoder"].update(blocks=3)),
    "infinite": lambda p: change(p, lambda s: s["encoder"].update(mlp_ratio=float("inf"))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_config(saved, damage):
    _, folder = saved
    DAMAGE[damage](folder / "config.json")
    with pytest.raises(ValueError, match="saved") as caught:
        dpt.DPT.from_pretrained(folder)
    assert not isinstance(caught.value, (json.JSONDecodeError, UnicodeError))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_with_a_file_missing(saved, name):
    _, folder = saved
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"saved: .*{name}"):
        dpt.DPT.from_pretrained(folder)


def test_other_files_are_told_apart(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.pt: no such file"):
        dpt.DPT.from_pretrained(tmp_path / "nowhere.pt")
    torch.save({CONFIG_KEY: small_model().config.to_dict()}, tmp_path / "half.ckpt")
    with pytest.raises(ValueError, match=r"half\.ckpt: "):
        dpt.DPT.from_pretrained(tmp_path / "half.ckpt")


def test_model_shows_its_three_parts():
    model = small_model()
    assert list(model.heads) == list(HEADS)
    tokens = model.encoder(torch.zeros(1, 3, 48, 80))
    assert model.decoder(tokens).shape == (1, 8, 24, 40)


@pytest.mark.parametrize(
    "images",
    [torch.zeros(shape) for shape in ((3, 64, 64), (1, 64, 64, 3), (1, 3, 0, 64))]
    + [torch.zeros(1, 3, 64, 64).byte()],
)
def test_images_of_another_kind_are_named(images):
    with pytest.raises(ValueError, match=r"images must be float32 \(B, 3, H, W\)"):
        small_model()(images)
