"""best.ckpt is the best of all validations, however the run was stopped, moved and resumed."""

import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from tiny import small_model

from dpt.objectives import RegressionObjective
from dpt.training.checkpoints import RunCheckpoints, is_last_step
from dpt.training.task import Task


class Trainer:
    """What the callback asks of a trainer."""

    sanity_checking = should_stop = is_last_batch = False
    accumulate_grad_batches = 1
    fit_loop = SimpleNamespace(batch_idx=0)
    state = SimpleNamespace(fn="fit")
    max_epochs, max_steps, loggers = None, -1, ()
    min_epochs = min_steps = None
    current_epoch = 0
    strategy = SimpleNamespace(broadcast=lambda value: value)

    def __init__(self, callback):
        self.callback = callback
        self.global_step = 0

    def save_checkpoint(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {self.callback.state_key: self.callback.state_dict()}
        torch.save({"global_step": self.global_step, "callbacks": state}, path)


def validate(callback, score, *, step, monitor="val/r2", nonfinite=()):
    """Whether a validation at ``step`` with this score writes the file."""
    trainer = Trainer(callback)
    trainer.global_step = step
    objectives = {"regression": RegressionObjective()}
    task = Task(model=small_model(heads={"regression": {}}), objectives=objectives, monitor=monitor)
    task.scores = {"val/r2": score, "val/mae": score}
    task.nonfinite = list(nonfinite)
    before = callback.best_score
    callback.on_validation_end(trainer, task)
    return callback.best_score is not before


def best(folder, **settings):
    defaults = {"every_n_train_steps": None, "every_n_minutes": 15.0}
    return RunCheckpoints(dirpath=str(folder), **{**defaults, **settings})


@pytest.mark.parametrize(("monitor", "kept"), [("val/r2", [0.3, 0.5]), ("val/mae", [0.3, 0.1])])
def test_the_best_is_kept(tmp_path, monitor, kept):
    callback = best(tmp_path)
    scores = [math.nan, 0.3, math.nan, 0.3, 0.5, 0.1, 0.2]
    written = [s for i, s in enumerate(scores) if validate(callback, s, step=i, monitor=monitor)]
    assert math.isnan(written[0])  # better than none
    assert written[1:] == kept
    assert torch.load(callback.best)["callbacks"]["RunCheckpoints"]["best_score"] == kept[-1]


def test_predictions_that_are_not_finite_are_never_the_best(tmp_path):
    """Their scores may be any number, since metrics replace NaN."""
    callback = best(tmp_path)
    assert not validate(callback, 0.9, step=1, nonfinite=["a.png"])
    assert not callback.best.exists()
    assert validate(callback, 0.1, step=2)
    assert not validate(callback, 0.9, step=3, nonfinite=["a.png"])


def test_a_stop_during_validation_waits_for_the_step(tmp_path):
    """No checkpoint holds gradients that are being accumulated."""
    callback = best(tmp_path)
    trainer = Trainer(callback)
    trainer.accumulate_grad_batches, trainer.global_step, trainer.should_stop = 2, 1, True
    task = SimpleNamespace(monitor="val/x", improves=lambda score: False)
    callback.on_validation_end(trainer, task)
    assert not trainer.should_stop
    assert not callback.last.exists()
    callback.on_train_batch_end(trainer, task, None, {}, 1)
    assert trainer.should_stop
    assert callback.last.exists()


@pytest.mark.parametrize(
    ("resumed_at", "known"),
    [(20, 0.9), (30, 0.9), (19, 0.4)],  # the last comes to step 20 again, and writes it again
)
def test_best_score_is_restored_unless_its_step_is_later(tmp_path, resumed_at, known):
    first = best(tmp_path / "old")
    validate(first, 0.4, step=10)
    last = {"global_step": resumed_at, "callbacks": {first.state_key: first.state_dict()}}
    validate(first, 0.9, step=20)  # after the last checkpoint was written
    shutil.move(tmp_path / "old", tmp_path / "new")
    again = best(tmp_path / "new")
    again.on_load_checkpoint(None, SimpleNamespace(monitor="val/r2"), last)
    again.load_state_dict(last["callbacks"][again.state_key])
    assert again.best_score == known


def test_a_score_of_another_name_is_forgotten(tmp_path, caplog):
    first = best(tmp_path)
    validate(first, 0.4, step=10)
    validate(first, 0.3, step=20)
    last = {"global_step": 20, "callbacks": {first.state_key: first.state_dict()}}
    again = best(tmp_path)
    again.on_load_checkpoint(None, SimpleNamespace(monitor="val/mae"), last)
    again.load_state_dict(last["callbacks"][again.state_key])
    assert again.best_score is None
    assert "replaces best.ckpt, the best by val/r2" in caplog.text
    # killed before its next validation, and resumed once more
    last = {"global_step": 30, "callbacks": {first.state_key: again.state_dict()}}
    third = best(tmp_path)
    third.on_load_checkpoint(None, SimpleNamespace(monitor="val/mae"), last)
    third.load_state_dict(last["callbacks"][third.state_key])
    assert third.best_score is None


def test_a_stop_is_delayed_by_the_fewest_steps():
    trainer = Trainer(None)
    trainer.should_stop, trainer.min_steps = True, 3  # Lightning delays the stop
    assert not is_last_step(trainer)
    trainer.global_step = 3
    assert is_last_step(trainer)


@pytest.mark.parametrize("is_of_stop", [True, False])
def test_the_validation_of_a_stop_chooses_no_best(tmp_path, is_of_stop):
    """It follows the training; the run that nobody stopped has none at this step."""
    callback = best(tmp_path)
    trainer = Trainer(callback)
    trainer.state, trainer.should_stop = SimpleNamespace(fn="validate"), is_of_stop
    task = SimpleNamespace(monitor="val/x", scores={"val/x": 1.0}, improves=lambda score: True)
    callback.on_validation_end(trainer, task)
    assert callback.best_score == (None if is_of_stop else 1.0)
    assert callback.best.exists() != is_of_stop
    assert not callback.last.exists()
