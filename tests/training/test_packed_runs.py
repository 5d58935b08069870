"""dpt data pack, and runs on its shards, also resumed."""

import json

import pytest
from tiny import assert_equal, call, checkpoint_of, step_of

STEADY = (
    "schedule=constant callbacks.checkpoint.every_n_train_steps=1 data.batch_size=1",
    "task=joint data.window=2",
)


@pytest.fixture(scope="module")
def packed(dense_data, tmp_path_factory):
    """``dense_folder`` in shards of about two samples."""
    folder = tmp_path_factory.mktemp("packed")
    options = f"out={folder} shard_mb=0.02 data.num_workers=0 run_dir={folder}/run"
    call("data", "pack", *dense_data, options)
    assert len(json.loads((folder / "train.json").read_text())["shards"]) >= 2
    return folder


def data(root):
    return "data=packed", f"data.root={root}"


def assert_same(run, other):
    assert_equal(*(checkpoint_of(folder)["state_dict"] for folder in (run, other)))


@pytest.fixture(scope="module")
def whole(train, packed, tmp_path_factory):
    """An uninterrupted run of eight steps; an epoch has six."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder / "run", *data(packed), *STEADY, "trainer.max_steps=8")


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(train, whole, packed, tmp_path, scores):
    run = tmp_path / "run"
    for steps in (4, 8):  # the first stop is inside the first epoch
        options = f"resume=auto trainer.max_steps={steps} data.num_workers=1"
        train(run, *data(packed), *STEADY, options)
        assert step_of(run / "checkpoints/last.ckpt") == steps
    assert_same(run, whole)
    assert scores(run) == scores(whole)


def test_packed_data_scores_as_the_original_files(
    evaluate, whole, dense_data, packed, tmp_path, metrics
):
    checkpoint = whole / "checkpoints/last.ckpt"
    files = evaluate(tmp_path / "a", checkpoint, *dense_data)
    shards = evaluate(tmp_path / "b", checkpoint, *data(packed))
    assert metrics(shards) == metrics(files)
