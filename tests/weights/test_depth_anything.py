"""Depth Anything: what files and folders tell, written back, and what cannot be written."""

import json
from pathlib import Path

import pytest
import torch
from peer_cases import output_error
from peers_depth_anything import Folder, HubDepthAnything
from safetensors.torch import save_file

import dpt
from dpt.model_config import ModelConfig, model_dict
from dpt.weights import depth_anything
from dpt.weights.base import Checkpoint
from dpt.weights.files import CheckpointFiles
from dpt.weights.formats import read
from dpt.weights.names import their_names

pytestmark = pytest.mark.peers

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


def predict(model, size=(70, 98)):
    torch.manual_seed(5)
    with torch.no_grad():
        return model(torch.randn(2, 3, *size))["depth"]


def released(dim, num_blocks, channels, fusion, *, gated=False, name="x_v2.pth"):
    """A file of a released size, without its memory."""
    kinds = {"patch_size": 14, "image_size": [518, 518], "layer_scale": 1.0, "final_norm": True}
    spec = model_dict(
        "dpt_base",
        heads={"depth": {}},
        encoder={
            **kinds,
            "embed_dim": dim,
            "num_blocks": num_blocks,
            "num_heads": dim // 64,
            "out_indices": [0, 1, 2, num_blocks - 1],
            "swiglu": gated,
        },
        decoder={"reassemble_channels": channels, "fusion_channels": fusion, "readout": "ignore"},
    )
    config = ModelConfig.from_dict(spec)
    rules = depth_anything.FILE.table(config.to_dict()["encoder"])
    tensors = {
        their: tensor
        for our, tensor in config.outline().state_dict().items()
        for their in their_names(our, rules)
    }
    return CheckpointFiles(Path(name), tensors)


@pytest.mark.parametrize(
    ("size", "gated", "out_indices", "heads", "name"),
    [
        ((384, 12, [48, 96, 192, 384], 64), False, [2, 5, 8, 11], 6, "x_v2_vits.pth"),
        ((768, 12, [96, 192, 384, 768], 128), False, [2, 5, 8, 11], 12, "any.pth"),
        ((1024, 24, [256, 512, 1024, 1024], 256), False, [4, 11, 17, 23], 16, "x.pth"),
        ((1536, 40, [1536] * 4, 384), True, [9, 19, 29, 39], 24, "vitg.pth"),
        ((1024, 24, [256, 512, 1024, 1024], 256), False, None, 16, "depth_anything_vitl14.pth"),
    ],
)
def test_sizes_of_the_releases(size, gated, out_indices, heads, name):
    source = released(*size, gated=gated, name=name)
    assert depth_anything.DepthAnything().recognises(source)
    checkpoint = Checkpoint(depth_anything.DepthAnything().read(source))
    spec, state = checkpoint.config.to_dict(), checkpoint.tensors
    encoder = spec["encoder"]
    assert encoder["out_indices"] == (out_indices or [20, 21, 22, 23])  # v1 takes the last four
    assert (encoder["num_heads"], encoder["swiglu"], encoder["mlp_ratio"]) == (heads, gated, 4)
    assert encoder["image_size"] == [518, 518]
    assert encoder["position_resize"] == "dinov2"
    expected_shapes = checkpoint.network.state_dict()
    assert {k: v.shape for k, v in state.items()} == {
        k: v.shape for k, v in expected_shapes.items()
    }
    expected = {**IMAGENET, "image_size": [518, 518], "resize": "lower_bound", "multiple_of": 14}
    rule = "bilinear_aligned" if out_indices else "bilinear"
    rules = {"interpolation": "cubic_float", "output_interpolation": rule}
    assert spec["preprocessing"].items() >= {**expected, **rules}.items()


def test_largest_depth_of_metric_files(tmp_path):
    tensors = HubDepthAnything().state_dict()
    for name, content, expected in (
        ("depth_anything_v2_metric_vkitti_vits.pth", tensors, 80.0),
        ("my_hypersim.pt", {"model": tensors}, 20.0),
        ("metric.pth", {"state_dict": tensors, "max_depth": 35}, 35.0),
        ("depth_anything_v2_vits.pth", tensors, None),
        ("v2.pth", {"model": tensors, "args": {"max_depth": 12.5, "epochs": 3}}, 12.5),
        ("v2_relative.pth", {"model": tensors, "max_depth": 30.0}, 30.0),
        ("v2_hypersim.pth", {"model": tensors, "depth_estimation_type": "relative"}, None),
        ("v2_vkitti.pth", {"model": tensors, "args": {"kind": "relative"}}, None),
        ("v2_scored_relative.pth", {"model": tensors, "previous_best": {"silog": 1.0}}, None),
    ):
        torch.save(content, tmp_path / name)
        spec = read(tmp_path / name).config.to_dict()
        assert spec["heads"]["depth"].get("max_depth") == expected
        assert spec["heads"]["depth"]["kind"] == ("relative" if expected is None else "metric")
    recorded = {"model": tensors, "previous_best": {"abs_rel": 0.1, "silog": 0.2}}
    kind = {"state_dict": tensors, "config": {"depth_estimation_type": "metric"}}
    for name, content in {"my_metric": tensors, "latest": recorded, "relative": kind}.items():
        torch.save(content, tmp_path / f"{name}.pth")
        with pytest.raises(ValueError, match=r"without a largest depth.*vkitti \(80 m\)"):
            dpt.DPT.from_pretrained(tmp_path / f"{name}.pth")
    save_file(tensors, tmp_path / "v2.safetensors", metadata={"format": "pt", "max_depth": "7.5"})
    assert read(tmp_path / "v2.safetensors").config.heads["depth"].max_depth == 7.5
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    config = {"encoder": "vits", "features": 16, "max_depth": 20.0}  # as the hub writes it
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = read(tmp_path).config.to_dict()
    assert folder["heads"]["depth"]["max_depth"] == 20.0
    assert folder["encoder"]["out_indices"] == [1, 3, 5, 7]  # of v2


def test_max_depth_of_a_relative_folder_is_its_gain(tmp_path):
    case = Folder("depth_anything", "depth", "", (), {"max_depth": 3})
    assert output_error(case, *case.build(tmp_path), (70, 70)) <= 1e-5


def test_which_version_a_file_is(tmp_path, caplog):
    """Both have the same tensors: names tell, or the config that only v1's own code writes."""
    tensors = HubDepthAnything().state_dict()
    for name, last_four, warned in (
        ("depth_anything_v2_vits.pth", False, False),
        ("depth_anything_vits14.pth", True, False),
        ("mine.pth", False, True),
    ):
        caplog.clear()
        torch.save(tensors, tmp_path / name)
        spec = read(tmp_path / name).config.to_dict()
        assert spec["encoder"]["out_indices"] == ([4, 5, 6, 7] if last_four else [1, 3, 5, 7])
        assert ("read as Depth Anything v2" in caplog.text) is warned
    config = {"encoder": "vits", "features": 16, "out_channels": [8, 12, 16, 24]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    model = dpt.DPT.from_pretrained(tmp_path)
    assert model.config.to_dict()["encoder"]["out_indices"] == [4, 5, 6, 7]
