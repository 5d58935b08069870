"""``dpt predict`` as a user meets it: the files that it writes, videos, and what goes wrong."""

import json
import os
import resource
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from photos import save_photo, tiny
from PIL import Image
from prediction_files import predictions_of, records_of, save_video

import dpt
from dpt.data import read_depth, read_labels
from dpt.evaluation.predictions import DepthCoding
from dpt.predict.encoding import depth_coding, depth_to_uint16
from dpt.predict.writers import facts_of
from dpt.types.outputs import OutputSpec
from dpt.validation import validate
from dpt.viz import class_legend, colorize_depth, default_palette

# the width of text, and so the number of rows, differs between versions of OpenCV
LEGEND = len(class_legend(np.zeros((1, 1), int), default_palette(5), width=240))

# ------------------------------------------------------------------------------ what is written


def test_predict_command_writes_every_photo_of_a_folder(predict, photos, out):
    assert "6 images in" in predict(photos, "--batch-size", "2", model="joint")
    names = [f"{folder}/{i}" for folder in "ab" for i in range(3)]
    kinds = ("depth", "labels", "depth_color", "overlay")
    assert predictions_of(out) == {f"{kind}/{name}.png" for kind in kinds for name in names}
    assert set(records_of(out)) == set(names)
    settings = json.loads((out / "predictions.json").read_text())
    assert settings["unit"] == "relative inverse depth"
    assert settings["classes"] == {"labels": []}
    for name in names:
        width, height = Image.open(photos / f"{name}.png").size
        # a bar of 36 rows or rows of classes below the pictures, 240 pixels wide at least
        below = {"depth": None, "labels": None, "depth_color": 36, "overlay": LEGEND}
        for kind, rows in below.items():
            size = (width, height) if rows is None else (240, height + rows)
            assert Image.open(out / f"{kind}/{name}.png").size == size


def test_predict_command_holds_the_prediction_in_every_format(predict, joint, tmp_path, out):
    photo = save_photo(tmp_path / "in/photo.png", 33, 50)
    predict(photo, "--format", "png,npy,color,overlay", model="joint")
    expected = dpt.Predictor(joint)(photo)
    record = records_of(out)["photo"]
    assert set(record["files"]) == predictions_of(out)

    scale, offset = record["depth"]["scale"], record["depth"]["offset"]
    stored = cv2.imread(str(out / "depth/photo.png"), cv2.IMREAD_UNCHANGED)
    assert stored.dtype == np.uint16
    assert (stored.min(), stored.max()) == (0, 65535)
    depth = stored * scale + offset
    np.testing.assert_allclose(depth, expected.depth, atol=0.51 * scale, rtol=1e-6)
    np.testing.assert_array_equal(np.load(out / "depth_npy/photo.npy"), expected.depth)

    np.testing.assert_array_equal(read_labels(out / "labels/photo.png"), expected.labels)
    np.testing.assert_array_equal(np.load(out / "labels_npy/photo.npy"), expected.labels)
    shown = np.asarray(Image.open(out / "labels/photo.png").convert("RGB"))
    np.testing.assert_array_equal(shown, default_palette(5)[expected.labels])
    colors = np.asarray(Image.open(out / "depth_color/photo.png"))
    np.testing.assert_array_equal(colors[:33, :50], colorize_depth(expected.depth, inverse=False))
    assert (colors[33:].max(axis=2) > 200).any()  # the bar


def test_maps_as_openexr(predict, tmp_path, out):
    library = pytest.importorskip("OpenEXR")
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "normals": {}}
    model, photo = tiny(heads), save_photo(tmp_path / "in/photo.png", 33, 50)
    model.save_pretrained(tmp_path / "model")
    predict(photo, "--format", "exr,exr16", model=tmp_path / "model")
    expected = dpt.Predictor(model)(photo)
    assert predictions_of(out) == {
        f"{name}_{kind}/photo.exr" for name in ("depth", "normals") for kind in ("exr", "exr16")
    }
    for kind, dtype in (("exr", np.float32), ("exr16", np.float16)):
        with library.File(str(out / f"normals_{kind}/photo.exr"), separate_channels=True) as file:
            channels = {name: channel.pixels for name, channel in file.channels().items()}
        assert sorted(channels) == ["N.X", "N.Y", "N.Z"]
        found = np.stack([channels[name] for name in sorted(channels)], axis=2)
        np.testing.assert_array_equal(found, expected.arrays["normals"].astype(dtype))
        depth, valid = read_depth(out / f"depth_{kind}/photo.exr", scale=1.0)
        assert valid.all()
        np.testing.assert_array_equal(depth, expected.depth.astype(dtype))


