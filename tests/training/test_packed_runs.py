"""dpt data pack, and runs on its shards: in a folder, from a server, resumed."""

import json

import pytest
from servers import served
from tiny import assert_equal, call, checkpoint_of

from dpt.training import resume

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


def data(root, cache):
    return "data=packed", f"data.root={root}", f"data.cache_dir={cache}"


def assert_same(run, other):
    assert_equal(*(checkpoint_of(folder)["state_dict"] for folder in (run, other)))


@pytest.fixture(scope="module")
def whole(train, packed, tmp_path_factory):
    """An uninterrupted run of eight steps; an epoch has six."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder / "run", *data(packed, folder / "cache"), *STEADY, "trainer.max_steps=8")


@pytest.fixture
def url(packed):
    with served(packed) as address:
        yield address


@pytest.mark.slow
def test_a_resumed_run_from_a_server_equals_an_uninterrupted_one_from_a_folder(
    train, whole, url, tmp_path, scores
):
    there, run = data(url, tmp_path / "cache"), tmp_path / "run"
    for steps in (4, 8):  # the first stop is inside the first epoch
        train(run, *there, *STEADY, f"resume=auto trainer.max_steps={steps} data.num_workers=1")
        assert resume.step_of(run / "checkpoints/last.ckpt") == steps
    assert_same(run, whole)
    assert scores(run) == scores(whole)


def test_packed_data_scores_as_the_original_files(
    evaluate, whole, dense_data, packed, tmp_path, metrics
):
    checkpoint = whole / "checkpoints/last.ckpt"
    files = evaluate(tmp_path / "a", checkpoint, *dense_data)
    shards = evaluate(tmp_path / "b", checkpoint, *data(packed, tmp_path / "cache"))
    assert metrics(shards) == metrics(files)
