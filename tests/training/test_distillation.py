"""A teacher: what it adds to the loss, and where it must not be found."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from test_task import SIZE, batch_of
from tiny import assert_equal, heads_of

import dpt
from dpt.losses.segmentation import softened_divergence
from dpt.objectives import ClassificationObjective, DepthObjective, SegmentationObjective
from dpt.objectives.teacher import FrozenTeacher, predict
from dpt.training.task import Task
from dpt.types.outputs import HeadOutput

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")

VIT = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3], "image_size": SIZE}
DECODER = {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}
OBJECTIVES = {
    "depth": lambda: DepthObjective(max_depth=10.0),
    "relative": lambda: DepthObjective(max_depth=10.0, kind="relative"),
    "segmentation": lambda: SegmentationObjective(num_classes=3),
    "classification": lambda: ClassificationObjective(num_classes=4),
    "joint": lambda: (DepthObjective(max_depth=10.0), SegmentationObjective(num_classes=3)),
}


def objectives_of(name):
    made = OBJECTIVES[name]()
    return {o.head: o for o in (made if isinstance(made, tuple) else (made,))}


def model_of(objectives, seed=0, *, decoder=None, **encoder):
    torch.manual_seed(seed)
    heads = heads_of(*objectives.values())
    if "segmentation" in heads:
        heads["segmentation"]["dropout"] = 0.0
    return dpt.create_model(
        "dpt_tiny", heads=heads, encoder={**VIT, **encoder}, decoder={**DECODER, **(decoder or {})}
    )


def task_of(name, *, teacher="", teacher_seed=0):
    """A task and its teacher, of the same architecture; of equal weights if seeds are equal."""
    objectives = objectives_of(name)
    taught = model_of(objectives_of(teacher or name), seed=teacher_seed)
    return task_with(taught, objectives)


def task_with(taught, objectives, student=None):
    with TemporaryDirectory() as folder:
        taught.save_pretrained(Path(folder))
        teacher = FrozenTeacher(path=folder)
        model = student or model_of(objectives)
        return Task(model=model, objectives=objectives, teacher=teacher)


def unlabelled(count=2):
    return {**batch_of(count, labelled=False), "index": torch.arange(count)}


@pytest.mark.parametrize("name", ["depth", "relative", "segmentation", "joint"])
def test_distillation_loss_is_zero_for_equal_models(name):
    task = task_of(name)
    task.model.eval()  # dropout and BatchNorm off, as in the teacher
    same = task.training_step(unlabelled(), 0)
    assert float(same.detach()) == pytest.approx(0, abs=2e-5)
    task = task_of(name, teacher_seed=1)
    task.model.eval()
    assert float(task.training_step(unlabelled(), 0).detach()) > 1e-3


@pytest.mark.parametrize("name", OBJECTIVES)
def test_images_without_labels_teach_every_part(name):
    task = task_of(name, teacher_seed=1)
    loss = task.training_step(unlabelled(), 0)
    loss.backward()
    assert float(loss.detach()) > 0
    gradients = {n: p.grad for n, p in task.named_parameters()}
    assert [n for n, g in gradients.items() if g is None] == []  # DDP looks for no unused one
    for part in ("model.encoder.", "model.heads."):
        assert any(float(g.abs().sum()) > 0 for n, g in gradients.items() if n.startswith(part))


@pytest.mark.parametrize("is_prompted", [True, False])
def test_a_teacher_gets_the_prompts_that_it_takes(is_prompted):
    objectives = objectives_of("depth")

    def prompted():
        model = model_of(objectives, decoder={"prompts": True})
        torch.nn.init.normal_(model.decoder.prompt_gate.weight, std=0.1)
        return model

    student, batch = prompted(), unlabelled()
    task = task_with(prompted() if is_prompted else model_of(objectives), objectives, student)
    student.eval()
    batch["prompt"] = torch.zeros(2, *batch["image"].shape[-2:])
    batch["prompt"][:, ::5, ::5] = 3.0
    loss = float(task.training_step(batch, 0).detach())
    assert (loss < 2e-5) if is_prompted else (loss > 1e-3)


def test_a_relative_student_may_have_a_metric_teacher_but_not_the_reverse():
    loss = task_of("relative", teacher="depth").training_step(unlabelled(), 0)
    assert float(loss.detach()) > 0
    with pytest.raises(ValueError, match=r"cannot teach depth: .*task\.kind=relative"):
        task_of("depth", teacher="relative")


def test_a_relative_teacher_teaches_what_is_infinitely_far():
    """Inverse depth of 0, as of the sky, is a prediction like all others."""
    model, images = model_of(objectives_of("relative")).eval(), unlabelled()["image"]
    with torch.no_grad():
        inverse = model(model.preprocessing.normalize(images))["depth"]
        model.heads["depth"].conv3.bias -= inverse.median()
        inverse = model(model.preprocessing.normalize(images))["depth"]
    is_far, depth = inverse == 0, predict(model, images)["depth"].tensor
    assert 0.2 < is_far.float().mean() < 0.8
    distil = objectives_of("relative")["depth"].distil
    same = distil(HeadOutput(3 * inverse), depth, temperature=1.0)
    near = distil(HeadOutput(torch.where(is_far, inverse.max(), inverse)), depth, temperature=1.0)
    assert float(same) == pytest.approx(0, abs=1e-4)
    assert float(near) > 0.2


def test_heads_that_the_teacher_lacks_go_without():
    task = task_of("joint", teacher="segmentation")
    assert [o.head for o in task.teacher.objectives] == ["segmentation"]
    task.training_step(unlabelled(), 0).backward()
    with pytest.raises(ValueError, match="predicts segmentation, but not depth"):
        task_of("depth", teacher="segmentation")


def test_the_teacher_is_no_part_of_the_task():
    task = task_of("joint", teacher_seed=1)
    before = copy.deepcopy(task.teacher.model.state_dict())
    own = {id(p) for p in task.teacher.model.parameters()}
    assert not own & {id(p) for p in task.parameters()}
    assert set(task.state_dict()) == set(task_of("joint").state_dict())
    assert all(n.startswith(("model.", "objectives.")) for n in task.state_dict())
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
    task.train().training_step(unlabelled(), 0).backward()
    optimizer.step()
    assert not task.teacher.model.training
    assert all(p.grad is None for p in task.teacher.model.parameters())
    assert_equal(task.teacher.model.state_dict(), before)
    assert copy.deepcopy(task).teacher is task.teacher  # as an average of weights copies it


@pytest.mark.slow
def test_two_processes_follow_the_gradient_of_one():
    def gradient(positions):
        task = task_of("joint", teacher_seed=1)
        task.model.eval()
        batch = {k: v[positions] for k, v in unlabelled(4).items()}
        task.training_step(batch, 0).backward()
        return {n: p.grad for n, p in task.named_parameters() if p.grad is not None}

    whole, first, second = (gradient(p) for p in ([0, 1, 2, 3], [0, 1], [2, 3]))
    assert whole
    for name, expected in whole.items():
        found = (first[name] + second[name]) / 2
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


# ----------------------------------------------------------------------------------- losses


def test_softened_divergence_by_hand():
    """One pixel: teacher (3/4, 1/4), student (1/2, 1/2), at T = 1."""
    teacher = torch.tensor([[[[3.0]], [[1.0]]]]).log()
    student = torch.zeros(1, 2, 1, 1)
    expected = 0.75 * torch.tensor(1.5).log() + 0.25 * torch.tensor(0.5).log()
    assert float(softened_divergence(student, teacher)) == pytest.approx(float(expected))
    # logits twice as large at twice the temperature: the same probabilities, times 4
    softened = softened_divergence(student, 2 * teacher, temperature=2.0)
    assert float(softened) == pytest.approx(4 * float(expected))
