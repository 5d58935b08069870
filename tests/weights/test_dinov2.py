"""DINOv2's DPT heads: their recipe, and the backbone in a file of its own."""

import pytest
import torch
from peers_dinov2 import HubDepther
from tiny import assert_equal

import dpt

pytestmark = pytest.mark.peers


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return HubDepther().state_dict()


def test_preprocessing_and_unit_follow_from_the_recipe(tensors, tmp_path):
    torch.save(tensors, tmp_path / "dd.pth")
    model = dpt.DPT.from_pretrained(tmp_path / "dd.pth")
    assert model.outputs["depth"].unit == "m"
    assert model.preprocessing.multiple_of == 14
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_head_finds_its_backbone_beside_it(tensors, tmp_path):
    alone, whole = tmp_path / "dinov2_vits14_nyu_dpt_head.pth", tmp_path / "whole.pth"
    head = {k: v for k, v in tensors.items() if k.startswith("decode_head.")}
    backbone = {
        k.removeprefix("backbone."): v for k, v in tensors.items() if k.startswith("backbone.")
    }
    torch.save({"state_dict": head}, alone)
    torch.save(tensors, whole)
    with pytest.raises(ValueError, match=r"dinov2_vits14_pretrain\.pth must lie"):
        dpt.DPT.from_pretrained(alone)
    torch.save(backbone, tmp_path / "dinov2_vits14_pretrain.pth")
    actual, expected = (dpt.DPT.from_pretrained(path) for path in (alone, whole))
    assert actual.config == expected.config
    assert_equal(actual.state_dict(), expected.state_dict())
