"""A task of a user's own in every command: surface normals, and their confidence beside them."""

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from photos import photo_of, save_photo
from tiny import call

import dpt
from dpt.config.objects import SLOTS, registered
from dpt.nn import ENCODERS, HEADS
from dpt.objectives import OBJECTIVES
from dpt.plugins import REGISTERED

FOLDER = Path(__file__).parent / "plugins"
SIGNS = torch.tensor([-1.0, 1.0, 1.0]).view(3, 1, 1)


@pytest.fixture(scope="module", autouse=True)
def _plugin():
    for base in SLOTS:
        registered(base)  # all that is built in
    before = [(table, dict(table)) for table in (ENCODERS, HEADS, OBJECTIVES, REGISTERED)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPT_PLUGINS", str(FOLDER / "surface.py"))
        patch.setattr(sys, "path", sys.path[:])
        yield
    for table, content in before:
        table.clear()
        table.update(content)
    sys.modules.pop("surface", None)


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    folder = tmp_path_factory.mktemp("surface") / "run"
    return train(folder, f"--config-dir={FOLDER}", "task=surface")


@pytest.fixture(scope="module")
def checkpoint(finished):
    return finished / "checkpoints/last.ckpt"


@pytest.fixture(scope="module")
def model(checkpoint):
    return dpt.DPT.from_pretrained(checkpoint)


def test_it_is_trained_scored_and_shown(finished, metrics):
    scores = metrics(finished)
    assert 0 < scores["val/angle"] < 180
    assert scores["ended"] == "finished"
    assert {"constant/val/angle", "per_position/val/angle"} <= set(scores)  # baselines
    pictures = [cv2.imread(str(file)) for file in (finished / "panels").glob("*.png")]
    assert pictures
    assert pictures[0].std() > 10


def test_it_is_resumed(finished, scores, train, tmp_path):
    arguments = (f"--config-dir={FOLDER}", "task=surface")
    folder = train(tmp_path / "run", *arguments, "trainer.max_steps=1")
    train(folder, *arguments[:1], f"resume={folder}", "trainer.max_steps=2")
    assert scores(folder) == scores(finished)


def test_it_is_evaluated(checkpoint, finished, evaluate, metrics, tmp_path):
    found = metrics(evaluate(tmp_path / "scores", checkpoint))
    assert found["val/angle"] == pytest.approx(metrics(finished)["val/angle"], rel=1e-5)
    flipped = metrics(evaluate(tmp_path / "flipped", checkpoint, "protocol.flip=true"))
    assert flipped["val/angle"] != found["val/angle"]
    assert "angle" in (tmp_path / "scores/report.html").read_text()


def test_predict_with_flip_negates_x_of_the_mirrored_prediction(checkpoint, model, tmp_path):
    photo = save_photo(tmp_path / "photo.png", 32, 48)
    call("predict", str(checkpoint), str(photo), "--out", str(tmp_path / "out"), "--flip")
    found = np.load(tmp_path / "out/surface_npy/photo.npy")
    confidence = np.load(tmp_path / "out/surface_confidence_npy/photo.npy")
    image = torch.from_numpy(photo_of(32, 48)).permute(2, 0, 1)[None]
    inputs = model.preprocessing.normalize(image)
    assert model.preprocessing.input_size(32, 48) == (32, 48)
    with torch.no_grad():
        (one, plain), (mirrored, other) = (
            model(images)["surface"] for images in (inputs, inputs.flip(-1))
        )
    np.testing.assert_allclose(confidence, (plain + other.flip(-1))[0] / 2, atol=1e-5)
    wanted = (one + mirrored.flip(-1) * SIGNS) / 2
    np.testing.assert_allclose(found, wanted[0].permute(1, 2, 0), atol=1e-5)
    assert (one - wanted).abs().max() > 0.01
    picture = cv2.imread(str(tmp_path / "out/surface/photo.png"), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_allclose(picture, (found + 1) / 2 * 255, atol=0.51)
