"""Several processes on the CPU: nobody waits for ever, and the numbers are those of one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import ON_CPU, TINY_VIT, checkpoint_of, words_of

ROOT = Path(__file__).parents[2]
TWO_RANKS = (*ON_CPU, "trainer.devices=2", "trainer.strategy=ddp")
DATA = ("data.image_size=[32,48]", "data.batch_size=2", "data.num_workers=0")
SCENES = ("data.train.length=8", "data.val.length=5")
RUN = ("train.py", *TINY_VIT, *DATA, *TWO_RANKS, "logger=none")


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, *words_of(*arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | options.pop("env", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a rank that hangs can be ended with its parent
        **options,
    )


def finish(process, code=0, timeout=240):
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"hangs: {process.communicate()[0][-3000:]}")
    assert process.returncode == code, out[-3000:]
    return out


def train(runs, *overrides, code=0):
    """A run of two ranks in the one folder below ``runs``."""
    process = start(*RUN, "trainer.max_steps=2", f"paths.runs={runs}", *overrides)
    out = finish(process, code)
    (folder,) = list(runs.glob("*/*"))  # one, though every rank reads the clock
    return folder, out


def score(folder, checkpoint, *overrides):
    options = (f"checkpoint={checkpoint}", f"run_dir={folder}", *DATA, *TWO_RANKS, *overrides)
    finish(start("-m", "dpt", "evaluate", *options))
    return folder


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-6, nan_ok=True), key


EVERY_QUERY = ("task.objectives.panoptic.threshold=0", "task.objectives.panoptic.overlap=0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "constant", "files"),
    [
        (("task=joint",), "abs_rel", ("confusion.csv", "per_image.csv")),
        (("task=panoptic", *EVERY_QUERY), "pq", ("per_image.csv",)),
        (("task=instance",), "ap", ("per_image.csv",)),
    ],
    ids=["joint", "panoptic", "instance"],
)
def test_two_ranks_train_and_score_as_one(
    tmp_path, evaluate, scores, metrics, task, constant, files
):
    """Five validation images: one rank has one more than the other."""
    run, out = train(tmp_path / "runs", *task, *SCENES)
    assert "Traceback" not in out
    assert out.count("Scores on val") == 1
    assert checkpoint_of(run)["global_step"] == 2
    assert (run / "checkpoints/best.ckpt").is_file()
    assert f"constant/val/{constant}" in metrics(run)
    checkpoint = run / "checkpoints/last.ckpt"
    alone = evaluate(tmp_path / "one", checkpoint, "data.batch_size=2")
    shared = score(tmp_path / "two", checkpoint, *SCENES)
    one, two = scores(alone), scores(shared)
    # one thread and images of one size on both sides: every image is scored bit by bit alike
    for name in (*files, "metrics.json"):
        assert (shared / name).read_text() == (alone / name).read_text(), name
    trained = scores(run)  # as the two ranks scored at the end
    assert_close({k: one[k] for k in trained}, trained)
    assert_close(two, one)


TASKS = "segmentation classification regression inpainting clip contrastive dino".split()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["depth task.kind=relative", *TASKS])
def test_every_task_runs_on_two_ranks(tmp_path, task, metrics):
    epochs = "trainer.max_steps=-1 trainer.max_epochs=2"
    lengths = "data.train.length=7 data.val.length=3"
    run, _ = train(tmp_path / "runs", *f"task={task}".split(), *SCENES, lengths, epochs)
    assert "constant/val/mae" in metrics(run) or task != "regression"
    # seven images are shared as four and four, in two batches a rank and epoch
    assert checkpoint_of(run)["global_step"] == 4


SEMI_SUPERVISED = (
    "data.labelled=1 data.unlabelled=true augment.strong=1 task/teacher=ema",
    "task.teacher.start=0",
)


@pytest.mark.slow
@pytest.mark.parametrize("teacher", [(), SEMI_SUPERVISED], ids=["", "average"])
def test_partial_labels_and_sizes_on_two_ranks(tmp_path, evaluate, scores, dense_data, teacher):
    """A rank may meet batches without any label of one kind, or with labels alone."""
    run, _ = train(
        tmp_path / "runs",
        "task=joint",
        *dense_data,
        "data.batch_size=1 trainer.max_steps=3",
        *teacher,
    )
    checkpoint = run / "checkpoints/last.ckpt"
    two = scores(score(tmp_path / "two", checkpoint, *dense_data))
    assert_close(two, scores(evaluate(tmp_path / "one", checkpoint, *dense_data)))


@pytest.mark.slow
def test_more_ranks_than_validation_images_are_refused(tmp_path):
    """The rank without an image would skip what the others wait for."""
    _, out = train(tmp_path / "runs", "task=joint", *SCENES, "data.val.length=1", code=1)
    assert out.count("error: 1 images to validate on are too few for 2 processes") == 1


@pytest.mark.slow
@pytest.mark.parametrize("told", [0, 1])
def test_sigterm_to_one_ends_both_ranks(tmp_path, metrics, told):
    folder = tmp_path / "run"
    process = start(
        *RUN,
        *SCENES,
        f"task=regression trainer.max_steps=1000000 data.train.length=64 run_dir={folder}",
        "callbacks.checkpoint.every_n_train_steps=20 trainer.val_check_interval=500000",
    )
    log, deadline = folder / "log.txt", time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (folder / "checkpoints/last.ckpt").is_file():  # both have taken steps
            break
        time.sleep(0.2)
    second, *_ = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(second) if told else process.pid, signal.SIGTERM)
    finish(process, code=128 + signal.SIGTERM)
    assert "val/mae" in metrics(folder)
    assert metrics(folder)["ended"] == "stopped by SIGTERM"
    assert (folder / "checkpoints/last.ckpt").is_file()
    assert "stopped by SIGTERM" in log.read_text()
