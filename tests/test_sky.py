"""Sky: what trains it, and what becomes of depth there."""

import numpy as np
import pytest
import torch
from tiny import small_model

import dpt
from dpt.data import ScenesDataset, TrainTransform, collate_train
from dpt.objectives import DepthObjective
from dpt.training.task import Task
from dpt.types.outputs import DepthMaps, HeadOutput
from dpt.types.samples import Mixed

HEADS = {"depth": {"kind": "metric", "max_depth": 10.0, "sky": "sigmoid"}}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_model(heads=HEADS).eval()


def labelled():
    depth = torch.full((3, 4, 6), 5.0)
    depth[0, :2] = 0
    depth[2] = 0  # an image without depth
    labels = torch.full((3, 4, 6), 255)
    labels[0, :1], labels[0, 1:] = 7, 2
    return {"depth": depth, "valid": depth > 0, "labels": labels}


@pytest.mark.parametrize(
    ("source", "expected"), [("invalid", (2, 0, None)), ("labels", (1, None, None))]
)
def test_sky_is_learned_from_labels_or_from_invalid_depth(source, expected):
    """Rows of sky in each image; None where nothing is known."""
    objective = DepthObjective(max_depth=10.0, sky_from=source, sky_class=7)
    truth = torch.zeros(3, 4, 6)
    for image, rows in enumerate(expected):
        if rows:
            truth[image, :rows] = 1
    known = torch.tensor([rows is not None for rows in expected])[:, None, None]
    batch = labelled()

    def loss(sky):
        output = HeadOutput(DepthMaps(batch["depth"].clamp(min=1), sky))
        return objective.losses(output, batch)["loss_sky"]

    right, wrong = torch.where(known, truth, 0.5), torch.where(known, 1 - truth, 0.5)
    fraction = float(known.sum()) / 3
    assert loss(right) == pytest.approx(0, abs=1e-6)
    assert loss(0.5 * right + 0.25) == pytest.approx(-np.log(0.75) * fraction, rel=1e-5)
    assert loss(wrong) > 10 * fraction
    objective.sky = "relu"
    assert loss(right) == 0
    assert loss(3 * truth) == pytest.approx(4 * float(truth.mean()), rel=1e-5)
    assert loss(wrong) == pytest.approx(fraction)
    with pytest.raises(ValueError, match=r"task\.sky=sigmoid"):
        objective.losses(HeadOutput(batch["depth"]), batch)


def test_sky_is_not_learned_outside_the_image_nor_from_pseudo_labels():
    batch = {"image": torch.zeros(3, 3, 4, 6, dtype=torch.uint8), **labelled()}
    batch["inside"] = torch.ones(3, 4, 6, dtype=torch.bool)
    batch["inside"][0, :2] = False
    batch["valid"] = batch["valid"].clone()
    batch["valid"][1, 0] = False
    unlabelled = torch.tensor([False, True, False])
    batch["mixed"] = Mixed(batch["image"], unlabelled, torch.zeros(3, 4, 6, dtype=torch.bool))
    sky = torch.full((3, 4, 6), 0.5, requires_grad=True)
    objective = DepthObjective(kind="up_to_scale", max_depth=10.0, sky_from="invalid")
    output = HeadOutput(DepthMaps(batch["depth"].clamp(min=1), sky))
    objective.losses(output, batch)["loss_sky"].backward()
    learned = sky.grad != 0
    assert [float(image.float().mean()) for image in learned] == [0.5, 0, 0]
    assert not learned[0, :2].any()


@pytest.mark.parametrize("zoom", [0.5, 1.0])
def test_train_batch_tells_what_is_outside_the_image(zoom):
    depth = np.full((32, 48), 2, np.float32)
    image = np.full((32, 48, 3), 7, np.uint8)
    sample = {"image": image, "depth": depth, "valid": depth > 0}
    samples = [
        TrainTransform(image_size=(32, 48), zoom=(z, z))(sample, seed=0) for z in (1.0, zoom)
    ]
    batch = collate_train(samples, ["depth"])
    if zoom == 1:
        assert "inside" not in batch
    else:
        assert torch.equal(batch["inside"], (batch["image"] == 7).all(dim=1))
        assert batch["inside"].float().mean(dim=(1, 2)).tolist() == [1, 0.25]


@pytest.mark.parametrize("sky_from", [None, "invalid"])
def test_sky_that_nothing_trains_is_frozen(sky_from):
    model = small_model(heads=HEADS)
    objective = DepthObjective(max_depth=10.0, sky_from=sky_from)
    Task(model=model, objectives={"depth": objective})
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    layers = ("conv2.weight", "conv2.bias", "conv3.weight", "conv3.bias")
    expected = {f"heads.depth.branches.sky.{layer}" for layer in layers}
    assert frozen == (set() if sky_from else expected)


def test_sky_class_is_that_of_the_data():
    data = ScenesDataset(length=2, size=(32, 48))
    settings = {"sky_from": "labels", "max_depth": 10.0}
    assert DepthObjective.from_data(data, settings) == {"unit": "m", "sky_class": 3}
    assert DepthObjective(max_depth=9.0, sky_from="labels", sky_class=3).more_targets == ("labels",)
    data.info = type(data.info)(targets=("depth", "labels"), class_names=("road", "car"))
    with pytest.raises(ValueError, match=r"road, car.*sky_class"):
        DepthObjective.from_data(data, settings)
    assert DepthObjective.from_data(data, {**settings, "sky_class": 1}) == {"unit": "m"}
    data.info = type(data.info)(targets=("depth",))
    with pytest.raises(ValueError, match=r"no class masks.*sky_from=invalid"):
        DepthObjective.from_data(data, {**settings, "sky_class": 1})


def test_predictor_applies_the_rule_of_the_sky(model):
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    with torch.no_grad():  # a threshold that half of the pixels reach
        sky = dpt.Predictor(model, sky="keep")(image).arrays["depth_sky"]
        shift = float(np.log(np.median(sky) / (1 - np.median(sky))))
        model.heads["depth"].branches["sky"].conv3.bias -= shift
    kept, invalid, far = (dpt.Predictor(model, sky=k)(image) for k in ("keep", "invalid", "far"))
    is_sky = kept.arrays["depth_sky"] >= 0.5
    assert 0.2 < is_sky.mean() < 0.8
    assert not np.isnan(kept.depth).any()
    assert np.array_equal(np.isnan(invalid.depth), is_sky)
    assert np.array_equal(invalid.depth[~is_sky], kept.depth[~is_sky])
    assert set(far.depth[is_sky]) == {np.quantile(kept.depth[~is_sky], 0.99)}
    invalid.require_finite()
