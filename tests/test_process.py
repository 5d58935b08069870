"""Signals end every command by one line and exit code 128 + N, and leave no process behind."""

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny import slow_after, words_of

from dpt import process

ROOT = Path(__file__).parents[1]
CHECK = ("data", "check", "data=scenes split=train data.train.length=1000000 data.num_workers=2")


TRAIN = (
    "train",
    "task=regression logger=none data.image_size=[32,32] data.batch_size=2",
    "data.num_workers=1 model=dpt_tiny model.encoder.num_blocks=4",
    "model.encoder.out_indices=[0,1,2,3] trainer.accelerator=cpu",
)


def stopped(body, **environment):
    """Exit code and error output of a process that runs ``body`` in the block."""
    code = "import os, signal, time\nfrom dpt import process\nwith process.stoppable():\n"
    command = [sys.executable, "-c", code + textwrap.indent(textwrap.dedent(body), "    ")]
    options = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 60}
    done = subprocess.run(command, env={**os.environ, **environment}, **options)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "code", "rank", "line"),
    [
        ("SIGTERM", 143, "0", "stopped by SIGTERM\n"),
        ("SIGTERM", 143, "1", ""),
        ("SIGUSR1", 138, "0", "stopped by SIGUSR1\n"),
    ],
)
def test_a_signal_ends_the_process_and_the_first_rank_says_so(name, code, rank, line):
    body = f"os.kill(os.getpid(), signal.{name})"
    assert stopped(body, LOCAL_RANK=rank) == (code, line)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"LOCAL_RANK": "abc"}, "LOCAL_RANK"),
        ({"RANK": "5", "WORLD_SIZE": "5"}, "RANK"),
        ({"SLURM_PROCID": "3"}, "SLURM_PROCID"),
        ({"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"}, None),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_a_rank_that_no_launcher_has_set_is_refused(monkeypatch, environment, name):
    for variable in ("LOCAL_RANK", "RANK", "SLURM_PROCID", "WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"^{name}=") if name else nullcontext():
        process.check_ranks()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\rb\x07\x9bc", "a\\rb\\x07\\x9bc"),
        ("\u202egnp", "\\u202egnp"),
        ("\udc80", "\\udc80"),
        ("Straße\t→ 名\n", "Straße\t→ 名\n"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text, shown):
    assert process.visible(text) == shown


@pytest.mark.parametrize("text", ["[pair.cc:547] Connection closed by peer [127.0.0.1]:1", "x"])
def test_the_end_of_another_rank_is_one_line(text):
    assert process.lack_of_memory(RuntimeError(text)) == (text if "peer" in text else None)


def test_slurm_starts_a_job_again_that_got_its_signal_before_training(monkeypatch, tmp_path):
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/called\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name, value in {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "JOB_NAME": "x"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert process.requeue() == "SLURM starts the job again"
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert process.requeue() == ""
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")
    assert process.requeue() is None
    assert (tmp_path / "called").read_text() == "requeue 7\n"


SAY = """
from dpt import process
for _ in range(3):
    process.say("a line")
raise SystemExit(process.flush_output() is not None)
"""


def redirected(command, *, to):
    line = f"{shlex.join([sys.executable, *command])} {to}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("to", "lines"), [("> /dev/full", 1), ("| true", 0), (">&-", 0)])
@pytest.mark.parametrize("what", slow_after(1, ["lines", "run"]))
def test_a_command_goes_on_where_nobody_reads_its_output(tmp_path, what, to, lines):
    short = "data.train.length=4 data.val.length=2 trainer.max_steps=1"
    run = ["-m", "dpt", *words_of(*TRAIN, short, f"run_dir={tmp_path}")]
    done = redirected(["-c", SAY] if what == "lines" else run, to=to)
    assert (done.returncode, len(done.stderr.splitlines())) == (0, lines), done.stderr
    assert (tmp_path / "metrics.json").is_file() == (what == "run")


def test_a_dropped_exception_does_not_keep_the_process():
    body = """
    process.PATIENCE = 0.5
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        pass
    time.sleep(100)
    """
    assert stopped(body) == (143, "stopped by SIGTERM\n")


@pytest.fixture
def start():
    """start(*arguments): a command in a process group of its own, with its output in pipes."""
    started = []

    def call(*arguments):
        command = [sys.executable, "-m", "dpt", *words_of(*arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        started.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes)
        )
        return started[-1]

    yield call
    for each in started:
        if each.poll() is None:
            each.kill()


def descendants(pid):
    found = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for file in found for child in file.read_text().split()]
    return [pid for child in children for pid in (child, *descendants(child))]


def until(process, condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ends(process, *numbers, code, group=False):
    """Sends signals; the line that the command ends with."""
    left = descendants(process.pid)
    for number in numbers:
        (os.killpg if group else os.kill)(process.pid, number)
        time.sleep(0.2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in left):
        assert time.monotonic() < deadline, "a process is left running"
        time.sleep(0.1)
    (line,) = err.splitlines()
    return line


def test_a_check_with_workers(start, tmp_path):
    check = start(*CHECK, f"run_dir={tmp_path}")
    until(check, lambda: len(descendants(check.pid)) >= 2)
    time.sleep(1)  # Python drops what is raised in the middle of a fork; it then takes 10 s
    assert ends(check, signal.SIGTERM, code=143) == "stopped by SIGTERM"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [False, True])
def test_packing_with_workers(start, tmp_path, number, group):
    pack = start(
        "data",
        "pack",
        f"data=scenes out={tmp_path / 'out'} data.num_workers=2 data.train.length=100000",
        f"run_dir={tmp_path}",
    )
    until(pack, lambda: len(descendants(pack.pid)) >= 2)
    time.sleep(1)
    line = ends(pack, number, code=128 + number, group=group)
    assert line == f"stopped by {number.name}"
    assert not list((tmp_path / "out").glob(".part.*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluation(start, joint_run, tmp_path, number, ranks):
    """Lightning's own handler ignores SIGTERM, and waits for the other ranks."""
    score = start(
        "evaluate",
        f"checkpoint={joint_run / 'checkpoints/last.ckpt'} data=scenes",
        "data.val.length=100000 data.num_workers=1 trainer.accelerator=cpu",
        f"image_size=[32,48] trainer.devices={ranks} run_dir={tmp_path}",
        *(["trainer.strategy=ddp"] if ranks > 1 else []),
    )
    until(score, lambda: len(descendants(score.pid)) >= 2 * ranks - 1)
    time.sleep(1)
    assert ends(score, number, code=128 + number) == f"stopped by {number.name}"


@pytest.mark.slow
@pytest.mark.parametrize("command", [CHECK, ("train",), ("predict", "no.ckpt", "x", "--out", "y")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_the_first_moments(start, tmp_path, command, number):
    early = start(*command, *([] if "predict" in command else [f"run_dir={tmp_path}"]))
    caught = Path(f"/proc/{early.pid}/status")
    # until Python handles SIGTERM, which is when the command line begins
    until(early, lambda: int(caught.read_text().split("SigCgt:")[1].split()[0], 16) >> 14 & 1)
    line = ends(early, number, code=128 + number)
    assert line.startswith(f"stopped by {number.name}")


def start_long(start, folder, *overrides):
    """A run without an end, once it has written a checkpoint."""
    steps = "trainer.max_steps=1000000 trainer.val_check_interval=500000 data.train.length=64"
    run = start(*TRAIN, steps, f"run_dir={folder}", *overrides)
    until(run, (folder / "checkpoints/last.ckpt").is_file)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_second_ctrl_c_ends_training_at_once(start, tmp_path, ranks):
    saves = "callbacks.checkpoint.every_n_train_steps=20 data.val.length=4000"
    strategy = "ddp" if ranks > 1 else "auto"
    run = start_long(start, tmp_path, saves, f"trainer.devices={ranks} trainer.strategy={strategy}")
    line = ends(run, signal.SIGINT, signal.SIGINT, code=130, group=True)
    assert line.startswith("stopped by SIGINT; go on from the last checkpoint: dpt train resume=")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_whose_workers_hang_ends_with_its_last_checkpoint(start, tmp_path, number):
    """As those that read from a network disk that is gone."""
    saves = "callbacks.checkpoint.every_n_train_steps=5 data.val.length=4"
    run = start_long(start, tmp_path, saves)
    command = Path(f"/proc/{run.pid}/cmdline").read_bytes()  # that of its workers too
    for pid in descendants(run.pid):
        if Path(f"/proc/{pid}/cmdline").read_bytes() == command:
            os.kill(pid, signal.SIGSTOP)
    time.sleep(1)  # for the batches that are there already
    line = ends(run, number, code=128 + number)
    assert (
        f"; no batch came for 20 s; go on from the last checkpoint: dpt train resume={tmp_path}"
        in line
    )


@pytest.mark.slow
def test_sigterm_in_the_last_validation(start, tmp_path):
    """It is completed: exit code 143, and the run has its metrics."""
    run = start(
        *TRAIN,
        "trainer.max_steps=2 data.train.length=8 data.val.length=4000",
        f"trainer.val_check_interval=100 run_dir={tmp_path}",
    )
    log = tmp_path / "log.txt"
    until(run, lambda: log.is_file() and "validating the final weights" in log.read_text())
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert (run.returncode, err) == (143, "")
    assert "stopped by SIGTERM" in (tmp_path / "metrics.json").read_text()
