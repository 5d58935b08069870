"""``dpt predict --format coco,yolo,labelme,voc``: predictions as label tools open them."""

import json
import shutil

import numpy as np
import pytest
import yaml
from photos import tiny
from prediction_files import files_of
from pycocotools.coco import COCO

import dpt
from dpt.data import FolderDataset
from dpt.segments import OBJECT_IDS

TOOLS = ("coco", "yolo", "labelme", "voc")
CLASSES = ["a road", "b cow", "c dog", "d cat"]
NAMES = [f"{folder}/{k}" for folder in "ab" for k in range(3)]
VOC = {
    "images": "JPEGImages",
    "labels": "SegmentationClass",
    "objects": "SegmentationObject",
    "class_names": CLASSES,
    "split_files": {"train": "ImageSets/Segmentation/default.txt"},
}
THINGS = {"labels": [], "panoptic": [1, 2, 3], "instance": [0, 1, 2, 3]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Models that predict several classes and segments, by the folder of their files."""
    folder = tmp_path_factory.mktemp("models")
    options = {"num_classes": 4, "class_names": CLASSES}
    tiny({"segmentation": options}).save_pretrained(folder / "labels")
    for name in ("panoptic", "instance"):
        things = [k in THINGS[name] for k in range(4)]
        head = options | {"things": things, "threshold": 0.0, "overlap": 0.0}
        tiny({name: head}).save_pretrained(folder / name)
    return folder


def samples_of(root, tool, things):
    """Returns the samples of a folder of predictions by the image's name."""
    options = {"annotations": tool, "background": False, "fractions": {"train": 1.0}}
    if tool == "voc":
        options = VOC if things else VOC | {"objects": None}
    things = None if tool == "voc" and not things else things
    data = FolderDataset(root=root, split="train", things=things, **options)
    data.adopt_classes(CLASSES)
    assert list(data.info.class_names) == CLASSES
    paths = [data.files(k).image for k in range(len(data))]
    return {f"{path.parent.name}/{path.stem}": data[k] for k, path in enumerate(paths)}


def maps_of(prediction, kind):
    """Returns predicted class ids, 255 where there is none, and segment numbers of things."""
    if kind == "labels":
        return prediction.labels, np.zeros(prediction.labels.shape, int)
    (codes,) = prediction.arrays.values()
    labels = np.where(codes < 0, 255, codes // OBJECT_IDS)
    return labels, np.where(np.isin(labels, THINGS[kind]), codes % OBJECT_IDS, 0)


@pytest.mark.parametrize("kind", THINGS)
def test_predictions_are_read_back_as_they_are(predict, models, photos, out, kind):
    predict(photos, "--format", ",".join(TOOLS), model=models / kind)
    predictor = dpt.Predictor(dpt.DPT.from_pretrained(models / kind))
    expected = {name: maps_of(predictor(photos / f"{name}.png"), kind) for name in NAMES}
    assert all(len(np.unique(labels)) > 1 for labels, _ in expected.values())
    for tool in TOOLS:
        root = out / f"{kind}_{tool}"
        samples = samples_of(root, tool, THINGS[kind])
        assert samples.keys() == expected.keys()
        for name, sample in samples.items():
            labels, numbers = expected[name]
            np.testing.assert_array_equal(sample["labels"], labels, f"{tool} {name}")
            objects = sample.get("objects", np.zeros(labels.shape, int)).astype(int)
            ids = np.where(np.isin(labels, THINGS[kind]), objects, 0)
            counts = [len(np.unique(i)) for i in (ids, numbers, ids * OBJECT_IDS + numbers)]
            assert counts == [counts[0]] * 3


@pytest.mark.parametrize("kind", ["panoptic"])
def test_coco_and_labelme_files_have_scores(predict, models, photos, out, kind):
    predict(photos / "a", "--format", "coco,labelme,json", model=models / kind)
    coco = COCO(str(out / "panoptic_coco/annotations/instances_default.json"))
    assert sorted(row["file_name"] for row in coco.imgs.values()) == ["0.png", "1.png", "2.png"]
    for image in coco.imgs.values():
        name = image["file_name"][0]
        segments = json.loads((out / f"panoptic_json/{name}.json").read_text())
        scores = {(row["category_id"], row["score"]) for row in segments}
        rows = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert {(row["category_id"] - 1, row["score"]) for row in rows} == scores
        shapes = json.loads((out / f"panoptic_labelme/{name}.json").read_text())["shapes"]
        found = {(CLASSES.index(s["label"]), s["description"]) for s in shapes}
        assert found == {(class_id, f"score {score:g}") for class_id, score in scores}
    results = [{**row, "image_id": row["image_id"]} for row in coco.anns.values()]
    assert len(coco.loadRes(results).anns) == len(results)


def test_a_stopped_run_continues_to_complete_files(predict, run, models, photos, out):
    shutil.copytree(photos, photos.with_name("some"))
    some, whole = photos.with_name("some"), out.with_name("whole")
    for name in NAMES[2:]:
        (some / f"{name}.png").write_bytes(b"broken")
    options = ("--format", "coco,yolo,voc")
    code, _, err = run(some, *options, model=models / "labels")
    assert (code, err.splitlines()[0]) == (1, "4 failed:")
    path = "labels_coco/annotations/instances_default.json"
    assert len(json.loads((out / path).read_text())["images"]) == 2
    for name in NAMES[2:]:
        shutil.copy(photos / f"{name}.png", some / f"{name}.png")
    assert "2 were done before" in predict(some, *options, model=models / "labels")
    predict(some, *options, model=models / "labels", to=whole)
    assert files_of(out) == files_of(whole)
    for name in files_of(out) - {"predictions.jsonl"}:
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    (out / "labels_yolo/data.yaml").unlink()  # as if the run was killed before its end
    assert "6 were done before" in predict(some, *options, model=models / "labels")
    settings = yaml.safe_load((out / "labels_yolo/data.yaml").read_text())
    assert settings == {"train": "images", "names": dict(enumerate(CLASSES))}
    lines = (out / "labels_voc/ImageSets/Segmentation/default.txt").read_text().splitlines()
    assert lines == NAMES
