"""``dpt predict`` as a user meets it: files out, resumed, refused, survived."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from photos import photo_of, save_photo, tiny
from PIL import Image
from tiny import save_checkpoint

import dpt
from dpt.data import read_depth, read_labels
from dpt.predict.encoding import depth_coding, depth_to_uint16
from dpt.predict.folder import OutputFolder
from dpt.predict.painting import Style
from dpt.predict.pipeline import STEADINESS, next_style
from dpt.types import OutputSpec
from dpt.viz import class_legend, colorize_depth, default_palette

ROOT = Path(__file__).parents[2]


def files_of(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def records_of(out):
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def error_line(err):
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


# ------------------------------------------------------------------------------ what is written


# the width of text, and so the number of rows, differs between versions of OpenCV
LEGEND = len(class_legend(np.zeros((1, 1), int), default_palette(5), width=240))


def test_a_folder_of_photos(run, checkpoints, photos, tmp_path):
    out = tmp_path / "out"
    code, said, err = run(checkpoints["joint"], photos, "--out", out, "--batch-size", "2")
    assert (code, err) == (0, "")
    assert "6 images in" in said
    names = [f"{folder}/{i}" for folder in "ab" for i in range(3)]
    kinds = ("depth", "labels", "depth_color", "overlay")
    wanted = {f"{kind}/{name}.png" for kind in kinds for name in names}
    assert files_of(out) == wanted | {"predictions.json", "predictions.jsonl"}
    assert set(records_of(out)) == set(names)
    about = json.loads((out / "predictions.json").read_text())
    assert about["unit"] == "relative inverse depth"
    assert about["classes"] == {"labels": []}
    for name in names:
        size = Image.open(photos / f"{name}.png").size
        maps, pictures = (
            {Image.open(out / f"{kind}/{name}.png").size for kind in group}
            for group in (kinds[:2], kinds[2:])
        )
        assert maps == {size}
        # a bar of 36 rows or rows of classes below it, both 240 pixels wide at least
        assert pictures == {(240, size[1] + 36), (240, size[1] + LEGEND)}


def test_every_format_holds_the_prediction(run, checkpoints, joint, tmp_path):
    photo = save_photo(tmp_path / "in/photo.png", 33, 50)
    out = tmp_path / "out"
    formats = "png,npy,color,overlay"
    assert run(checkpoints["joint"], photo, "--out", out, "--format", formats)[0] == 0
    wanted = dpt.Predictor(joint)(photo)
    record = records_of(out)["photo"]
    assert set(record["files"]) == files_of(out) - {"predictions.json", "predictions.jsonl"}

    scale, offset = record["depth"]["scale"], record["depth"]["offset"]
    stored = cv2.imread(str(out / "depth/photo.png"), cv2.IMREAD_UNCHANGED)
    assert stored.dtype == np.uint16
    assert (stored.min(), stored.max()) == (0, 65535)
    np.testing.assert_allclose(stored * scale + offset, wanted.depth, atol=0.51 * scale, rtol=1e-6)
    np.testing.assert_array_equal(np.load(out / "depth_npy/photo.npy"), wanted.depth)

    np.testing.assert_array_equal(read_labels(out / "labels/photo.png"), wanted.labels)
    np.testing.assert_array_equal(np.load(out / "labels_npy/photo.npy"), wanted.labels)
    shown = np.asarray(Image.open(out / "labels/photo.png").convert("RGB"))
    np.testing.assert_array_equal(shown, default_palette(5)[wanted.labels])
    colors = np.asarray(Image.open(out / "depth_color/photo.png"))
    np.testing.assert_array_equal(colors[:33, :50], colorize_depth(wanted.depth, inverse=False))
    assert (colors[33:].max(axis=2) > 200).any()  # the bar


def test_the_classes_of_the_ids_are_printed(run, tmp_path):
    """Data sets often mark classes by other values, such as 0 and 255."""
    names = ["soil", "crack"]
    tiny({"segmentation": {"num_classes": 2, "class_names": names}}).save_pretrained(tmp_path / "m")
    photo = save_photo(tmp_path / "1.png")
    code, said, _ = run(tmp_path / "m", photo, "--out", tmp_path / "out")
    assert code == 0
    assert "labels: ids of the classes: 0 soil, 1 crack" in said
    assert (
        "crack" not in run(tmp_path / "m", photo, "--out", tmp_path / "b", "--format", "overlay")[1]
    )


def test_metric_depth_is_stored_in_millimetres(run, checkpoints, metric, tmp_path):
    photo = save_photo(tmp_path / "photo.png")
    out = tmp_path / "out"
    assert run(checkpoints["metric"], photo, "--out", out, "--format", "png")[0] == 0
    assert records_of(out)["photo"]["depth"] == {"scale": 0.001, "offset": 0.0, "unit": "metres"}
    depth, valid = read_depth(out / "depth/photo.png", scale=0.001)
    assert valid.all()
    np.testing.assert_allclose(depth, dpt.Predictor(metric)(photo).depth, atol=0.00051)


def depth_of(array, *, unit="m", value_range=None):
    spec = OutputSpec("depth", "depth", unit=unit, value_range=value_range)
    return dpt.Prediction({"depth": array}, {"depth": spec})


def test_metres_beyond_16_bits_are_invalid_and_far_models_have_a_coarser_scale():
    depth = np.array([[1.0, 65.535, 65.536, np.inf, np.nan, -1.0, 0.0004, 0.0]], np.float32)
    near = depth_of(depth, value_range=(0.0, 10.0))
    assert depth_to_uint16("depth", near).tolist() == [[1000, 65535, 0, 0, 0, 0, 1, 1]]
    for value_range in ((0.0, 80.0), None):
        far = depth_of(depth, value_range=value_range)
        assert depth_coding("depth", far) == (1 / 256, 0.0)
        assert depth_to_uint16("depth", far)[0, :3].tolist() == [256, 16777, 16777]
    edge = depth_of(depth, value_range=(0.0, 65535 / 256))
    assert depth_coding("depth", edge) == (1 / 256, 0.0)
    farther = depth_of(np.array([[1e-9, 50.0, 1000.0]], np.float32), value_range=(0.0, 1000.0))
    assert depth_coding("depth", farther) == (1000 / 65535, 0.0)
    assert depth_to_uint16("depth", farther).tolist() == [[1, 3277, 65535]]
    flat = depth_of(np.ones((2, 2), np.float32), unit="relative inverse depth")
    assert depth_coding("depth", flat) == (1.0, 1.0)
    assert (depth_to_uint16("depth", flat) == 0).all()


def test_another_colormap(run, checkpoints, metric, tmp_path):
    photo = save_photo(tmp_path / "photo.png")
    run(checkpoints["metric"], photo, "--out", tmp_path / "out", "--format", "color",
        "--colormap", "turbo")  # fmt: skip
    found = np.asarray(Image.open(tmp_path / "out/depth_color/photo.png"))
    wanted = colorize_depth(dpt.Predictor(metric)(photo).depth, colormap="turbo")
    np.testing.assert_array_equal(found[: wanted.shape[0], : wanted.shape[1]], wanted)


def test_answers_for_whole_pictures_are_records(run, photos, tmp_path):
    model = tiny({"classification": {"num_classes": 3}, "regression": {}})
    model.save_pretrained(tmp_path / "model")
    assert run(tmp_path / "model", photos, "--out", tmp_path / "out")[0] == 0
    found = dpt.Predictor(model)(photos / "a/0.png")
    record = records_of(tmp_path / "out")["a/0"]
    assert record["classification"]["class_id"] == found.class_id
    assert record["regression"] == pytest.approx(found.value)
    assert "6 were done before" in run(tmp_path / "model", photos, "--out", tmp_path / "out")[1]


# ------------------------------------------------------------------------------ resuming


def test_only_what_is_missing_is_made_again(run, checkpoints, photos, tmp_path):
    out = tmp_path / "out"
    command = (checkpoints["metric"], photos, "--out", out)
    run(*command)
    before = {name: (out / name).stat().st_mtime_ns for name in files_of(out)}
    (out / "depth/a/1.png").unlink()
    with (out / "predictions.jsonl").open("a") as file:
        file.write('{"name": "b/2", "sou')  # cut short by a crash
    code, said, _ = run(*command)
    assert code == 0
    assert "1 images in" in said
    assert "5 were done before" in said
    after = {name: (out / name).stat().st_mtime_ns for name in files_of(out)}
    assert set(after) == set(before)
    changed = {n for n in before if before[n] != after[n]} - {
        "predictions.json",
        "predictions.jsonl",
    }
    assert changed == {"depth/a/1.png", "depth_color/a/1.png"}
    assert len(records_of(out)) == 6


def test_another_format_can_be_added(run, checkpoints, photos, tmp_path):
    out = tmp_path / "out"
    run(checkpoints["metric"], photos, "--out", out, "--format", "png")
    assert "6 images" in run(checkpoints["metric"], photos, "--out", out, "--format", "npy")[1]
    assert (
        "6 were done" in run(checkpoints["metric"], photos, "--out", out, "--format", "png,npy")[1]
    )
    assert records_of(out)["a/0"]["files"] == ["depth_npy/a/0.npy", "depth/a/0.png"]


def start(checkpoint, photos, out):
    """A run in a process of its own, once it has finished some inputs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "dpt", "predict", checkpoint, photos, "--out", out, "--flip",
         "--format", "png,npy"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    journal = out / "predictions.jsonl"
    while process.poll() is None and (not journal.exists() or journal.stat().st_size < 500):
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    "stop", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stopped_run_goes_on(run, checkpoints, tmp_path, stop):
    photos, out = tmp_path / "photos", tmp_path / "out"
    for i in range(30):
        save_photo(photos / f"{i}.png", 60, 80 + i % 3, seed=i)
    process = start(checkpoints["joint"], photos, out)
    process.send_signal(stop)
    _, err = process.communicate()
    assert process.returncode == (-9 if stop is signal.SIGKILL else 130), err
    assert "Traceback" not in err
    done = records_of(out) if stop is signal.SIGINT else {}
    finished = {f: (out / f).stat().st_mtime_ns for r in done.values() for f in r["files"]}
    assert len(files_of(out)) < 30 * 4, "it was stopped too late to tell"
    command = (checkpoints["joint"], photos, "--out", out, "--flip")
    code, said, _ = run(*command, "--format", "png,npy")
    assert code == 0
    assert "were done before" in said
    assert len(files_of(out)) == 30 * 4 + 2
    assert not [name for name in files_of(out) if "/." in name]
    for name, when in finished.items():
        assert (out / name).stat().st_mtime_ns == when
    for i in range(30):
        depth = np.load(out / f"depth_npy/{i}.npy")
        stored = cv2.imread(str(out / f"depth/{i}.png"), cv2.IMREAD_UNCHANGED)
        assert depth.shape == stored.shape == (60, 80 + i % 3)


