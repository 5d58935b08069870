"""Steps that are not finite leave no trace in the weights, and a line for each sample."""

import csv
from types import SimpleNamespace

import pytest
import torch
from test_task import batch_of, task_of
from tiny import assert_equal
from torch.utils._python_dispatch import TorchDispatchMode

from dpt.objectives.teacher import PseudoLabelTeacher

NAMES = ["a.jpg", "b, c.jpg"]


class Trainer:
    """What a step asks of its trainer."""

    global_step, global_rank = 3, 0
    strategy = None
    precision_plugin = None

    def __init__(self, folder):
        self.default_root_dir = str(folder)


@pytest.fixture
def make_task(tmp_path, monkeypatch):
    def make(kind):
        task = task_of(kind)
        task._trainer = Trainer(tmp_path)
        monkeypatch.setattr(task, "log", lambda *a, **k: None)
        return task

    return make


@pytest.fixture
def task(make_task):
    return make_task("depth")


@pytest.fixture
def trained(make_task):
    """A task with BatchNorm after a step, its optimiser and what it has learned."""
    task = make_task("segmentation")
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    step(task, optimizer)
    return task, optimizer, {k: v.clone() for k, v in task.model.state_dict().items()}


def step(task, optimizer, *, factor=1.0):
    optimizer.zero_grad()
    loss = task.training_step({**batch_of(2), "name": NAMES}, 0) * factor
    loss.backward()
    task.configure_gradient_clipping(optimizer, 1.0, "norm")
    optimizer.step()


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_nonfinite_step_changes_nothing_and_is_listed(task, tmp_path, factor):
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3, fused=True)
    step(task, optimizer)
    weights = {k: v.clone() for k, v in task.model.state_dict().items()}
    moments = {
        i: {k: v.clone() for k, v in s.items()} for i, s in optimizer.state_dict()["state"].items()
    }
    step(task, optimizer, factor=factor)
    assert_equal(task.model.state_dict(), weights)
    for i, state in optimizer.state_dict()["state"].items():
        assert_equal(state, moments[i])
    task.guard.fetch(task.trainer)
    rows = list(csv.DictReader((tmp_path / "nonfinite.csv").open()))
    assert [row["sample"] for row in rows] == NAMES
    assert {row["step"] for row in rows} == {"3"}
    step(task, optimizer)
    assert any(not torch.equal(v, weights[k]) for k, v in task.model.state_dict().items())
    task.guard.fetch(task.trainer)
    assert (task.guard.total, task.guard.in_a_row) == (1, 0)


class Waits(TorchDispatchMode):
    """Counts how often a value of a tensor is fetched, for which the program waits on a GPU."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


def test_steps_do_not_wait_for_the_device(task, tmp_path):
    """Results are fetched every tenth step, those of skipped ones too."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-3, fused=True)
    parameters = list(task.model.parameters())
    with Waits() as waits:
        for number in range(1, 10):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, 1.0 if number != 4 else float("nan"))
            task.configure_gradient_clipping(optimizer, 1.0, "norm")
        assert waits.count == 0
    assert not (tmp_path / "nonfinite.csv").exists()
    task.guard.batches.append((torch.tensor(1.0), NAMES))
    task.configure_gradient_clipping(optimizer, 1.0, "norm")
    assert (task.guard.total, task.guard.in_a_row) == (1, 0)


def test_an_infinite_statistic_skips_the_step(trained):
    """BatchNorm divides by it: the loss remains finite, and every evaluation after it is wrong."""
    task, optimizer, kept = trained
    name = next(k for k in kept if "running_var" in k)
    task.model.get_buffer(name).fill_(torch.inf)
    step(task, optimizer)
    assert task.guard.total == 1
    assert_equal(task.model.state_dict(), kept)


def test_every_batch_of_an_accumulated_step_is_written_down(task, tmp_path):
    """The fault may lie in the first of them, which the gradient does not tell.

    One name is not UTF-8.
    """
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    for i, factor in enumerate((float("nan"), 1.0)):
        loss = task.training_step({**batch_of(2), "name": [f"{i}a", f"{i}\udcff"]}, i) * factor
        loss.backward()
    task.configure_gradient_clipping(optimizer, 1.0, "norm")
    rows = list(csv.DictReader((tmp_path / "nonfinite.csv").open()))
    assert [row["sample"] for row in rows] == ["0a", "0\\udcff", "1a", "1\\udcff"]
    step(task, optimizer, factor=float("nan"))  # the next one knows nothing of them
    assert len(list(csv.DictReader((tmp_path / "nonfinite.csv").open()))) == 4 + len(NAMES)


def test_statistics_of_such_a_step_are_forgotten(trained, monkeypatch):
    """BatchNorm has seen the images before their loss is known, and would keep a NaN for ever."""
    task, optimizer, kept = trained
    assert any("running_var" in k for k in kept)
    task.teacher = PseudoLabelTeacher()
    task.teacher.setup(task.model, task.objectives)
    with monkeypatch.context() as patch:
        patch.setattr(task, "_normalize", lambda images: torch.full(images.shape, float("nan")))
        step(task, optimizer)
    assert task.guard.total == 1
    for model in (task.model, task.teacher.average.module):
        assert_equal(model.state_dict(), kept)
    step(task, optimizer)
    name = next(k for k in kept if "running_var" in k)
    assert not torch.equal(task.model.state_dict()[name], kept[name])


@pytest.mark.parametrize("fused", [False, True])
def test_float16_unscales_once(task, fused):
    """Lightning unscales for optimisers that do not do it in their own step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    task.trainer.precision_plugin = SimpleNamespace(scaler=scaler)
    weights = list(task.model.parameters())
    optimizer = torch.optim.AdamW(weights, fused=fused)
    loss = task.training_step({**batch_of(2), "name": NAMES}, 0)
    scaler.scale(loss).backward()
    if not fused:  # as its precision plugin does
        scaler.unscale_(optimizer)
    task.configure_gradient_clipping(optimizer, 1e-3, "norm")
    norm = torch.nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None])
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)
    scaler.step(optimizer)


@pytest.mark.parametrize(("scale", "skipped"), [(2.0, 0), (0.5, 1)])
def test_a_grad_scale_below_one_counts_as_nonfinite(task, scale, skipped):
    """So a float16 run that can learn nothing ends like any other."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    task.trainer.precision_plugin = SimpleNamespace(scaler=scaler)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    loss = task.training_step({**batch_of(2), "name": NAMES}, 0) * float("inf")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # as Lightning does under SGD
    task.configure_gradient_clipping(optimizer, 1.0, "norm")
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == scale / 2
    assert task.guard.total == skipped


def test_too_many_in_a_row_end_the_run(task, tmp_path):
    task.guard.limit = 3
    optimizer = torch.optim.AdamW(task.model.parameters(), fused=True)
    for factor in (float("nan"), float("nan"), 1.0, float("nan"), float("nan")):
        step(task, optimizer, factor=factor)
    with pytest.raises(ValueError, match=r"not finite in 3 steps in a row.*nonfinite\.csv"):
        step(task, optimizer, factor=float("nan"))
    checkpoint = {"state_dict": task.state_dict()}
    task.on_save_checkpoint(checkpoint)
    other = task_of("depth")
    other._trainer = task.trainer
    other.on_load_checkpoint(checkpoint)
    assert (other.guard.total, other.guard.in_a_row) == (5, 3)
