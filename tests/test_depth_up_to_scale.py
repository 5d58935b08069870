"""Depth up to scale: larger is farther. Each place that would turn it upside down is held here."""

import numpy as np
import pytest
import torch
from tiny import small_model

import dpt
from dpt.calibrate import fit_calibration
from dpt.evaluation.predictions import DepthCoding
from dpt.losses import ScaleInvariantLoss, SILogLoss
from dpt.metrics import DepthMetrics
from dpt.objectives import DepthObjective
from dpt.objectives.depth import default_loss
from dpt.objectives.teacher import FrozenTeacher, predict
from dpt.predict.encoding import depth_coding, depth_to_uint16
from dpt.predict.predictor import replace_sky
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.preprocessing import Calibration
from dpt.types.samples import Mixed
from dpt.viz import colorize_output, legend

KIND = "up_to_scale"
UP_TO_SCALE = OutputSpec("depth", "depth", unit="relative depth")
METRIC = OutputSpec("depth", "depth", unit="m")
INVERSE = OutputSpec("depth", "depth", unit="relative inverse depth")
torch.manual_seed(0)
DEPTH = torch.rand(2, 8, 12) * 8 + 1
VALID = torch.ones(2, 8, 12, dtype=torch.bool)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_model(heads={"depth": {"kind": KIND}}).eval()


def test_head_gives_the_exponential_of_its_last_layer(model):
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        depth = model(images)["depth"]
        model.heads["depth"].conv3.bias += 1
        raised = model(images)["depth"]
        model.heads["depth"].conv3.bias -= 1
    assert model.outputs["depth"].unit == "relative depth"
    assert torch.allclose(raised, depth * torch.e, rtol=1e-5)


def test_loss_leaves_out_a_factor_and_nothing_else():
    loss = default_loss(depth=KIND)
    assert isinstance(loss, ScaleInvariantLoss)
    assert loss(1e-3 * DEPTH, DEPTH, VALID) == pytest.approx(0, abs=1e-5)
    for wrong in (1 / DEPTH, DEPTH + 1, DEPTH.square()):
        assert loss(wrong, DEPTH, VALID) > 0.1
    # e is 0 and ln 4 in halves of the map: its deviation is ln 2, and one of 7 steps is ln 4
    target = torch.ones(1, 4, 8)
    prediction = target.clone()
    prediction[..., 4:] = 4
    one_scale = ScaleInvariantLoss(gradient_weight=0.5, gradient_scales=1)
    value = one_scale(prediction, target, target > 0)
    assert value == pytest.approx(np.log(2) + 0.5 * 4 * np.log(4) / 32, rel=1e-6)
    with pytest.raises(ValueError, match="ScaleInvariantLoss"):
        DepthObjective(max_depth=9.0, loss=ScaleInvariantLoss())
    with pytest.raises(ValueError, match="SILogLoss"):
        DepthObjective(max_depth=9.0, kind=KIND, loss=SILogLoss())


def test_scores_are_of_depth_after_a_fit_of_the_median():
    def abs_rel(prediction, **settings):
        metrics = DepthMetrics(prediction_kind=KIND, **settings)
        metrics.update(prediction, DEPTH, VALID)
        assert metrics.protocol.depth_notes()["protocol/alignment"] == metrics.protocol.alignment
        return float(metrics.compute()["abs_rel"])

    assert DepthMetrics(prediction_kind=KIND).protocol.alignment == "median"
    assert abs_rel(7 * DEPTH) == pytest.approx(0, abs=1e-6)
    assert abs_rel(7 * DEPTH + 3, alignment="scale_shift") == pytest.approx(0, abs=1e-6)
    assert abs_rel(7 * DEPTH + 30) > 0.2
    assert abs_rel(1 / DEPTH) > 0.5
    with pytest.raises(ValueError, match=r"up_to_scale predictions have no unit.*alignment"):
        DepthMetrics(prediction_kind=KIND, alignment="none")


def test_panel_draws_near_pixels_bright(model):
    labels = {"depth": [DEPTH[0]], "valid": [VALID[0]]}
    objective = DepthObjective(kind=KIND, max_depth=20.0)
    image = np.zeros((8, 12, 3), np.uint8)
    output = HeadOutput(3 * DEPTH[:1])
    panel = objective.panel(image, output, labels, model.outputs["depth"])
    truth, prediction = panel[20:180, 244:484], panel[20:180, 488:728]
    assert np.abs(truth[:, :-4].astype(int) - prediction[:, :-4]).max() <= 2


