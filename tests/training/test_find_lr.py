"""The sweep of the learning rate."""

import json
import math
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from tiny import ON_CPU, TINY_DATA, TINY_VIT, call, slow_after

from dpt.training.short_runs import Recorder, suggested_rate

TINY = (*TINY_VIT, *TINY_DATA, *ON_CPU, "data=scenes", "data.train.length=8", "task=depth")


def sweep(folder, *overrides):
    call("find-lr", *TINY, f"run_dir={folder}", *overrides)
    return json.loads((folder / "lr.json").read_text())


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lr") / "run"
    return folder, sweep(folder, "optim.encoder_lr=1e-4", "find.steps=30", "find.lr_min=1e-5")


def test_a_sweep_writes_what_it_found(swept):
    folder, found = swept
    assert found["optim.lr"] in found["rates"]
    assert found["optim.encoder_lr"] == pytest.approx(found["optim.lr"] / 10)  # as 1e-4 of 1e-3
    assert found["rates"][0] == pytest.approx(1e-5)
    assert len(found["rates"]) == len(found["losses"]) <= 30
    ratios = np.diff(np.log(found["rates"]))
    assert ratios == pytest.approx(np.full(len(ratios), math.log(1e5) / 29))
    picture = cv2.imread(str(folder / "lr.png"))
    assert picture.shape == (400, 640, 3)
    assert (
        "fallen by 90 % of its total decrease at this rate: optim.lr="
        in (folder / "log.txt").read_text()
    )
    assert not (folder / "checkpoints").exists()


@pytest.mark.slow
def test_accumulated_batches_are_one_step(tmp_path):
    settings = "find.steps=12 find.lr_min=1e-5 find.lr_max=1e-3"
    settings += " task.sky=sigmoid task.sky_from=labels"  # a second label
    found = sweep(tmp_path, "trainer.accumulate_grad_batches=2", settings)
    assert len(found["losses"]) == 12
    assert max(found["losses"]) < 3 * min(found["losses"])  # of whole size, not halves


@pytest.mark.parametrize(
    ("losses", "steps"),
    [
        ([*np.linspace(4, 1, 20), *np.linspace(1, 9, 20)], 30),  # the mean of five exceeds 3
        ([*np.linspace(1, -2, 20), *[-2.0] * 20], 40),  # as of a predicted variance
        ([*np.linspace(1, -2, 20), *np.linspace(-2, 20, 20)], 28),
        ([-2.0, -2.1] * 20, 40),
        ([1.0, math.inf, 1.0], 2),
    ],
)
def test_a_sweep_ends_when_the_loss_diverges(losses, steps):
    recorder, trainer = Recorder(), SimpleNamespace(should_stop=False)
    for loss in losses:
        if not trainer.should_stop:
            trainer.callback_metrics = {"train/loss": torch.tensor(loss)}
            recorder.on_step(trainer, None)
    assert len(recorder.losses) == steps


RATES = np.geomspace(1e-6, 1, 100)


@pytest.mark.parametrize("seed", range(2))
def test_the_suggestion_is_where_a_flat_basin_begins(seed):
    """As on scenes and CamVid: the loss falls to 1e-3, and its lowest is anywhere up to 1e-1."""
    noise = np.random.default_rng(seed).normal(0, 0.05, 100)
    slope = np.clip(-3 - np.log10(RATES), 0, None) / 3 + np.clip(np.log10(RATES) + 1, 0, None)
    rate, _ = suggested_rate(RATES, 2 + slope + noise)
    assert 2e-4 < rate < 2e-3


def test_a_loss_that_still_falls_at_the_end(caplog):
    suggested_rate(RATES, -np.arange(100.0))
    assert "still falls at find.lr_max=1.0e+00: set a larger one" in caplog.text


def test_a_loss_that_only_rises():
    with pytest.raises(ValueError, match=r"does not fall from find\.lr_min=1\.0e-06 on"):
        suggested_rate(RATES, np.arange(100.0))
    with pytest.raises(ValueError, match="does not fall"):
        suggested_rate(RATES, np.array([math.nan]))


WRONG = [
    ("find=null", "find=None"),
    ("find.steps=3", "find.steps=3: must be greater"),
    ("find.lr_min=2", "lr_min"),
    ("optim.lr=0", "optim.lr=0"),
    ("trainer.devices=2", "find-lr"),
]


@pytest.mark.parametrize(("override", "says"), slow_after(2, WRONG))
def test_wrong_settings(tmp_path, refused, override, says):
    assert says in refused(sweep, tmp_path, override)
