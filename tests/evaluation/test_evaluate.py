"""Scores of a checkpoint."""

import json

import pytest

import dpt


@pytest.fixture(scope="module")
def checkpoint(joint_run):
    return joint_run / "checkpoints/last.ckpt"


def close(found, expected):
    """An evaluation gives every score of the validation, and more."""
    return found.keys() >= expected.keys() and all(
        found[key] == value or found[key] == pytest.approx(value, rel=1e-6, abs=1e-6)
        for key, value in expected.items()
    )


def test_scores_and_pictures_are_written(evaluate, checkpoint, scores, joint_run, tmp_path):
    run = evaluate(tmp_path, checkpoint)
    assert close(scores(run), scores(joint_run))
    assert len(list((run / "panels").glob("*.png"))) == 5
    assert "5 images" in (run / "log.txt").read_text()
    assert not (run / "checkpoints").exists()
    assert json.loads((run / "metrics.json").read_text()).keys() >= scores(run).keys()


def test_a_saved_folder_is_as_good_as_a_run(evaluate, checkpoint, scores, joint_run, tmp_path):
    dpt.DPT.from_pretrained(checkpoint).save_pretrained(tmp_path / "saved")
    run = evaluate(tmp_path / "run", tmp_path / "saved")
    assert close(scores(run), scores(joint_run))


@pytest.mark.slow
def test_batches_and_workers_do_not_matter(evaluate, checkpoint, scores, joint_run, tmp_path):
    run = evaluate(tmp_path, checkpoint, "data.batch_size=2", "data.num_workers=1")
    for key, value in scores(joint_run).items():
        if isinstance(value, float):
            assert scores(run)[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_the_image_size_is_the_checkpoints_unless_it_is_given(
    evaluate, checkpoint, scores, joint_run, tmp_path
):
    # data.image_size is about training crops: it must not change what the model sees
    same = evaluate(tmp_path / "same", checkpoint, "data.size=[32,48]", "data.image_size=[64,96]")
    assert close(scores(same), scores(joint_run))
    larger = evaluate(tmp_path / "larger", checkpoint, "image_size=[64,96]")
    assert scores(larger)["val/abs_rel"] != scores(joint_run)["val/abs_rel"]


@pytest.mark.slow
def test_another_split(evaluate, checkpoint, scores, joint_run, tmp_path):
    run = evaluate(tmp_path, checkpoint, "split=train")
    assert scores(run)["val/abs_rel"] != scores(joint_run)["val/abs_rel"]
    assert "8 images" in (run / "log.txt").read_text()


def test_heads_without_labels_are_left_out(evaluate, checkpoint, metrics, dense_folder, tmp_path):
    run = evaluate(tmp_path, checkpoint, "data=folder", f"data.root={dense_folder}",
                   "data.depth=depth", "data.max_depth=10", "data.missing=skip")  # fmt: skip
    assert "val/abs_rel" in metrics(run)
    assert "val/miou" not in metrics(run)
