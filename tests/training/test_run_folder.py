"""A run's folder belongs to one run and one process; what is damaged in it is named."""

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import fields
from functools import partial

import pytest
import yaml
from test_resume import assert_same, resume_it, state_of
from tiny import TINY_DATA, TINY_SCENES, call, slow_after, step_of

from dpt.config import run_folder
from dpt.data import TrainTransform
from dpt.training import resume

RUN = ("task=regression", "callbacks.panels=null")
SLOW = pytest.mark.slow


@pytest.fixture
def run(run_copy):
    return run_copy


def content(folder):
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in ("log.txt", ".lock"))
    return {path.relative_to(folder): path.read_bytes() for path in files}


# ------------------------------------------------------------------------------ one run


def test_a_second_run_is_refused_and_changes_nothing(train, run, refused):
    before = content(run)
    message = refused(train, run, *RUN, "seed=5")
    assert f"{run}/checkpoints/" in message
    for remedy in ("another run_dir", f"resume={run}", "overwrite=true"):
        assert remedy in message
    assert content(run) == before


def test_another_command_does_not_write_into_it(run, refused):
    before = content(run)
    message = refused(call, "data", "check", f"run_dir={run}", *TINY_DATA, *TINY_SCENES)
    assert f"{run}/checkpoints/" in message
    assert "overwrite" not in message
    assert content(run) == before


