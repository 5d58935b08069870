"""Pictures, progress, throughput and an orderly end."""

import math
import os
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import assert_equal, checkpoint_of
from torch.optim.swa_utils import AveragedModel

from dpt.objectives import DepthObjective, SegmentationObjective
from dpt.training import callbacks
from dpt.training.callbacks import MovingAverage, StopOnSignal, Throughput
from dpt.training.optim import cosine
from dpt.types.outputs import HeadOutput, OutputSpec


def fake_trainer(**values):
    usual = {
        "world_size": 1,
        "global_step": 3,
        "should_stop": False,
        "is_last_batch": False,
        "accumulate_grad_batches": 1,
        "is_global_zero": True,
        "sanity_checking": False,
        "fit_loop": SimpleNamespace(batch_idx=0, epoch_loop=SimpleNamespace(max_steps=50)),
    }
    return SimpleNamespace(**usual | values)


def ends(trainer):
    """Whether training ends at the present step."""
    return trainer.fit_loop.epoch_loop.max_steps == trainer.global_step


def two_ranks(reduce):
    """Settings of a trainer with two ranks, whose values ``reduce`` joins."""
    strategy = SimpleNamespace(reduce=reduce, root_device=torch.device("cpu"))
    return {"world_size": 2, "strategy": strategy}


@pytest.fixture
def stop():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with StopOnSignal(resume="dpt train resume=RUN") as callback:
        callback.on_train_start(fake_trainer(), None)
        yield callback
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_step(stop, number, caplog):
    trainer = fake_trainer()
    stop.on_train_batch_end(trainer, None, None, {}, 0)
    assert not ends(trainer)
    os.kill(os.getpid(), number)
    assert stop.received == number
    stop.on_train_batch_end(trainer, None, None, {}, 0)
    assert ends(trainer)
    assert not trainer.should_stop  # which would add a validation
    assert "validating, then stopping; Ctrl-C" in caplog.text
    assert "stops at once" in caplog.text


def test_a_second_ctrl_c_ends_the_process(stop, monkeypatch):
    """Without clean-up, in which workers could hang."""
    reasons = []
    monkeypatch.setattr(callbacks, "end_now", reasons.append)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    (reason,) = reasons
    assert reason.code == 128 + signal.SIGINT
    assert "from the last checkpoint: dpt train resume=RUN" in reason.message


@pytest.mark.parametrize("waits", [True, False])
def test_a_stop_ends_the_process_if_no_batch_comes(stop, monkeypatch, waits):
    """Steps and validations of any length are completed."""
    reasons = []
    monkeypatch.setattr(callbacks, "STUCK", 0.2)
    monkeypatch.setattr(callbacks, "end_now", lambda reason: reasons.append(reason) or sys.exit())
    monkeypatch.setattr(callbacks, "seconds_without_batch", lambda: 100.0 if waits else 0.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.5)
    assert [reason.code for reason in reasons] == ([128 + signal.SIGTERM] if waits else [])
    assert all("dpt train resume=RUN" in reason.message for reason in reasons)


def test_a_signal_during_validation_stops_after_it(stop):
    trainer = fake_trainer()
    stop.on_validation_start(trainer, None)
    os.kill(os.getpid(), signal.SIGTERM)
    stop.on_validation_end(trainer, None)
    assert ends(trainer)


def test_ranks_stop_together(stop):
    """Only between steps, and if any of them was told to: then all know by what."""
    asked = []

    def reduce(values, reduce_op):
        asked.append((int(values[0]), reduce_op))
        return torch.tensor([signal.SIGUSR1, 0.0])  # another rank's

    trainer = fake_trainer(**two_ranks(reduce), accumulate_grad_batches=2)
    stop.on_train_batch_end(trainer, None, None, {}, 0)
    assert not asked
    stop.on_train_batch_end(trainer, None, None, {}, 1)
    assert asked == [(0, "max")]
    assert ends(trainer)
    assert stop.received == signal.SIGUSR1


@pytest.mark.parametrize("rank", [0, 1])
def test_slurms_signal_saves_on_every_rank_and_requeues_once(stop, monkeypatch, rank):
    job = {"NTASKS": 2, "PROCID": rank, "JOB_ID": 9, "ARRAY_JOB_ID": 7, "ARRAY_TASK_ID": 2}
    for name, value in job.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    called = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr("dpt.process.subprocess.run", lambda c, **_: called.append(c) or done)
    ranks = two_ranks(lambda *_, **options: torch.tensor([signal.SIGUSR1, 0.0]))  # another rank's
    trainer = fake_trainer(**ranks, is_global_zero=rank == 0)
    stop.on_train_batch_end(trainer, None, None, {}, 0)
    assert ends(trainer)  # which makes every rank save
    with pytest.raises(SystemExit) as exit_:
        stop.on_validation_start(trainer, None)
    assert exit_.value.code == 128 + signal.SIGUSR1
    assert called == ([["scontrol", "requeue", "7_2"]] if rank == 0 else [])


