"""task/teacher=ema: the average of the weights labels images that have no labels."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from photos import save_dense
from tiny import assert_equal, checkpoint_of, heads_of

from dpt.data import TrainTransform, collate_train
from dpt.model import create_model
from dpt.objectives import DepthObjective, SegmentationObjective
from dpt.objectives.teacher import PseudoLabelTeacher, predict
from dpt.training.task import Task
from dpt.types.outputs import HeadOutput
from dpt.types.samples import IGNORE_INDEX

SIZE = (32, 48)


@pytest.fixture
def photos(tmp_path):
    """Of eight training images two keep their labels."""
    root = tmp_path / "data"
    save_dense(root, {"train": 8, "val": 2}, (40, 60))
    return (
        f"data=folder data.root={root} data.labels=masks data.num_classes=3",
        "data.depth=depth data.max_depth=10 data.labelled=2 data.unlabelled=true",
        "augment.strong=1 task/teacher=ema task.teacher.start=0",
    )


def batch(count=4, labelled=2):
    random = np.random.default_rng(0)
    transform = TrainTransform(image_size=SIZE, strong=1.0)
    samples = []
    for i in range(count):
        sample = {"image": random.integers(0, 255, (*SIZE, 3), np.uint8)}
        if i < labelled:
            sample["labels"] = random.integers(0, 3, SIZE, np.uint8)
            sample["depth"] = random.uniform(1, 9, SIZE).astype(np.float32)
            sample["valid"] = np.ones(SIZE, bool)
        samples.append(transform(sample, seed=i))
    return collate_train(samples, ["labels", "depth"])


def teacher(**options):
    objectives = {
        "depth": DepthObjective(max_depth=10.0),
        "segmentation": SegmentationObjective(num_classes=3, auxiliary_weight=0),
    }
    torch.manual_seed(0)
    model = create_model("dpt_tiny", heads=heads_of(*objectives.values())).train()
    found = PseudoLabelTeacher(**options)
    found.setup(model, objectives)
    return found, model


def test_images_without_labels_get_those_of_the_average():
    ours, model = teacher(start=0.0)
    before = batch()
    outputs = predict(copy.deepcopy(model).eval(), before["mixed"].weak[2:])
    logits = torch.nn.functional.interpolate(
        outputs["segmentation"].tensor, size=SIZE, mode="bilinear", align_corners=True
    )
    probability, ids = logits.softmax(1).max(1)
    ours.share = 0.25
    after = ours.add_labels(before, progress=0.0)
    for key in ("labels", "depth", "valid"):
        assert torch.equal(after[key][:2], before[key][:2]), key
    assert before["mixed"].unlabelled.tolist() == [False, False, True, True]
    assert torch.equal(after["image"], before["image"])
    area, labels = before["mixed"].kept[2:], after["labels"][2:]
    assert 0.2 < area.float().mean() < 0.8
    depth = outputs["depth"].tensor
    assert torch.equal(after["depth"][2:], torch.where(area, before["depth"][2:], depth))
    assert after["valid"][2:].all()
    assert torch.equal(labels[area], before["labels"][2:][area])
    for k in range(3):
        is_class, counted = (ids == k) & ~area, (labels == k) & ~area
        assert (is_class | ~counted).all()
        if counted.any():
            assert (probability[is_class & ~counted] <= probability[counted].min()).all()
    known = labels[~area] != IGNORE_INDEX
    assert 0.1 < known.float().mean() < 0.5  # a quarter


def test_the_average_follows_the_weights():
    ours, model = teacher(decay=0.9)
    ours.update(model)
    start = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    ours.update(model)
    name = "encoder.cls_token"
    rate = 2 / 11  # (1 + n) / (10 + n) of the first update after the copy
    expected = rate * start[name] + (1 - rate) * (start[name] + 1)
    torch.testing.assert_close(ours.average.module.state_dict()[name], expected)


def test_the_worst_tenth_of_pseudo_depth_is_left_out():
    objective = DepthObjective(max_depth=10.0)
    truth = torch.full((2, 10, 10), 2.0)
    prediction = truth.clone()
    prediction[:, 0] = 9.0
    guessed = torch.ones(2, 10, 10, dtype=torch.bool)
    guessed[0] = False
    worst = objective.worst_pixels(prediction, truth, guessed)
    assert worst[1, 0].all()
    assert worst.sum() == 10


class Recorder(torch.nn.Module):
    """A loss that keeps the pixels it was called with."""

    def forward(self, prediction, target, valid):
        self.valid = valid
        return prediction.mean()


@pytest.mark.parametrize("kind", ["metric", "relative"])
def test_measured_depth_that_is_pasted(kind):
    """It is never among the worst; the average's relative depth has another scale."""
    objective = DepthObjective(kind=kind, max_depth=10.0, loss=Recorder())
    before = batch()
    depth = {"depth": torch.rand(4, *SIZE) * 8 + 1, "valid": torch.ones(4, *SIZE).bool()}
    objective.losses(HeadOutput(torch.full((4, *SIZE), 2.0)), before | depth)
    assert objective.loss.valid[:2].all()
    for valid, kept in zip(objective.loss.valid[2:], before["mixed"].kept[2:], strict=True):
        assert 0 < kept.sum() < kept.numel()
        assert valid[kept].all() if kind == "metric" else not valid[kept].any()
        assert valid[~kept].float().mean() == pytest.approx(
            0.9 if kind == "metric" else 1, abs=0.01
        )


def test_a_teacher_cannot_be_added_to_a_run():
    ours, model = teacher()
    task = Task(model=model, objectives={o.head: o for o in ours.objectives}, teacher=ours)
    task.trainer = SimpleNamespace(strategy=None)
    saved = {"skipped_steps": [0, 0], "state_dict": task.state_dict()}
    with pytest.raises(RuntimeError, match="Missing key"):
        task.on_load_checkpoint(saved)
    task.on_load_checkpoint(saved | {"average": ours.state_dict()})


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(train, photos, tmp_path):
    arguments = ("task=joint", *photos, "schedule=constant", "data.batch_size=4")
    train(tmp_path / "once", *arguments, "trainer.max_steps=3")
    train(tmp_path / "twice", *arguments, "trainer.max_steps=2")
    train(tmp_path / "twice", *arguments, "trainer.max_steps=3", "resume=auto")
    once, twice = (checkpoint_of(tmp_path / name) for name in ("once", "twice"))
    for key in ("state_dict", "average"):
        assert list(once[key]) == list(twice[key])
        assert_equal(twice[key], once[key])
