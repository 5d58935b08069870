"""Models on one frozen encoder become one: every head predicts as before, to the bit."""

import pytest
import torch
from tiny import call, random_norms, small_model

import dpt
from dpt.types.preprocessing import Calibration
from dpt.weights.formats import merge

HEADS = {
    "depth": {"kind": "metric", "max_depth": 10.0},
    "canonical": {"kind": "metric", "activation": "exp", "canonical_focal": 300.0},
    "segmentation": {"num_classes": 5},
    "classification": {"num_classes": 7},
}
IMAGES = torch.randn(2, 3, 50, 64, generator=torch.Generator().manual_seed(0))
ENCODER = small_model(heads={"classification": {"num_classes": 2}}).encoder.state_dict()


@pytest.fixture
def saved(tmp_path):
    """saved(name, *heads, **settings): a saved model on ``ENCODER``, and its folder."""

    def save(name, *heads, change=None, **settings):
        torch.manual_seed(ord(name))
        options = {"depth" if head == "canonical" else head: HEADS[head] for head in heads}
        model = random_norms(small_model(heads=options, **settings))
        model.encoder.load_state_dict(ENCODER)
        if change is not None:
            change(model)
        model.eval().save_pretrained(tmp_path / name)
        return model, str(tmp_path / name)

    return save


def merged(folder, *models):
    call("merge", *(path for _, path in models), f"--out={folder}")
    return dpt.DPT.from_pretrained(folder)


@torch.no_grad()
def assert_predicts_as(model, *sources):
    found = model(IMAGES)
    assert [*found] == [head for source, _ in sources for head in source.heads]
    for source, _ in sources:
        for head, expected in source(IMAGES).items():
            assert torch.equal(found[head], expected), head


def test_three_models_with_other_decoders(saved, tmp_path, capsys):
    models = (
        saved("a", "depth", fusion_channels=12, readout="add"),
        saved("b", "segmentation"),
        saved("c", "classification"),
    )
    first = merged(tmp_path / "ab", *models[:2])
    assert "segmentation of " + models[1][1] in capsys.readouterr().out
    model = merged(tmp_path / "m", (first, str(tmp_path / "ab")), models[2])
    assert_predicts_as(model, *models)
    assert [*model.named_decoders()] == ["decoders.depth", "decoders.segmentation"]
    card = (tmp_path / "m/README.md").read_text()
    assert all(f"\n| {head} |" in card for head in model.heads)
    call("convert", tmp_path / "m", tmp_path / "again/m", "--to", "dpt")
    assert (tmp_path / "again/m/README.md").read_text() == card
    model.save_pretrained(tmp_path / "saved/m")
    assert (tmp_path / "saved/m/README.md").read_text() == card


def test_a_decoder_that_several_heads_share_stays_shared(saved, tmp_path):
    models = (saved("c", "classification"), saved("a", "depth", "segmentation"))
    model = merged(tmp_path / "m", *models)
    assert_predicts_as(model, *models)
    assert [*model.named_decoders()] == ["decoder"]


def test_the_calibration_of_depth_is_kept(saved, tmp_path):
    def calibrate(model):
        model.calibration = Calibration(space="depth", scale=2.0)

    models = saved("b", "segmentation"), saved("a", "depth", change=calibrate)
    assert merged(tmp_path / "m", *models).calibration == models[1][0].calibration


def change_block(model):
    with torch.no_grad():
        model.encoder.blocks[1].mlp.fc2.bias[3] += 1
        model.encoder.blocks[2].norm1.weight[0] += 1


@pytest.mark.parametrize(
    ("head", "settings", "says"),
    [
        ("segmentation", {"change": change_block}, ("encoder.blocks.1.mlp.fc2.bias", "2 of ")),
        ("depth", {}, ("depth",)),
        ("segmentation", {"preprocessing": {"mean": [0.4, 0.5, 0.5]}}, ("preprocessing.mean",)),
        ("segmentation", {"position_resize": "dinov2"}, ("encoder.position_resize",)),
    ],
    ids=["encoder", "head", "preprocessing", "settings"],
)
def test_what_does_not_fit_is_refused(saved, refused, tmp_path, head, settings, says):
    (_, a), (_, b) = saved("a", "depth"), saved("b", head, **settings)
    message = refused(call, "merge", a, b, f"--out={tmp_path / 'm'}")
    assert all(text in message for text in (a, b, *says))
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("prompts", [True, False])
def test_prompts_of_other_cameras_are_refused(saved, prompts, tmp_path):
    """The merged model would scale the prompts of both by the focal length of one."""
    (_, a) = saved("a", "canonical", decoder={"prompts": True})
    (_, b) = saved("b", "segmentation", decoder={"prompts": prompts})
    if not prompts:
        assert merge([a, b], tmp_path / "m") == {"depth": a, "segmentation": b}
        return
    with pytest.raises(ValueError, match=f"canonical_focal 300.0 in {a}.*None in {b}"):
        merge([a, b], tmp_path / "m")
