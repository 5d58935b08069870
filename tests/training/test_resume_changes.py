"""Runs that ended, changed or lost something before they go on."""

import shutil
from copy import deepcopy

import pytest
import yaml
from test_resume import assert_same, csv_rows, resume_it, state_of
from tiny import checkpoint_of, small_model, step_of, words_of

from dpt.evaluation.callbacks import FailedFiles

SLOW = pytest.mark.slow
RUN = ("task=regression", "trainer.max_steps=4", "trainer.val_check_interval=3")


@pytest.mark.slow
def test_a_finished_run_that_lost_its_metrics_finds_them_again(train, metrics, tmp_path):
    """As if it had been killed in its last validation; a step was skipped before."""
    run = train(tmp_path, *RUN)
    state, expected = state_of(run), metrics(run)
    (run / "metrics.json").unlink()
    resume_it(f"resume={run}")
    assert metrics(run) == expected
    assert_same(state_of(run), state)


@pytest.mark.slow
def test_resume_uses_best_if_last_is_damaged(train, tmp_path):
    """It was written inside of a validation, which no later one excels at a rate of 0."""
    same = ("schedule=constant", "optim.lr=0", "model.encoder.drop_path=0.1")
    whole = train(tmp_path / "whole", *RUN, *same, "trainer.max_steps=6")
    run = train(tmp_path / "run", *RUN, *same)
    (run / "checkpoints/last.ckpt").unlink()
    assert step_of(run / "checkpoints/best.ckpt") == 3
    resume_it(f"resume={run}", "trainer.max_steps=6")
    assert_same(state_of(run), state_of(whole))


OWN = """import torch
from torch.optim import Optimizer
from dpt.plugins import register

@register("adafactor")
def adafactor(model: torch.nn.Module, *, lr: float) -> Optimizer:
    return torch.optim.Adafactor(model.parameters(), lr=lr)
"""


def test_a_users_optimiser_and_a_schedule_of_torch_go_on(train, tmp_path, monkeypatch):
    """The one has groups without names, and moments of other shapes; the other no length."""
    (tmp_path / "own_optimiser.py").write_text(OWN)
    monkeypatch.setenv("DPT_PLUGINS", str(tmp_path / "own_optimiser.py"))
    for group, text in (("optim", "adafactor\nlr: 0.01"), ("schedule", "StepLR\nstep_size: 2")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"kind: {text}\n")
    same = (f"--config-dir={tmp_path}", "task=regression", "optim=mine", "schedule=mine")
    whole = train(tmp_path / "whole", *same, "trainer.max_steps=3")
    run = train(tmp_path / "run", *same)
    resume_it(same[0], f"resume={run}", "trainer.max_steps=3")
    assert_same(state_of(run)["optimizer_states"], state_of(whole)["optimizer_states"])


def test_resume_sets_keys_of_the_runs_own_groups(train, tmp_path):
    """The default groups have neither an average nor a loss of this kind."""
    groups = ("task=segmentation", "callbacks=ema")
    loss = "task.segmentation_loss.label_smoothing"
    run = train(tmp_path, *groups, "++optim.fused=false", f"{loss}=0.1")
    before = yaml.safe_load((run / "config.yaml").read_text())
    changes = (f"trainer.max_steps=3 {loss}=0.0 callbacks.ema.decay=0.5", "optim.fused=true")
    resume_it(f"resume={run}", *changes)
    after = yaml.safe_load((run / "config.yaml").read_text())
    expected = deepcopy(before)
    expected["trainer"]["max_steps"] = 3
    expected["task"]["segmentation_loss"]["label_smoothing"] = 0.0
    expected["task"]["objectives"]["segmentation"]["loss"]["label_smoothing"] = 0.0
    expected["callbacks"]["ema"]["decay"] = 0.5
    expected["optim"]["fused"] = True
    expected["overrides"] = [*before["overrides"], *words_of(*changes)]
    assert {**after, "resume": None} == expected
    resume_it("resume=auto", f"run_dir={run}/", *groups, "trainer.max_steps=4")
    assert yaml.safe_load((run / "config.yaml").read_text())["callbacks"]["ema"]["decay"] == 0.5


def test_resume_accepts_the_command_that_started_the_run(train, tmp_path):
    command = (
        "task=segmentation data.image_size=[32,48]",
        "~callbacks.throughput",
        f"callbacks.panels=null run_dir={tmp_path}",
    )
    run = train(tmp_path, *command)
    before = yaml.safe_load((run / "config.yaml").read_text())
    resume_it("resume=auto", *command)
    assert {**yaml.safe_load((run / "config.yaml").read_text()), "resume": None} == before


def test_resume_finds_data_that_was_moved(train, tmp_path, image_folder):
    places = tmp_path / "before", tmp_path / "after"
    shutil.copytree(image_folder, places[0] / "imagenet")
    data = ("task=classification", "data=imagenet", f"paths.data_dir={places[0]}")
    run = train(tmp_path / "run", *data)
    places[0].rename(places[1])
    resume_it(f"resume={run}", f"paths.data_dir={places[1]}", "trainer.max_steps=3")
    assert step_of(run / "checkpoints/last.ckpt") == 3


