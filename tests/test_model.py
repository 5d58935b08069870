"""The public model: saved and loaded bit for bit, and damaged files told from whole ones."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import dpt
from dpt.weights.formats import CONFIG_KEY

HEADS = {
    "depth": {"kind": "metric", "max_depth": 10.0},
    "segmentation": {"num_classes": 5},
    "classification": {"num_classes": 7},
    "regression": {},
}


def tiny(**overrides):
    return dpt.create_model(
        "dpt_tiny",
        **{
            "heads": HEADS,
            "embed_dim": 32,
            "num_blocks": 4,
            "num_heads": 2,
            "out_indices": [0, 1, 2, 3],
            "image_size": [64, 64],
            "reassemble_channels": [8, 8, 12, 16],
            "fusion_channels": 8,
            **overrides,
        },
    )


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = tiny().eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


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
        {"preprocessing": {"mean": (0.1, 0.2, 0.3), "resize": "minimal", "multiple_of": 32}},
        {"encoder": {"kind": "timm", "name": "resnet18"}},
    ],
    ids=lambda o: "+".join(o),
)
def test_every_option_travels_with_the_weights(tmp_path, overrides):
    if "encoder" in overrides:
        model = dpt.create_model("dpt_tiny", heads=HEADS, **overrides).eval()
    else:
        model = tiny(**overrides).eval()
    model.save_pretrained(tmp_path)
    again = dpt.DPT.from_pretrained(tmp_path)
    assert again.config == model.config
    assert again.preprocessing == model.preprocessing
    images = torch.randn(1, 3, 70, 90)  # off the trained grid, so the resize policy matters
    with torch.no_grad():
        assert_equal(again(images), model(images))


def test_a_loaded_timm_encoder_fetches_nothing(tmp_path):
    model = dpt.create_model("dpt_tiny", heads=HEADS, encoder={"kind": "timm", "name": "resnet18"})
    model.config.encoder.pretrained = True
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"resnet18 refused .*pretrained"):
        dpt.DPT.from_pretrained(tmp_path)


def test_save_leaves_the_model_as_it_was(saved):
    model, folder = saved
    before = snapshot(model)
    model.to(memory_format=torch.channels_last).save_pretrained(folder)
    assert_equal(model.state_dict(), before)
    assert_equal(load_file(folder / "model.safetensors"), before)


def test_a_runs_checkpoint_is_read(saved, tmp_path):
    model, _ = saved
    state = {f"model.{k}": v for k, v in model.state_dict().items()}
    torch.save(
        {CONFIG_KEY: model.config.to_dict(), "state_dict": {**state, "loss.x": torch.ones(1)}},
        tmp_path / "a.ckpt",
    )
    assert_equal(dpt.DPT.from_pretrained(tmp_path / "a.ckpt").state_dict(), model.state_dict())


def test_faults_are_listed_together_and_nothing_is_loaded(saved):
    model, _ = saved
    target = tiny()
    before = snapshot(target)
    state = snapshot(model)
    state["extra"] = torch.ones(1)
    del state["encoder.cls_token"]
    state["encoder.pos_embed"] = torch.ones(1, 2, 3)
    with pytest.raises(ValueError) as caught:
        target.load_checked(state, source="somewhere")
    message = str(caught.value)
    for part in (
        "somewhere",
        "missing encoder.cls_token",
        "unexpected extra",
        "encoder.pos_embed is (1, 2, 3), not (1, 17, 32)",
    ):
        assert part in message
    assert "\n" not in message
    assert_equal(target.state_dict(), before)


@pytest.mark.parametrize("fault", ["missing", "unexpected", "misshapen", "many"])
def test_a_folder_whose_tensors_do_not_fit(saved, fault):
    _, folder = saved
    state = load_file(folder / "model.safetensors")
    if fault == "missing":
        del state["encoder.cls_token"]
    elif fault == "unexpected":
        state["extra"] = torch.ones(1)
    elif fault == "misshapen":
        state["encoder.cls_token"] = torch.ones(1, 1, 5)
    else:
        state = {f"x{i}": torch.ones(1) for i in range(30)}
    save_file(state, folder / "model.safetensors")
    named = {"unexpected": "extra", "many": r"and \d+ more"}.get(fault, "encoder.cls_token")
    with pytest.raises(ValueError, match=f"saved does not fit this model: .*{named}"):
        dpt.DPT.from_pretrained(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_truncated_safetensors(saved, share):
    _, folder = saved
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"model\.safetensors: .*was not loaded") as caught:
        dpt.DPT.from_pretrained(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_truncated_ckpt(saved, tmp_path, share):
    model, _ = saved
    path = tmp_path / "run.ckpt"
    state = {f"model.{k}": v for k, v in model.state_dict().items()}
    torch.save({CONFIG_KEY: model.config.to_dict(), "state_dict": state}, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"run\.ckpt: ") as caught:
        dpt.DPT.from_pretrained(path)
    assert "\n" not in str(caught.value)


class Malicious:
    """Runs a command when unpickled by anything that trusts its input."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_asks_to_run_code_is_refused(tmp_path, suffix, zipped):
    path, marker = tmp_path / f"bad{suffix}", tmp_path / "ran"
    content = {CONFIG_KEY: {}, "state_dict": {"x": Malicious(marker)}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=rf"bad\{suffix}: .*was not loaded") as caught:
        dpt.DPT.from_pretrained(path)
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
    "empty": lambda p: p.write_text(""),
    "not text": lambda p: p.write_bytes(b"\xff\xfe\x00{}"),
    "a list": lambda p: p.write_text("[]"),
    "null": lambda p: p.write_text("null"),
    "nothing in it": lambda p: p.write_text("{}"),
    "no encoder": lambda p: change(p, lambda s: s.pop("encoder")),
    "no preprocessing": lambda p: change(p, lambda s: s.pop("preprocessing")),
    "unknown encoder": lambda p: change(p, lambda s: s["encoder"].update(kind="mamba")),
    "unknown argument": lambda p: change(p, lambda s: s["encoder"].update(blocks=3)),
    "unknown decoder argument": lambda p: change(p, lambda s: s["decoder"].update(blocks=3)),
    "unknown head": lambda p: change(p, lambda s: s["heads"].update(normals={})),
    "wrong value": lambda p: change(p, lambda s: s["encoder"].update(norm_order="quick")),
    "wrong type": lambda p: change(p, lambda s: s["encoder"].update(embed_dim="wide")),
    "unknown preprocessing": lambda p: change(p, lambda s: s["preprocessing"].update(men=1)),
    "another size": lambda p: change(p, lambda s: s["encoder"].update(embed_dim=64)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_config(saved, damage):
    _, folder = saved
    DAMAGE[damage](folder / "config.json")
    with pytest.raises(ValueError, match="saved") as caught:
        dpt.DPT.from_pretrained(folder)
    assert type(caught.value) is ValueError  # not a decoder's own subclass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_with_a_file_missing(saved, name):
    _, folder = saved
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"no {name} in this folder"):
        dpt.DPT.from_pretrained(folder)


def test_other_files_are_told_apart(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.pt: no such file"):
        dpt.DPT.from_pretrained(tmp_path / "nowhere.pt")
    torch.save({"model": {"x": torch.ones(1)}}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"other\.pt: of no known format.*model"):
        dpt.DPT.from_pretrained(tmp_path / "other.pt")
    torch.save(torch.ones(2), tmp_path / "tensor.pt")
    with pytest.raises(ValueError, match=r"tensor\.pt: holds a Tensor"):
        dpt.DPT.from_pretrained(tmp_path / "tensor.pt")
    torch.save({CONFIG_KEY: tiny().config.to_dict()}, tmp_path / "half.ckpt")
    with pytest.raises(ValueError, match=r"half\.ckpt: .*state_dict"):
        dpt.DPT.from_pretrained(tmp_path / "half.ckpt")


def test_model_shows_its_three_parts():
    model = tiny()
    assert list(model.heads) == list(HEADS)
    tokens = model.encoder(torch.zeros(1, 3, 48, 80))
    assert model.decoder(tokens).shape == (1, 8, 24, 40)
    assert model.preprocessing.image_size == (64, 64)
    assert model.training