def test_colours_are_those_of_depth():
    depth = DEPTH[0].numpy()
    assert np.array_equal(colorize_output(depth, UP_TO_SCALE), colorize_output(depth, METRIC))
    assert not np.array_equal(colorize_output(depth, UP_TO_SCALE), colorize_output(depth, INVERSE))
    strips = [
        legend(depth, spec, width=240, limits=(0.1, 1.0)) for spec in (UP_TO_SCALE, METRIC, INVERSE)
    ]
    left = [strip[18:, :40] for strip in strips]  # the largest value, without the unit
    assert np.array_equal(left[0], left[1])
    assert not np.array_equal(left[0], left[2])


@pytest.mark.parametrize(
    ("kind", "teacher", "is_refused"),
    [
        ("metric", UP_TO_SCALE, True),
        ("metric", INVERSE, True),
        (KIND, INVERSE, True),
        (KIND, METRIC, False),
        (KIND, UP_TO_SCALE, False),
        ("relative", UP_TO_SCALE, False),
    ],
)
def test_teacher_must_know_what_the_student_predicts(kind, teacher, is_refused):
    reason = DepthObjective(kind=kind, max_depth=9.0).teacher_mismatch(teacher)
    assert (reason is not None) == is_refused
    assert reason is None or f"task.kind={teacher.depth_kind}" in reason


def test_frozen_teacher_up_to_scale_teaches_each_kind_the_right_way(model, tmp_path):
    model.save_pretrained(tmp_path / "teacher")
    batch = {"image": torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)}
    depth = predict(model, batch["image"])["depth"].tensor
    for kind, right, wrong in ((KIND, depth, 1 / depth), ("relative", 1 / depth, depth)):
        teacher = FrozenTeacher(path=str(tmp_path / "teacher"))
        teacher.setup(model, {"depth": DepthObjective(kind=kind, max_depth=20.0)})
        terms = [teacher.losses({"depth": HeadOutput(x)}, batch) for x in (2 * right, wrong)]
        assert terms[0]["teacher_depth"] < 1e-3 < terms[1]["teacher_depth"]


def test_measured_parts_do_not_join_pseudo_labels_of_another_scale():
    kept = torch.zeros(2, 8, 12, dtype=torch.bool)
    kept[:, :4] = True
    mixed = Mixed(torch.empty(0), torch.tensor([False, True]), kept)
    objective = DepthObjective(kind=KIND, max_depth=20.0)
    prediction = torch.where(kept & mixed.unlabelled[:, None, None], 1 / DEPTH, DEPTH)
    batch = {"depth": DEPTH, "valid": VALID, "mixed": mixed}
    assert objective.losses(HeadOutput(prediction), batch)["loss_depth"] < 1e-3


def test_calibration_is_a_scale_of_depth(model):
    random = np.random.default_rng(0)
    prediction = random.uniform(0.1, 2, 50)
    calibration, _ = fit_calibration(prediction, 4 * prediction, space="depth")
    assert (calibration.scale, calibration.shift) == (pytest.approx(4), 0)
    with pytest.raises(ValueError, match=r"space=inverse_depth.*predicts depth"):
        model.calibration = Calibration(scale=1.0, space="inverse_depth")
    model.calibration = calibration
    image = np.zeros((40, 50, 3), np.uint8)
    metres = dpt.Predictor(model)(image)
    model.calibration = None
    plain = dpt.Predictor(model)(image)
    assert (plain.unit, metres.unit) == ("relative depth", "metres")
    np.testing.assert_allclose(metres.depth, 4 * plain.depth, rtol=1e-5)


def test_16_bit_files_keep_the_order_and_the_ratios():
    depth = np.array([[0.25, 0.5, 1.0, np.nan, 1e-9]], np.float32)
    prediction = dpt.Prediction({"depth": depth}, {"depth": UP_TO_SCALE})
    scale, offset = depth_coding("depth", prediction)
    assert (scale, offset) == (1 / 65535, 0.0)
    stored = depth_to_uint16("depth", prediction)
    assert stored.tolist() == [[16384, 32768, 65535, 0, 1]]
    assert DepthCoding(scale, offset, prediction.unit).kind == KIND


@pytest.mark.parametrize(("inverse", "quantile"), [(False, 0.99), (True, 0.01)])
def test_sky_becomes_the_far_end_of_depth(inverse, quantile):
    depth = np.random.default_rng(0).uniform(1, 9, (20, 30)).astype(np.float32)
    is_sky = np.zeros((20, 30), bool)
    is_sky[:5] = True
    far = replace_sky(depth, is_sky, far=True, inverse=inverse)
    assert far[is_sky] == pytest.approx(np.quantile(depth[5:], quantile), rel=1e-6)
    assert np.array_equal(far[5:], depth[5:])
    is_sky[:] = False
    is_sky[0, :10] = True  # not more than 10 pixels
    assert np.array_equal(replace_sky(depth, is_sky, far=True, inverse=inverse), depth)
    invalid = replace_sky(depth, is_sky, far=False, inverse=inverse)
    assert np.array_equal(np.isnan(invalid), is_sky)
