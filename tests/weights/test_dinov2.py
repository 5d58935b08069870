"""DINOv2's DPT heads: read with their backbone, refused without."""

import pytest
import torch
from peers_dinov2 import HubDepther
from tiny import assert_equal

import dpt
from dpt.weights.formats import read

pytestmark = pytest.mark.peers


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return HubDepther().state_dict()


def test_what_a_file_tells(tensors, tmp_path):
    torch.save(tensors, tmp_path / "dd.pth")
    model = dpt.DPT.from_pretrained(tmp_path / "dd.pth")
    decoder, head = model.config.to_dict()["decoder"], model.config.to_dict()["heads"]["depth"]
    assert (decoder["align"], decoder["readout"]) == ("resize_lateral", "project")
    assert decoder["reassemble_channels"] == [16, 32, 64, 128]
    assert (head["kind"], head["activation"], head["min_depth"]) == ("metric", "relu", 0.001)
    assert model.encoder.padding == "center"
    assert model.preprocessing.multiple_of == 14
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    unused = read(tmp_path / "dd.pth").unused
    assert sorted(unused) == ["backbone.mask_token", "backbone.norm.bias", "backbone.norm.weight"]
    assert model.config.to_dict()["encoder"]["out_indices"] == [1, 3, 5, 7]


def test_a_head_finds_its_backbone_beside_it(tensors, tmp_path):
    alone, whole = tmp_path / "dinov2_vits14_nyu_dpt_head.pth", tmp_path / "whole.pth"
    head = {k: v for k, v in tensors.items() if k.startswith("decode_head.")}
    backbone = {
        k.removeprefix("backbone."): v for k, v in tensors.items() if k.startswith("backbone.")
    }
    torch.save({"state_dict": head}, alone)
    torch.save(tensors, whole)
    with pytest.raises(ValueError, match=r"side by side.*dinov2_vits14_pretrain\.pth"):
        dpt.DPT.from_pretrained(alone)
    torch.save(backbone, tmp_path / "dinov2_vits14_pretrain.pth")
    found, wanted = (dpt.DPT.from_pretrained(path) for path in (alone, whole))
    assert found.config == wanted.config
    assert_equal(found.state_dict(), wanted.state_dict())


def test_heads_that_are_no_whole_dpt(tensors, tmp_path):
    head = {k: v for k, v in tensors.items() if k.startswith("decode_head.")}
    linear = {"decode_head.conv_depth.weight": torch.ones(256, 8, 1, 1)}
    for name, content, message in (
        ("head", head, "without the backbone that it was trained on. Put both"),
        ("linear", linear, "a linear DINOv2 head, which is not a DPT"),
        ("lost", {k: v for k, v in tensors.items() if "norm1" not in k}, "missing encoder.blocks"),
        (
            "cut",
            {k: v for k, v in tensors.items() if k != "decode_head.convs.0.conv.weight"},
            "decode_head.convs.0.conv.weight is missing",
        ),
    ):
        torch.save({"state_dict": content}, tmp_path / f"{name}.pth")
        with pytest.raises(ValueError, match=message) as caught:
            dpt.DPT.from_pretrained(tmp_path / f"{name}.pth")
        assert "\n" not in str(caught.value)
