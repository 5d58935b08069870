"""The life of a model from Python: each function does what its command does."""

import json

import pytest
import torch
import yaml
from label_folders import folder
from tiny import ON_CPU, TINY_DATA, TINY_RUN, TINY_SCENES, TINY_VIT

import dpt

SCENES = (*TINY_RUN, *TINY_SCENES, "model=dpt_tiny", "optim=adamw")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = f"run_dir={tmp_path_factory.mktemp('run') / 'run'}"
    return dpt.train("task=regression", *SCENES, "logger=csv", place)


def test_train_gives_what_the_command_writes(run, finished_run, scores):
    assert run.scores == pytest.approx(scores(finished_run))
    assert scores(run.folder) == scores(finished_run)
    assert yaml.safe_load((run.folder / "config.yaml").read_text()) == run.config
    assert set(run.model(torch.zeros(1, 3, 32, 48))) == {"regression"}


def test_train_raises_a_mistake_and_resumes(run, tmp_path):
    with pytest.raises(ValueError, match=r"optim\.lrr"):
        dpt.train("task=regression", "optim.lrr=1", f"run_dir={tmp_path / 'new'}")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="give another run_dir"):
        dpt.train("task=regression", *SCENES, f"run_dir={run.folder}")
    again = dpt.train(f"resume={run.folder}")
    assert again.scores == run.scores


def test_evaluate_takes_a_run_or_a_path(run, scores, tmp_path):
    options = (*ON_CPU, "data.num_workers=0")
    by_run = dpt.evaluate(run, *options, f"run_dir={tmp_path / 'a'}")
    by_path = dpt.evaluate(run.folder, *options, f"run_dir={tmp_path / 'b'}")
    assert by_run.scores == by_path.scores
    assert by_run.scores["val/mae"] == pytest.approx(run.scores["val/mae"], rel=1e-5)
    assert by_run.headlines
    assert scores(by_run.folder)["val/mae"] == by_run.scores["val/mae"]
    assert by_run.model.config == run.model.config


def test_check_returns_what_the_report_holds(tmp_path):
    root = folder(tmp_path / "set")
    place = tmp_path / "report"
    data = ("data=folder", f"data.root={root}", "data.labels=masks", "data.num_classes=4")
    findings = dpt.check(*data, *TINY_DATA, "data.num_workers=0", f"run_dir={place}")
    report = json.loads((place / "report.json").read_text())
    assert [finding.code for finding in findings] == [entry["code"] for entry in report]
    assert "class_absent" in {finding.code for finding in findings}


def test_export_takes_a_run(run, tmp_path):
    dpt.export(run, tmp_path / "model.pt2", size=(32, 48))
    assert (tmp_path / "model.pt2").is_file()


@pytest.mark.slow
def test_fit_returns_the_run_with_the_scores_of_its_evaluation(scores, tmp_path):
    root, place = folder(tmp_path / "set"), tmp_path / "run"
    options = (*TINY_VIT, *TINY_DATA, *ON_CPU, "data.eval_size=null", "steps=1")
    run = dpt.fit(root, *options, f"run_dir={place}")
    assert run.folder == place
    assert run.scores["val/miou"] == scores(place / "evaluation")["val/miou"]
    assert set(run.model.heads) == {"segmentation"}
