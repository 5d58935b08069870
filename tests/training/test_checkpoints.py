"""What a kill, a full disk or a damaged file leaves of a run."""

import resource

import pytest
import torch
from tiny import step_of

from dpt.training import lightning_internals, resume
from dpt.training.checkpoints import AtomicCheckpointIO


def checkpoint(step):
    place = dict.fromkeys(("epoch", "batches", "batch_size", "world_size", "samples"), 1)
    steps = {"step": {"total": {"completed": step}}}
    return {
        "global_step": step,
        "state_dict": {"weight": torch.full((1000,), float(step))},
        "optimizer_states": [{"state": {}, "param_groups": []}],
        "skipped_steps": [0, 0],
        "loops": {"fit_loop": {lightning_internals.OPTIMIZER_PROGRESS: {"optimizer": steps}}},
        resume.KEY: {**place, "ranks": [resume.random_state()]},
    }


def test_a_full_disk_raises_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1), path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # as a full disk: EFBIG
    try:
        with pytest.raises(ValueError, match=r"last\.ckpt: cannot be written.*make room"):
            AtomicCheckpointIO().save_checkpoint(checkpoint(2), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert step_of(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_worker_that_died_while_a_checkpoint_was_written_is_no_full_disk(tmp_path, monkeypatch):
    """Torch raises the worker's error in the middle, and then one about the archive."""

    def save(checkpoint, file):
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        AtomicCheckpointIO().save_checkpoint({}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


def run_of(folder, **steps):
    for name, step in steps.items():
        AtomicCheckpointIO().save_checkpoint(checkpoint(step), folder / f"checkpoints/{name}.ckpt")
    (folder / "config.yaml").write_text("run_dir: x\n")
    return folder


def test_a_damaged_checkpoint_falls_back_to_the_best(tmp_path, caplog):
    run = run_of(tmp_path, last=8, best=5)
    last = run / "checkpoints/last.ckpt"
    assert resume.checkpoint_of(run) == last
    last.write_bytes(last.read_bytes()[:2000])
    assert resume.checkpoint_of(run) == run / "checkpoints/best.ckpt"
    assert "last.ckpt is damaged" in caplog.text
    (run / "checkpoints/best.ckpt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"last.ckpt is damaged, and there is no other"):
        resume.checkpoint_of(run)
