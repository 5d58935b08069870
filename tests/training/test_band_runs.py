"""Runs on images of any number of bands: trained, resumed, scored, predicted and exported."""

import json

import cv2
import numpy as np
import onnxruntime
import pytest
import tifffile
import torch
import yaml
from band_files import SIZE, write_grey, write_multispectral
from tiny import call

import dpt
from dpt.data import FolderDataset
from dpt.data.statistics import measure_bands
from dpt.types.samples import IGNORE_INDEX

SEGMENTATION = ("task=segmentation", "data=folder", "data.labels=masks", "data.num_classes=2")
AUGMENTED = ("augment=strong", "trainer.max_steps=4", "callbacks.checkpoint.every_n_train_steps=2")


@pytest.fixture(scope="module", params=[12, 1])
def case(request, train, tmp_path_factory):
    """(number of bands, data set, run of four steps)"""
    root = tmp_path_factory.mktemp("bands")
    write = write_multispectral if request.param == 12 else write_grey
    write(root / "data")
    options = (*SEGMENTATION, f"data.root={root / 'data'}", "data.bands=all", *AUGMENTED)
    return request.param, root / "data", train(root / "run", *options)


def config_of(run):
    return yaml.safe_load((run / "config.yaml").read_text())


def test_statistics_of_the_training_images_are_kept(case):
    count, root, run = case
    dataset = FolderDataset(root=root, split="train", labels="masks", num_classes=2, bands="all")
    measured = measure_bands(dataset)
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")
    assert model.encoder.in_channels == count
    assert model.preprocessing.pixels == "bands"
    assert (model.preprocessing.mean, model.preprocessing.std) == (measured.mean, measured.std)
    stored = config_of(run)["model"]["preprocessing"]
    assert tuple(stored["mean"]) == measured.mean
    assert "val/miou" in json.loads((run / "metrics.json").read_text())
    log = (run / "log.txt").read_text()
    assert log.count("augment: gamma, grayscale are for RGB") == 1
    assert cv2.imread(str(next((run / "panels").iterdir()))).std() > 20


@pytest.mark.parametrize("case", [12], indirect=True)
def test_resumed_run_equals_the_uninterrupted_one(case, train, tmp_path):
    _, root, _ = case
    options = (*SEGMENTATION, f"data.root={root}", "data.bands=all", *AUGMENTED)
    first = train(tmp_path / "run", *options, "trainer.max_steps=2", "schedule=constant")
    whole = train(tmp_path / "whole", *options, "schedule=constant")
    call("train", f"resume={first}", "trainer.max_steps=4")
    states = [
        torch.load(path / "checkpoints/last.ckpt", weights_only=False)["state_dict"]
        for path in (first, whole)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])
    assert config_of(first)["model"]["preprocessing"] == config_of(whole)["model"]["preprocessing"]


def test_prediction_is_that_of_the_network(case, tmp_path):
    count, root, run = case
    checkpoint = run / "checkpoints/last.ckpt"
    call("predict", str(checkpoint), str(root / "images"), "--out", str(tmp_path / "out"))
    predictor = dpt.Predictor(checkpoint)
    path = sorted((root / "images").iterdir())[0]
    written = cv2.imread(str(tmp_path / f"out/labels/{path.stem}.png"), cv2.IMREAD_UNCHANGED)
    bands = tifffile.imread(path) if count == 12 else cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    given = bands.astype(np.float32).reshape(*SIZE, count)
    if count == 12:
        given[given == -9999] = np.nan
    for image in (path, given, torch.from_numpy(given).movedim(-1, 0)):
        assert np.array_equal(predictor(image).labels, predictor(path).labels)
    assert written.shape[:2] == SIZE
    overlay = cv2.imread(str(tmp_path / f"out/overlay/{path.stem}.png"))
    assert overlay.std() > 20
    with pytest.raises(ValueError, match=rf"found .*, must be \(H, W, {count}\)"):
        predictor(np.zeros((*SIZE, 5), np.int16))


@pytest.mark.parametrize("case", [12], indirect=True)
def test_evaluation_reads_the_bands(case, evaluate, tmp_path):
    _, root, run = case
    options = (*SEGMENTATION[1:], f"data.root={root}", "data.bands=all")
    scores = evaluate(tmp_path, run / "checkpoints/last.ckpt", *options)
    trained = json.loads((run / "metrics.json").read_text())
    assert json.loads((scores / "metrics.json").read_text())["val/miou"] == pytest.approx(
        trained["val/miou"], abs=0.02
    )


@pytest.mark.parametrize("case", [12], indirect=True)
def test_exported_file_takes_the_bands(case, tmp_path):
    _, root, run = case
    call(
        "export",
        str(run / "checkpoints/last.ckpt"),
        str(tmp_path / "m.onnx"),
        "--with-preprocessing",
        "--size",
        *map(str, SIZE),
    )
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    dataset = FolderDataset(root=root, split="train", labels="masks", num_classes=2, bands="all")
    image = dataset[0]["image"]
    (logits,) = session.run(None, {session.get_inputs()[0].name: image[None]})
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")
    inputs = model.preprocessing.normalize(torch.from_numpy(image).permute(2, 0, 1)[None])
    with torch.no_grad():
        expected = model(inputs)["segmentation"]
    assert np.abs(logits - expected.numpy()).max() < 1e-3


@pytest.mark.parametrize("case", [12], indirect=True)
def test_run_starts_from_weights_of_rgb(case, train, joint_run, tmp_path):
    count, root, _ = case
    options = (*SEGMENTATION, f"data.root={root}", "data.bands=all")
    run = train(tmp_path, *options, f"model.encoder.weights={joint_run}/checkpoints/last.ckpt")
    text = (run / "log.txt").read_text()
    assert f"patch_embed.proj.weight to {count} band" in text


def test_bands_shown_as_rgb_are_read_alike_in_prediction(tmp_path, train):
    root = write_multispectral(tmp_path / "data", count=4)
    options = ("data.bands=[3,2,1]", "data.image_max=1000")
    run = train(tmp_path / "run", *SEGMENTATION, f"data.root={root}", *options)
    predictor = dpt.Predictor(run / "checkpoints/last.ckpt")
    read = FolderDataset(
        root=root, split="train", labels="masks", num_classes=2, bands=[3, 2, 1], image_max=1000.0
    )
    path = read.files(0).image
    assert predictor.preprocessing.is_rgb
    assert np.array_equal(predictor(path).labels, predictor(read[0]["image"]).labels)
    assert (read[0]["labels"] != IGNORE_INDEX).any()