@pytest.mark.parametrize("text", ["mine: true\n", "- 1\n", "\xff{{", ""])
def test_a_configuration_that_is_no_runs_is_kept(refused, train, tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    for start in (
        partial(train, tmp_path, *RUN),
        partial(call, "data", "check", f"run_dir={tmp_path}"),
    ):
        assert f"{tmp_path}/config.yaml" in refused(start)
        assert (tmp_path / "config.yaml").read_text() == text


def test_a_run_is_overwritten_on_demand(train, run, tmp_path):
    (run / "nonfinite.csv").write_text("old")
    train(run, *RUN, "seed=5", "overwrite=true")
    fresh = train(tmp_path / "fresh", *RUN, "seed=5")
    assert_same(state_of(run)["state_dict"], state_of(fresh)["state_dict"])
    assert json.loads((run / "metrics.json").read_text()) == json.loads(
        (fresh / "metrics.json").read_text()
    )
    assert not (run / "nonfinite.csv").exists()
    resume_it(f"resume={run}", "trainer.max_steps=3")  # not overwritten once more
    assert "last.ckpt, step 2" in (run / "log.txt").read_text()


def test_a_mistake_does_not_overwrite(train, run, refused):
    before = content(run)
    assert "'x'" in refused(train, run, *RUN, "overwrite=true", "data.batch_size=x")
    assert "strategy='x'" in refused(train, run, *RUN, "overwrite=true", "trainer.strategy=x")
    assert content(run) == before


def test_config_yaml_states_defaults(run):
    """A later change of a default does not change a run that is resumed."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    of_data = {"image_size", "targets", "prompts", "class_names"}
    assert config["augment"].keys() == {f.name for f in fields(TrainTransform)} - of_data
    assert config["model"]["heads"]["regression"].keys() == {"decoder", "dropout", "mean", "std"}


def test_a_folder_in_which_nothing_was_trained_is_free(train, tmp_path, refused):
    refused(train, tmp_path, *RUN, "trainer.strategy=x")
    assert (tmp_path / "config.yaml").is_file()
    train(tmp_path, *RUN)
    assert (tmp_path / "metrics.json").is_file()


# ------------------------------------------------------------------------------ one process


HOLD = (
    "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(); input()"
)


def test_two_processes_do_not_share_a_folder(train, run, refused, monkeypatch):
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = subprocess.Popen([sys.executable, "-c", HOLD, run / ".lock"], **pipes)
    assert other.stdout.readline()
    before = content(run)
    message = refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert f"run_dir={run}: another process is writing to it" in message
    assert content(run) == before
    other.communicate(b"\n")
    resume_it(f"resume={run}", "trainer.max_steps=3")
    assert step_of(run / "checkpoints/last.ckpt") == 3


# ------------------------------------------------------------------------------ the end of a run

EPOCHS = (*RUN, "trainer.max_steps=-1")


@SLOW
def test_a_run_extended_by_epochs_stays_finished(train, tmp_path, metrics):
    run = train(tmp_path / "run", *EPOCHS, "trainer.max_epochs=1")
    resume_it(f"resume={run}", "trainer.max_epochs=2")
    assert step_of(run / "checkpoints/last.ckpt") == 4
    state, scores = state_of(run), metrics(run)
    resume_it(f"resume={run}")
    assert_same(state_of(run), state)
    assert metrics(run) == scores
    assert "this run is finished" in (run / "log.txt").read_text()
    assert yaml.safe_load((run / "config.yaml").read_text())["trainer"]["max_steps"] == -1


@SLOW
def test_epochs_added_one_by_one_are_those_of_a_whole_run(train, tmp_path):
    same = (*EPOCHS, "schedule=constant", "schedule.warmup=1")
    whole = train(tmp_path / "whole", *same, "trainer.max_epochs=4")
    run = train(tmp_path / "run", *same, "trainer.max_epochs=1")
    for epochs in (2, 3, 4):
        resume_it(f"resume={run}", f"trainer.max_epochs={epochs}")
    found, expected = state_of(run), state_of(whole)
    assert_same(found["state_dict"], expected["state_dict"])
    assert_same(found["optimizer_states"], expected["optimizer_states"])


# ------------------------------------------------------------------------------ damaged files


def test_resuming_without_a_checkpoint_says_so(run):
    shutil.rmtree(run / "checkpoints")
    resume_it(f"resume={run}")
    assert (
        f"resume: {run} holds no checkpoint: starting from the first step"
        in (run / "log.txt").read_text()
    )


def test_the_checkpoint_that_is_named_is_taken(run, refused):
    last, best = (run / f"checkpoints/{name}.ckpt" for name in ("last", "best"))
    resume_it(f"resume={best}", "trainer.max_steps=3")
    assert f"resume: from {best}" in (run / "log.txt").read_text()
    last.unlink()
    assert f"resume={last}: no such file" in refused(resume_it, f"resume={last}")


CONFIGS = {
    "no mapping": b"- 1\n- 2\n",
    "not UTF-8": b"\xff\xfe\x00",
    "nested": b"task: " + b"[" * 5000 + b"]" * 5000,
    "interpolation": b"run_dir: ${oc.env:HOME}\n",
    "tag": b"a: !!python/object/apply:os.system [ls]\n",
    "a key twice": b"a: 1\na: 2\n",
    "bomb": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
}


CUTS = ["truncated", "half a line"]


@pytest.mark.parametrize("case", slow_after(4, [*CUTS, *CONFIGS, "other folder", "no group"]))
def test_a_damaged_config_yaml_is_named(run, refused, case):
    path, text = run / "config.yaml", (run / "config.yaml").read_bytes()
    if case in ("no group", "other folder"):
        values = yaml.safe_load(text)
        if case == "other folder":
            values["callbacks"]["checkpoint"]["dirpath"] = "elsewhere"
        else:
            del values["optim"]
        CONFIGS[case] = yaml.safe_dump(values).encode()
    cuts = {"truncated": text.index(b"\ntrainer:") + 1, "half a line": text.index(b"\noptim:") + 4}
    path.write_bytes(text[: cuts[case]] if case in cuts else CONFIGS[case])
    before = content(run)
    assert f"{path}" in refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert content(run) == before


def test_flipped_bits_are_found_and_best_ckpt_is_taken(run):
    last = run / "checkpoints/last.ckpt"
    with zipfile.ZipFile(last) as archive:
        record = max(archive.infolist(), key=lambda entry: entry.file_size)
    data = bytearray(last.read_bytes())
    assert record.file_size > 8192
    data[record.header_offset + 4096] ^= 4
    last.write_bytes(data)
    assert resume.fault_of(last)
    assert resume.fault_of(run / "checkpoints/best.ckpt") is None
    assert resume.checkpoint_of(run) == run / "checkpoints/best.ckpt"


@pytest.mark.parametrize("name", slow_after(1, ["metrics.json", "log.txt"]))
def test_a_folder_in_place_of_a_file_is_named(run, refused, name):
    (run / name).unlink()
    (run / name).mkdir()
    assert f"{run / name}" in refused(resume_it, f"resume={run}")


# ------------------------------------------------------------------------------ passwords


def test_passwords_in_addresses_are_not_written(tmp_path, refused):
    address = "http://name:word-of-mine@127.0.0.1:9/shards"
    arguments = ("data=packed", f"data.root={address}", "task=regression", "logger=none")
    message = refused(call, "train", *arguments, *TINY_DATA, f"run_dir={tmp_path}")
    assert "word-of-mine" not in message
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"word-of-mine" not in path.read_bytes(), path
    assert "http://***@127.0.0.1" in (tmp_path / "config.yaml").read_text()
    message = refused(resume_it, f"resume={tmp_path}")
    assert "passwords are not stored" in message
