"""Heads that were trained alone on one frozen encoder are joined by ``dpt merge``."""

import pytest
import torch
from tiny import call

import dpt

FROZEN = "callbacks.freeze.parts=[encoder]"  # whose first weights are those of the seed
IMAGES = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))


def test_heads_of_two_runs_are_joined_and_scored_together(
    train, evaluate, scores, metrics, tmp_path
):
    average = "callbacks=ema"  # a frozen encoder's is exact
    runs = [
        train(tmp_path / "depth", "task=depth", FROZEN),
        train(tmp_path / "segmentation", "task=segmentation", average, FROZEN),
    ]
    joined = tmp_path / "joined"
    call("merge", *map(str, runs), f"--out={joined}")
    model = dpt.DPT.from_pretrained(joined)
    with torch.no_grad():
        found = model(IMAGES)
        for run in runs:
            ((name, expected),) = dpt.DPT.from_pretrained(run)(IMAGES).items()
            assert torch.equal(found[name], expected)
    together = scores(evaluate(tmp_path / "scores", joined, "data.batch_size=4"))
    for run, name in zip(runs, ("val/rmse", "val/miou"), strict=True):
        assert together[name] == pytest.approx(metrics(run)[name], rel=1e-6)
