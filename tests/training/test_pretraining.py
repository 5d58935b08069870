"""task=inpainting: a run on photos alone."""

import pytest


@pytest.fixture(scope="module")
def photos(dense_folder):
    """Overrides of a folder of photos, without a word of labels."""
    return ("data=folder", f"data.root={dense_folder}")


@pytest.fixture(scope="module")
def inpainting_run(train, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inpainting") / "run"
    return train(folder, "task=inpainting", *photos)


def test_a_run_on_photos_alone(inpainting_run, metrics):
    found = metrics(inpainting_run)
    assert {"val/rmse", "val/mae", "val/r2"} <= set(found)
    assert list((inpainting_run / "panels").glob("*.png"))


def test_it_is_scored_in_training_alone(inpainting_run, evaluate, photos, tmp_path, refused):
    error = refused(evaluate, tmp_path, inpainting_run / "checkpoints/last.ckpt", *photos)
    assert "nothing to score: the checkpoint predicts inpainting" in error
    assert "inpainting is scored in training alone" in error
