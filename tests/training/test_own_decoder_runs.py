"""Runs of heads with a decoder of their own, from the command line."""

import pytest
from tiny import call

import dpt

OWN = "model.heads.depth.decoder.readout=add"


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("own") / "run", "task=joint", OWN)


def last(run):
    return dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")


def test_a_run_with_a_head_of_its_own_decoder_is_saved_and_resumed(run):
    model = last(run)
    assert [*model.named_decoders()] == ["decoder", "decoders.depth"]
    assert model.config.heads["depth"].decoder.readout == "add"
    assert model.config.heads["depth"].decoder.fusion_channels == 16
    call("train", f"resume={run} trainer.max_steps=3")
    assert last(run).config == model.config
    assert "resume: from" in (run / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_from_its_weights_keeps_the_heads_decoder(train, run, tmp_path):
    weights = f"model.weights={run}/checkpoints/last.ckpt"
    other = last(train(tmp_path / "run", "task=depth optim.lr=0", weights))
    assert other.decoder is None
    assert other.config.heads["depth"].decoder == last(run).config.heads["depth"].decoder
