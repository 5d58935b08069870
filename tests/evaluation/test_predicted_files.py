"""Predictions on disk: which file belongs to which image, and how it is read."""

import json
import re
import shutil

import numpy as np
import pytest
from photos import save_picture
from PIL import Image

from dpt.data.formats.io import read_labels, read_raw_depth
from dpt.evaluation.predictions import find_folders

VAL = ["val/a/1.png", "val/b/1.png"]


def prediction_folder(root, names, samples):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return find_folders(root, ["depth"], [f"/data/images/{s}" for s in samples])["depth"]


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        (["a/1.npy", "b/1.npy", "train/a/1.npy"], VAL),
        (["val/a/1.npy", "val/b/1.npy", "train/a/1.npy"], VAL),
        (["images/val/a/1.npy", "images/val/b/1.npy", "train/a/1.npy"], VAL),
        (["1.npy", "b/1.npy"], ["val/1.png", "val/b/1.png"]),
        (["a_1.npy", "b_1.png.npy"], ["val/a/a_1.png", "val/b/b_1.png"]),
        (["a\u0308/o\u0308.npy"], ["\u00e4/\u00f6.png"]),  # another form in Unicode
        (["0012.npy", "7.npy"], ["nyu.mat#12", "nyu.mat#7"]),
    ],
)
def test_prediction_folder_finds_files_by_the_end_of_names(tmp_path, names, samples):
    folder = prediction_folder(tmp_path, names, samples)
    assert [folder[k].path for k in range(len(samples))] == [
        tmp_path / name for name in names[: len(samples)]
    ]


@pytest.mark.parametrize(
    ("names", "samples", "message"),
    [
        (["val/b/1.npy", "train/a/1.npy", "val/1.npy"], VAL, r"no file a/1\..*\(1 of 2"),
        (["2.npy", "val/2.npy"], ["val/2.png"], "remove one"),
        (["7.npy"], ["7.png", "07.png"], "rename"),  # differ only in zeros
    ],
)
def test_prediction_folder_refuses_unclear_files(tmp_path, names, samples, message):
    with pytest.raises(ValueError, match=message):
        prediction_folder(tmp_path, names, samples)[0]


def write_records(root, records):
    """Writes predictions.jsonl; records lack names, and sources unless they are given."""
    lines = [json.dumps({"name": f"{k}", "source": "x", **r}) for k, r in enumerate(records)]
    (root / "predictions.jsonl").write_text("\n".join(lines))


def depth_records(root, files, dense_folder, encode, unit):
    """Writes 16-bit depth as ``dpt predict`` does; ``encode`` returns values, scale and offset."""
    records = []
    for path in sorted((files / "depth").iterdir()):
        values, scale, offset = encode(np.load(path))
        save_picture(root / f"depth/{path.stem}.png", np.rint(values).astype(np.uint16))
        coding = {"scale": scale, "offset": offset, "unit": unit}
        source = f"{dense_folder}/images/val/{path.stem}.png"
        records.append({"source": source, "depth": coding, "files": [f"depth/{path.stem}.png"]})
    write_records(root, records)


def test_16_bit_depth_is_scored_with_a_scale(score_files, scored_files, files, metrics, tmp_path):
    for path in (files / "depth").iterdir():
        value = np.rint(np.load(path) * 256).astype(np.uint16)
        save_picture(tmp_path / f"png/depth/{path.stem}.png", value)
    scale = "predictions_scale=0.00390625"
    values = metrics(score_files(tmp_path / "png_run", tmp_path / "png", scale))
    assert values["val/abs_rel"] == pytest.approx(metrics(scored_files)["val/abs_rel"], rel=1e-2)
    assert "val/miou" not in values  # there are no labels among them
    assert values["predictions_kind"] == "metric"


def test_logits_are_scored_by_their_largest(
    score_files, scored_files, files, metrics, mistake, tmp_path
):
    """Their classes may be the first axis or the last."""
    (tmp_path / "labels").mkdir()
    classes = metrics(scored_files)
    count = sum(name.startswith("val/iou/") for name in classes)
    for k, path in enumerate((files / "labels").iterdir()):
        labels = read_labels(path)
        one_hot = np.moveaxis(np.eye(count, dtype=np.float16)[labels], 2, (0, 2)[k % 2])
        np.save(tmp_path / f"labels/{path.stem}.npy", one_hot * 3 - 1)
    values = metrics(score_files(tmp_path / "scores", tmp_path))
    assert values["val/miou"] == classes["val/miou"]
    first = max((tmp_path / "labels").iterdir())  # some images have no labels
    for wrong in (one_hot[:3, :2, :2], np.full_like(one_hot, np.nan)):
        np.save(first, wrong)
        assert first.name in mistake(tmp_path)


def test_records_state_the_scale_of_relative_depth(
    score_files, files, dense_folder, metrics, tmp_path
):
    """Stretched to 16 bits, each picture by a scale and offset of its own."""

    def encode(depth):
        low, scale = float((1 / depth).min()), float(np.ptp(1 / depth)) / 65535
        return (1 / depth - low) / scale, scale, low

    root = tmp_path / "out"
    depth_records(root, files, dense_folder, encode, "relative inverse depth")
    with (root / "predictions.jsonl").open("a") as file:  # damaged lines
        file.write('\n{"name": "cut sho')
        for scale in ("-1", "NaN", "1" + "0" * 400):
            depth = f'{{"unit": "m", "scale": {scale}, "offset": 0}}'
            file.write(f'\n{{"name": "x", "source": "x", "files": [], "depth": {depth}}}')
    values = metrics(score_files(tmp_path / "run", root))
    assert values["predictions_kind"] == "relative"
    assert values["protocol/alignment"] == "scale_shift"
    exact = ("protocol.alignment=scale_shift", "protocol.space=inverse_depth")
    expected = metrics(score_files(tmp_path / "exact", files, *exact))
    assert values["val/abs_rel"] == pytest.approx(expected["val/abs_rel"], rel=1e-3)


