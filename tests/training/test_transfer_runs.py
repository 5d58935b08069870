"""Runs that go on from another model's weights: model.weights."""

import re

import pytest
import torch
from tiny import ON_CPU, TINY_DATA, call

import dpt


@pytest.fixture(scope="module")
def source(train, tmp_path_factory):
    """Ten classes, and sizes that no configuration names."""
    folder = tmp_path_factory.mktemp("source")
    other = "model.decoder.fusion_channels=24 model.preprocessing.mean=[0.4,0.4,0.4]"
    return train(folder / "run", "task=segmentation", other)


def last(run):
    return dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")


def train_from(folder, *overrides):
    """A tiny run that leaves the sizes of the model to ``model.weights``."""
    options = f"logger=none trainer.max_steps=2 run_dir={folder}"
    call("train", *TINY_DATA, *ON_CPU, options, *overrides)
    return folder


def test_a_run_on_data_of_fewer_classes(source, dense_data, metrics, tmp_path):
    only_labels = [d for d in dense_data if not d.startswith("data.depth")]
    weights = f"model.weights={source / 'checkpoints/last.ckpt'}"
    same = "task=segmentation optim.lr=0 data.missing=skip"
    run = train_from(tmp_path / "run", same, weights, *only_labels)
    old, new = last(source), last(run)
    assert new.outputs["segmentation"].channels == 3
    assert new.config.to_dict()["decoder"] == old.config.to_dict()["decoder"]
    assert new.preprocessing.mean == (0.4, 0.4, 0.4)
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    wanted, found = old.state_dict(), new.state_dict()
    assert wanted.keys() == found.keys()
    other = {
        k
        for k, v in wanted.items()
        if not k.endswith(statistics)
        and (v.shape != found[k].shape or not torch.equal(v, found[k]))
    }
    assert {n.rpartition(".")[0] for n in other} == {
        "heads.segmentation.layers.4",
        "heads.segmentation.auxiliary_layers.4",
    }
    assert "val/miou" in metrics(run)
    log = (run / "log.txt").read_text()
    assert "(4 train, 3 val images)" in log  # those with masks
    assert re.search(r"weights of a dpt_tiny: .*last\.ckpt: \d+ encoder tensors loaded", log)
    assert (
        "initialised randomly, of another size or meaning: "
        "heads.segmentation.auxiliary_layers.4 (10 to 3)" in log
    )
