"""What is not read and what is not written: one line that names the file, the tensor or the key."""

import json
import re
import shutil

import pytest
import torch
from parity import all_cases
from safetensors.torch import load_file, save_file
from tiny import assert_equal, small_model

import dpt
from dpt.weights.files import unwrap
from dpt.weights.formats import WRITABLE

pytestmark = pytest.mark.peers

CASES = {str(case): case for case in all_cases()}
OFFICIAL = "official, depth, ViT"
BEIT, SWIN, SWINV2 = (f"MiDaS 3.1, depth, {name}" for name in ("BEiT", "Swin", "SwinV2"))
VIT, HF_BEIT, HF_SWINV2 = (f"transformers, depth, {n}" for n in ("ViT, project", "BEiT", "SwinV2"))
HUB = "depth_anything, depth, v2 .pth"
SMP, DEIT = "smp, segmentation, ViT", "smp, segmentation, DeiT, distilled"
DEPTHER, DEPTHER_3 = "dinov2, depth, hub, DPT head", "dinov3, depth, hub, SYNTHMIX"
EOMT = "eomt, panoptic, DINOv3"
BLOCK_1 = "pretrained.model.layers.0.blocks.1"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Returns the file or folder that a peer saved; each is saved once."""
    saved = {}

    def original(name):
        if name not in saved:
            folder = tmp_path_factory.mktemp("original")
            saved[name] = CASES[name].save(CASES[name].make(), folder)
        return saved[name]

    return original


def drop(pattern):
    def edit(tensors):
        for name in [name for name in tensors if re.search(pattern, name)]:
            del tensors[name]

    return edit


def put(name, *shape):
    return lambda tensors: tensors.update({name: torch.ones(shape)})


def edited(original, folder, edit):
    """A copy of a checkpoint: a function changes its tensors, a dictionary keys of its config."""
    if original.is_file():
        tensors = unwrap(torch.load(original, weights_only=True))
        edit(tensors)
        torch.save(tensors, folder / original.name)
        return folder / original.name
    shutil.copytree(original, folder, dirs_exist_ok=True)
    if isinstance(edit, dict):
        config = json.loads((folder / "config.json").read_text())
        backbone = {**(config.get("backbone_config") or {}), **edit.get("backbone", {})}
        edit = {k: v for k, v in edit.items() if k != "backbone"}
        config |= {"backbone_config": backbone} if backbone else {}
        (folder / "config.json").write_text(json.dumps(config | edit))
    else:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("case", "edit", "message"),
    [
        (OFFICIAL, drop(r"blocks\.3\.mlp\.fc1\.w"), "missing encoder.blocks.3.mlp.fc1.weight"),
        (OFFICIAL, put("scratch.layer3_rn.weight", 1, 2), r"layer_rn.2.weight is \(1, 2\), not"),
        (SWIN, put(f"{BLOCK_1}.attn_mask", 1, 25, 25), "fits no Swin"),
        (VIT, {"backbone": {"model_type": "resnet"}}, "over a 'resnet' backbone"),
        (VIT, {"hidden_act": "relu"}, "hidden_act='relu'"),
        (VIT, {"hidden_size": 0}, "its configuration describes no model"),
        (VIT, {"depth_estimation_type": "metric"}, "records metric depth, .* has relative depth"),
        (VIT, {"model_type": "chmv2"}, "found model_type 'chmv2'"),
        (HF_BEIT, {"backbone": {"use_shared_relative_position_bias": True}}, "shared_relative"),
        (HF_SWINV2, {"backbone": {"layer_norm_eps": 1e-6}}, "layer_norm_eps=1e-06"),
        (HUB, drop("pretrained.pos_embed"), "missing encoder.pos_embed"),
        (SMP, {"activation": "sigmoid"}, "activation='sigmoid'"),
        (DEIT, {"decoder_readout": "add"}, "averages cls_token, dist_token"),
        (DEPTHER, drop("reassemble_blocks"), "projects.0.conv.weight is missing"),
        (DEPTHER_3, drop("encoder."), "a head alone"),
        (EOMT, {"use_gated_mlp": True, "hidden_act": "silu"}, "use_gated_mlp=True"),
        (DEPTHER_3, put("decoder.reassemble_blocks.readout_projects.0.0.weight", 64, 128), "CHMv2"),
    ],
)
def test_read_names_the_fault_of_an_edited_checkpoint(case, edit, message, originals, tmp_path):
    path = edited(originals(case), tmp_path, edit)
    with pytest.raises(ValueError, match=message) as caught:
        dpt.DPT.from_pretrained(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "model.", "module._orig_mod."])
@pytest.mark.parametrize(
    "case", [OFFICIAL, HUB, VIT, DEPTHER, DEPTHER_3, SMP, EOMT, "depth_anything_3, depth, mono"]
)
def test_prefixes_of_wrappers_do_not_matter(case, prefix, originals, tmp_path):
    def rename(tensors):
        renamed = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
        tensors.clear()
        tensors.update(renamed)

    original = originals(case)
    state = dpt.DPT.from_pretrained(original).state_dict()
    again = dpt.DPT.from_pretrained(edited(original, tmp_path, rename)).state_dict()
    assert_equal(again, state)


def test_files_that_hold_no_model_are_named(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "traced.pt")
    with pytest.raises(ValueError, match=r"traced\.pt.*TorchScript.*state_dict"):
        dpt.DPT.from_pretrained(tmp_path / "traced.pt")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"PEFT.*merge_and_unload"):
        dpt.DPT.from_pretrained(tmp_path)


TWO_HEADS = {"depth": {}, "segmentation": {"num_classes": 3}}
METRIC = {"depth": {"kind": "metric", "max_depth": 9.5}}
METRIC_20 = {"depth": {"kind": "metric", "max_depth": 20.0}}
DOUBLE = {"depth": {"upsample": "double"}}
SEGMENTATION = {"segmentation": {"num_classes": 3, "upsample": "double"}}
DINOV2 = {"patch_size": 14, "image_size": [70, 70], "layer_scale": 0.1}
REGISTERS = {"position_resize": "bicubic_antialias", "num_register_tokens": 4}
DEPTH_ANYTHING = {**DINOV2, "final_norm": True, "readout": "ignore", "unit_bias": True}
ROPE = {"position": "rope", "layer_scale": 1.0, "final_norm": True}
EOMT_ROPE = {"position": "rope", "num_blocks": 4, "out_indices": [2], "num_later_blocks": 1}
PANOPTIC = {"panoptic": {"num_classes": 3, "things": [True] * 3}}


@pytest.mark.parametrize(
    ("target", "heads", "options", "message"),
    [
        (
            "eomt",
            PANOPTIC,
            {**EOMT_ROPE, "swiglu": True, "layer_scale": 1.0},
            "encoder.swiglu=True",
        ),
        ("eomt", PANOPTIC, {**EOMT_ROPE, "layer_scale": None}, "encoder.layer_scale=None"),
        ("official", TWO_HEADS, {}, "one head"),
        ("official", METRIC, {}, r"kind='metric' \(only 'relative'\)"),
        ("official", {"classification": {"num_classes": 3}}, {}, "no classification"),
        ("transformers", {}, {"position": "sincos_2d"}, "position='sincos_2d'"),
        ("transformers", SEGMENTATION, DINOV2, "no segmentation over"),
        ("transformers", {}, {"reassemble_channels": [None, 8, 8, 8]}, "projection on every level"),
        ("depth_anything", SEGMENTATION, DEPTH_ANYTHING, "no segmentation head"),
        ("x.pth", METRIC_20, DEPTH_ANYTHING, r"max_depth=20\.0: .* says the largest depth"),
        ("x_hypersim.pth", {}, DEPTH_ANYTHING, "max_depth=None"),
    ],
)
def test_write_names_what_the_format_cannot_express(target, heads, options, message, tmp_path):
    path, to = tmp_path / target, "depth_anything" if ".pth" in target else target
    options = {"embed_dim": 128, "position_resize": "bilinear", **options}
    model = small_model(heads=heads or {"depth": {}}, **options)
    with pytest.raises(ValueError, match=f"the {to} format .*{message}"):
        WRITABLE[to].write(model.config.to_dict(), model.state_dict(), path)
    assert not path.exists()
