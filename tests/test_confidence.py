"""Predicted uncertainty of depth: its loss, its score, and the files of the confidence."""

import math

import numpy as np
import pytest
import torch
from photos import photo_of, save_photo, tiny
from tiny import ON_CPU, call

import dpt
from dpt.geometry import Camera
from dpt.losses import LogVarianceLoss
from dpt.metrics import DepthMetrics
from dpt.metrics.depth import ause
from dpt.objectives import DepthObjective
from dpt.types.outputs import DepthMaps, HeadOutput, confidence
from dpt.weights.formats import convert

HEAD = {"kind": "metric", "max_depth": 10.0}

# ------------------------------------------------------------------------------ loss


@pytest.mark.parametrize(("s", "expected"), [(0.0, 0.02), (math.log(0.04), 0.5 + math.log(0.2))])
def test_log_variance_loss_is_the_likelihood_of_the_error_of_ln_depth(s, expected):
    """½ exp(-s) e² + ½ s of e = 0.2 by hand; pixels without depth do not count."""
    target = torch.tensor([[[2.0, 4.0, 0.0, torch.nan]]])
    prediction = torch.where(target > 0, target * math.exp(0.2), 7.0)
    variance = torch.full_like(target, s).requires_grad_()
    loss = LogVarianceLoss(kind="metric")(prediction, variance, target, target > 0)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    loss.backward()
    slope = 0.5 - 0.5 * 0.04 * math.exp(-s)  # 0 where s = ln e²
    assert variance.grad.flatten().tolist() == pytest.approx([slope / 2, slope / 2, 0, 0], abs=1e-6)


@pytest.mark.parametrize("kind", ["metric", "relative", "up_to_scale"])
def test_log_variance_outside_depth_reaches_no_gradient(kind):
    target = torch.tensor([[[2.0, 4.0, 3.0, 0.0]]])
    prediction = torch.tensor([[[2.5, 3.0, 3.0, 7.0]]], requires_grad=True)
    variance = torch.tensor([[[0.0, 0.0, 0.0, -200.0]]], requires_grad=True)  # exp(200) is infinite
    LogVarianceLoss(kind=kind)(prediction, variance, target, target > 0).backward()
    assert variance.grad.isfinite().all()
    assert prediction.grad.isfinite().all()
    assert variance.grad[0, 0, 3] == prediction.grad[0, 0, 3] == 0


def test_log_variance_loss_of_relative_depth_ignores_scale_and_shift():
    random = torch.Generator().manual_seed(0)
    target = 1 + 4 * torch.rand(2, 5, 6, generator=random, dtype=torch.float64)
    prediction = 1 / target + 0.1 * torch.rand(2, 5, 6, generator=random, dtype=torch.float64)
    variance, valid = torch.zeros_like(target), torch.ones_like(target, dtype=torch.bool)
    loss = LogVarianceLoss(kind="relative")
    losses = [loss(p, variance, target, valid) for p in (prediction, 3 * prediction + 7)]
    torch.testing.assert_close(*losses)
    assert float(loss(1 / target, variance, target, valid)) == pytest.approx(0, abs=1e-12)
    scaled = LogVarianceLoss(kind="up_to_scale")(3 * target, variance, target, valid)
    assert float(scaled) == pytest.approx(0, abs=1e-12)


# ------------------------------------------------------------------------------ score


@pytest.mark.parametrize(
    ("uncertainty", "expected"),
    # mean errors of what remains, over 2.5: oracle 1, .8, .6, .4, reversed 1, 1.2, 1.4, 1.6
    [([1, 2, 3, 4], 0.0), ([4, 3, 2, 1], 0.6), ([7, 7, 7, 7], 0.3), ([1, 1, 5, 5], 1 / 15)],
    ids=["perfect", "reversed", "constant", "ties"],
)
def test_ause_is_the_area_between_the_curves(uncertainty, expected):
    error = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert float(ause(error, torch.tensor(uncertainty))) == pytest.approx(expected, abs=1e-12)
    assert float(ause(error * 0, torch.tensor(uncertainty))) == 0


def test_depth_metrics_average_the_ause_of_images():
    """Of images with valid pixels; a prediction without uncertainty has none."""
    target = torch.tensor([[[1.0, 1.0, 1.0, 1.0]], [[1.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]])
    prediction = torch.tensor([2.0, 3.0, 4.0, 5.0]).expand(3, 1, 4)
    order = torch.tensor([[[1.0, 2, 3, 4]], [[4.0, 3, 2, 1]], [[1.0, 2, 3, 4]]])
    metric = DepthMetrics(max_depth=10.0, uncertainties=["ause", "ause_flip"])
    metric.update(prediction, target, target > 0, order, torch.zeros_like(order))
    scores = metric.compute()
    assert float(scores["ause"]) == pytest.approx(0.3)
    assert float(scores["ause_flip"]) == pytest.approx(0.3)
    assert float(scores["abs_rel"]) == pytest.approx(2.5)
    metric.update(prediction, target, target > 0)
    assert math.isnan(metric.compute()["ause"])


# ------------------------------------------------------------------------------ model


def test_log_variance_leaves_depth_unchanged():
    plain = tiny({"depth": HEAD})
    model = tiny({"depth": {**HEAD, "log_variance": True}})
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert {name.split(".")[3] for name in missing} == {"log_variance"}
    assert unexpected == []
    images = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        maps, depth = model(images)["depth"], plain(images)["depth"]
    assert isinstance(maps, DepthMaps)
    assert torch.equal(maps.depth, depth)
    assert maps.log_variance.shape == (2, 40, 56)


@pytest.fixture(scope="module")
def uncertain():
    model = tiny({"depth": {**HEAD, "log_variance": True}})
    torch.nn.init.normal_(model.heads["depth"].branches["log_variance"].conv3.weight)
    return model


@pytest.mark.parametrize("options", [{}, {"flip": True}, {"tile": 64}], ids=str)
def test_predictor_gives_confidence_at_the_images_size(uncertain, options):
    prediction = dpt.Predictor(uncertain, **options)(photo_of(80, 120))
    assert prediction.depth.shape == prediction.confidence.shape == (80, 120)
    assert 0 < prediction.confidence.min() < prediction.confidence.max() <= 1
    assert set(prediction.arrays) == {"depth", "depth_confidence"}


def test_confidence_is_the_factor_of_one_standard_deviation():
    s = torch.tensor([-torch.inf, 2 * math.log(0.1), 0.0, torch.inf])
    assert confidence(s).tolist() == pytest.approx([1, math.exp(-0.1), math.exp(-1), 0])


def test_predict_command_writes_confidence(uncertain, tmp_path, dpt_command):
    photo = save_photo(tmp_path / "in/photo.png", 33, 50)
    uncertain.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    code, _, err = dpt_command("predict", tmp_path / "model", photo, "--out", out)
    assert (code, err) == (0, "")
    values = np.load(out / "depth_confidence_npy/photo.npy")
    assert np.array_equal(values, dpt.Predictor(uncertain)(photo).confidence)
    assert (out / "depth_confidence/photo.png").is_file()
    code, _, err = dpt_command("predict", tmp_path / "model", photo, "--out", out)  # its own folder
    assert (code, err) == (0, "")


def test_points_of_little_confidence_are_left_out(uncertain):
    photo, camera = photo_of(48, 64), Camera.from_fov(60, (48, 64))
    confidence = dpt.Predictor(uncertain)(photo).confidence
    limit = float(np.median(confidence))
    points = dpt.Predictor(uncertain, min_confidence=limit)(photo, camera).points
    assert np.array_equal(np.isfinite(points[..., 2]), confidence >= limit)
    assert np.isfinite(dpt.Predictor(uncertain)(photo, camera).points).all()
    with pytest.raises(ValueError, match="min_confidence"):
        dpt.Predictor(tiny({"depth": HEAD}), min_confidence=0.5)


def test_formats_without_a_variance_refuse_it(uncertain, tmp_path):
    uncertain.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"heads\.depth\.log_variance"):
        convert(tmp_path / "model", tmp_path / "x", to="transformers")


# ------------------------------------------------------------------------------ runs


@pytest.mark.parametrize(
    "kind",
    [
        "metric",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("relative", "up_to_scale")),
    ],
)
def test_evaluate_compares_variance_with_flip_disagreement(train, tmp_path, metrics, kind):
    settings = ("task=depth", f"task.kind={kind}", "task.log_variance=true", "data=scenes")
    run = train(tmp_path / "run", *settings, "data.size=[32,48]")
    trained = metrics(run)
    assert trained["val/ause"] >= 0
    assert "val/ause_flip" not in trained
    call("evaluate", run, f"run_dir={tmp_path / 'scores'}", "protocol.flip=true", *ON_CPU)
    scored = metrics(tmp_path / "scores")
    assert scored["val/ause_flip"] >= 0
    assert scored["val/ause_flip"] != scored["val/ause"]
    table = (tmp_path / "scores/log.txt").read_text()
    assert "ause_flip" in table


def test_loss_terms_of_log_variance():
    objective = DepthObjective(max_depth=10.0, log_variance=True, weight=0.5)
    depth = torch.full((1, 2, 3), 4.0)
    batch = {"depth": depth, "valid": depth > 0}
    terms = objective.losses(HeadOutput(DepthMaps(depth, log_variance=torch.ones(1, 2, 3))), batch)
    assert {k: float(v) for k, v in terms.items()} == {"loss_depth": 0, "loss_depth_variance": 0.25}
