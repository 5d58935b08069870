"""Predictions of other projects in COCO's formats."""

import json
import shutil

import cv2
import numpy as np
import pytest
from coco_files import write
from pycocotools import mask as coco
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """Folders of the two kinds of COCO's labels."""
    root = tmp_path_factory.mktemp("coco")
    for kind in ("instances", "panoptic"):
        write(root / kind, panoptic=kind == "panoptic", lengths=[("val", 5)])
    return root


@pytest.fixture(scope="module")
def score_coco(score_files, truth):
    """score_coco(folder, predictions, kind): their evaluation."""

    def run(folder, predictions, kind):
        options = {"root": truth / kind, "annotations": f"annotations/{kind}_%split.json"}
        data = [f"data.{key}={value}" for key, value in options.items()]
        names = "data.split_names={train: train, val: val}"
        return score_files(folder, predictions, data=("data=coco", *data, names))

    return run


def moved_objects(path, random):
    """Results: true masks moved by a pixel or more, as RLE or polygons, and some wrong classes."""
    content = json.loads(path.read_text())
    categories = [row["id"] for row in content["categories"]]
    rows = []
    for row in content["annotations"]:
        mask = coco.decode(row["segmentation"])
        mask = np.roll(mask, random.integers(-3, 4, 2), (0, 1))
        code = coco.encode(np.asfortranarray(mask))
        shape = {"size": code["size"], "counts": code["counts"].decode()}
        outlines = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]
        rings = [ring.reshape(-1).tolist() for ring in outlines if len(ring) > 2]
        if random.random() < 0.5 and rings:
            shape = rings
        category = random.choice(categories) if random.random() < 0.2 else row["category_id"]
        result = {"image_id": row["image_id"], "category_id": int(category), "segmentation": shape}
        rows.append(result | {"score": float(random.random()), "bbox": [0, 0, 1, 1]})
    return [row for row in rows if row["image_id"] != 3]  # an image without an object


def test_instances_score_as_by_pycocotools(score_coco, truth, metrics, tmp_path, capsys):
    path = truth / "instances/annotations/instances_val.json"
    rows = moved_objects(path, np.random.default_rng(0))
    (tmp_path / "results.json").write_text(json.dumps(rows))
    values = metrics(score_coco(tmp_path / "scores", tmp_path / "results.json", "instances"))
    expected = COCO(path)
    evaluation = COCOeval(expected, expected.loadRes(rows), "segm")
    for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
        step()
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium")
    ours = [values[f"val/{name}"] for name in names]
    theirs = [None if v < 0 else pytest.approx(v, abs=1e-9) for v in evaluation.stats[:5]]
    assert ours == theirs
    assert 0.1 < values["val/ap"] < 0.9
    assert values["images"] == 5
    rows = json.loads((tmp_path / "results.json").read_text())
    for row in rows:
        row["category_id"] = {22: 25, 25: 22}.get(row["category_id"], row["category_id"])
    (tmp_path / "results.json").write_text(json.dumps(rows))
    values = metrics(score_coco(tmp_path / "order", tmp_path / "results.json", "instances"))
    assert "another order" in values["remarks/instance"]


def test_panoptic_files_score_as_codes(score_coco, truth, metrics, tmp_path):
    """As panoptic_npy of the same segments."""
    source = truth / "panoptic/annotations"
    content = json.loads((source / "panoptic_val.json").read_text())
    segments = content["annotations"][0]["segments_info"]
    segments[0]["category_id"] = segments[-1]["category_id"]
    predictions = {"annotations": content["annotations"]}  # without categories, as COCO wants it
    shutil.copytree(source / "panoptic_val", tmp_path / "pred")
    (tmp_path / "pred.json").write_text(json.dumps(predictions))
    values = metrics(score_coco(tmp_path / "scores", tmp_path / "pred.json", "panoptic"))
    classes = sorted(row["id"] for row in content["categories"])
    (tmp_path / "npy/panoptic_npy").mkdir(parents=True)
    for row in content["annotations"]:
        ids = cv2.imread(str(source / "panoptic_val" / row["file_name"]))[..., ::-1]
        ids = ids.astype(int) @ [1, 256, 65536]
        codes = np.full(ids.shape, -1)
        for number, segment in enumerate(row["segments_info"], 1):
            code = classes.index(segment["category_id"]) * 2**16 + number
            codes[ids == segment["id"]] = code
        np.save(tmp_path / f"npy/panoptic_npy/{row['file_name'][:-4]}.npy", codes)
    expected = metrics(score_coco(tmp_path / "expected", tmp_path / "npy", "panoptic"))
    for name in ("val/pq", "val/sq", "val/rq", "val/pq_things"):
        assert values[name] == expected[name], name
    assert 0.5 < values["val/pq"] < 1
    (tmp_path / "pred" / content["annotations"][1]["file_name"]).unlink()
    beside = tmp_path / "flat"  # pictures beside the file
    shutil.copytree(source / "panoptic_val", beside)
    (beside / "a.json").write_text(json.dumps(predictions))
    again = metrics(score_coco(tmp_path / "again", beside / "a.json", "panoptic"))
    assert again["val/pq"] == values["val/pq"]


def changed(**values):
    def change(rows):
        rows[0] |= values
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed(image_id=99), "image_id 99"),
        (changed(segmentation={"size": [9, 9], "counts": "0"}), "image_id 1"),
        (lambda rows: {"annotations": rows}, "annotations.0.file_name"),
    ],
)
def test_mistakes_in_results_are_named(score_coco, truth, refused, tmp_path, change, says):
    path = truth / "instances/annotations/instances_val.json"
    rows = moved_objects(path, np.random.default_rng(0))
    (tmp_path / "results.json").write_text(json.dumps(change(rows)))
    message = refused(score_coco, tmp_path / "run", tmp_path / "results.json", "instances")
    assert says in message
    assert "results.json" in message
