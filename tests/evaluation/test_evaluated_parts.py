"""dpt evaluate in parts: what merging gives, and parts that do not belong together."""

import os
import shutil

import numpy as np
import pytest
from tiny import call

from dpt.metrics.instances import InstanceMetrics

COUNT = 2


@pytest.fixture(scope="module")
def parts(evaluate, checkpoint, tmp_path_factory):
    """The folder of two finished parts."""
    folder = tmp_path_factory.mktemp("parts")
    for number in range(1, COUNT + 1):
        evaluate(folder / str(number), checkpoint, f"shard={number}/{COUNT}")
    return folder


@pytest.fixture
def some_parts(parts, tmp_path):
    """A copy of it."""
    return shutil.copytree(parts, tmp_path / "parts")


def results_of(folder):
    """The content of all files of an evaluation that do not name the folder or the time."""
    names = ("metrics.json", "per_image.csv", "left_out.csv", "confusion.csv")
    files = [folder / name for name in names if (folder / name).exists()]
    files += sorted((folder / "panels").glob("*.png"))
    return {file.name: file.read_bytes() for file in files}


def test_merge_equals_one_evaluation(parts, joint_scores, tmp_path):
    call("evaluate", f"merge={parts}", f"run_dir={tmp_path}/scores")
    assert results_of(tmp_path / "scores") == results_of(joint_scores)
    pages = [folder / "report.html" for folder in (tmp_path / "scores", joint_scores)]
    one, other = (page.read_text().count("data:image/jpeg") for page in pages)
    assert one == other > 5


@pytest.mark.slow
@pytest.mark.parametrize("task", ["instance", "panoptic"])
def test_merge_equals_one_evaluation_of_objects(evaluate, train, tmp_path, task):
    run = train(tmp_path / "run", f"task={task}")
    whole = evaluate(tmp_path / "whole", run, "data.batch_size=1")
    for number in (1, 2, 3):
        evaluate(tmp_path / f"parts/{number}", run, f"shard={number}/3", "data.batch_size=1")
    call("evaluate", f"merge={tmp_path}/parts", f"run_dir={tmp_path}/scores")
    assert results_of(tmp_path / "scores") == results_of(whole)


def test_instance_states_are_packed_and_unpacked():
    metric = InstanceMetrics(class_names=("a", "b"))
    states = [(np.full((2, 4), k), np.arange(5 * k).reshape(k, 5)) for k in (1, 0, 2)]
    unpacked = metric.unpack(metric.pack(states))
    for state, other in zip(states, unpacked, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(state, other, strict=True))


def test_merge_names_missing_parts(some_parts, refused):
    shutil.rmtree(some_parts / "2")
    assert "shard=2/2" in refused(call, "evaluate", f"merge={some_parts}")


def test_merge_names_the_setting_that_differs(some_parts, evaluate, checkpoint, refused):
    shutil.rmtree(some_parts / "2")
    evaluate(some_parts / "2", checkpoint, "shard=2/2", "image_size=[64,96]")
    said = refused(call, "evaluate", f"merge={some_parts}")
    assert "image_size" in said


def test_finished_part_is_scored_again(some_parts, evaluate, checkpoint, refused):
    folder = some_parts / "2"
    assert str(folder) in refused(evaluate, folder, checkpoint, "shard=1/2")  # is another one
    file = some_parts / "2/part.safetensors"
    before = file.read_bytes()
    file.write_bytes(before[:-100])
    evaluate(some_parts / "2", checkpoint, "shard=2/2")
    assert file.read_bytes() == before


@pytest.fixture
def photos(dense_folder, dense_data, tmp_path):
    """A copy of the folder of photos, one with a name that is not UTF-8, and the overrides that
    choose it."""
    root = shutil.copytree(dense_folder, tmp_path / "photos")
    for file in [*root.rglob("val/2.png")]:
        os.rename(file, os.fsencode(file.parent) + b"/2\xe9.png")
    options = [option.replace(str(dense_folder), str(root)) for option in dense_data]
    return root, (*options, "data.batch_size=1")


def test_merge_refuses_other_images_than_the_data_has_now(
    evaluate, folder_run, photos, refused, tmp_path
):
    root, options = photos
    evaluate(tmp_path / "parts/1", folder_run, "shard=1/2", *options)
    for file in [*root.rglob("val/0.png")]:  # the others move up, and there are as many as before
        file.rename(file.with_name("9.png"))
    evaluate(tmp_path / "parts/2", folder_run, "shard=2/2", *options)
    said = refused(call, "evaluate", f"merge={tmp_path}/parts", f"run_dir={tmp_path}/scores")
    assert f"{tmp_path}/parts/1" in said
    assert "val/0.png" in said


@pytest.mark.slow
def test_merge_leaves_out_what_one_evaluation_skips(evaluate, folder_run, photos, tmp_path, capsys):
    root, options = photos
    damaged = root / "images/val/1.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    options = (*options, "data.on_error=skip")
    whole = evaluate(tmp_path / "whole", folder_run, *options)
    for number in (1, 2):
        evaluate(tmp_path / f"parts/{number}", folder_run, f"shard={number}/2", *options)
    capsys.readouterr()
    call("evaluate", f"merge={tmp_path}/parts", f"run_dir={tmp_path}/scores")
    assert str(damaged) in capsys.readouterr().out
    assert results_of(tmp_path / "scores") == results_of(whole)


def test_merge_refuses_a_damaged_part(some_parts, refused):
    file = some_parts / "2/part.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert str(file) in refused(call, "evaluate", f"merge={some_parts}")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("shard=9/9",), "shard=9/9"),
        (("shard=3/2",), "shard=3/2"),
        (("shard=auto",), "shard=auto"),
        (("shard=1/2", "runtime=auto"), "runtime=auto"),
    ],
)
def test_evaluate_refuses_a_part(evaluate, checkpoint, refused, tmp_path, overrides, named):
    assert named in refused(evaluate, tmp_path / "run", checkpoint, *overrides)


def test_merge_takes_no_other_settings(parts, refused):
    assert "data.batch_size" in refused(call, "evaluate", f"merge={parts}", "data.batch_size=3")
