"""segmentation_models.pytorch: what its folders tell, and what is refused."""

import pytest
import torch
from peers_smp import CASES, make

import dpt
from dpt.weights import load_encoder_weights
from dpt.weights.formats import read

pytestmark = pytest.mark.peers


def test_its_encoder_goes_into_one_of_ours(tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    ours = dpt.create_model(
        "dpt_tiny", heads={"depth": {}}, embed_dim=64, num_heads=2, image_size=[64, 64]
    )
    assert load_encoder_weights(ours.encoder, tmp_path).missing == []
    expected = theirs.encoder.model.blocks[11].mlp.fc2.weight
    assert torch.equal(ours.encoder.blocks[11].mlp.fc2.weight, expected)


def test_what_a_folder_tells(tmp_path):
    theirs, model = CASES[0].build(tmp_path)
    assert model.config.to_dict()["encoder"]["out_indices"] == [2, 5, 8, 11]
    assert model.config.to_dict()["heads"]["segmentation"]["num_classes"] == 5
    assert model.preprocessing.mean == theirs.encoder.model.pretrained_cfg["mean"]
    assert (model.preprocessing.image_size, model.preprocessing.resize) == ((64, 64), "none")
    unused = read(tmp_path).unused
    assert not any(name.startswith("decoder") for name in unused)
    assert len(model.state_dict()) + len(unused) == len(theirs.state_dict())
