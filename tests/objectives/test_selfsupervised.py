"""Objectives that compare views: what they read, and what they learn from it."""

import copy
import math

import pytest
import torch

import dpt
from dpt.losses import dino_loss, ibot_loss, nt_xent
from dpt.objectives import ContrastiveObjective, DinoObjective
from dpt.objectives.teacher import SelfTeacher
from dpt.training.task import Task
from dpt.types.samples import RandomViews

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")

SIZE = (32, 48)
VIT = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3], "image_size": SIZE}


def task_of(objective, **options):
    torch.manual_seed(0)
    heads = {objective.head: objective.head_settings}
    model = dpt.create_model("dpt_tiny", heads=heads, encoder=VIT)
    objectives = {objective.head: objective}
    if objective.head == "dino":
        options["teacher"] = SelfTeacher()
    return Task(model=model, objectives=objectives, **options)


def dino(**options):
    objective = DinoObjective(**options)
    objective.head_settings["num_prototypes"] = 16
    return objective


def projections(task, views):
    (output,) = task.model(task._normalize(views), raw=True).values()
    return output.projection


def batch_of(count=3, views=2, crops=0, seed=0):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randint(256, shape, generator=random, dtype=torch.uint8)

    image, large = draw(count, 3, *SIZE), draw(count, views, 3, *SIZE)
    small = draw(count, crops, 3, 16, 32) if crops else None
    return {
        "image": image,
        "views": RandomViews(large, small),
        "index": torch.arange(count),
        "name": ["x"] * count,
    }


@pytest.mark.parametrize("crops", [0, 2])
def test_the_contrastive_loss_sees_the_views_of_each_image(crops):
    task, batch = task_of(ContrastiveObjective()), batch_of(crops=crops)
    loss = task.training_step(batch, 0)
    views = [images.flatten(0, 1) for images in batch["views"] if images is not None]
    outputs = [projections(task, v).unflatten(0, (3, -1)) for v in views]
    expected = nt_xent(torch.cat(outputs, dim=1), temperature=0.2)
    torch.testing.assert_close(loss, expected)


def test_evaluation_gives_the_embedding():
    task, batch = task_of(ContrastiveObjective()).eval(), batch_of(5)
    del batch["views"]
    outputs, labels = next(task.evaluate_batch({**batch, "class_id": torch.arange(5) % 2}))
    assert list(outputs) == ["contrastive"]
    assert outputs["contrastive"].tensor.shape == (5, 48)
    assert task.model.outputs["contrastive"].channels == 48
    task.objectives["contrastive"].update(outputs["contrastive"], labels)
    assert set(task.objectives["contrastive"].compute()) == {"knn_accuracy", "linear_accuracy"}


def test_dino_follows_its_algorithm():
    """Three steps by hand: the teacher's weights, its outputs and the loss."""
    task, plain = task_of(dino()), task_of(dino())
    teacher, decay = copy.deepcopy(plain.model), None
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (task, plain)]
    task.total_steps = 3.0
    for step in range(3):
        batch = batch_of(crops=2, seed=step)
        views, crops = (images.flatten(0, 1) for images in batch["views"])
        with torch.no_grad():
            targets = projections(Task(model=teacher, objectives={}), views).unflatten(0, (3, 2))
        outputs = [projections(plain, images).unflatten(0, (3, 2)) for images in (views, crops)]
        student = torch.cat(outputs, dim=1)
        expected = dino_loss(student, targets, temperature=0.1, teacher_temperature=0.02)
        task.guard.keep_statistics()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Task, "global_step", step)
            loss = task.training_step(batch, 0)
        torch.testing.assert_close(loss, expected)
        # the average of the weights so far: the first are copied
        rate = 1 - 0.1 * (1 + math.cos(math.pi * step / 3)) / 2
        decay = 0.0 if step == 0 else rate
        with torch.no_grad():
            for mean, value in zip(teacher.parameters(), plain.parameters(), strict=True):
                mean.copy_(decay * mean + (1 - decay) * value)
        task.teacher.update(task.model)
        for optimizer, value in zip(optimizers, (loss, expected), strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    for mean, value in zip(
        task.teacher.average.module.parameters(), teacher.parameters(), strict=True
    ):
        torch.testing.assert_close(mean, value)


def test_hidden_patches_learn_what_the_teacher_sees_there():
    """iBOT: of every second view, a third of its six patches is hidden from the trained model."""
    task, batch = task_of(dino(patch_weight=2.0)), batch_of()
    task.total_steps = 3.0
    model, views = copy.deepcopy(task.model), batch["views"].large.flatten(0, 1)
    terms = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "log_dict", lambda values, **_: terms.update(values))
        task.training_step(batch, 0)
    inputs, prepared = task._prepare(batch, step=0)
    hidden = prepared["hidden"].unfold(1, 16, 16).unfold(2, 16, 16)
    patches = hidden.all((-2, -1))
    assert torch.equal(patches, hidden.any((-2, -1)))
    assert patches.sum((1, 2)).tolist() == [2] * 3
    assert len({tuple(row.tolist()) for row in patches.flatten(1)}) > 1
    seen = model.preprocessing.normalize(views)
    assert torch.equal(inputs[::2], seen[::2])
    assert torch.equal(inputs[1::2], seen[1::2].masked_fill(prepared["hidden"][:, None], 0.0))
    whole, masked = (model(images, raw=True)["dino"] for images in (seen, inputs))
    rows = [output.patches[1::2][patches.flatten(1)] for output in (masked, whole)]
    options = {"temperature": 0.1, "teacher_temperature": 0.02}
    expected = 2 * ibot_loss(*rows, **options)
    torch.testing.assert_close(terms["train/loss_dino_patches"], expected)
    student, targets = (output.projection.unflatten(0, (3, 2)) for output in (masked, whole))
    torch.testing.assert_close(terms["train/loss_dino"], dino_loss(student, targets, **options))
