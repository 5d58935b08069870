"""Predictor: any picture in, maps at its own size out, as evaluation would have them."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from photos import photo_of, save_photo, tiny
from PIL import Image

import dpt
from dpt.data import EvalTransform, collate_eval
from dpt.objectives.depth import DepthObjective
from dpt.objectives.segmentation import SegmentationObjective
from dpt.predict.products import image_lines
from dpt.training.task import Task
from dpt.types import Calibration, OutputResize


@pytest.mark.parametrize("size", [(40, 57), (1, 1), (33, 90), (97, 31), (48, 64), (301, 403)])
def test_maps_have_the_pictures_own_size(joint, size):
    found = dpt.Predictor(joint)(photo_of(*size))
    assert found.depth.shape == found.labels.shape == size
    assert (found.depth.dtype, found.labels.dtype) == (np.float32, np.uint8)
    assert np.isfinite(found.depth).all()
    assert found.labels.max() < 5


@pytest.mark.parametrize("size", [(40, 57), (48, 64), (120, 91)])
@pytest.mark.parametrize("classes", [5, 40])  # whole logits, and bands of them
@pytest.mark.parametrize("rule", get_args(OutputResize))
def test_prediction_is_what_evaluation_scores(size, classes, rule):
    model = tiny({"depth": {"kind": "relative"}, "segmentation": {"num_classes": classes}})
    model.preprocessing = replace(
        model.preprocessing, interpolation="cubic_float", output_interpolation=rule
    )
    objectives = {
        "depth": DepthObjective(kind="relative", max_depth=10.0),
        "segmentation": SegmentationObjective(num_classes=classes),
    }
    photo = photo_of(*size)
    task = Task(model=model, objectives=objectives).eval()
    batch = collate_eval([EvalTransform(model.preprocessing)({"image": photo})])
    with torch.no_grad():
        outputs = task(batch["image"])
        depth = objectives["depth"].predict(outputs["depth"], size)[0]
        labels = objectives["segmentation"].predict(outputs["segmentation"], size)[0]
    found = dpt.Predictor(model)(photo)
    np.testing.assert_allclose(found.depth, depth, rtol=1e-4, atol=1e-5)
    assert len(np.unique(found.labels)) > 2
    assert (found.labels == labels.numpy()).mean() > 0.999  # ties fall either way


def test_pictures_of_every_kind_are_one(joint, tmp_path):
    photo = photo_of(40, 57)
    path = save_photo(tmp_path / "photo.png")
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    kinds = [str(path), path, photo, Image.fromarray(photo), tensor, tensor / 255]
    first, *others = dpt.Predictor(joint, batch_size=4)(kinds)
    for other in others:
        np.testing.assert_allclose(other.depth, first.depth, rtol=1e-5)
        np.testing.assert_array_equal(other.labels, first.labels)


def test_batches_change_nothing_and_keep_the_order(joint):
    photos = [photo_of(*((40, 57), (33, 90), (50, 71))[i % 3], seed=i) for i in range(7)]
    alone = [dpt.Predictor(joint)(photo) for photo in photos]
    for batch_size in (2, 3, 16):
        together = dpt.Predictor(joint, batch_size=batch_size)(photos)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(other.depth, one.depth, rtol=1e-4, atol=1e-5)
            assert (other.labels == one.labels).mean() > 0.999


def test_photos_are_turned_upright(joint, tmp_path):
    photo = photo_of(40, 57)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    path = tmp_path / "turned.png"
    Image.fromarray(photo).save(path, exif=exif)
    predictor = dpt.Predictor(joint)
    upright = predictor(np.ascontiguousarray(np.rot90(photo, -1)))
    assert upright.depth.shape == (57, 40)
    for turned in (predictor(path), predictor(Image.open(path))):
        np.testing.assert_array_equal(turned.depth, upright.depth)


def test_flip_sees_the_mirror_image_too(joint):
    predictor = dpt.Predictor(joint, flip=True)
    photo = photo_of(48, 64)
    one, other = predictor(photo), predictor(np.ascontiguousarray(photo[:, ::-1]))
    np.testing.assert_allclose(other.depth[:, ::-1], one.depth, rtol=1e-3, atol=1e-4)
    assert (other.labels[:, ::-1] == one.labels).mean() > 0.999
    assert not np.allclose(one.depth, dpt.Predictor(joint)(photo).depth)


# ------------------------------------------------------------------------------ units


def test_units(joint, metric):
    found = dpt.Predictor(joint)(photo_of(20, 30))
    assert (found.unit, found.valid_range) == ("relative inverse depth", (0.0, float("inf")))
    found = dpt.Predictor(metric)(photo_of(20, 30))
    assert (found.unit, found.valid_range) == ("metres", (0.0, 10.0))
    assert found.labels is None


def test_a_calibrated_model_gives_calibrated_metres(joint, metric):
    photo = photo_of(20, 30)
    for model, calibration, metres in (
        (joint, Calibration(scale=0.5, shift=0.1, max_depth=20.0), lambda p: 1 / (0.5 * p + 0.1)),
        (metric, Calibration(scale=1.2, space="depth", max_depth=20.0), lambda p: 1.2 * p),
        # limits that hold for metres, not for what the network gives
        (joint, Calibration(scale=90.0, max_depth=0.05), lambda p: 1 / np.clip(90 * p, 20, 1000)),
        (metric, Calibration(scale=0.1, space="depth", max_depth=0.9), lambda p: 0.1 * p),
    ):
        plain = dpt.Predictor(model)(photo)
        model.calibration = calibration
        try:
            found = dpt.Predictor(model)(photo)
        finally:
            model.calibration = None
        assert (found.unit, found.valid_range) == ("metres", (1e-3, calibration.max_depth))
        assert plain.depth.std() > 0
        np.testing.assert_allclose(found.depth, metres(plain.depth), rtol=1e-5)


def test_heads_of_the_whole_picture():
    model = tiny({"classification": {"num_classes": 7, "class_names": tuple("abcdefg")}})
    photo = photo_of(48, 64)
    found = dpt.Predictor(model)(photo)
    images = torch.from_numpy(photo).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = model(model.preprocessing.normalize(images))["classification"][0]
    np.testing.assert_allclose(found.probabilities, logits.softmax(0), rtol=1e-4)
    assert found.class_id == int(logits.argmax())
    assert found.class_names == tuple("abcdefg")
    assert found.depth is None
    assert found.unit is None
    assert isinstance(dpt.Predictor(tiny({"regression": {}}))(photo).value, float)


def test_a_line_of_an_embedding_is_short():
    (line,) = image_lines(dpt.Predictor(tiny({"contrastive": {}}))(photo_of(33, 50)))
    assert re.fullmatch(r"contrastive: (-?[\d.]+, ){3}-?[\d.]+ and \d+ more", line)


def test_more_classes_than_a_byte_holds():
    found = dpt.Predictor(tiny({"segmentation": {"num_classes": 300}}))(photo_of(40, 57))
    assert found.labels.dtype == np.uint16


# ------------------------------------------------------------------------------ the model


def test_a_checkpoint_by_its_path(joint, checkpoints):
    photo = photo_of(40, 57)
    for path in (checkpoints["joint"], str(checkpoints["joint"])):
        np.testing.assert_array_equal(
            dpt.Predictor(path)(photo).depth, dpt.Predictor(joint)(photo).depth
        )


def test_the_model_itself_is_left_alone(joint):
    joint.train()
    try:
        dpt.Predictor(joint, precision="bf16")(photo_of(20, 30))
        assert joint.training
        assert {p.dtype for p in joint.parameters()} == {torch.float32}
        assert all(p.requires_grad for p in joint.parameters())
    finally:
        joint.eval()
    fast = joint.optimize_for_inference(compiled=False)
    dpt.Predictor(fast, precision="bf16")
    assert {p.dtype for p in fast.parameters()} == {torch.float32}


def test_emulated_half_precision_is_named(joint, monkeypatch, caplog):
    monkeypatch.setattr("dpt.predict.runtime.has_bf16", lambda device: False)
    dpt.Predictor(joint, precision="bf16")
    assert "precision=bf16: this device has no bf16 instructions" in caplog.text


def test_half_precision_is_near(joint):
    photo = photo_of(48, 64)
    full, half = (dpt.Predictor(joint, precision=p)(photo).depth for p in ("fp32", "bf16"))
    assert half.dtype == np.float32
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(half, full, atol=0.05 * np.abs(full).max())
    tensor = torch.from_numpy(photo).permute(2, 0, 1) / 255
    assert dpt.Predictor(joint)(tensor.bfloat16()).depth.shape == (48, 64)


def test_segments_in_half_precision():
    model = tiny({"panoptic": {"num_classes": 2, "things": [True, False], "num_queries": 4}})
    found = dpt.Predictor(model, precision="bf16")(photo_of(48, 64))
    assert found.scores["panoptic"].dtype == np.float32


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (np.zeros((4, 5), np.uint8), r"uint8 \(4, 5\)"),
        (np.zeros((4, 5, 4), np.uint8), r"\(H, W, 3\)"),
        (np.zeros((4, 5, 3), np.float32), "float32"),
        (np.zeros((0, 5, 3), np.uint8), r"\(0, 5, 3\)"),
        (torch.zeros(1, 3, 4, 5), "as a list"),
        (torch.full((3, 4, 5), 2.0), "divide by 255"),
        (torch.full((3, 4, 5), torch.nan), "in 0..1"),
        (torch.full((3, 4, 5), 7, dtype=torch.int64), "int64"),
        (Image.new("I;16", (5, 4)), "I;16"),
        ("no/such/photo.jpg", r"no/such/photo\.jpg"),
        (5, "not a int"),
        (np.zeros((2, 4000, 3), np.uint8), "4000x2 pixels are too elongated"),
    ],
)
def test_what_is_no_picture(joint, picture, says):
    with pytest.raises(ValueError, match=says) as error:
        dpt.Predictor(joint)(picture)
    assert "\n" not in str(error.value)


def test_a_truncated_file_that_pil_opened(joint, tmp_path):
    whole = save_photo(tmp_path / "photo.png").read_bytes()
    (tmp_path / "half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"PIL image cannot be read.*truncated"):
        dpt.Predictor(joint)(Image.open(tmp_path / "half.png"))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"precision": "fp8"}, "fp8.*fp32"),
        ({"precision": "fp16", "device": "cpu"}, "bf16"),
        ({"tile": 3}, "tile=3.*64"),
        ({"device": "warp"}, "warp"),
    ],
)
def test_wrong_options(joint, option, says):
    with pytest.raises(ValueError, match=says):
        dpt.Predictor(joint, **option)


def test_prediction_loads_nothing_of_training(checkpoints):
    heavy = ["lightning", "pytorch_lightning", "torchmetrics", "albumentations", "hydra",
             "omegaconf", "wandb", "timm", "torchvision", "transformers"]  # fmt: skip
    code = (
        "import sys, numpy, dpt; assert 'Predictor' in dir(dpt)\n"
        f"model = dpt.DPT.from_pretrained({str(checkpoints['joint'])!r})\n"
        "assert 'cv2' not in sys.modules\n"
        "found = dpt.Predictor(model)(numpy.zeros((9, 9, 3), 'uint8'))\n"
        "assert isinstance(found, dpt.Prediction)\n"
        f"import dpt.predict.pipeline; print([m for m in {heavy} if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr
