"""task/teacher: a run that imitates another's model besides its labels."""

import pytest
import torch
from tiny import assert_equal, checkpoint_of

import dpt


@pytest.fixture(scope="module")
def teacher(joint_run):
    return joint_run / "checkpoints/best.ckpt"


def trained(path):
    return "task/teacher=trained", f"task.teacher.path={path}"


def test_a_run_with_a_teacher(train, teacher, joint_run, tmp_path, scores):
    rows = "logger=csv trainer.log_every_n_steps=1"
    run = train(tmp_path / "taught", "task=joint", *trained(teacher), rows)
    assert (
        f"teacher: {teacher} (dpt_tiny), for depth, segmentation" in (run / "log.txt").read_text()
    )
    header = next(run.rglob("metrics.csv")).read_text().partition("\n")[0].split(",")
    assert {"train/teacher_depth", "train/teacher_segmentation"} <= {*header}
    taught, untaught = checkpoint_of(run), checkpoint_of(joint_run)
    assert list(taught["state_dict"]) == list(untaught["state_dict"])
    states = [c["optimizer_states"][0]["state"] for c in (taught, untaught)]
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")
    assert len(states[0]) == len(states[1]) == len(list(model.parameters()))
    assert scores(run) != scores(joint_run)


@pytest.mark.slow
def test_resume_with_a_teacher_is_exact(train, teacher, tmp_path):
    settings = "task=segmentation schedule=constant task.teacher.temperature=2"
    arguments = (*trained(teacher), settings)
    train(tmp_path / "once", *arguments, "trainer.max_steps=3")
    train(tmp_path / "twice", *arguments, "trainer.max_steps=1")
    train(tmp_path / "twice", *arguments, "trainer.max_steps=3", "resume=auto")
    once, twice = (checkpoint_of(tmp_path / name) for name in ("once", "twice"))
    assert_equal(twice["state_dict"], once["state_dict"])
    moments = [c["optimizer_states"][0]["state"] for c in (once, twice)]
    for index, state in moments[0].items():
        assert torch.equal(state["exp_avg"], moments[1][index]["exp_avg"])
