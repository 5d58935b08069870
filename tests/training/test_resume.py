"""A run that was killed and resumed is the run that nobody disturbed, bit for bit."""

import contextlib
import csv
import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import test_ddp
import torch
from tiny import ON_CPU, TINY_VIT, call, checkpoint_of, step_of, words_of

from dpt.training import resume

ROOT = Path(__file__).parents[2]
MODEL = (*TINY_VIT, "optim=adamw", "model.encoder.drop_path=0.1")
PATIENCE = (
    "+callbacks.stop.kind=early_stopping",
    "+callbacks.stop.monitor=val/rmse",
    "+callbacks.stop.strict=false",  # some tasks have another score
    "+callbacks.stop.patience=100",
    "+callbacks.stop.check_finite=false",
)
RUN = (
    *MODEL,
    "task=joint data.image_size=[32,48] data.batch_size=2 data.num_workers=0",
    "data.train.length=10 data.val.length=3 logger=csv",
    *ON_CPU,
    "trainer.log_every_n_steps=1 trainer.val_check_interval=7",
    "callbacks.checkpoint.every_n_train_steps=1 optim.lr=1e-3 optim.layer_decay=0.8",
    *PATIENCE,
)
STEPS = "trainer.max_steps=12"
resume_it = partial(call, "train")


finish = partial(test_ddp.finish, timeout=400)


def start(*overrides):
    return test_ddp.start("train.py", *RUN, STEPS, *overrides)


def start_and_kill(folder, step, *overrides):
    """Ends every process of a run at once, some time after ``step`` was saved.

    On a busy machine a run may be over before the kill: then it is started again.
    """
    last = folder / "checkpoints/last.ckpt"
    for _ in range(5):
        process = start(f"run_dir={folder}", "overwrite=true", *overrides)
        while process.poll() is None and step_of(last) < step:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        reached = step_of(last)
        assert reached, out[-3000:]
        if reached < 12:
            return
        shutil.rmtree(folder)
    raise AssertionError("five runs were over before they could be killed")


def state_of(folder):
    checkpoint = checkpoint_of(folder)
    keys = "state_dict optimizer_states lr_schedulers global_step current_model_state"
    callbacks = {k: v for k, v in checkpoint["callbacks"].items() if "Deadline" not in k}
    state = {k: checkpoint.get(k) for k in (*keys.split(), "averaging_state", resume.KEY)}
    return {**state, "callbacks": callbacks}


def best_of(folder):
    checkpoint = checkpoint_of(folder, "best")
    return checkpoint["state_dict"], checkpoint["callbacks"]["RunCheckpoints"]


def logged(folder):
    """Values by (step, key); times and speeds, which no two runs share, left out."""
    return {
        (int(row["step"]), key): float(value)
        for row in csv_rows(folder)
        for key, value in row.items()
        if value and key not in ("step", "epoch", "train/images_per_s")
    }


def csv_rows(folder):
    """The rows of all parts of a run, in their order."""
    paths = sorted(folder.glob("csv/version_*/metrics.csv"), key=lambda path: path.stat().st_mtime)
    return [row for path in paths for row in csv.DictReader(path.read_text().splitlines())]


