"""Runs with callbacks.lora: what is trained, saved and resumed."""

import pytest
import torch
from test_resume import assert_same, resume_it, state_of
from tiny import assert_equal, checkpoint_of

import dpt

LORA = "callbacks.lora.rank=4"
STEM = ("model=dpt_stem", "model.decoder.reassemble_channels=[8,8,8,8,16,16]")
RUN = ("task=joint", "schedule=constant", "optim.lr=1e-2", *STEM)
BLOCKS = {f"encoder.blocks.{i}" for i in range(4)}
LAYERS = {
    f"{b}.{n}.weight" for b in BLOCKS for n in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
}


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("lora") / "run", *RUN, LORA)


def test_a_checkpoint_holds_a_plain_model_with_adapted_linear_layers(train, run, tmp_path):
    """The encoder of dpt_stem has BatchNorm, whose statistics stay too."""
    start = train(tmp_path / "start", *RUN, "callbacks.freeze.parts=[encoder]", "optim.lr=0")
    before, after = (checkpoint_of(r)["state_dict"] for r in (start, run))
    assert before.keys() == after.keys()
    encoder = {k.removeprefix("model.") for k in before if k.startswith("model.encoder.")}
    changed = {k for k in encoder if not torch.equal(before[f"model.{k}"], after[f"model.{k}"])}
    assert changed == LAYERS
    for name in ("last", "best"):
        model = dpt.DPT.from_pretrained(run / f"checkpoints/{name}.ckpt")
        state = checkpoint_of(run, name)["state_dict"]
        assert_equal({f"model.{k}": v for k, v in model.state_dict().items()}, state)
    groups = checkpoint_of(run)["optimizer_states"][0]["param_groups"]
    counts = {g["name"]: len(g["params"]) for g in groups if g["name"].startswith("encoder")}
    assert counts == {"encoder_no_decay": 2 * len(LAYERS)}
    assert "LoRA: updates of rank 4 to 16 linear layers" in (run / "log.txt").read_text()


def test_what_is_validated_is_what_was_saved(run, evaluate, scores, metrics, tmp_path):
    again = scores(evaluate(tmp_path / "again", run / "checkpoints/last.ckpt", "data.batch_size=4"))
    trained = {k: v for k, v in metrics(run).items() if k in again and k.startswith("val/")}
    assert "val/rmse" in trained
    assert {k: again[k] for k in trained} == pytest.approx(trained, rel=1e-6, nan_ok=True)


def test_a_resumed_run_equals_one_that_was_not_interrupted(train, tmp_path):
    settings = (*RUN, LORA, "callbacks=ema")
    whole = train(tmp_path / "whole", *settings, "trainer.max_steps=4")
    cut = train(tmp_path / "cut", *settings)
    resume_it(f"resume={cut}", "trainer.max_steps=4")
    found, expected = state_of(cut), state_of(whole)
    for key in ("state_dict", "optimizer_states", "current_model_state", "averaging_state"):
        assert_same(found[key], expected[key])
    assert_same(checkpoint_of(cut)["lora"], checkpoint_of(whole)["lora"])


def test_a_run_cannot_be_resumed_without_its_updates(run, refused):
    message = refused(resume_it, f"resume={run} callbacks.lora.rank=null trainer.max_steps=4")
    assert "callbacks" in message
