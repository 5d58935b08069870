"""The task of surface normals: head, loss, metrics, and what every command makes of them."""

import json

import numpy as np
import pytest
import torch
from tiny import call, small_model

from dpt.depthmath import angle_between
from dpt.losses import AngularLoss
from dpt.metrics import NormalMetrics
from dpt.objectives import NormalsObjective
from dpt.predict import Predictor
from dpt.types.outputs import HeadOutput

SIGNS = torch.tensor([-1.0, 1, 1]).view(3, 1, 1)


def at(*degrees):
    """Unit vectors (1, 3, 1, N) at angles to (0, 0, -1)."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angle.sin(), 0 * angle, -angle.cos()])[None, :, None]


AHEAD = torch.tensor([0, 0, -1.0]).double().view(1, 3, 1, 1)


@pytest.fixture(scope="module")
def model():
    return small_model(heads={"normals": {}}).eval()


def test_angle_between_is_exact_at_small_and_large_angles():
    degrees = [0.0, 1e-4, 30, 90, 179.999, 180]
    angles = angle_between(at(*degrees), AHEAD.expand(1, 3, 1, 6))[0, 0].rad2deg()
    np.testing.assert_allclose(angles, degrees, rtol=1e-7, atol=1e-9)
    doubled = angle_between(2 * at(30), AHEAD)
    assert doubled.item() == pytest.approx(np.pi / 6)


def test_angular_loss_is_the_mean_angle_of_each_image():
    prediction = torch.cat([at(10, 50, 90), at(0, 20, 70)]).requires_grad_()
    target = AHEAD.expand(2, 3, 1, 3)
    valid = torch.tensor([[[True, True, False]], [[False, False, False]]])
    loss = AngularLoss()(prediction, target, valid)
    assert loss.item() == pytest.approx(np.radians(30) / 2)
    loss.backward()
    assert prediction.grad.isfinite().all()
    assert not prediction.grad[1].any()
    exact = at(0).requires_grad_()
    AngularLoss()(exact, AHEAD, torch.ones(1, 1, 1, dtype=torch.bool)).backward()
    assert exact.grad.isfinite().all()


def test_metrics_golden_values():
    metrics = NormalMetrics()
    target = AHEAD.expand(1, 3, 1, 5)
    valid = torch.tensor([[[True, True, True, True, False]]])
    metrics.update(at(5, 11.2, 22.6, 60, 170), target, valid)
    metrics.update(at(11.3), AHEAD, torch.ones(1, 1, 1, dtype=torch.bool))
    scores = {name: float(value) for name, value in metrics.compute().items()}
    angles = np.array([5, 11.2, 11.3, 22.6, 60])
    assert scores["angle"] == pytest.approx(angles.mean())
    assert scores["angle_rmse"] == pytest.approx(np.sqrt((angles**2).mean()))
    assert scores["angle_median"] == pytest.approx(11.3, abs=0.05)
    assert [scores[f"within_{k}"] for k in ("11_25", "22_5", "30")] == pytest.approx(
        [0.4, 0.6, 0.8]
    )
    assert np.isnan(float(NormalMetrics().compute()["angle"]))
    assert set(metrics.lower_is_better) < set(scores)


@pytest.mark.parametrize("length", [0.0, np.nan])
def test_a_normal_without_a_direction_is_wrong(length):
    metrics = NormalMetrics()
    metrics.update(length * at(0, 0), AHEAD.expand(1, 3, 1, 2), torch.tensor([[[True, False]]]))
    scores = metrics.compute()
    assert (scores["angle"], scores["within_30"]) == (180, 0)


def test_head_gives_unit_vectors_that_face_the_camera_at_first(model):
    spec = model.outputs["normals"]
    assert (spec.flip_signs, spec.is_direction) == ((-1, 1, 1), True)
    with torch.no_grad():
        normals = model(torch.randn(2, 3, 64, 80))["normals"]
    assert normals.shape == (2, 3, 64, 80)
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(2, 64, 80))
    assert normals[:, 2].max() < 0


@pytest.mark.parametrize("options", [{}, {"flip": True}, {"tile": 64}], ids=str)
def test_predictor_restores_the_length_of_resized_normals(model, options):
    image = np.random.default_rng(0).integers(0, 256, (90, 150, 3), np.uint8)
    normals = Predictor(model, device="cpu", **options)(image).arrays["normals"]
    assert normals.shape == (90, 150, 3)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=2), 1, atol=1e-5)


def test_distillation_is_the_angle_to_the_teacher():
    objective = NormalsObjective(weight=2.0)
    loss = objective.distil(HeadOutput(at(10, 50)), AHEAD.expand(1, 3, 1, 2), temperature=1.0)
    assert loss.item() == pytest.approx(2 * np.radians(30))


@pytest.mark.slow
def test_normals_are_trained_evaluated_and_predicted(train, metrics, evaluate, tmp_path):
    folder = train(tmp_path / "run", "task=normals")
    scores = metrics(folder)
    assert 0 < scores["val/angle"] < 90
    assert scores["constant/val/angle"] > 0
    found = metrics(evaluate(tmp_path / "scores", folder / "checkpoints/last.ckpt"))
    assert found["val/angle"] == pytest.approx(scores["val/angle"], rel=1e-5)
    from photos import save_photo

    photo = save_photo(tmp_path / "photo.png", 40, 60)
    call("predict", str(folder), str(photo), "--out", str(tmp_path / "out"))
    normals = np.load(tmp_path / "out/normals_npy/photo.npy")
    np.testing.assert_allclose(np.linalg.norm(normals, axis=2), 1, atol=1e-5)
    assert (tmp_path / "out/normals/photo.png").is_file()
    call("export", str(folder), str(tmp_path / "model.pt2"))
    facts = json.loads((tmp_path / "out/predictions.json").read_text())
    assert "normals_npy" in facts["written"]