def assert_same(found, expected, where=""):
    """Equality of nested containers, tensors bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), where
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert found == expected or (found != found and expected != expected), where


def assert_same_run(found, expected, steps=12):
    assert_same(state_of(found), state_of(expected))
    assert_same(best_of(found), best_of(expected))
    losses = logged(expected)
    assert sum(key == "train/loss" for _, key in losses) == steps
    assert_same(logged(found), losses)


def killed_and_resumed(folder, step, *overrides):
    """A run killed after ``step`` and resumed to its end."""
    start_and_kill(folder, step, *overrides)
    again = [
        o for o in words_of(*overrides) if o.startswith(("task", "optim.", "~"))
    ]  # RUN names others
    out = finish(start(f"resume={folder}", *again))
    assert f"resume: from {folder}/checkpoints/last.ckpt" in out
    return folder


CASES = {
    "one rank": (),
    "two workers": ("data.num_workers=2",),
    "two ranks": ("trainer.devices=2", "trainer.strategy=ddp"),
    "two ranks, two workers": ("trainer.devices=2", "trainer.strategy=ddp", "data.num_workers=2"),
    "average": ("callbacks=ema", "callbacks.checkpoint.every_n_train_steps=1"),
    "muon": ("optim.kind=muon", "~optim.fused"),
    "frozen encoder": ("callbacks.freeze.parts=[encoder]",),
    "lora and average": (
        "callbacks=ema callbacks.lora.rank=4",
        "callbacks.checkpoint.every_n_train_steps=1",
    ),
    "accumulated": ("trainer.accumulate_grad_batches=3",),
    "queries": ("task=panoptic",),
    "average of the model as teacher": (
        "task=dino task.objectives.dino.num_prototypes=64",
        "task.objectives.dino.patch_weight=1",
    ),
    "queries on two ranks": ("task=panoptic", "trainer.devices=2", "trainer.strategy=ddp"),
}


def test_a_killed_run_continues_bit_for_bit(train, tmp_path):
    """An epoch has five batches, and a validation comes every seven: the kill falls anywhere."""
    whole = train(tmp_path / "whole", *RUN, STEPS)
    step = int(os.environ.get("DPT_KILL_STEP", random.Random(time.time_ns()).randrange(1, 8)))
    print(f"killed after step {step}: DPT_KILL_STEP={step}")
    killed = tmp_path / "killed"
    start_and_kill(killed, step)
    resume_it(f"resume={killed}")
    assert f"resume: from {killed}/checkpoints/last.ckpt" in (killed / "log.txt").read_text()
    assert_same_run(killed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_continues_bit_for_bit_in_every_setting(tmp_path, case):
    whole = tmp_path / "whole"
    finish(start(f"run_dir={whole}", *CASES[case]))
    seed = int(os.environ.get("DPT_KILL_SEED", time.time_ns() % 10**6))
    step = random.Random(seed).randrange(1, 8)
    print(f"killed after step {step}, DPT_KILL_SEED={seed}")
    assert_same_run(killed_and_resumed(tmp_path / "killed", step, *CASES[case]), whole)


@pytest.mark.slow
def test_twenty_kills_in_a_row(tmp_path):
    """Every resumed run, killed at a random moment, equals the one that nobody disturbed."""
    whole = tmp_path / "whole"
    finish(start(f"run_dir={whole}"))
    seed = int(os.environ.get("DPT_KILL_SEED", time.time_ns() % 10**6))
    draw = random.Random(seed)
    for i in range(20):
        step = draw.randrange(1, 8)
        print(f"kill {i + 1} after step {step}, DPT_KILL_SEED={seed}", flush=True)
        assert_same_run(killed_and_resumed(tmp_path / str(i), step), whole)


# ------------------------------------------------------------------------------ on the command line


HOME = Path.home()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("resume=~/nowhere", f"resume={HOME}/nowhere"),
        ("-m resume=auto", "resume continues one run"),
        ("resume=auto", "resume=auto needs run_dir=DIR"),
        ("resume=RUN trainer.max_steps=9 trainer.overfit_batches=1", "must be started again"),
        ("resume=RUN trainer.max_steps=9 data.batch_size=3", "batch_size 4 and now has 3"),
        (
            "resume=RUN trainer.max_steps=9 optim.kind=sgd ~optim.betas ~optim.fused",
            "by another optimiser",
        ),
        ("resume=RUN optim=sgd", "optim=sgd"),
        ("resume=RUN experiment=camvid", "model.weights="),
        ("resume=RUN task.num_queries=7", "task.num_queries"),
        ("resume=RUN optim.lrr=7", "optim.lrr. Did you mean lr?"),
        ("resume=RUN run_dir=elsewhere", "run_dir=elsewhere"),
        ("resume=RUN --cfg job", "--cfg"),
        (
            "resume=RUN trainer.max_steps=9 model.encoder.num_register_tokens=2",
            "model.encoder.reg_token",
        ),
    ],
)
def test_what_cannot_be_resumed(finished_run, refused, change, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a row without run_dir starts a run of its own
    before = (finished_run / "config.yaml").read_text()
    change = change.replace("RUN", str(finished_run)).split()
    assert message in refused(resume_it, *change)
    # else resume=RUN alone would meet the same fault again
    assert (finished_run / "config.yaml").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("case", ["one rank", "average"])
def test_slurm_puts_the_job_back_and_the_next_start_goes_on(tmp_path, case):
    """Lightning's SLURM support with a stand-in for scontrol, which notes how it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/called\n")
    (tools / "scontrol").chmod(0o755)
    slurm = {"NTASKS": 1, "NTASKS_PER_NODE": 1, "JOB_ID": 7, "JOB_NAME": "train"}
    slurm |= dict.fromkeys(("LOCALID", "NODEID", "PROCID"), 0)
    job = {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    job["PATH"] = f"{tools}:{os.environ['PATH']}"
    # on a busy machine 20 steps are over before a checkpoint is noticed; a validation at the step
    # of the signal is left out
    steps = ("trainer.max_steps=60", "trainer.val_check_interval=50")
    place = ("trainer=slurm", "trainer.strategy=auto", f"paths.runs={tmp_path}", "resume=auto")
    command = ("train.py", *RUN, *steps, *place, "trainer.accelerator=cpu", *CASES[case])
    folder = tmp_path / "joint/slurm_7"

    process, last = test_ddp.start(*command, env=job), folder / "checkpoints/last.ckpt"
    while process.poll() is None and step_of(last) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    assert "SLURM starts the job again" in finish(process, 128 + signal.SIGUSR1)
    assert (tmp_path / "called").read_text() == "requeue 7\n"
    stopped = step_of(resume.checkpoint_of(folder))
    assert 5 <= stopped < 60
    assert f"last.ckpt, step {stopped}" in finish(test_ddp.start(*command, env=job))
    whole = tmp_path / "whole"
    finish(start(f"run_dir={whole}", *steps, *CASES[case]))
    assert_same_run(folder, whole, steps=60)