def test_predict_command_stores_metric_depth_in_millimetres(predict, metric, tmp_path, out):
    photo = save_photo(tmp_path / "photo.png")
    predict(photo, "--format", "png,color", "--colormap", "turbo")
    coding = {"scale": 0.001, "offset": 0.0, "beyond": 0, "unit": "metres"}
    assert records_of(out)["photo"]["depth"] == coding
    depth, valid = read_depth(out / "depth/photo.png", scale=0.001)
    assert valid.all()
    expected = dpt.Predictor(metric)(photo).depth
    np.testing.assert_allclose(depth, expected, atol=0.00051)
    picture = np.asarray(Image.open(out / "depth_color/photo.png"))[:40, :57]
    np.testing.assert_array_equal(picture, colorize_depth(expected, colormap="turbo"))


def depth_of(array, *, unit="m", value_range=None):
    spec = OutputSpec("depth", "depth", unit=unit, value_range=value_range)
    return dpt.Prediction({"depth": np.array(array, np.float32)}, {"depth": spec})


NEAR = [[0.01, 0.09, 1e-9]]
LARGE = [[1e-9, 50.0, 1000.0]]
FAR = [[1.0, 65.535, 65.536, np.inf, np.nan, -1.0, 0.0004, 0.0]]


@pytest.mark.parametrize(
    ("prediction", "coding", "stored"),
    [
        (depth_of(FAR, value_range=(0.0, 10.0)), (0.001, 0.0), [1000, 65535, 0, 0, 0, 0, 1, 1]),
        (depth_of(NEAR, value_range=(0.0, 0.09)), (9e-6, 0.0), [1111, 10000, 1]),
        (depth_of(NEAR, value_range=(0.0, 1.0)), (1e-4, 0.0), [100, 900, 1]),
        (depth_of(FAR, value_range=(0.0, 5.0)), (5e-4, 0.0), [2000, 0, 0]),
        (depth_of(FAR, value_range=(0.0, 80.0)), (1 / 256, 0.0), [256, 16777, 16777]),
        (depth_of(FAR), (1 / 256, 0.0), [256, 16777, 16777]),
        (depth_of(FAR, value_range=(0.0, 65535 / 256)), (1 / 256, 0.0), [256]),
        (depth_of(LARGE, value_range=(0.0, 1000.0)), (1000 / 65535, 0.0), [1, 3277, 65535]),
        (depth_of([[1.0, 1.0]], unit="relative inverse depth"), (1.0, 1.0), [0, 0]),
    ],
)
def test_depth_to_uint16_drops_metres_that_do_not_fit(prediction, coding, stored):
    assert depth_coding("depth", prediction) == coding
    assert depth_to_uint16("depth", prediction)[0, : len(stored)].tolist() == stored


def test_metres_that_do_not_fit_into_16_bits_are_counted():
    facts = facts_of(depth_of(FAR, value_range=(0.0, 10.0)))["depth"]
    assert facts["beyond"] == 2  # 65.536 m and infinity
    assert validate(DepthCoding, facts, "depth").beyond == 2


def test_predict_command_records_outputs_for_whole_images(predict, photos, tmp_path, out):
    model = tiny({"classification": {"num_classes": 3}, "regression": {}})
    model.save_pretrained(tmp_path / "model")
    predict(photos, model=tmp_path / "model")
    expected = dpt.Predictor(model)(photos / "a/0.png")
    record = records_of(out)["a/0"]
    assert record["classification"]["class_id"] == expected.class_id
    assert record["regression"] == pytest.approx(expected.value)
    assert "6 were done before" in predict(photos, model=tmp_path / "model")


# ------------------------------------------------------------------------------ what goes wrong


