"""Loading builds a model once and fills it with copies: dtype, buffers, tied tensors, memory."""

import pytest
import safetensors.torch
import torch
from tiny import assert_equal, random_norms, save_checkpoint, small_model

import dpt
from dpt.model_config import ModelConfig
from dpt.weights.formats import convert

VIT = {"embed_dim": 64, "num_heads": 1, "position_resize": "bilinear"}
GRID_14 = {"patch_size": 14, "image_size": [56, 56]}
DINOV2 = {"layer_scale": 1.0, "final_norm": True, "readout": "ignore", "unit_bias": True, **GRID_14}
SWIN = {
    "encoder": {"kind": "timm", "name": "swinv2_tiny_window8_256", "img_size": 64},
    "decoder": {"readout": "ignore", "fusion_channels": 8, "reassemble_channels": [None] * 4},
}
ROPE = {"encoder": {"kind": "timm", "name": "vit_small_patch16_dinov3", "img_size": 64}}
QUERIES = {"panoptic": {"num_classes": 3, "things": [True, False, True]}}


def make(heads=None, **options):
    torch.manual_seed(0)
    if "encoder" in options:
        model = dpt.create_model("dpt_tiny", heads=heads or {"depth": {}}, **options)
    else:
        model = small_model(heads=heads or {"depth": {}}, **options)
    return random_norms(model).eval()


CASES = {
    "dpt": (None, {}),
    "run": (None, {}),
    "transformers": (None, VIT),
    "dpt, SwinV2": (None, SWIN),
    "dpt, DINOv3": (None, ROPE),
}


@pytest.mark.parametrize("case", CASES)
def test_from_pretrained_builds_once(case, tmp_path, monkeypatch):
    heads, options = CASES[case]
    model = make(heads, **options)
    model.save_pretrained(tmp_path / "dpt")
    path, target = tmp_path / "dpt", case.partition(",")[0]
    if target == "run":
        path = tmp_path / "last.ckpt"
        save_checkpoint(model, path)
    elif target != "dpt":
        path = tmp_path / "a"
        convert(tmp_path / "dpt", path, to=target)
    built, build = [], ModelConfig._build
    monkeypatch.setattr(ModelConfig, "_build", lambda config: built.append(1) or build(config))
    loaded = dpt.DPT.from_pretrained(path)
    assert len(built) == 1
    assert not any(module.training for module in loaded.modules())
    assert all(p.requires_grad and p.is_leaf for p in loaded.parameters())
    assert_equal(dict(loaded.named_parameters()), dict(model.named_parameters()))
    assert_equal(dict(loaded.named_buffers()), dict(model.named_buffers()))  # some are in no file


def test_loaded_tensors_are_float32_copies_of_the_files(tmp_path):
    """Also of halves, of tensors that share memory, and of a file that is written over."""
    model = make().half()
    state = {k: v.detach() for k, v in model.state_dict().items()}
    shared = torch.zeros_like(state["encoder.blocks.0.norm1.bias"])
    norms = ("encoder.blocks.0.norm1.bias", "encoder.blocks.1.norm1.bias")
    save_checkpoint(model, tmp_path / "a.ckpt", **dict.fromkeys(norms, shared))
    loaded = dict(dpt.DPT.from_pretrained(tmp_path / "a.ckpt").named_parameters())
    assert {p.dtype for p in loaded.values()} == {torch.float32}
    first, second = (loaded[name] for name in norms)
    assert first.data_ptr() != second.data_ptr()

    make().save_pretrained(tmp_path / "a")
    weights = tmp_path / "a/model.safetensors"
    loaded = dpt.DPT.from_pretrained(tmp_path / "a").state_dict()
    before = {k: v.clone() for k, v in safetensors.torch.load_file(weights).items()}
    with weights.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\xff" * 1000)
    assert_equal(loaded, before)