def test_a_folder_made_otherwise_is_refused(run, checkpoints, photos, tmp_path):
    out = tmp_path / "out"
    run(checkpoints["metric"], photos, "--out", out)
    before = files_of(out)
    for options, says in (
        ((checkpoints["joint"], photos), "another checkpoint"),
        ((checkpoints["metric"], photos, "--flip"), "flip=False, and now it is True"),
        ((checkpoints["metric"], photos, "--tile", "100"), "tile=None"),
    ):
        code, _, err = run(*options, "--out", out)
        assert code == 1
        assert says in error_line(err)
        assert "--overwrite" in err
    assert files_of(out) == before
    code, said, _ = run(checkpoints["metric"], photos, "--out", out, "--flip", "--overwrite")
    assert code == 0
    assert "6 images in" in said


def test_another_file_of_the_same_name_is_refused(run, checkpoints, tmp_path):
    for folder in "ab":
        save_photo(tmp_path / folder / "1.png")
    run(checkpoints["metric"], tmp_path / "a", "--out", tmp_path / "out")
    code, _, err = run(checkpoints["metric"], tmp_path / "b", "--out", tmp_path / "out")
    assert code == 1
    assert "1 was predicted from" in error_line(err)


def test_the_home_folder(run, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    photo = save_photo(tmp_path / "1.png")
    assert run(checkpoints["metric"], photo, "--out=~/out")[0] == 0
    assert (tmp_path / "out/depth/1.png").is_file()


def test_a_replaced_image_is_predicted_again(run, checkpoints, tmp_path):
    photo, out = save_photo(tmp_path / "a/1.png"), tmp_path / "out"
    command = (checkpoints["metric"], photo, "--format", "png, npy", "--out", out)
    run(*command)
    assert "1 were done before" in run(*command)[1]
    save_photo(photo, 30, 20)
    assert "1 images in" in run(*command)[1]
    assert np.load(out / "depth_npy/1.npy").shape == (30, 20)
    photo.unlink()
    photo.symlink_to("gone.png")
    assert "1.png is a link to gone.png, which is not there" in run(*command)[2]


def test_files_of_an_earlier_image_or_model_are_removed(run, checkpoints, tmp_path):
    photo, other = (save_photo(tmp_path / f"photos/{k}.png") for k in (1, 2))
    command = (checkpoints["metric"], photo.parent, "--out", tmp_path / "out", "--format")
    written = {"predictions.json", "predictions.jsonl", "depth/1.png", "depth/2.png"}
    run(*command, "png,npy")
    save_photo(photo, 30, 20)
    run(*command, "png")
    assert files_of(tmp_path / "out") == written | {"depth_npy/2.npy"}
    other.unlink()
    (tmp_path / "out/depth_npy/1.npy").touch()  # as a stopped run may leave it: not finished
    assert "1 images in" in run(*command, "png,npy")[1]
    journal = tmp_path / "out/predictions.jsonl"
    record = records_of(tmp_path / "out")["1"]
    files = [*record["files"], "../photos/1.png", "depth/../../photos/1.png", str(photo)]
    journal.write_text(json.dumps(record | {"files": files}))  # not all of dpt predict
    run(checkpoints["joint"], *command[1:], "png", "--overwrite")
    assert files_of(tmp_path / "out") == written | {"labels/1.png", "depth_npy/2.npy"}
    assert photo.is_file()


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_the_truth_of_a_data_set_is_not_overwritten(run, checkpoints, tmp_path, overwrite):
    photo = save_photo(tmp_path / "images/1.png")
    truth = save_photo(tmp_path / "depth/1.png")
    before = truth.read_bytes()
    for inputs in (photo.parent, truth.parent):
        code, _, err = run(checkpoints["metric"], inputs, "--out", tmp_path, *overwrite)
        assert code == 1
        assert "depth: exists and was not written by dpt predict" in error_line(err)
    assert truth.read_bytes() == before
    assert files_of(tmp_path) == {"images/1.png", "depth/1.png"}
    assert run(checkpoints["metric"], photo.parent, "--out", tmp_path / "new")[0] == 0


def test_overwrite_replaces_only_what_the_command_wrote(run, checkpoints, tmp_path):
    out = tmp_path / "out"
    photo = save_photo(tmp_path / "photos/1.png")
    command = (checkpoints["metric"], "--out", out, "--overwrite", "--format", "png")
    assert run(*command, photo)[0] == 0
    written = (out / "depth/1.png").read_bytes()
    code, _, err = run(*command, out / "depth")
    assert (code, "is an input" in error_line(err)) == (1, True)
    assert (out / "depth/1.png").read_bytes() == written

    labels = save_photo(out / "labels/1.png").read_bytes()  # of another program
    other_model = (checkpoints["joint"], *command[1:], photo)
    code, _, err = run(*other_model)
    assert code == 1
    assert "labels: exists and was not written by dpt predict" in error_line(err)
    assert (out / "labels/1.png").read_bytes() == labels
    assert records_of(out).keys() == {"1"}
    assert run(*command, photo, "--flip")[0] == 0
    assert (out / "depth/1.png").read_bytes() != written
    (out / "labels/1.png").unlink()
    for _ in range(2):
        assert run(*other_model)[0] == 0


@pytest.mark.parametrize("name", ["predictions.json", "predictions.jsonl"])
def test_records_of_another_program_are_kept(run, checkpoints, photos, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("[1, 2]")
    for overwrite in ((), ("--overwrite",)):
        code, _, err = run(checkpoints["metric"], photos, "--out", tmp_path / "out", *overwrite)
        assert code == 1
        assert f"{name}: " in error_line(err)
        assert "was not written by dpt predict" in err
    assert (tmp_path / "out" / name).read_text() == "[1, 2]"


@pytest.fixture
def written(run, checkpoints, tmp_path):
    """A folder of predictions, and the command that made it; its records can be forged."""
    photo = save_photo(tmp_path / "photos/1.png")
    command = (checkpoints["metric"], photo, "--out", tmp_path / "out", "--format", "png")
    assert run(*command)[0] == 0
    return tmp_path / "out", command


@pytest.mark.parametrize(
    "folder", ["", ".", "..", "/", "mine", "depth/", "depth\\0", "predictions"]
)
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_forged_records_remove_nothing(run, written, tmp_path, folder, overwrite):
    """``written`` lists a name that is no product's, or a record lists files of others."""
    out, command = written
    mine = [out / "mine/a.txt", out / "a.txt", tmp_path / "a.txt"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    settings = json.loads((out / "predictions.json").read_text())
    names = [str(path) for path in mine]
    names += ["../a.txt", "./a.txt", "a.txt", "mine/a.txt", "depth/../mine/a.txt", "depth/.."]
    names += ["", ".", "..", "/", "depth", "a\0", "a" * 300, "depth/" + "a" * 300]
    record = records_of(out)["1"] | {"modified": [0, 0]}
    record["files"] += names
    (out / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    assert run(*command, *overwrite)[0] == 0  # the settings are its own
    settings["written"].append(folder)
    (out / "predictions.json").write_text(json.dumps(settings))
    (out / "predictions.jsonl").write_text(json.dumps(record) + "\n")
    code, _, err = run(*command, *overwrite)
    assert (code, "predictions.json: was not written by dpt predict" in error_line(err)) == (
        1,
        True,
    )
    assert all(path.read_text() == "mine" for path in mine)


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize("place", ["depth", "depth/b", "depth_npy"])
@pytest.mark.parametrize("target", ["photos", "photos/b", "empty", "out/depth_color"])
def test_nothing_is_written_through_a_linked_folder(
    run, written, tmp_path, place, target, overwrite
):
    """Not even where the link leads to the inputs, or to another folder of the output."""
    out, (model, photo, *_) = written
    save_photo(photo.parent / "b/2.png")
    (tmp_path / target).mkdir(exist_ok=True)
    if (out / place).is_dir():
        (out / place).rename(tmp_path / "moved")
    (out / place).parent.mkdir(exist_ok=True)
    (out / place).symlink_to(tmp_path / target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    options = ("--out", out, "--format", "png,npy", *overwrite)
    code, _, err = run(model, photo.parent, *options)
    assert (code, str(out / place) in error_line(err)) == (1, True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_an_input_is_kept_under_all_its_names(run, written, link):
    out, (model, photo, *options) = written
    (out / "depth/1.png").unlink()
    link(photo, out / "depth/1.png")
    before = photo.read_bytes()
    for given in (photo, out / "depth/1.png"):
        code, _, err = run(model, given, *options, "--overwrite")
        assert (code, "depth/1.png: is an input" in error_line(err)) == (1, True)
    assert photo.read_bytes() == before


@pytest.mark.parametrize("name", ["predictions.json", "predictions.jsonl"])
def test_the_records_are_no_links(run, written, tmp_path, name):
    out, command = written
    kept = (out / name).rename(tmp_path / "kept")
    before = kept.read_text()
    os.link(kept, out / name)  # replaced, not written to
    assert run(*command, "--overwrite")[0] == 0
    (out / name).unlink()
    (out / name).symlink_to(kept)
    code, _, err = run(*command, "--overwrite")
    assert (code, f"{name}: is a link" in error_line(err)) == (1, True)
    assert kept.read_text() == before


def test_the_output_folder_itself_may_be_a_link(run, written, tmp_path):
    _, (model, photo, *_) = written
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    for _ in range(2):
        assert run(model, photo, "--out", tmp_path / "link", "--format", "png")[0] == 0
    assert (tmp_path / "disk/depth/1.png").is_file()


# ------------------------------------------------------------------------------ what goes wrong


def test_broken_files_are_listed_and_the_others_done(run, checkpoints, photos, tmp_path):
    (photos / "a/empty.png").write_bytes(b"")
    jpeg = save_photo(photos / "a/cut.jpg", 200, 300).read_bytes()
    (photos / "a/cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (photos / "a/text.png").write_text("I am a picture.")
    depth = np.arange(2000, dtype=np.uint16).reshape(40, 50)
    cv2.imwrite(str(photos / "b/depth.png"), depth)
    (photos / "b/link.png").symlink_to(tmp_path / "gone.png")
    (photos / "b/loop.png").symlink_to("loop.png")
    save_photo(photos / f"b/{'n' * 250}.png")
    out = tmp_path / "out"
    code, said, err = run(checkpoints["metric"], photos, "--out", out, "--batch-size", "4")
    assert code == 1
    assert "6 images in" in said
    head, *lines = err.splitlines()
    assert head == "7 failed:"
    for line, (name, reason) in zip(
        sorted(lines),
        {"a/cut.jpg": "truncated", "a/empty.png": "empty", "a/text.png": "not a picture",
         "b/depth.png": "16-bit", "b/loop.png": "levels of symbolic links",
         "b/nnn": "its name is too long",
         "b/link.png": "gone.png, which is not there"}.items(),
        strict=True,
    ):  # fmt: skip
        assert name in line
        assert reason in line
    assert len(files_of(out)) == 6 * 2 + 2
    code, said, err = run(checkpoints["metric"], photos, "--out", out)
    assert (code, err.splitlines()[0]) == (1, "7 failed:")
    assert "0 images" in said


def test_predictions_that_are_not_finite_are_named(run, photos, tmp_path):
    model = tiny({"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5}})
    with torch.no_grad():
        for parameter in model.heads["segmentation"].parameters():
            parameter.fill_(1e38)  # overflows
    model.save_pretrained(tmp_path / "model")
    clip = save_video(tmp_path / "clip.mp4", 3)
    for _ in range(2):  # they are never done
        code, said, err = run(tmp_path / "model", photos, clip, "--out", tmp_path / "out")
        assert (code, err.splitlines()[0]) == (1, "7 failed:")
        assert err.count("segmentation holds NaN or infinity") == 7
        assert "0 images" in said
    assert files_of(tmp_path / "out") == {"predictions.json", "predictions.jsonl"}


def test_an_image_that_does_not_fit_into_memory_is_listed_and_the_others_done(
    run, checkpoints, tmp_path, monkeypatch
):
    for name in ("a", "b", "c"):
        save_photo(tmp_path / f"photos/{name}.png")
    Image.new("RGB", (57, 40), "white").save(tmp_path / "photos/large.png")
    network = dpt.Predictor._run

    def full(self, images):
        if any(image.min() == 255 for image in images):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")
        return network(self, images)

    monkeypatch.setattr("dpt.Predictor._run", full)
    command = (checkpoints["metric"], tmp_path / "photos", "--out", tmp_path / "out")
    code, said, err = run(*command, "--batch-size", "4")
    assert code == 1
    assert "3 images" in said
    assert err.startswith("1 failed:\n  ")
    assert "large.png: CUDA out of memory: use precision bf16" in err


def test_lack_of_memory_elsewhere_is_one_line(run, checkpoints, photos, tmp_path, monkeypatch):
    def load(path):
        torch.empty(2**60)

    monkeypatch.setattr("dpt.DPT.from_pretrained", load)
    code, _, err = run(checkpoints["metric"], photos, "--out", tmp_path / "out")
    assert code == 1
    assert "can't allocate memory: you tried to allocate" in error_line(err)


def test_large_images_are_predicted_one_by_one(run, checkpoints, photos, tmp_path, monkeypatch):
    held, most = set(), []
    prepare, save = dpt.Predictor.prepare, OutputFolder.files

    def count(self, path, **options):
        held.add(path)
        most.append(len(held))
        return prepare(self, path, **options)

    def release(self, source, *others):
        held.remove(source.path)
        return save(self, source, *others)

    monkeypatch.setattr("dpt.predict.pipeline.LARGE", 0)
    monkeypatch.setattr("dpt.Predictor.prepare", count)
    monkeypatch.setattr("dpt.predict.folder.OutputFolder.files", release)
    command = (checkpoints["metric"], photos, "--out", tmp_path / "out", "--batch-size", "4")
    assert run(*command)[0] == 0
    assert len(records_of(tmp_path / "out")) == 6
    assert max(most) == 1


def test_names_that_are_not_utf8_or_have_two_lines(run, checkpoints, tmp_path):
    photos, out = tmp_path / "photos", os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    save_photo(photos / "two\nlines.png")
    save_photo(photos / os.fsdecode(b"latin\xe9.png"))
    (photos / os.fsdecode(b"bad\xe9.png")).write_bytes(b"no picture")
    save_video(tmp_path / "clip.mp4", 2).rename(photos / os.fsdecode(b"clip\xe9.mp4"))
    code, said, err = run(checkpoints["metric"], photos, "--out", out)
    assert code == 1
    assert "2 images in" in said
    assert r"out\udcff" in said
    assert [r"bad\udce9.png" in err, r"clip\udce9.mp4: " in err] == [True, True]
    assert err.count("\n") == 3, err
    assert err.count(r"bad\udce9.png") == 1
    assert set(records_of(Path(out))) == {"two\nlines", os.fsdecode(b"latin\xe9")}


def test_a_runs_folder_is_a_checkpoint(run, joint, photos, tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text("seed: 0")
    code, _, err = run(tmp_path / "run", photos, "--out", tmp_path / "out")
    assert (code, "nor checkpoints/best.ckpt or checkpoints/last.ckpt" in err) == (1, True)
    save_checkpoint(joint, tmp_path / "run/checkpoints/last.ckpt")
    assert run(tmp_path / "run", photos, "--out", tmp_path / "out")[0] == 0
    (tmp_path / "run/checkpoints/best.ckpt").write_bytes(b"damaged")  # the best one is taken
    code, _, err = run(tmp_path / "run", photos, "--out", tmp_path / "out")
    assert (code, "best.ckpt: damaged" in error_line(err)) == (1, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--format", "jpg"), "--format jpg: choose from png"),
        (("--format", "overlay"), "fits none of this model's outputs: depth (depth)"),
        (("--colormap", "jet"), "jet.*inferno"),
        (("--batch-size", "0"), "batch_size=0"),
        (("--tile", "5"), "at least 64"),
    ],
)
def test_mistakes(run, checkpoints, photos, tmp_path, options, says):
    code, _, err = run(checkpoints["metric"], photos, "--out", tmp_path / "out", *options)
    assert code == 1
    assert says.split(".*")[-1] in error_line(err)
    assert not files_of(tmp_path).difference(f"photos/{f}" for f in files_of(photos))


def test_a_full_disk_stops_the_run_with_a_line(run, checkpoints, tmp_path):
    """A limit on the size of files stands for it: the photo's depth is larger than that."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    save_photo(photos / "a.png", 20, 30)
    save_photo(photos / "b.png", 200, 300)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        code, _, err = run(checkpoints["metric"], photos, "--out", out, "--format", "npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "make room" in error_line(err)
    assert files_of(out) == {"predictions.json", "predictions.jsonl", "depth_npy/a.npy"}
    assert np.load(out / "depth_npy/a.npy").shape == (20, 30)


# ------------------------------------------------------------------------------ videos


def save_video(path, frames, size=(48, 64)):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 12.5, size[::-1])
    for i in range(frames):
        writer.write(photo_of(*size, seed=i))
    writer.release()
    return path


def test_a_video_becomes_videos_of_as_many_frames(run, checkpoints, tmp_path):
    video = save_video(tmp_path / "clip.mp4", 11)
    out = tmp_path / "out"
    command = (checkpoints["joint"], video, "--out", out, "--batch-size", "4")
    code, said, err = run(*command)
    assert (code, err) == (0, "")
    assert "11 images" in said
    assert files_of(out) == {"predictions.json", "predictions.jsonl", "depth_color/clip.mp4",
                             "overlay/clip.mp4"}  # fmt: skip
    for name in ("depth_color/clip.mp4", "overlay/clip.mp4"):
        found = cv2.VideoCapture(str(out / name))
        assert found.get(cv2.CAP_PROP_FPS) == 12.5
        count = 0
        while found.read()[0]:
            count += 1
        assert count == 11
        assert found.get(cv2.CAP_PROP_FRAME_WIDTH) == 240
        assert found.get(cv2.CAP_PROP_FRAME_HEIGHT) == 48 + (36 if "depth" in name else LEGEND)
    assert records_of(out)["clip"]["frames"] == 11
    assert "1 were done before" in run(*command)[1]


def test_a_broken_video_is_listed(run, checkpoints, photos, tmp_path):
    data = save_video(photos / "clip.avi", 11).read_bytes()
    (photos / "clip.avi").write_bytes(data[: len(data) // 2])
    (photos / "text.mp4").write_text("no video")
    code, _, err = run(checkpoints["metric"], photos, "--out", tmp_path / "out")
    assert code == 1
    assert err.splitlines()[0] == "2 failed:"
    assert "frames can be decoded" in err
    assert "not a video" in err
    assert not [f for f in files_of(tmp_path / "out") if "clip" in f or "text" in f]


def test_a_video_without_pictures_is_refused(run, tmp_path):
    tiny({"classification": {"num_classes": 3}}).save_pretrained(tmp_path / "model")
    video = save_video(tmp_path / "clip.mp4", 3)
    code, _, err = run(tmp_path / "model", video, "--out", tmp_path / "out")
    assert code == 1
    assert "predict its frames as images" in err
    tiny({"depth": {"kind": "relative"}}).save_pretrained(tmp_path / "depth")
    code, _, err = run(tmp_path / "depth", video, "--out", tmp_path / "npy", "--format", "npy")
    assert code == 1
    assert "add color or overlay to --format" in err


def test_colours_of_a_video_do_not_flicker():
    ramp = np.linspace(0, 1, 101, dtype=np.float32)[None]
    frames = [depth_of(k * ramp, unit="relative inverse depth") for k in (1, 2, 2)]
    styles = list(accumulate(frames, next_style, initial=Style()))[1:]
    tops = [style.limits["depth"][1] for style in styles]
    assert tops[0] == pytest.approx(0.98)  # the 98 % quantile
    assert tops[1] == pytest.approx(STEADINESS * 0.98 + (1 - STEADINESS) * 1.96)
    assert tops[1] < tops[2] < 1.96


def test_help(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    for word in ("CKPT", "INPUTS", "--out DIR", "overlay", "Exit codes"):
        assert word in out
