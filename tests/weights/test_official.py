"""Official ``.pt`` files: counted, read, written, and refused with the reason."""

from pathlib import Path

import pytest
import torch
from peer_cases import output_error
from peers_official import Official, OfficialDPT

import dpt
from dpt.model_config import make_config, model_dict
from dpt.nn.encoders import CnnVisionTransformer
from dpt.weights import official
from dpt.weights.formats import convert

pytestmark = pytest.mark.peers

SMALL = {
    "embed_dim": 128,
    "num_blocks": 8,
    "num_heads": 2,
    "out_indices": [1, 3, 5, 7],
    "image_size": [64, 64],
    "reassemble_channels": [8, 12, 16, 24],
    "fusion_channels": 16,
}


def small(heads=None, **overrides):
    heads = heads or {"depth": {}}
    return dpt.create_model("dpt_base", heads=heads, **{**SMALL, **overrides}).eval()


@pytest.mark.parametrize(
    ("name", "count", "millions"),
    [("dpt_base", 224, 111.65), ("dpt_large", 368, 344.06), ("dpt_hybrid", 368, 123.15)],
)
def test_files_hold_as_many_tensors_and_numbers_as_the_released_ones(name, count, millions):
    config = make_config(name, heads={"depth": {}})
    state = config.outline().state_dict()
    tensors = official.Official()._files(config.to_dict(), state, Path("dpt.pt")).tensors
    assert len(tensors) == count
    assert sum(t.numel() for t in tensors.values()) / 1e6 == pytest.approx(millions, abs=5e-3)


@pytest.mark.parametrize(
    ("file", "constants", "size"),
    [
        ("dpt_hybrid_nyu-2ce69ec7.pt", (0.000305, 0.1378), (480, 640)),
        ("dpt_hybrid_kitti-cb926ef4.pt", (0.00006016, 0.00579), (352, 1216)),
    ],
)
def test_released_metric_models_are_known_by_name(tmp_path, file, constants, size):
    torch.save(OfficialDPT().state_dict(), tmp_path / file)
    model = dpt.DPT.from_pretrained(tmp_path / file)
    head = model.heads["depth"]
    assert (head.config.kind, head.config.activation) == ("metric", "inverse")
    assert (head.config.scale, head.config.shift) == constants
    preprocessing = model.preprocessing
    assert (preprocessing.resize, preprocessing.multiple_of) == ("minimal", 32)
    assert preprocessing.mean == preprocessing.std == (0.5, 0.5, 0.5)
    assert preprocessing.image_size == size
    torch.save(OfficialDPT().state_dict(), tmp_path / "mine.pt")
    assert dpt.DPT.from_pretrained(tmp_path / "mine.pt").heads["depth"].config.kind == "relative"


def test_a_fine_tuned_model_of_ours_becomes_official(tmp_path):
    torch.manual_seed(0)
    for task, head in (("depth", {}), ("segmentation", {"num_classes": 5})):
        model = small({task: head})
        torch.nn.init.normal_(model.encoder.pos_embed)
        model.save_pretrained(tmp_path / "ours")
        convert(tmp_path / "ours", tmp_path / f"{task}.pt", to="official")
        theirs = OfficialDPT(task=task).eval()
        theirs.load_state_dict(torch.load(tmp_path / f"{task}.pt", weights_only=True))
        images = torch.randn(2, 3, 64, 96)
        with torch.no_grad():
            expected, actual = theirs(images), model(images)[task]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())


def test_weight_standardisation_is_carried_over(tmp_path):
    """A hybrid of ours standardises as timm does today; the file means the same in the old way."""
    torch.manual_seed(0)
    overrides = {"out_indices": [5, 7], "reassemble_channels": [None, None, 16, 24]}
    arguments = {**SMALL, **overrides}
    model = dpt.create_model("dpt_hybrid", heads={"depth": {}}, **arguments).eval().double()
    assert isinstance(model.encoder, CnnVisionTransformer)
    official.Official().write(model.config.to_dict(), model.state_dict(), tmp_path / "a.pt")
    theirs = OfficialDPT(hybrid=True).eval().double()
    theirs.load_state_dict(torch.load(tmp_path / "a.pt", weights_only=True))
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        expected, actual = theirs(images), model(images)["depth"]
    assert (actual - expected).abs().max() <= 1e-9 * expected.abs().max()


RELEASED = {
    "dpt_base": {"dim": 768, "blocks": 12, "channels": (96, 192, 384, 768)},
    "dpt_large": {"dim": 1024, "blocks": 24, "channels": (256, 512, 1024, 1024)},
    "dpt_hybrid": {"dim": 768, "blocks": 12, "channels": (0, 0, 768, 768), "hybrid": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes(name, tmp_path):
    """At full width, with the paper's sizes read from the file."""
    options = {**RELEASED[name], "fusion": 256}
    case = Official("official", "depth", name, ((64, 96),), options, gain=0.5)
    theirs, model = case.build(tmp_path)
    assert output_error(case, theirs, model, (64, 96)) <= 1e-5
    assert output_error(case, theirs, model, (64, 96), torch.float64) <= 1e-12
    expected = model_dict(name, heads={"depth": {}}, encoder={"image_size": [64, 64]})
    assert model.config.to_dict()["name"] == name
    if name == "dpt_hybrid":
        expected["encoder"]["weight_standardization"] = "official"
    for part in ("encoder", "decoder"):
        for key, value in expected[part].items():
            assert model.config.to_dict()[part][key] == value, key
