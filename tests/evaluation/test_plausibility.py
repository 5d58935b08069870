"""Predictions on disk that do not mean what is scored: named with the value and a likely cause."""

import shutil

import numpy as np
import pytest
import torch
from photos import save_picture
from PIL import Image

from dpt.data.formats.rules import LabelRule
from dpt.evaluation.predictions import UNITS, DepthCheck, LabelsCheck, SegmentsCheck

LABELS = np.random.default_rng(0).integers(0, 3, (20, 30))
NOISE = np.random.default_rng(1).random(LABELS.shape)
NEAR = np.where(NOISE < 0.8, LABELS, (LABELS + 1) % 3)  # a prediction right in four of five pixels
FILE_IDS = np.array([7, 26, 11])
DEPTH = 1 + 7 * np.random.default_rng(2).random((20, 30))
GUESS = DEPTH * (0.8 + 0.4 * NOISE)


def labels_remarks(prediction, labels=LABELS):
    check = LabelsCheck(["road", "car", "sky"], LabelRule(label_map=[7, [26, 27], 11]))
    for _ in range(2):
        batch = {"labels": [torch.from_numpy(labels.astype(np.uint8))]}
        check.add(torch.from_numpy(np.asarray(prediction, np.int64))[None], batch)
    return "; ".join(check.remarks())


@pytest.mark.parametrize(
    ("prediction", "says"),
    [
        (NEAR + 1, ["3 (0.3", "car on road, sky on car, 3 on sky: ids one too high?"]),
        (NEAR - 1, ["-1 (0.3", "one too low?"]),
        (NEAR * 127, ["127 (0.3", "254 (0.3", "127 on car, 254 on sky"]),
        (np.where(NEAR == 2, 10**9, NEAR), ["65536 (0.3"]),
        (np.full_like(NEAR, 2), ["ids are 2:"]),
        (np.array([0, 2, 1])[NEAR], ["car on sky, sky on car: classes in another order?"]),
        (np.minimum(NEAR, 1) * 255, ["255 on car"]),
    ],
)
def test_ids_that_are_no_classes_are_named(prediction, says):
    remarks = labels_remarks(prediction)
    assert all(text in remarks for text in says), remarks


@pytest.mark.parametrize(
    ("prediction", "says"),
    [(FILE_IDS[NEAR], r"26 \(0.*7 on road, 11 on sky, 26 on car"), (NEAR * 0 - 1, "-1 .1")],
)
def test_ids_none_of_which_is_a_class_are_an_error(prediction, says):
    with pytest.raises(ValueError, match=says):
        labels_remarks(prediction)


def test_good_and_poor_labels_are_not_doubted():
    ignored = np.where(NOISE < 0.5, 255, LABELS)
    poor = np.random.default_rng(3).integers(0, 3, LABELS.shape)
    assert labels_remarks(NEAR) == labels_remarks(poor) == ""
    assert labels_remarks(np.where(ignored == 255, 255, NEAR), ignored) == ""
    assert labels_remarks(NEAR, LABELS * 0 + 255) == ""
    assert "the mean accuracy is 1" in labels_remarks(LABELS * 0, LABELS * 0)


def test_classes_and_boxes_of_objects_are_named():
    """Of two discs in front of a wall, which belongs to no class."""
    rows, columns = np.mgrid[:40, :80]
    discs = [(rows - 20) ** 2 + (columns - x) ** 2 < 200 for x in (20, 60)]
    boxes = [(abs(rows - 20) < 15) & (abs(columns - x) < 15) for x in (20, 60)]
    labels = torch.from_numpy(np.select(discs, [0, 1], 255))
    batch = {"labels": [labels], "objects": [torch.from_numpy(np.select(discs, [1, 1], 0))]}
    for masks, codes, says in (
        (discs, [1, 2**16 + 1], ""),
        (discs, [2**16 + 1, 1], "disc on ball, ball on disc: classes in another order?"),
        (boxes, [1, 2**16 + 1], "boxes?"),
    ):
        check = SegmentsCheck(["disc", "ball"])
        check.add(torch.from_numpy(np.select(masks, codes, -1))[None], batch)
        remarks = "; ".join(check.remarks())
        assert says in remarks
        assert bool(says) == bool(remarks)


def depth_remarks(prediction, expected=DEPTH, **kind):
    check = DepthCheck(**{"is_inverse": False, "has_unit": True} | kind)
    for name in "ab":
        depth = torch.from_numpy(expected.astype(np.float32))
        batch = {"name": [name], "depth": [depth], "valid": [depth > 0]}
        check.add(torch.from_numpy(np.asarray(prediction, np.float32))[None], batch)
    return "; ".join(check.remarks())


IN_UNITS = {unit: size for unit, size in UNITS.items() if size > 1}
RELATIVE = {"is_inverse": True, "has_unit": False}
FITTED = {"has_unit": False}


@pytest.mark.parametrize(
    ("prediction", "kind", "says"),
    [
        *((GUESS * size, {}, f"predictions in {unit}?") for unit, size in IN_UNITS.items()),
        (GUESS / 1000, {}, "ground truth in millimetres?"),
        (GUESS / 10, {}, "times the ground truth (median): another unit?"),
        (1 / GUESS, {}, "predictions_kind=relative"),
        (GUESS, RELATIVE, "predictions_kind=metric"),
        (DEPTH * 0 + 4, {}, "one value in a, b"),
        (np.where(NOISE < 0.25, -1, GUESS), {}, "are 0 or negative"),
    ],
)
def test_depth_of_another_kind_or_unit_is_named(prediction, kind, says):
    assert says in depth_remarks(prediction, **kind)


def test_depth_that_is_nowhere_above_zero_is_an_error():
    for prediction in (DEPTH * 0, -DEPTH):
        with pytest.raises(ValueError, match="above 0"):
            depth_remarks(prediction)


@pytest.mark.parametrize(
    ("prediction", "kind"),
    [
        (GUESS, {}),
        (GUESS * 1000, FITTED),
        (1 / GUESS, RELATIVE),
        (np.where(NOISE < 0.2, np.nan, GUESS), {}),
    ],
)
def test_good_and_poor_depth_are_not_doubted(prediction, kind):
    assert depth_remarks(prediction, **kind) == ""


def test_remarks_are_printed_and_reported(score_files, dense_folder, refused, metrics, tmp_path):
    root = tmp_path / "predictions"
    for path in sorted((dense_folder / "masks/val").glob("*.png")):
        save_picture(root / f"labels/{path.name}", np.asarray(Image.open(path)) + np.uint8(1))
    for path in sorted((dense_folder / "depth/val").glob("*.png")):
        (root / "depth").mkdir(exist_ok=True)
        np.save(root / f"depth/{path.stem}.npy", np.asarray(Image.open(path)).astype(np.float32))
    run = score_files(tmp_path / "run", root, "predictions_scale=0.01")
    text, page = (run / "log.txt").read_text(), (run / "report.html").read_text()
    for name, says in (("segmentation", "one too high"), ("depth", "predictions_scale=0.001,")):
        assert says in metrics(run)[f"remarks/{name}"]
        assert says in text
        assert says in page
    shutil.rmtree(root / "depth")
    for path in sorted((root / "labels").iterdir()):
        save_picture(path, np.full_like(np.asarray(Image.open(path)), 255))
    assert "segmentation: " in refused(score_files, tmp_path / "wrong", root)
