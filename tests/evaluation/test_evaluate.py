"""dpt evaluate of a checkpoint: what is read and what is written."""

import re
import shutil

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tiny import ON_CPU, call

import dpt


def assert_contains(scores, expected):
    """An evaluation gives every score of the validation, and more."""
    common = {key: value for key, value in scores.items() if key in expected}
    assert common == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)


def test_scores_and_pictures_are_written(joint_scores, scores, joint_run):
    assert_contains(scores(joint_scores), scores(joint_run))
    assert len(list((joint_scores / "panels").glob("*.png"))) == 5
    assert "5 images" in (joint_scores / "log.txt").read_text()
    assert not (joint_scores / "checkpoints").exists()


def test_image_size_is_the_checkpoints_unless_it_is_given(
    evaluate, checkpoint, scores, joint_run, larger_scores, tmp_path
):
    """And a saved folder is as good as a run."""
    saved = tmp_path / "saved"
    dpt.DPT.from_pretrained(checkpoint).save_pretrained(saved)
    # data.image_size is about training crops: it must not change what the model sees
    same = evaluate(tmp_path / "same", saved, "data.size=[32,48]", "data.image_size=[64,96]")
    assert_contains(scores(same), scores(joint_run))
    assert scores(larger_scores)["val/abs_rel"] != scores(joint_run)["val/abs_rel"]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_runtimes_give_the_scores_of_torch(
    evaluate, checkpoint, scores, metrics, joint_run, tmp_path, runtime, monkeypatch
):
    pytest.importorskip({"onnx": "onnxruntime"}.get(runtime, runtime))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = evaluate(tmp_path / "run", checkpoint, f"runtime={runtime}", "protocol=slide")
    plain = evaluate(tmp_path / "plain", checkpoint, "protocol=slide")
    assert scores(folder) == pytest.approx(scores(plain), rel=1e-3, abs=1e-4, nan_ok=True)
    assert metrics(folder)["runtime"] == runtime


def test_mixed_precision_is_scored_with_bf16_weights(
    evaluate, checkpoint, scores, metrics, joint_run, tmp_path, monkeypatch
):
    monkeypatch.setattr("dpt.functional.has_bf16", lambda _: True)  # or it is emulated
    folder = evaluate(tmp_path, checkpoint, "trainer.precision=bf16-mixed")
    assert metrics(folder)["precision"] == "bf16"
    actual, expected = (scores(run)["val/abs_rel"] for run in (folder, joint_run))
    assert actual == pytest.approx(expected, rel=0.02)
    assert actual != expected


def test_run_is_evaluated_on_its_own_data(train, dense_data, scores, tmp_path):
    run = train(tmp_path / "run", "task=segmentation", *dense_data, "trainer.max_steps=1")
    root = OmegaConf.load(run / "config.yaml").data.root
    moved = str(shutil.copytree(root, tmp_path / "moved"))
    checkpoint = f"checkpoint={run}/checkpoints/last.ckpt"
    for source, location, keys in ((run, root, ()), (checkpoint, moved, (f"data.root={moved}",))):
        folder = tmp_path / f"scores{len(keys)}"
        keys = ("data.batch_size=1", *keys)  # these change the run's
        call("evaluate", source, f"run_dir={folder}", *ON_CPU, *keys)
        assert_contains(scores(folder), scores(run))
        data = OmegaConf.load(folder / "config.yaml").data
        assert (data.root, data.batch_size) == (location, 1)


def test_baselines_stand_beside_the_scores(joint_scores, metrics):
    values = metrics(joint_scores)
    for kind in ("constant", "per_position", "nearest_photo"):
        assert 0 <= values[f"{kind}/val/miou"] <= 1
        assert values[f"{kind}/val/abs_rel"] > 0
    assert "constant" in (joint_scores / "log.txt").read_text()
    page = (joint_scores / "report.html").read_text()
    assert '<th class="number">nearest photo</th>' in page
    assert "<td>protocol/min_depth</td><td>0.001</td>" in page  # exact, in line with the others


def test_heads_without_labels_and_baselines_without_a_train_split_are_left_out(
    evaluate, checkpoint, dense_folder, only_depth, metrics, tmp_path
):
    for name in ("images", "depth"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "val").symlink_to(dense_folder / name / "val")
    run = evaluate(tmp_path / "run", checkpoint, *only_depth(tmp_path / "data"))
    assert "val/abs_rel" in metrics(run)
    assert not {"val/miou", "constant/val/abs_rel"} & set(metrics(run))
    assert "no baselines" in (run / "log.txt").read_text()


def test_predictions_that_are_not_finite_are_counted_and_named(
    evaluate, checkpoint, metrics, tmp_path, refused
):
    """As the smallest depth they would score an abs_rel of 0.9997."""
    content = torch.load(checkpoint, weights_only=True)
    name = next(k for k in content["state_dict"] if ".heads.depth." in k)
    content["state_dict"][name].fill_(3e38)  # whose sums are infinite
    torch.save(content, tmp_path / "large.ckpt")
    message = refused(evaluate, tmp_path / "run", tmp_path / "large.ckpt")
    assert re.search(r"not finite.*: 5, such as \S+", message)
    assert metrics(tmp_path / "run")["nonfinite_predictions"] == 5


def test_broken_files_count_nowhere(
    evaluate, checkpoint, dense_folder, only_depth, images_table, metrics, refused, tmp_path
):
    broken = tmp_path / "data"
    shutil.copytree(dense_folder, broken)
    (broken / "images/val/2.png").write_bytes(b"no picture")
    data = (*only_depth(broken), "data.on_error=skip")
    run = evaluate(tmp_path / "run", checkpoint, *data)
    assert "images/val/2.png" in (run / "log.txt").read_text()
    rows = images_table(run)
    assert len(rows) == metrics(run)["images"] > 0
    assert not any("2.png" in row["name"] or row["abs_rel"] == "" for row in rows)
    assert "no baselines" not in (run / "log.txt").read_text()
    mean = np.mean([float(row["abs_rel"]) for row in rows])
    assert metrics(run)["val/abs_rel"] == pytest.approx(mean, rel=1e-6)
    for image in (broken / "images/val").iterdir():
        image.write_bytes(b"no picture")
    assert "no image was scored" in refused(evaluate, tmp_path / "none", checkpoint, *data)