@pytest.fixture
def metres(files, dense_folder, tmp_path):
    """A folder of metric depth as dpt predict writes it: depth/*.png in millimetres."""
    root = tmp_path / "metres"
    depth_records(root, files, dense_folder, lambda depth: (depth * 1000, 0.001, 0.0), "metres")
    return root


def test_zeros_of_metric_files_are_no_depth(mistake, metres, metrics, tmp_path):
    """dpt predict writes 0 for metres that do not fit into 16 bits."""
    path = metres / "depth/0.png"
    value = np.array(Image.open(path))
    value[0] = 0
    Image.fromarray(value).save(path)
    assert "val/0.png" in mistake(metres)
    assert metrics(tmp_path / "run")["nonfinite_predictions"] == 1


def test_depth_may_be_absent_where_none_was_measured(
    score_files, files, dense_folder, metrics, tmp_path
):
    """dpt predict cuts the sky, of which no file holds depth either."""
    count = 0
    (tmp_path / "cut").mkdir()
    for path in (dense_folder / "depth/val").iterdir():
        values, is_far = np.load(files / f"depth/{path.stem}.npy"), read_raw_depth(path) > 5000
        np.save(tmp_path / f"cut/{path.stem}.npy", np.where(is_far, np.float32(np.nan), values))
        count += is_far.sum()
    assert count > 100
    options = ("data.max_depth=5", "data.labels=null", "data.num_classes=null", "data.missing=skip")
    cut = metrics(score_files(tmp_path / "a", tmp_path / "cut", *options))
    whole = metrics(score_files(tmp_path / "b", files / "depth", *options))
    assert cut["nonfinite_predictions"] == 0
    assert cut["val/abs_rel"] == whole["val/abs_rel"]


@pytest.mark.parametrize("key", ["predictions_kind=relative", "predictions_scale=0.001"])
def test_keys_that_records_state_are_refused(mistake, metres, key):
    said = mistake(metres, key)
    assert key.partition("=")[0] in said
    assert f"{metres}/predictions.jsonl" in said


def test_files_without_records_are_not_scored(
    score_files, scored_files, mistake, files, metrics, tmp_path
):
    """Such as exact values of an earlier model; of each image the last record counts."""
    root, records = tmp_path / "out", []
    shutil.copytree(files, root)
    shutil.copytree(files / "depth", root / "depth_npy")
    for path in sorted((root / "depth_npy").iterdir()):
        np.save(path, np.ones_like(np.load(path)))  # the earlier model's
        for folder in ("depth_npy", "depth"):
            records.append({"name": path.stem, "files": [f"{folder}/{path.name}"]})
    write_records(root, records)
    values = metrics(score_files(tmp_path / "scored", root))
    assert values["val/abs_rel"] == metrics(scored_files)["val/abs_rel"]
    assert "val/miou" not in values
    write_records(root, [{"files": ["depth_color/1.png"]}])
    assert f"{root}/predictions.jsonl: no file in depth_npy" in mistake(root)


@pytest.fixture
def recorded(files, tmp_path):
    """recorded(source): those predictions, with records of the sources as ``source`` of 0 to 4."""

    def write(source):
        root = shutil.copytree(files, tmp_path / "out")
        records = [{"source": source.format(k), "files": [f"depth/{k}.npy"]} for k in range(5)]
        write_records(root, records)
        return root

    return write


def test_predictions_of_other_images_are_refused(mistake, recorded, dense_folder):
    """The same names, but predicted for the images of the train split."""
    root = recorded(f"{dense_folder}/images/train/{{}}.png")
    assert re.search(r"\S+train/0\.png, which is not \S+val/", mistake(root))


@pytest.mark.parametrize("orientation", [3, 6])
def test_images_that_dpt_predict_turned_are_refused(
    mistake, recorded, dense_folder, only_depth, tmp_path, orientation
):
    """Data sets turn them if asked: sideways ones differ in size, those upside down in nothing."""
    data = shutil.copytree(dense_folder, tmp_path / "data")
    image, exif = data / "images/val/0.png", Image.Exif()
    exif[0x0112] = orientation
    Image.open(image).save(image, exif=exif)
    root = recorded(f"{data}/images/val/{{}}.png")
    assert re.search(r"val/0\.png: .*data\.exif=apply", mistake(root, data=only_depth(data)))


def test_missing_and_misshapen_files_are_named(mistake, files, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(files, broken)
    np.save(broken / "depth/2.npy", np.ones((7, 9), np.float32))
    assert re.search(r"2\.npy: 9x7 .* 48x32", mistake(broken, "data.num_workers=1"))
    (broken / "depth/0.npy").unlink()
    assert re.search(r"val/0\.png: no file 0\.\* in \S+depth \(1 of 5", mistake(broken))
