"""Predictor: any picture in, maps at its own size out, as evaluation would have them."""

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
from dpt.training.task import Task
from dpt.types.preprocessing import Calibration, OutputResize


@pytest.mark.parametrize("size", [(1, 1), (97, 31), (301, 403)])
@pytest.mark.parametrize(("classes", "dtype"), [(5, np.uint8), (300, np.uint16)])
def test_predictor_gives_maps_of_the_images_size(size, classes, dtype):
    heads = {"depth": {"kind": "relative"}, "segmentation": {"num_classes": classes}}
    prediction = dpt.Predictor(tiny(heads))(photo_of(*size))
    assert prediction.depth.shape == prediction.labels.shape == size
    assert (prediction.depth.dtype, prediction.labels.dtype) == (np.float32, dtype)
    assert np.isfinite(prediction.depth).all()
    assert prediction.labels.max() < classes


@pytest.mark.parametrize("size", [(48, 64), (120, 91)])
@pytest.mark.parametrize("classes", [5, 40])  # whole logits, and bands of them
@pytest.mark.parametrize("rule", get_args(OutputResize))
def test_predictor_gives_what_evaluation_scores(size, classes, rule):
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
    prediction = dpt.Predictor(model)(photo)
    np.testing.assert_allclose(prediction.depth, depth, rtol=1e-4, atol=1e-5)
    assert len(np.unique(prediction.labels)) > 2
    assert (prediction.labels == labels.numpy()).mean() > 0.999  # ties fall either way


def test_predictor_takes_images_of_every_kind(checkpoints, tmp_path):
    photo = photo_of(40, 57)
    path = save_photo(tmp_path / "photo.png")
    tensor = torch.from_numpy(photo).permute(2, 0, 1)
    kinds = [str(path), path, photo, Image.fromarray(photo), tensor, tensor / 255]
    first, *predictions = dpt.Predictor(checkpoints["joint"], batch_size=4)(kinds)
    for other in predictions:
        np.testing.assert_allclose(other.depth, first.depth, rtol=1e-5)
        np.testing.assert_array_equal(other.labels, first.labels)


def test_predictor_gives_the_same_in_batches(joint):
    photos = [photo_of(*((40, 57), (33, 90), (50, 71))[i % 3], seed=i) for i in range(7)]
    alone = [dpt.Predictor(joint)(photo) for photo in photos]
    together = dpt.Predictor(joint, batch_size=2)(photos)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(other.depth, one.depth, rtol=1e-4, atol=1e-5)
        assert (other.labels == one.labels).mean() > 0.999


def test_predictor_turns_photos_upright(joint, tmp_path):
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


def test_predictor_flip_sees_the_mirror_image(joint):
    predictor = dpt.Predictor(joint, flip=True)
    photo = photo_of(48, 64)
    one, other = predictor(photo), predictor(np.ascontiguousarray(photo[:, ::-1]))
    np.testing.assert_allclose(other.depth[:, ::-1], one.depth, rtol=1e-3, atol=1e-4)
    assert (other.labels[:, ::-1] == one.labels).mean() > 0.999
    assert not np.allclose(one.depth, dpt.Predictor(joint)(photo).depth)


# ------------------------------------------------------------------------------ units


def test_predictor_calibrates_depth(joint, metric):
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
            prediction = dpt.Predictor(model)(photo)
        finally:
            model.calibration = None
        assert prediction.unit == "metres"
        assert prediction.valid_range == (1e-3, calibration.max_depth)
        assert plain.depth.std() > 0
        np.testing.assert_allclose(prediction.depth, metres(plain.depth), rtol=1e-5)


# ------------------------------------------------------------------------------ the model


def test_predictor_leaves_the_model_alone(joint):
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


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        (np.zeros((4, 5), np.uint8), r"uint8 \(4, 5\)"),
        (np.zeros((4, 5, 3), np.float32), "float32"),
        (torch.full((3, 4, 5), 2.0), "divide by 255"),
        (Image.new("I;16", (5, 4)), "I;16"),
        ("no/such/photo.jpg", r"no/such/photo\.jpg"),
        (np.zeros((2, 4000, 3), np.uint8), "4000x2 pixels are too elongated"),
    ],
)
def test_predictor_refuses_what_is_no_image(joint, picture, says):
    with pytest.raises(ValueError, match=says) as error:
        dpt.Predictor(joint)(picture)
    assert "\n" not in str(error.value)


def test_predictor_loads_nothing_of_training(checkpoints):
    heavy = "lightning torchmetrics albumentations hydra omegaconf wandb timm torchvision".split()
    code = (
        "import sys, numpy, dpt; assert 'Predictor' in dir(dpt)\n"
        f"model = dpt.DPT.from_pretrained({str(checkpoints['joint'])!r})\n"
        "assert 'cv2' not in sys.modules\n"
        "prediction = dpt.Predictor(model)(numpy.zeros((9, 9, 3), 'uint8'))\n"
        "assert isinstance(prediction, dpt.Prediction)\n"
        f"import dpt.predict.pipeline; print([m for m in {heavy} if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr
