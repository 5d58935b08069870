"""Canonical focal length: metres = output · f / canonical focal length, f in input pixels."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import small_model

import dpt
from dpt.calibrate import KnownDepths, calibrate
from dpt.data import ScenesDataset
from dpt.exporting.files import describe
from dpt.geometry import Camera
from dpt.losses import SILogLoss
from dpt.metrics import Protocol
from dpt.nn.tta import multi_scale, tensor_specs
from dpt.objectives import DepthObjective
from dpt.objectives.teacher import predict
from dpt.types.outputs import DEPTH_UNITS, HeadOutput, OutputSpec
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.types.samples import Inputs, Mixed

HEADS = {"depth": {"kind": "metric", "activation": "exp", "canonical_focal": 300.0}}
FOCAL = [[250.0, 350.0], [900.0, 900.0]]  # fx and fy of two cameras
NAMES = ["a", "b"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_model(heads=HEADS).eval()


@pytest.fixture
def objective():
    return DepthObjective(max_depth=80.0, canonical_focal=300.0, loss=SILogLoss())


def cameras(*focal):
    K = torch.eye(3).repeat(len(focal), 1, 1)
    K[:, 0, 0], K[:, 1, 1] = torch.tensor(focal).T
    return K


def batch_of(K, **extra):
    depth = torch.rand(len(NAMES), 8, 10) * 20 + 1
    entries = {"depth": depth, "valid": depth > 0, "name": NAMES, "index": torch.arange(2)}
    return entries | ({} if K is None else {"K": K}) | extra


def test_training_is_that_of_labels_of_the_canonical_camera(objective):
    batch, output = batch_of(cameras(*FOCAL)), torch.rand(2, 8, 10) + 0.5
    metres = objective.add_outputs(None, HeadOutput(output), batch)
    canonical = batch["depth"] / torch.tensor([1.0, 3.0])[:, None, None]
    loss = objective.losses(metres, batch)["loss_depth"]
    expected = float(SILogLoss()(output, canonical, batch["valid"]))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert objective.head_settings["activation"] == "exp"


def test_pasted_depth_of_another_camera_is_not_trained(objective):
    """Pseudo labels are metres of the image's own camera, pasted parts are not."""
    kept = torch.zeros(2, 8, 10, dtype=torch.bool)
    kept[:, :, :5] = True
    mixed = Mixed(torch.zeros(2, 3, 8, 10), torch.tensor([False, True]), kept)
    output = torch.rand(2, 8, 10).requires_grad_()
    batch = batch_of(cameras(*FOCAL), mixed=mixed)
    objective.losses(HeadOutput(output), batch)["loss_depth"].backward()
    assert output.grad[0].all()
    assert not output.grad[1, :, :5].any()
    assert output.grad[1, :, 5:].any()


@pytest.mark.parametrize(
    "K", [None, torch.cat([cameras([600.0, 600.0]), torch.full((1, 3, 3), torch.nan)])]
)
def test_images_without_a_camera_are_neither_trained_nor_scored(objective, K, caplog):
    output = torch.rand(2, 8, 10).requires_grad_()
    batch = batch_of(K)
    metres = objective.add_outputs(None, HeadOutput(output), batch)
    objective.losses(metres, batch)["loss_depth"].backward()
    assert output.grad.isfinite().all()
    assert [bool(g.any()) for g in output.grad] == [K is not None, False]
    lists = {key: [*batch[key]] for key in ("depth", "valid")}
    with caplog.at_level(logging.WARNING, "dpt"):
        for _ in range(2):
            objective.update(metres, batch | lists)
    assert float(objective.metrics.images) == (0 if K is None else 2)
    assert len(caplog.records) == 1
    assert NAMES[0 if K is None else 1] in caplog.text


def test_scores_are_of_metres(objective):
    batch = batch_of(cameras(*FOCAL))
    exact = batch["depth"] / torch.tensor([1.0, 3.0])[:, None, None]
    lists = {key: [*batch[key]] for key in ("depth", "valid")}
    objective.update(objective.add_outputs(None, HeadOutput(exact), batch), batch | lists)
    assert objective.compute()["abs_rel"] == pytest.approx(0, abs=1e-6)


def test_data_without_cameras_is_refused(objective, model):
    data = ScenesDataset(length=2, size=(32, 48))
    output = model.outputs["depth"]
    assert DepthObjective.from_output(output, data, Protocol()).canonical_focal == 300.0
    data.info = replace(data.info, targets=("depth",))
    with pytest.raises(ValueError, match=r"canonical_focal=300.*data\.fov"):
        DepthObjective.from_data(data, {"canonical_focal": 300.0})
    with pytest.raises(ValueError, match="canonical_focal=300"):
        DepthObjective.from_output(output, data, Protocol())
    with pytest.raises(ValueError, match=r"canonical_focal=300.*kind=metric"):
        DepthObjective(kind="relative", max_depth=9.0, canonical_focal=300.0)
    samples = [{"depth": None, "K": None, "name": "a"}, {"depth": None, "name": "b"}]
    assert "1 of the 2" in next(objective.remarks(samples))


def test_teacher_gives_metres_where_it_has_a_camera(model):
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        raw = model(model.preprocessing.normalize(images))["depth"]
    K = torch.cat([cameras([900.0, 900.0]), torch.full((1, 3, 3), torch.nan)])
    metres = predict(model, images, K)["depth"].tensor
    assert torch.allclose(metres[0], 3 * raw[0])
    assert metres[1].isnan().all()
    assert predict(model, images)["depth"].tensor.isnan().all()


