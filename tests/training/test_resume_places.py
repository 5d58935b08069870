"""Where a run may be cut off, and how it may be configured: resumed, it is the undisturbed run.

As test_resume.py, but in this process: an exception takes the place of the kill.
"""

import os
import signal
from functools import partial

import pytest
from test_resume import MODEL, PATIENCE, assert_same, best_of, logged, resume_it, state_of
from tiny import slow_after

from dpt.evaluation.callbacks import FailedFiles

RUN = (
    *MODEL,
    "task=joint data.batch_size=2 data.train.length=14 data.val.length=3 logger=csv",
    "trainer.log_every_n_steps=1 trainer.val_check_interval=4",
    "callbacks.checkpoint.every_n_train_steps=1 optim.lr=1e-3 callbacks.panels=null",
    "trainer.max_steps=12",
    *PATIENCE,
)
EPOCHS = ("trainer.max_steps=-1", "trainer.max_epochs=2")


class CutOffError(Exception):
    """In place of a kill."""


@pytest.fixture
def at_batch(monkeypatch):
    """at_batch(number, act): calls ``act`` before the training batch of that number, from 0."""

    def plan(number, act):
        seen = iter(range(10**6))

        def start(self, trainer, pl_module, batch, batch_idx):
            if next(seen) == number:
                monkeypatch.undo()
                act()

        monkeypatch.setattr(FailedFiles, "on_train_batch_start", start)

    return plan


def cut_off():
    raise CutOffError


def sigterm():
    os.kill(os.getpid(), signal.SIGTERM)


CASES = {
    "steps": (),
    "epochs": EPOCHS,
    "shares of an epoch": (*EPOCHS, "trainer.val_check_interval=0.5"),
    "every second epoch": (
        "trainer.max_steps=-1 trainer.max_epochs=3 trainer.check_val_every_n_epoch=2",
        "trainer.val_check_interval=1.0",
    ),
    "accumulated": (
        "trainer.accumulate_grad_batches=3 trainer.max_steps=5",
        "trainer.val_check_interval=6",
    ),
    "average": ("callbacks=ema callbacks.panels=null callbacks.checkpoint.every_n_train_steps=1",),
    "frozen": ("callbacks.freeze.parts=[encoder]",),
    "limited": (*EPOCHS, "trainer.limit_train_batches=5"),
    **{name: (f"task={name}",) for name in ("clip", "contrastive", "dino", "inpainting")},
    "sanity check": ("trainer.num_sanity_val_steps=2",),
    "workers": ("data.num_workers=2",),
}


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    """whole(case): the run that nobody disturbed."""
    made = {}

    def run(case):
        if case not in made:
            made[case] = train(tmp_path_factory.mktemp("whole") / "run", *RUN, *CASES[case])
        return made[case]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("batch", [4, 7])
@pytest.mark.parametrize("case", CASES)
def test_cut_off(train, whole, metrics, at_batch, tmp_path, case, batch):
    """Behind a validation, and behind the first batch of an epoch."""
    expected = whole(case)
    at_batch(batch, cut_off)
    with pytest.raises(CutOffError):
        train(tmp_path, *RUN, *CASES[case])
    resume_it(f"resume={tmp_path}")
    for values in (state_of, metrics, best_of, logged):
        assert_same(values(tmp_path), values(expected))


@pytest.mark.parametrize("batch", slow_after(1, [3, 6]))
@pytest.mark.parametrize("case", slow_after(1, CASES))
def test_stopped_in_order(train, whole, metrics, at_batch, tmp_path, case, batch):
    """Before a validation, and at the end of an epoch; it validates once more before it stops."""
    expected = whole(case)
    at_batch(batch, sigterm)
    with pytest.raises(SystemExit):
        train(tmp_path, *RUN, *CASES[case])
    resume_it(f"resume={tmp_path}")
    found, wanted = logged(tmp_path), logged(expected)
    assert_same({k: v for k, v in found.items() if k in wanted}, wanted)
    for values in (state_of, metrics, best_of):
        assert_same(values(tmp_path), values(expected))


@pytest.mark.slow
def test_stops_do_not_use_up_the_patience(train, whole, at_batch, tmp_path):
    """At the step of a validation too: it counts once."""
    expected = whole("steps")
    start = partial(train, tmp_path, *RUN)
    for batch in (3, 0, 2, 1):
        at_batch(batch, sigterm)
        with pytest.raises(SystemExit):
            start()
        start = partial(resume_it, f"resume={tmp_path}")
    resume_it(f"resume={tmp_path}")
    for values in (state_of, best_of):
        assert_same(values(tmp_path), values(expected))