def test_predict_command_lists_broken_files_and_does_the_others(run, photos, tmp_path, out):
    (photos / "a/empty.png").write_bytes(b"")
    jpeg = save_photo(photos / "a/cut.jpg", 200, 300).read_bytes()
    (photos / "a/cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (photos / "a/text.png").write_text("I am a picture.")
    depth = np.arange(2000, dtype=np.uint16).reshape(40, 50)
    cv2.imwrite(str(photos / "b/depth.png"), depth)
    (photos / "b/link.png").symlink_to(tmp_path / "gone.png")
    (photos / "b/loop.png").symlink_to("loop.png")
    save_photo(photos / f"b/{'n' * 250}.png")
    code, said, err = run(photos, "--batch-size", "4")
    assert code == 1
    assert "6 images in" in said
    head, *lines = err.splitlines()
    assert head == "7 failed:"
    names = ["a/cut", "a/empty", "a/text", "b/depth", "b/link", "b/loop", "b/nnn"]
    lines.sort(key=lambda line: line[line.index("photos/") :])
    assert all(name in line for name, line in zip(names, lines, strict=True))
    assert len(predictions_of(out)) == 6 * 2
    code, said, err = run(photos)
    assert (code, err.splitlines()[0]) == (1, "7 failed:")
    assert "0 images" in said


def test_predict_command_names_predictions_that_are_not_finite(run, photos, tmp_path, out):
    model = tiny({"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5}})
    with torch.no_grad():
        for parameter in model.heads["segmentation"].parameters():
            parameter.fill_(1e38)  # overflows
    model.save_pretrained(tmp_path / "model")
    clip = save_video(tmp_path / "clip.mp4", 3)
    for _ in range(2):  # they are never done
        code, said, err = run(photos, clip, model=tmp_path / "model")
        assert (code, err.splitlines()[0]) == (1, "7 failed:")
        assert len(err.splitlines()) == 2
        assert "7 files (" in err
        assert "segmentation holds NaN or infinity" in err
        assert "0 images" in said
    assert not predictions_of(out)


def test_predict_command_takes_names_that_are_not_utf8_or_have_two_lines(run, tmp_path):
    photos, out = tmp_path / "photos", os.fsdecode(os.fsencode(tmp_path) + b"/out\xff")
    save_photo(photos / "two\nlines.png")
    save_photo(photos / os.fsdecode(b"latin\xe9.png"))
    (photos / os.fsdecode(b"bad\xe9.png")).write_bytes(b"no picture")
    save_video(tmp_path / "clip.mp4", 2).rename(photos / os.fsdecode(b"clip\xe9.mp4"))
    code, said, err = run(photos, to=out)
    assert code == 1
    assert "2 images in" in said
    assert r"out\udcff" in said
    assert err.count("\n") == 3, err
    assert (err.count(r"bad\udce9.png"), err.count(r"clip\udce9.mp4: ")) == (1, 1)
    assert set(records_of(Path(out))) == {"two\nlines", os.fsdecode(b"latin\xe9")}


def test_predict_command_stops_with_a_line_on_a_full_disk(refusal, tmp_path, out):
    """A limit on the size of files stands for it: the photo's depth is larger than that."""
    save_photo(tmp_path / "photos/a.png", 20, 30)
    save_photo(tmp_path / "photos/b.png", 200, 300)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert str(out) in refusal(tmp_path / "photos", "--format", "npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert predictions_of(out) == {"depth_npy/a.npy"}
    assert np.load(out / "depth_npy/a.npy").shape == (20, 30)


# ------------------------------------------------------------------------------ videos


def test_predict_command_makes_videos_of_as_many_frames(predict, tmp_path, out):
    command = (save_video(tmp_path / "clip.mp4", 11), "--batch-size", "4")
    assert "11 images" in predict(*command, model="joint")
    assert predictions_of(out) == {"depth_color/clip.mp4", "overlay/clip.mp4"}
    for folder, rows in {"depth_color": 36, "overlay": LEGEND}.items():
        video = cv2.VideoCapture(str(out / folder / "clip.mp4"))
        assert video.get(cv2.CAP_PROP_FPS) == 12.5
        shapes = []
        while (frame := video.read())[0]:
            shapes.append(frame[1].shape)
        assert shapes == [(48 + rows, 240, 3)] * 11
    assert records_of(out)["clip"]["frames"] == 11
    assert "1 were done before" in predict(*command, model="joint")


def test_frames_of_a_video_are_numbered_files(predict, refusal, tmp_path, out):
    clip = save_video(tmp_path / "clip.mp4", 5)
    command = (clip, "--format", "npy,png,color")
    predict(*command, model="joint")
    numbered = {f"{n:06}" for n in range(5)}
    names = {f"depth_npy/clip/{n}.npy" for n in numbered} | {
        f"depth/clip/{n}.png" for n in numbered
    }
    names |= {name.replace("depth", "labels") for name in names}
    assert predictions_of(out) == names | {"depth_color/clip.mp4"}
    values = np.load(out / "depth_npy/clip/000003.npy")
    raw = cv2.imread(str(out / "depth/clip/000003.png"), cv2.IMREAD_UNCHANGED)
    coding = records_of(out)["clip"]["each_frame"][3]["depth"]
    assert np.abs(raw * coding["scale"] + coding["offset"] - values).max() <= coding["scale"]
    assert "1 were done before" in predict(*command, model="joint")
    (out / "depth/clip/000002.png").unlink()
    save_video(clip, 3)  # the frames of the longer clip go
    assert "3 images" in predict(*command, model="joint")
    assert {int(name[-10:-4]) for name in predictions_of(out) if "clip/" in name} == {0, 1, 2}
    save_photo(tmp_path / "clip/000000.png", 40, 60)
    assert "--out" in refusal(tmp_path, "--format", "npy")