# ------------------------------------------------------------------------------ other rates


def rates(folder):
    rows = [row["lr-AdamW/decoder"] for row in csv_rows(folder)]
    return [float(value) for value in rows if value]


@pytest.mark.parametrize("schedule", ["poly", pytest.param("cosine", marks=SLOW)])
def test_what_is_configured_anew_counts_and_is_said(train, tmp_path, schedule):
    """Twice as long, at another rate: the second half is that of such a run from the start."""
    common = (
        f"task=regression schedule={schedule} logger=csv optim.weight_decay=0.1",
        "trainer.log_every_n_steps=1 trainer.val_check_interval=100",
    )
    new = ("trainer.max_steps=6", "optim.lr=0.002", "optim.weight_decay=0.3")
    whole = train(tmp_path / "whole", *common, *new)
    run = train(tmp_path / "run", *common, "trainer.max_steps=3", "optim.lr=0.001")
    before = rates(run)
    resume_it(f"resume={run}", *new)
    assert rates(run) == [*before, *rates(whole)[3:]]
    found, expected = (state_of(folder)["optimizer_states"][0] for folder in (run, whole))
    assert found["param_groups"] == expected["param_groups"]
    assert all(float(s["step"]) == 6 for s in found["state"].values())
    text = (run / "log.txt").read_text()
    assert "changes trainer.max_steps: 3 -> 6" in text
    assert "changes optim.lr: 0.001 -> 0.002" in text
    assert "last.ckpt, step 3" in text
    assert "embed_dim: 48" in (run / "config.yaml").read_text()  # of the first start


@pytest.mark.slow
def test_a_data_set_that_grew_is_remarked(train, tmp_path):
    """The values that the head predicts keep their mean and their unit."""
    run = train(tmp_path, *RUN)
    before = yaml.safe_load((run / "config.yaml").read_text())["model"]["heads"]
    resume_it(f"resume={run}", "data.train.length=30", "trainer.max_steps=6")
    assert "had 8 training samples and now has 30" in (run / "log.txt").read_text()
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["heads"] == before


# ------------------------------------------------------------------------------ accumulation


@pytest.mark.slow
@pytest.mark.parametrize("batch", [3, 4])
def test_a_stop_waits_for_accumulated_gradients(train, tmp_path, monkeypatch, batch):
    """Lightning's timer wishes so after any batch; of three a step, those before would be lost."""
    run = (
        "task=regression data.train.length=20 data.batch_size=2 trainer.max_steps=4",
        "trainer.accumulate_grad_batches=3 trainer.val_check_interval=100",
    )
    whole = train(tmp_path / "whole", *run)

    def stop(self, trainer, pl_module, data, batch_idx):
        trainer.should_stop = trainer.should_stop or batch_idx == batch

    with monkeypatch.context() as patch:
        patch.setattr(FailedFiles, "on_train_batch_start", stop)
        cut = train(tmp_path / "cut", *run)
    assert checkpoint_of(cut)["global_step"] == 2
    resume_it(f"resume={cut}")
    states = state_of(cut), state_of(whole)
    for state in states:  # Lightning validates at such a stop
        state["callbacks"].pop("RunCheckpoints")
    assert_same(*states)


def test_a_validation_that_ends_the_run_is_followed_by_its_last_checkpoint(train, tmp_path):
    stopping = (
        "+callbacks.stop.kind=early_stopping +callbacks.stop.monitor=val/mae",
        "+callbacks.stop.divergence_threshold=-1",
    )
    run = train(
        tmp_path,
        "task=regression trainer.max_steps=9 data.train.length=40",
        "trainer.val_check_interval=3",
        *stopping,
    )
    assert checkpoint_of(run)["global_step"] == 3


# ------------------------------------------------------------------------------ first weights


@pytest.mark.slow
@pytest.mark.parametrize("key", ["model.weights", "model.encoder.weights"])
def test_a_resumed_run_does_without_the_weights_it_began_with(train, tmp_path, key):
    """Which are of other sizes than the table's, where they are a whole model's."""
    source = tmp_path / "source"
    sizes = {"embed_dim": 48, "num_heads": 3, "num_register_tokens": 1, "image_size": (32, 48)}
    sizes |= {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}}
    small_model(heads=heads, **sizes).save_pretrained(source)
    first = (f"{key}={source}", "model.encoder.num_register_tokens=1")
    run = ("task=depth", *first, "trainer.max_steps=4", "schedule=constant")
    whole = train(tmp_path / "whole", *run)
    cut = train(tmp_path / "cut", *run, "trainer.max_steps=2")
    assert f"{source}" in (cut / "log.txt").read_text()
    shutil.rmtree(source)
    resume_it(f"resume={cut}", "trainer.max_steps=4", f"{key}=others")
    text = (cut / "log.txt").read_text()
    assert f"{key} has no effect" in text
    found, expected = state_of(cut), state_of(whole)
    assert_same(found["state_dict"], expected["state_dict"])
    assert_same(found["optimizer_states"], expected["optimizer_states"])
