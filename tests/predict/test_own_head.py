"""A user's own head works everywhere by its declaration alone."""

import cv2
import numpy as np
import pytest
from own_head import NormalsConfig
from photos import photo_of, save_photo, tiny

import dpt
from dpt.demo.server import Demo
from dpt.nn import HEADS


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setitem(HEADS, "normals", NormalsConfig)
    return tiny({"depth": {"kind": "relative"}, "normals": {}})


@pytest.mark.parametrize("options", [{}, {"tile": 64}])
def test_its_map_has_the_images_size(model, options):
    found = dpt.Predictor(model, **options)(photo_of(70, 130))
    assert found.arrays["normals"].shape == (70, 130, 3)
    assert found.arrays["normals"].dtype == np.float32
    assert 0.1 < np.abs(found.arrays["normals"]).max() <= 1
    assert found.depth.shape == (70, 130)
    assert found.labels is None


def test_another_name_than_that_of_its_output_is_refused(monkeypatch):
    monkeypatch.setitem(HEADS, "surface", NormalsConfig)
    with pytest.raises(ValueError, match=r"heads\.surface: its OutputSpec has the name 'normals'"):
        tiny({"surface": {}})


def test_mirroring_changes_the_sign_that_it_declares(model):
    photo = photo_of(48, 64)
    predictor = dpt.Predictor(model, flip=True)
    one, other = predictor(photo), predictor(np.ascontiguousarray(photo[:, ::-1]))
    mirrored = other.arrays["normals"][:, ::-1] * np.float32((-1, 1, 1))
    np.testing.assert_allclose(mirrored, one.arrays["normals"], atol=1e-4)


def test_dpt_predict_writes_a_picture_and_the_array(model, run, tmp_path):
    model.save_pretrained(tmp_path / "model")
    photo = save_photo(tmp_path / "photo.png")
    out = tmp_path / "out"
    assert run(tmp_path / "model", photo, "--out", out)[0] == 0
    wanted = dpt.Predictor(model)(photo).arrays["normals"]
    np.testing.assert_array_equal(np.load(out / "normals_npy/photo.npy"), wanted)
    picture = cv2.imread(str(out / "normals/photo.png"), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_allclose(picture, (wanted + 1) / 2 * 255, atol=0.51)


def test_the_demo_shows_it(model, tmp_path):
    demo = Demo(dpt.Predictor(model), name="tiny")
    answer = demo.predict(save_photo(tmp_path / "photo.png").read_bytes())
    assert [output["name"] for output in answer["outputs"]] == ["depth", "normals"]
    assert "normals.png" in [file["name"] for file in answer["files"]]
