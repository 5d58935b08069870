"""Going on from another model: all is kept but final layers of another size or meaning."""

import pytest
import torch
from tiny import assert_equal, small_model

from dpt.weights import load_model_weights
from dpt.weights.base import Checkpoint, StoredModel

FINAL = {
    f"heads.segmentation.{layers}.4.{kind}"
    for layers in ("layers", "auxiliary_layers")
    for kind in ("weight", "bias")
}


def model_of(seed, size=(64, 64), heads=None, **overrides):
    torch.manual_seed(seed)
    heads = heads or {"segmentation": {"num_classes": 11}}
    return small_model(heads=heads, image_size=list(size), **overrides)


def transfer(target, source):
    checkpoint = Checkpoint(StoredModel(source.config.to_dict(), source.state_dict()))
    return load_model_weights(target, target.config, checkpoint, source="old.ckpt")


def kept(target, source, before):
    """Names of tensors that are now the source's; every other one is what it was."""
    state, old = target.state_dict(), source.state_dict()
    same = {k for k in state if k in old and torch.equal(state[k], old[k])}
    assert all(torch.equal(state[k], before[k]) for k in state.keys() - same)
    return same


def copy(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def test_other_classes_keep_all_but_the_final_layers():
    source, target = model_of(0), model_of(1, heads={"segmentation": {"num_classes": 5}})
    before = copy(target)
    report = transfer(target, source)
    assert kept(target, source, before) == before.keys() - FINAL
    assert report.kept == ["decoder", "heads.segmentation", "heads.segmentation.auxiliary_layers"]
    assert "heads.segmentation.layers.4 (11 to 5)" in report.outputs
    text = str(report)
    assert text.startswith("old.ckpt: ")
    assert "of another size or meaning: heads.segmentation.auxiliary_layers.4" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ({}, {"kind": "metric", "max_depth": 9.0}, "kind: relative to metric, activation: relu to"),
        (
            {"kind": "metric", "activation": "inverse", "scale": 3e-4, "shift": 0.1},
            {"kind": "metric", "max_depth": 9.0},
            "activation: inverse to sigmoid",
        ),
        ({"kind": "metric", "max_depth": 80.0}, {"kind": "metric", "max_depth": 9.0}, ""),
    ],
)
def test_a_final_layer_whose_output_means_something_else_stays_random(old, new, says):
    source, target = model_of(0, heads={"depth": old}), model_of(1, heads={"depth": new})
    before = copy(target)
    report = transfer(target, source)
    final = {"heads.depth.conv3.weight", "heads.depth.conv3.bias"} if says else set()
    assert kept(target, source, before) == before.keys() - final
    assert says in str(report)


def test_heads_that_only_one_model_has():
    depth, labels = {"depth": {"kind": "relative"}}, {"segmentation": {"num_classes": 4}}
    source = model_of(0, heads={**depth, "classification": {"num_classes": 2}}, batch_norm=False)
    target = model_of(1, heads={**depth, **labels}, batch_norm=False)
    before = copy(target)
    report = transfer(target, source)
    added = {k for k in before if k.startswith("heads.segmentation.")}
    assert kept(target, source, before) == before.keys() - added
    assert report.missing == ["heads.segmentation", "heads.segmentation.auxiliary_layers"]
    assert report.unused == ["heads.classification"]
    assert "not used: heads.classification" in str(report)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fusion_channels": 16}, r"layer_rn\.0\.weight is \(8, 8, 3, 3\), not \(16, 8, 3, 3\)"),
        ({"batch_norm": False}, r"missing decoder\.fusion\.0\.rcu1\.conv1\.bias"),
        ({"embed_dim": 48, "num_heads": 3}, r"decoder\.reassemble\.0\.read"),
    ],
)
def test_another_architecture_is_refused_and_nothing_is_loaded(change, says):
    target = model_of(1, **change)
    before = copy(target)
    with pytest.raises(ValueError, match=rf"^old\.ckpt: another architecture.*{says}"):
        transfer(target, model_of(0))
    assert_equal(target.state_dict(), before)


def dense_model(seed, *own, **settings):
    """A model of two dense heads, of which ``own`` have a decoder of their own."""
    heads = {"depth": {}, "segmentation": {"num_classes": 5}}
    return model_of(
        seed,
        heads={k: v | ({"decoder": {}} if k in own else {}) for k, v in heads.items()},
        **settings,
    )


def decoder_tensors(model, name):
    return model.named_decoders()[name].state_dict()


@pytest.mark.parametrize(
    ("old", "new", "moves"),
    [
        ((), ("depth",), {"decoder": "decoder", "decoders.depth": "decoder"}),
        (("depth",), (), {"decoder": "decoder"}),
        (("depth", "segmentation"), (), {"decoder": "decoders.depth"}),
        (("depth",), ("depth",), {"decoder": "decoder", "decoders.depth": "decoders.depth"}),
    ],
    ids=["gets_its_own", "shares_an_existing_one", "shares_its_own", "keeps_its_own"],
)
def test_a_head_takes_its_decoder_along(old, new, moves):
    norms = {"batch_norm": True}
    source, target = dense_model(0, *old, **norms), dense_model(1, *new, **norms)
    report = transfer(target, source)
    assert [*target.named_decoders()] == [*moves]
    for name, origin in moves.items():
        assert_equal(decoder_tensors(target, name), decoder_tensors(source, origin))
        note = "" if name == origin else f" (from {origin})"
        assert f"{name}{note}" in report.kept
    unused = source.named_decoders().keys() - moves.values()
    assert report.unused == sorted(unused)
    assert report.missing == []