def test_scales_change_the_focal_length():
    """A network that sees objects of one size predicts depth · canonical / f of what it sees."""
    specs = tensor_specs({"depth": OutputSpec("depth", "depth", unit="m", canonical_focal=300.0)})

    def network(inputs):
        images = inputs.images
        focal = 450 * images.shape[-1] / 64  # of 64 pixels
        return {"depth": torch.full((1, *images.shape[-2:]), 7.0 * 300 / focal)}

    images = torch.zeros(1, 3, 32, 64)
    depth = multi_scale(network, specs, Inputs(images), scales=(0.5, 1.0, 2.0))["depth"]
    assert torch.allclose(depth, torch.tensor(7.0 * 300 / 450), rtol=1e-6)


def test_predictor_takes_the_focal_length_of_the_input(model, caplog):
    image = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    height, width = model.preprocessing.input_size(96, 160)
    camera = Camera(np.array([[200.0, 0, 80], [0, 180, 48], [0, 0, 1]]), (96, 160))
    focal = (200 * width / 160 + 180 * height / 96) / 2
    for options in ({}, {"flip": True}, {"tile": 64}):
        predictor = dpt.Predictor(model, **options)
        caplog.clear()
        relative, metric = predictor(image), predictor(image, camera)
        assert (relative.unit, metric.unit) == ("relative depth", "metres")
        assert relative.camera is None
        assert np.array_equal(metric.camera.K, camera.K)
        assert len([r for r in caplog.records if "focal length" in r.message]) == 1
        np.testing.assert_allclose(metric.depth, relative.depth * focal / 300, rtol=1e-5)
    pair = predictor([image, image], [camera, None])
    assert [p.unit for p in pair] == ["metres", "relative depth"]


def test_calibration_is_of_the_output_as_it_is(model):
    image = np.zeros((64, 64, 3), np.uint8)
    plain = dpt.Predictor(model)(image)
    model.calibration = Calibration(scale=2.0, space="depth")
    camera = Camera.from_fov(60, (64, 64))
    calibrated = dpt.Predictor(model)(image, camera)
    model.calibration = None
    assert calibrated.unit == "metres"
    np.testing.assert_allclose(calibrated.depth, 2 * plain.depth, rtol=1e-6)


def test_calibration_does_not_depend_on_a_predicted_camera(tmp_path):
    torch.manual_seed(0)
    model = small_model(heads=HEADS | {"fov": {}}).eval()
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    prediction = dpt.Predictor(model)(image)
    size = model.preprocessing.input_size(64, 96)
    raw = prediction.depth * 300 / prediction.camera.resized(size).focal
    assert prediction.unit == "metres"
    y, x = np.mgrid[0:64:8, 0:96:8].reshape(2, -1)
    centres = (x + 0.5) / 96, (y + 0.5) / 64
    known = KnownDepths(tmp_path / "a.png", *centres, 2.0 * raw[y, x], exif=False)
    report = calibrate(model, [known])
    assert report.calibration.scale == pytest.approx(2, rel=1e-4)
    model.calibration = report.calibration
    np.testing.assert_allclose(dpt.Predictor(model)(image).depth, 2 * raw, rtol=1e-3)


def test_export_of_a_calibrated_model_states_no_focal_length(model, monkeypatch):
    monkeypatch.setattr(model, "calibration", Calibration(scale=2.0, space="depth"))
    metadata = describe(model, model.heads, normalises=False, size=None)
    stated = json.loads(metadata["outputs"])["depth"]
    assert (stated["canonical_focal"], stated["unit"]) == (None, "relative depth")


class TwoDepths:
    """Two depth heads that predict 7 and 2 everywhere, the second for a canonical camera."""

    device = torch.device("cpu")
    takes_prompts = False
    preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.5,) * 3, image_size=(32, 48))

    def __init__(self, unit, *, calibration=None):
        self.calibration = calibration
        self.outputs = {
            "depth": OutputSpec("depth", "depth", unit=unit),
            "far": OutputSpec(
                "far", "depth", unit="m", canonical_focal=100.0, value_range=(0.0, 5.0)
            ),
        }

    def __call__(self, inputs):
        images = inputs.images
        ones = torch.ones(len(images), *images.shape[-2:])
        return {"depth": 7 * ones, "far": 2 * ones}


@pytest.mark.parametrize("unit", DEPTH_UNITS.values())
@pytest.mark.parametrize("calibration", [None, Calibration(scale=3.0, space="depth")])
def test_every_depth_output_takes_the_focal_length(unit, calibration):
    predictor = dpt.Predictor(TwoDepths(unit, calibration=calibration))
    assert predictor.needs_camera
    image, camera = np.zeros((64, 96, 3), np.uint8), Camera.from_focal(500.0, (64, 96))
    metric, relative = predictor(image, camera), predictor(image)
    size = predictor.preprocessing.input_size(64, 96)
    metres = 2 * camera.resized(size).focal / 100
    np.testing.assert_allclose(metric.arrays["far"], metres, rtol=1e-6)
    assert metric.outputs["far"].value_range == pytest.approx((0.0, 5 * metres / 2))
    np.testing.assert_array_equal(relative.arrays["far"], 2)
    assert [p.outputs["far"].depth_kind for p in (metric, relative)] == ["metric", "up_to_scale"]
    for prediction in (metric, relative):  # the first head is left as it is
        np.testing.assert_array_equal(prediction.depth, 7 if calibration is None else 21)
        assert prediction.outputs["depth"].unit == (unit if calibration is None else "m")