def test_ctrl_c_in_a_run_validates_and_saves(train, metrics, monkeypatch, tmp_path):
    def press(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Throughput, "on_train_batch_end", press)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stop:
        train(tmp_path, "task=regression trainer.max_steps=1000 trainer.val_check_interval=1000")
    assert stop.value.code == 128 + signal.SIGINT
    assert signal.getsignal(signal.SIGINT) == before
    assert "val/mae" in metrics(tmp_path)
    assert f"resume={tmp_path}" in (tmp_path / "log.txt").read_text()
    assert checkpoint_of(tmp_path)["global_step"] <= 4
    assert (tmp_path / "checkpoints/best.ckpt").is_file()


# --------------------------------------------------------------------- average of weights


def test_an_average_forgets_the_first_weights_of_a_short_run():
    """A weight of 0 for 100 steps and of 1 for 300: 0.999 alone would keep 26 % of the 0."""
    model = torch.nn.Linear(1, 1, bias=False)
    average = AveragedModel(model, **MovingAverage(decay=0.999)._kwargs)
    for step in range(400):
        model.weight.data.fill_(float(step >= 100))
        average.update_parameters(model)
    assert average.module.weight.item() > 0.999
    for _ in range(20_000):
        average.n_averaged += 1
    model.weight.data.fill_(0.0)
    average.update_parameters(model)
    assert average.module.weight.item() == pytest.approx(0.999, abs=1e-4)


# ------------------------------------------------------------------------------ pictures


def rows_for(objectives, outputs, labels, size=(24, 32)):
    photo = np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8)
    rows = [
        o.panel(photo, HeadOutput(outputs.get(name)), labels, OutputSpec(name, "map"))
        for name, o in objectives.items()
    ]
    return [row for row in rows if row is not None]


@pytest.mark.parametrize("kind", ["metric", "relative"])
def test_an_image_without_any_label_has_a_row_too(kind):
    objectives = {
        "depth": DepthObjective(max_depth=10.0, kind=kind),
        "segmentation": SegmentationObjective(num_classes=2),
    }
    labels = {
        "depth": [torch.zeros(24, 32)],
        "valid": [torch.zeros(24, 32, dtype=torch.bool)],
        "labels": [torch.full((24, 32), 255, dtype=torch.uint8)],
    }
    outputs = {"depth": torch.rand(1, 24, 32), "segmentation": torch.randn(1, 2, 24, 32)}
    assert len(rows_for(objectives, outputs, labels)) == 2


@pytest.mark.slow
def test_an_average_leaves_training_alone_and_has_statistics_of_its_own(train, tmp_path):
    common = ("task=segmentation", "trainer.max_steps=6")
    plain = train(tmp_path / "plain", *common)
    averaged = train(tmp_path / "ema", *common, "callbacks=ema", "callbacks.ema.decay=0.5")
    expected, found = (checkpoint_of(folder) for folder in (plain, averaged))
    for name, value in expected["state_dict"].items():
        assert torch.equal(found["current_model_state"][name], value), name
    (name, *_) = [k for k in expected["state_dict"] if k.endswith("running_mean")]
    assert not torch.equal(found["state_dict"][name], found["current_model_state"][name])
    for folder in (plain, averaged):  # the average is left out
        train(folder, *common, "trainer.max_steps=8", "resume=auto", "+callbacks.ema=null")
    expected, found = (checkpoint_of(folder)["state_dict"] for folder in (plain, averaged))
    assert_equal(found, expected)


def deadline_of(seconds, clock, monkeypatch, *, steps=100):
    """A run's deadline, schedule and trainer, for which ``clock`` is a list of the time."""
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = cosine(optimizer, total_steps=steps, warmup=0)
    trainer = fake_trainer(
        global_step=0,
        estimated_stepping_batches=steps,
        strategy=SimpleNamespace(broadcast=lambda value: value),
        lr_scheduler_configs=[SimpleNamespace(scheduler=schedule)],
    )
    return callbacks.Deadline(seconds=seconds), schedule, trainer


def test_deadline_ends_training_and_schedule_by_the_clock(monkeypatch):
    """The machine becomes slower after 10 steps: the run is shorter, its rate still ends at 0."""
    clock, task = [50.0], SimpleNamespace(total_steps=0.0)
    deadline, schedule, trainer = deadline_of(20.0, clock, monkeypatch)
    deadline.on_train_start(trainer, task)
    loop = trainer.fit_loop.epoch_loop
    rates = []
    while trainer.global_step < getattr(loop, "max_steps", 100):
        trainer.global_step += 1
        clock[0] += 0.2 if trainer.global_step <= 10 else 1.0
        schedule.optimizer.step()
        schedule.step()
        deadline.on_step(trainer, task)
        rates.append(schedule.get_lr()[0])
    assert trainer.global_step == task.total_steps == 10 + 18
    assert 70 <= clock[0] < 71
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-6)


def test_deadline_of_a_resumed_run_counts_the_time_before(monkeypatch):
    clock = [0.0]
    deadline, schedule, trainer = deadline_of(10.0, clock, monkeypatch)
    deadline.load_state_dict({"seconds": 8.0})
    trainer.global_step = schedule.last_epoch = 40
    deadline.on_train_start(trainer, SimpleNamespace(total_steps=0.0))
    assert trainer.fit_loop.epoch_loop.max_steps == 50
    assert schedule.pace == 2
    rate = 0.5 * (1 + math.cos(0.8 * math.pi))  # of the first resumed step already
    assert schedule.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    clock[0] = 1.5
    assert deadline.state_dict() == {"seconds": 9.5}
