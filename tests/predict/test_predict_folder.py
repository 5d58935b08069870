"""The output folder of ``dpt predict``: resumed, and safe for files that others wrote."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
from photos import save_photo
from prediction_files import RECORDS, files_of, predictions_of, records_of

ROOT = Path(__file__).parents[2]
either_way = pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])


def times_of(folder):
    return {name: (folder / name).stat().st_mtime_ns for name in predictions_of(folder)}


# ------------------------------------------------------------------------------ resuming


def test_only_what_is_missing_is_made_again(predict, photos, out):
    predict(photos)
    before = times_of(out)
    (out / "depth/a/1.png").unlink()
    with (out / "predictions.jsonl").open("a") as file:
        file.write('{"name": "b/2", "sou')  # cut short by a crash
    said = predict(photos)
    assert "1 image in" in said
    assert "5 were done before" in said
    changed = dict(times_of(out).items() - before.items())
    assert set(changed) == {"depth/a/1.png", "depth_color/a/1.png"}
    assert times_of(out).keys() == before.keys()
    assert len(records_of(out)) == 6


def start(checkpoint, photos, out):
    """A run in a process of its own, once it has finished some inputs."""
    command = ["predict", checkpoint, photos, "--out", out, "--flip", "--format", "png,npy"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dpt", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = out / "shards/1-of-1.jsonl"
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < 500):
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    "stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stopped_run_goes_on(predict, checkpoints, tmp_path, out, stop):
    photos = tmp_path / "photos"
    for i in range(16):
        save_photo(photos / f"{i}.png", 60, 80 + i % 3, seed=i)
    process = start(checkpoints["joint"], photos, out)
    process.send_signal(stop)
    _, err = process.communicate()
    assert process.returncode == (-9 if stop is signal.SIGKILL else 130), err
    assert "Traceback" not in err
    done = (out / "shards/1-of-1.jsonl").read_text().splitlines() if stop is signal.SIGINT else []
    finished = {file: times_of(out)[file] for line in done for file in json.loads(line)["files"]}
    assert len(files_of(out)) < 16 * 4, "it was stopped too late to tell"
    assert "were done before" in predict(photos, "--flip", "--format", "png,npy", model="joint")
    assert len(predictions_of(out)) == 16 * 4
    assert not [name for name in files_of(out) if "/." in name]
    assert finished.items() <= times_of(out).items()
    for i in range(16):
        depth = np.load(out / f"depth_npy/{i}.npy")
        stored = cv2.imread(str(out / f"depth/{i}.png"), cv2.IMREAD_UNCHANGED)
        assert depth.shape == stored.shape == (60, 80 + i % 3)


@pytest.mark.parametrize(
    ("options", "model", "named"),
    [
        ((), "joint", "another checkpoint"),
        (("--flip",), "metric", "flip=False"),
        (("--tile", "100"), "metric", "tile=None"),
    ],
)
def test_a_folder_with_other_settings_is_refused(
    predict, refusal, photos, out, options, model, named
):
    predict(photos)
    before = times_of(out)
    message = refusal(photos, *options, model=model)
    assert named in message
    assert "--overwrite" in message
    assert times_of(out) == before
    assert "6 images in" in predict(photos, *options, "--overwrite", model=model)


def test_a_replaced_image_is_predicted_again(predict, run, tmp_path, out):
    photo = save_photo(tmp_path / "a/1.png")
    command = (photo, "--format", "png, npy")
    predict(*command)
    assert "1 were done before" in predict(*command)
    save_photo(photo, 30, 20)
    assert "1 image in" in predict(*command)
    assert np.load(out / "depth_npy/1.npy").shape == (30, 20)
    photo.unlink()
    photo.symlink_to("gone.png")
    assert "1.png is a link to gone.png" in run(*command)[2]


# ------------------------------------------------------------------------------ files of others


def test_files_of_an_earlier_image_or_model_are_removed(predict, tmp_path, out):
    photo, other = (save_photo(tmp_path / f"photos/{k}.png") for k in (1, 2))
    predict(photo.parent, "--format", "png,npy")
    save_photo(photo, 30, 20)
    predict(photo.parent, "--format", "png")
    assert predictions_of(out) == {"depth/1.png", "depth/2.png", "depth_npy/2.npy"}
    other.unlink()
    (out / "depth_npy/1.npy").touch()  # as a stopped run may leave it: not finished
    assert "1 image in" in predict(photo.parent, "--format", "png,npy")
    record = records_of(out)["1"]
    files = [*record["files"], "../photos/1.png", "depth/../../photos/1.png", str(photo)]
    (out / "predictions.jsonl").write_text(json.dumps(record | {"files": files}))  # forged
    predict(photo.parent, "--format", "png", "--overwrite", model="joint")
    assert predictions_of(out) == {"depth/1.png", "depth/2.png", "labels/1.png", "depth_npy/2.npy"}
    assert photo.is_file()


@either_way
def test_the_ground_truth_of_a_data_set_is_not_overwritten(predict, refusal, tmp_path, overwrite):
    photo = save_photo(tmp_path / "images/1.png")
    ground_truth = save_photo(tmp_path / "depth/1.png")
    before = ground_truth.read_bytes()
    for inputs in (photo.parent, ground_truth.parent):
        assert f"{tmp_path}/depth: " in refusal(inputs, *overwrite, to=tmp_path)
    assert ground_truth.read_bytes() == before
    assert files_of(tmp_path) == {"images/1.png", "depth/1.png"}
    predict(photo.parent)


def test_overwrite_replaces_only_what_the_command_wrote(predict, refusal, tmp_path, out):
    photo, options = save_photo(tmp_path / "photos/1.png"), ("--overwrite", "--format", "png")
    predict(photo, *options)
    written = (out / "depth/1.png").read_bytes()
    assert "is an input" in refusal(out / "depth", *options)
    labels = save_photo(out / "labels/1.png").read_bytes()  # of another program
    assert f"{out}/labels: " in refusal(photo, *options, model="joint")
    assert (out / "labels/1.png").read_bytes() == labels
    assert (out / "depth/1.png").read_bytes() == written
    assert records_of(out).keys() == {"1"}
    predict(photo, *options, "--flip")
    assert (out / "depth/1.png").read_bytes() != written
    (out / "labels/1.png").unlink()
    for _ in range(2):
        predict(photo, *options, model="joint")


@pytest.fixture
def written(predict, tmp_path):
    """The command that made a folder of predictions, whose records can be forged."""
    command = (save_photo(tmp_path / "photos/1.png"), "--format", "png")
    predict(*command)
    return command


@either_way
@pytest.mark.parametrize("folder", ["", "..", "mine", "depth/"])
def test_forged_records_remove_nothing(predict, refusal, written, tmp_path, out, folder, overwrite):
    """``written`` lists a name that is no product's, or a record lists files of others."""
    mine = [out / "mine/a.txt", out / "a.txt", tmp_path / "a.txt"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    names = [str(path) for path in mine]
    names += ["../a.txt", "./a.txt", "a.txt", "mine/a.txt", "depth/../mine/a.txt", "depth/.."]
    names += ["", ".", "..", "/", "depth", "a\0", "a" * 300, "depth/" + "a" * 300]
    record = records_of(out)["1"] | {"modified": [0, 0]}
    record["files"] += names
    (out / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    predict(*written, *overwrite)  # the settings are its own
    settings = json.loads((out / "predictions.json").read_text())
    settings["written"].append(folder)
    (out / "predictions.json").write_text(json.dumps(settings))
    (out / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    assert "predictions.json: " in refusal(*written, *overwrite)
    assert all(path.read_text() == "mine" for path in mine)


@either_way
@pytest.mark.parametrize(
    ("link", "target"),
    [("depth", "out/depth_color"), ("depth/b", "photos/b"), ("depth_npy", "empty")],
)
def test_nothing_is_written_through_a_linked_folder(
    refusal, written, tmp_path, out, link, target, overwrite
):
    """Not even where the link leads to the inputs, or to another folder of the output."""
    photo, *_ = written
    save_photo(photo.parent / "b/2.png")
    (tmp_path / target).mkdir(exist_ok=True)
    if (out / link).is_dir():
        (out / link).rename(tmp_path / "moved")
    (out / link).parent.mkdir(exist_ok=True)
    (out / link).symlink_to(tmp_path / target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*[!k]")}
    assert str(out / link) in refusal(photo.parent, "--format", "png,npy", *overwrite)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*[!k]")} == before


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_an_input_is_kept_under_all_its_names(refusal, written, out, link):
    photo, *options = written
    (out / "depth/1.png").unlink()
    link(photo, out / "depth/1.png")
    before = photo.read_bytes()
    for name in (photo, out / "depth/1.png"):
        assert "depth/1.png: is an input" in refusal(name, *options, "--overwrite")
    assert photo.read_bytes() == before


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_links_in_place_of_the_records_are_not_followed(
    predict, refusal, written, tmp_path, out, name
):
    kept = (out / name).rename(tmp_path / "kept")
    before = kept.read_text()
    os.link(kept, out / name)  # replaced, not written to
    predict(*written, "--overwrite")
    (out / name).unlink()
    (out / name).symlink_to(kept)
    assert f"{name}: is a link" in refusal(*written, "--overwrite")
    assert kept.read_text() == before


def test_the_output_folder_itself_may_be_a_link(predict, written, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for _ in range(2):
        predict(*written, to=tmp_path / "link")
    assert (tmp_path / "disk/depth/1.png").is_file()
