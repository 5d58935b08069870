"""The field of view of images: its head, loss and score, runs, and predictions with it."""

import json

import numpy as np
import pytest
import torch
from photos import photo_of, save_photo, save_picture

import dpt
from dpt import create_model
from dpt.data.loading import collate_train
from dpt.geometry import Camera
from dpt.objectives import FieldOfViewObjective
from dpt.types.outputs import HeadOutput

SIZE = (48, 64)
FOVS = (40.0, 60.0, 90.0, 110.0)


def test_fov_head_predicts_degrees_that_start_at_sixty():
    model = create_model("dpt_tiny", heads={"fov": {}}).eval()
    fov = model(torch.randn(3, 3, 64, 64))["fov"]
    assert fov.shape == (3,)
    assert ((fov - 60).abs() < 25).all()
    spec = model.outputs["fov"]
    assert (spec.kind, spec.unit, spec.dense) == ("fov", "degrees", False)
    with torch.no_grad():
        model.heads["fov"].linear.bias.fill_(100)
    assert (model(torch.randn(1, 3, 64, 64))["fov"] <= 180).all()


def test_fov_loss_and_score_of_known_cameras_alone():
    objective = FieldOfViewObjective(weight=2.0)
    cameras = [Camera.from_fov(70, SIZE).K, None, Camera.from_fov(50, SIZE).K]
    images = [{"image": photo_of(*SIZE)} | ({} if K is None else {"K": K}) for K in cameras]
    batch = collate_train(images, ["K"])
    prediction = torch.tensor([80.0, 60.0, 45.0], requires_grad=True)
    loss = objective.losses(HeadOutput(prediction), batch)["loss_fov"]
    assert loss.item() == pytest.approx(2 * np.radians(10 + 5) / 3, rel=1e-5)
    loss.backward()
    assert (torch.sign(prediction.grad) == torch.tensor([1.0, 0.0, -1.0])).all()
    teacher = torch.tensor([70.0, 60.0, 50.0])
    taught = objective.distil(HeadOutput(prediction), teacher, temperature=1.0)
    assert taught.item() == pytest.approx(loss.item(), rel=1e-5)
    objective.update(HeadOutput(prediction), batch)
    assert objective.compute() == {"fov_error": pytest.approx(7.5, rel=1e-5)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Photos with depth and a table of four different cameras."""
    root = tmp_path_factory.mktemp("fov")
    rows = ["image,fx,fy,cx,cy"]
    for split in ("train", "val"):
        for k, fov in enumerate(FOVS):
            name = f"{split}/{k}.png"
            save_photo(root / "images" / name, *SIZE, seed=k)
            save_picture(root / "depth" / name, np.full(SIZE, 2000, np.uint16))
            K = Camera.from_fov(fov, SIZE).K
            rows.append(f"{name},{K[0, 0]},{K[1, 1]},{K[0, 2]},{K[1, 2]}")
    (root / "cameras.csv").write_text("\n".join(rows) + "\n")
    return root


def data(root, *options) -> tuple[str, ...]:
    depth = ("data.depth=depth", "data.max_depth=10")
    return ("data=folder", f"data.root={root}", *depth, *options)


def test_fov_run_is_scored_beside_its_baseline_and_predicts_cameras(
    train, evaluate, root, tmp_path
):
    cameras = "data.intrinsics=cameras.csv"
    run = train(tmp_path / "run", "task=fov", *data(root, cameras))
    scores = json.loads((run / "metrics.json").read_text())
    mean = np.mean(FOVS)
    expected = np.abs(np.array(FOVS) - mean).mean()
    assert scores["constant/val/fov_error"] == pytest.approx(expected, rel=1e-4)
    checkpoint = run / "checkpoints/last.ckpt"
    again = evaluate(tmp_path / "evaluated", checkpoint, *data(root, cameras))
    score = json.loads((again / "metrics.json").read_text())["val/fov_error"]
    assert score == pytest.approx(scores["val/fov_error"], rel=1e-4)

    predictor = dpt.Predictor(checkpoint)
    paths = [root / f"images/val/{k}.png" for k in range(4)]
    predictions = predictor(paths)
    errors = [abs(p.camera.fov - fov) for p, fov in zip(predictions, FOVS, strict=True)]
    assert np.mean(errors) == pytest.approx(score, rel=1e-3)
    assert {p.known_camera.source for p in predictions} == {"predicted"}
    given = Camera.from_fov(60, SIZE)
    assert predictor(paths[0], given).known_camera.source == "given"


def test_depth_and_fov_train_together_and_records_say_predicted(train, root, tmp_path, dpt_command):
    run = train(tmp_path / "run", "task=depth_fov", *data(root, "data.fov=60"))
    scores = json.loads((run / "metrics.json").read_text())
    assert {"val/abs_rel", "val/fov_error"} <= scores.keys()
    images, out = root / "images/val", tmp_path / "out"
    code, _, err = dpt_command("predict", run, images, "--out", out)
    assert (code, err) == (0, "")
    lines = (out / "predictions.jsonl").read_text().splitlines()
    assert {json.loads(line)["camera"]["source"] for line in lines} == {"predicted"}
