"""Heads that were trained alone on one frozen encoder are joined by ``dpt merge``."""

import weakref

import pytest
import torch
from tiny import call, small_model

import dpt

FROZEN = "callbacks.freeze.parts=[encoder]"  # whose first weights are those of the seed
IMAGES = torch.randn(1, 3, 32, 48, generator=torch.Generator().manual_seed(0))


def test_heads_of_two_runs_are_joined_and_scored_together(
    train, evaluate, scores, metrics, tmp_path
):
    average = "callbacks=ema"  # a frozen encoder's is exact
    runs = [
        train(tmp_path / "depth", "task=depth", FROZEN),
        train(
            tmp_path / "segmentation", "task=segmentation", average, FROZEN, "trainer.max_steps=12"
        ),
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


class Kept:
    """A tensor that the backward pass needs."""

    def __init__(self, tensor):
        self.tensor = tensor


def activations_kept(model):
    """The number of tensors that the encoder's forward pass keeps for the backward pass."""
    kept = weakref.WeakSet()

    def pack(tensor):
        holder = Kept(tensor)
        kept.add(holder)
        return holder

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.tensor):
        tokens = model.encoder(IMAGES)
    return len(kept) * len(tokens.levels)


def test_a_frozen_encoder_keeps_no_activations():
    model = small_model().train()
    assert activations_kept(model) > 0
    model.encoder.requires_grad_(False)
    assert activations_kept(model) == 0
