"""COCO's panoptic and instances formats: scenes written and read back, and damaged files."""

import json

import numpy as np
import pytest
import torch
from coco_files import save, write, write_objects
from pycocotools import mask as coco

from dpt.data import CocoDataset, ScenesDataset, TrainTransform
from dpt.data.formats.rle import encode_mask
from dpt.data.loading import collate_eval
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.data_check.checks import objects
from dpt.data_check.measure import measure_objects
from dpt.data_check.scan import Scan, read_records
from dpt.files import DataError
from dpt.objectives import InstanceObjective, PanopticObjective
from dpt.types.outputs import HeadOutput, Masks

SIZE = (48, 64)


@pytest.fixture(scope="module", params=[True, False], ids=["panoptic", "instances"])
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco")
    write(folder, panoptic=request.param, lengths=[("train", 3)], size=SIZE)
    return folder, request.param


@pytest.fixture
def instances(saved):
    if saved[1]:
        pytest.skip("the PNG files of the panoptic format have no such masks")
    return saved


def dataset(folder, panoptic):
    kind = "panoptic" if panoptic else "instances"
    return CocoDataset(root=folder, split="train", annotations=f"annotations/{kind}_%split.json")


def same_partition(one, other):
    """Whether two maps of ids differ in the names of their ids alone."""
    pairs = np.unique(np.stack([one.ravel(), other.ravel()]), axis=1)
    return len(np.unique(one)) == len(np.unique(other)) == pairs.shape[1]


def test_scenes_come_back(saved):
    panoptic = saved[1]
    data, scenes = dataset(*saved), ScenesDataset(length=3, size=SIZE)
    class_names, things = scenes.info.class_names, np.array(scenes.info.things)
    kept = np.flatnonzero(things | panoptic)
    assert data.info.class_names == tuple(class_names[k] for k in kept)
    assert sum(data.info.things) == 5
    assert data.info.targets == ("labels", "objects")
    scene_class = np.full(256, 255)
    scene_class[: len(kept)] = kept
    for sample, scene in zip(data, scenes, strict=True):
        is_thing = np.isin(scene["labels"], np.flatnonzero(things))
        expected = scene["labels"] if panoptic else np.where(is_thing, scene["labels"], 255)
        assert np.array_equal(scene_class[sample["labels"]], expected)
        assert same_partition(sample["objects"], scene["objects"])
        assert sample["objects"].dtype == np.uint16
        assert sample["objects"].max() > 1


def edited(saved, tmp_path, change, **options):
    """A copy of the JSON file, changed, with a byte order mark; the images stay where they are."""
    folder, panoptic = saved
    kind = "panoptic" if panoptic else "instances"
    content = json.loads((folder / f"annotations/{kind}_train.json").read_text())
    change(content)
    path = tmp_path / "changed.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(content).encode())
    if panoptic:
        (tmp_path / "changed").unlink(missing_ok=True)
        (tmp_path / "changed").symlink_to(folder / "annotations/panoptic_train")
    return CocoDataset(root=folder, split="train", annotations=str(path), **options)


def first_segment(content):
    row = content["annotations"][0]
    return row["segments_info"][0] if "segments_info" in row else row


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda c: first_segment(c).update(category_id=7), "categories: id 7"),
        (lambda c: c["annotations"][0].update(image_id=99), "images: id 99"),
        (lambda c: c["categories"][0].update(color=[1, 2, 256]), r"categories\.0\.color\.2"),
        (lambda c: c["images"].append({**c["images"][1], "id": 77}), r"000001\.jpg .*2, 77"),
        (lambda c: c["images"][0].update(file_name="no.jpg"), r"1 files of its 3 .*no\.jpg"),
        (lambda c: c["images"][0].update(file_name="../../a.jpg"), r"1 files of its 3 .*a\.jpg"),
        (lambda c: c["categories"][0].update(name="=1+1"), r"'=1\+1'"),
    ],
)
def test_mistakes_are_named(saved, tmp_path, change, key):
    with pytest.raises(DataError, match=rf"(changed\.json|000000\.jpg): .*{key}"):
        edited(saved, tmp_path, change)


def test_segments_that_differ_from_the_picture(saved, tmp_path):
    if not saved[1]:
        pytest.skip("the instances format has no pictures")
    for change, key in (
        (lambda rows: rows[0].update(id=99999), "99999"),
        (lambda rows: rows.append(rows[0]), "repeated"),
    ):
        data = edited(saved, tmp_path, lambda c, f=change: f(c["annotations"][0]["segments_info"]))
        with pytest.raises(DataError, match=rf"000000\.png: .*{key}"):
            data[0]


@pytest.mark.parametrize(
    "segmentation",
    [
        {"size": [48, 63], "counts": "abc"},
        {"size": [48, 64], "counts": [5, 5]},
        {"size": [48, 64], "counts": "PP31"},  # their sum is 3073, not 3072
        {"size": [48, 64], "counts": "PP3P"},  # cut short
        {"size": [48, 64], "counts": "ä☃"},
        {"size": [48, 64], "counts": [0] * 100_000 + [3072]},
        [[1, 2, 9, 9, 1, 5], [7]],
        [[1, 2, 9, 9, 1, float("nan")]],
    ],
)
def test_masks_that_do_not_fit(segmentation):
    with pytest.raises(ValueError, match=r"counts|polygon|RLE"):
        encode_mask(segmentation, SIZE)


def test_faulty_mask_is_named(instances, tmp_path):
    wrong = {"size": [48, 64], "counts": [5, 5]}
    data = edited(instances, tmp_path, lambda c: first_segment(c).update(segmentation=wrong))
    with pytest.raises(DataError, match=r"000000\.jpg: .*object 1 "):
        data[0]


def all_crowds(content):
    for segment in each_segment(content):
        segment["iscrowd"] = 1


def test_crowds_have_a_class_and_no_object(saved, tmp_path):
    plain, changed = dataset(*saved)[0], edited(saved, tmp_path, all_crowds)[0]
    assert np.array_equal(changed["labels"], plain["labels"])
    assert changed["objects"].max() == 0 < plain["objects"].max()


def no_segment(content):
    content["annotations"].clear()


def test_images_without_objects_are_samples_of_instances(saved, tmp_path):
    data = edited(saved, tmp_path, no_segment)
    if saved[1]:  # the panoptic format: a segment for each known pixel
        with pytest.raises(DataError):
            data.validate()
    else:
        assert data.validate() == []
        assert not data[0]["objects"].any()


def test_data_check_finds_faulty_objects(instances, tmp_path):
    def change(content):
        empty = {"size": [48, 64], "counts": [48 * 64]}
        row = {**content["annotations"][0], "id": 901, "segmentation": empty}
        content["annotations"].append(row)

    data = edited(instances, tmp_path, change)
    scan = Scan("train", data, read_records(data, title="", num_workers=0))
    (finding,) = objects(scan)
    assert finding.code == "empty_objects"
    assert "object 901" in finding.examples[0]


def test_data_check_finds_objects_without_class():
    labels = np.array([[4, 4, 0, 255], [5, 5, 0, 0]], np.uint8)
    numbers = np.array([[1, 1, 2, 3], [4, 1, 0, 0]], np.uint16)
    things = (False, False, False, False, True, True)
    measured = measure_objects(labels, numbers, things)
    assert measured.counts == {4: 1, 5: 2}
    assert measured.segments == 3 + 1  # class 0 is stuff
    assert measured.without_class == 2
    assert measured.of_several_classes == 1


# ------------------------------------------------------------------------------ what tools write


def each_segment(content):
    return [p for row in content["annotations"] for p in row.get("segments_info") or [row]]


def with_texts_and_floats(content):
    for row in content["images"]:
        row.update(id=str(row["id"]), height=float(row["height"]), width=str(row["width"]))
    for row in content["categories"]:
        row.update(id=str(row["id"]))
    for row in content["annotations"]:
        row.update(image_id=float(row["image_id"]))
    for segment in each_segment(content):
        segment.update(iscrowd="0", area=str(segment["area"]))
        segment.update(category_id=float(segment["category_id"]))


def with_nulls(content):
    for row in (*content["categories"], *each_segment(content)):
        row.update(supercategory=None, iscrowd=None, area=None, score=None)
    for row in content["annotations"]:
        row.setdefault("segments_info", None)


def with_urls_alone(content):
    for row in content["images"]:
        row.update(coco_url=f"http://host/train/{row.pop('file_name')}")


def with_names(change):
    def renamed(content):
        for row in content["images"]:
            row.update(file_name=change(row["file_name"]))

    return renamed


@pytest.mark.parametrize(
    "change",
    [
        with_texts_and_floats,
        with_nulls,
        with_urls_alone,
        with_names(lambda name: f"http://host:80/a%20b/{name}?raw=1#x"),
        with_names(lambda name: f".\\..\\train\\{name}"),
        with_names(lambda name: name.replace(".jpg", ".JPG")),
    ],
)
def test_what_other_tools_write_is_read_alike(saved, tmp_path, change):
    expected, changed = dataset(*saved), edited(saved, tmp_path, change)
    assert changed.info == expected.info
    for one, other in zip(changed, expected, strict=True):
        assert np.array_equal(one["labels"], other["labels"])
        assert np.array_equal(one["objects"], other["objects"])


def test_categories_are_joined_by_name(saved, tmp_path):
    """As val of train, and as data of a checkpoint: other ids, an absent class, another order."""

    def change(content):
        ids = {row["id"]: 900 - row["id"] for row in content["categories"]}
        for row in content["categories"]:
            row["id"] = ids[row["id"]]
        for segment in each_segment(content):
            segment["category_id"] = ids[segment["category_id"]]
        content["categories"].append({"id": 950, "name": "unused"})

    train, val = dataset(*saved), edited(saved, tmp_path, change)
    assert val.info.class_names == (*train.info.class_names[::-1], "unused")
    val.adopt_classes(train.info.class_names)
    assert val.info == train.info
    for one, other in zip(train, val, strict=True):
        assert np.array_equal(one["labels"], other["labels"])
        assert [m.class_id for m in one.get("masks", [])] == [
            m.class_id for m in other.get("masks", [])
        ]
    val.adopt_classes(("new", *train.info.class_names))
    assert np.array_equal(val[0]["labels"], train[0]["labels"] + (train[0]["labels"] != 255))
    for names in (("another",), ()):  # which lack classes of val, which stays as it is
        val.adopt_classes(names)
    assert val.info.class_names == ("new", *train.info.class_names)


@pytest.mark.parametrize("kind", [PanopticObjective, InstanceObjective])
def test_data_without_objects_cannot_be_trained_for_objects(saved, tmp_path, kind):
    def one_object(content):
        all_crowds(content)
        for segment in each_segment(content)[:-1] if not saved[1] else each_segment(content):
            segment["iscrowd"] = 0

    for change in (all_crowds, no_segment):
        data = edited(saved, tmp_path, change)
        before = data.info
        data.adopt_classes(())  # of predictions without names
        assert data.info == before
        with pytest.raises(DataError, match=r"changed\.json: none"):
            kind.from_data(data, {})
    kind.from_data(edited(saved, tmp_path, one_object), {})


# ------------------------------------------------------------------------------ overlaps, crowds


def overlapping(folder, size=(40, 60)):
    """Two images of rectangles on top of each other, two crowds, and their scores by pycocotools
    for predictions that are the objects themselves."""
    boxes = [[0, 0, 30, 30], [10, 10, 40, 25], [12, 12, 6, 6], [40, 0, 10, 10], [50, 0, 10, 10]]
    write_objects(folder / "a.json", ["1.png", "2.png"], {3: "cup", 5: "box"}, size=size)
    content = json.loads((folder / "a.json").read_text())
    content["annotations"] = [
        {
            "id": 10 * image + k,
            "image_id": image,
            "category_id": 5 - 2 * (k % 2),
            "iscrowd": k > 2,
            "area": w * h,
            "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
        }
        for image in (1, 2)
        for k, (x, y, w, h) in enumerate(boxes)
    ]
    (folder / "a.json").write_text(json.dumps(content))
    for name in ("1.png", "2.png"):
        save(folder / name, np.full((*size, 3), 90, np.uint8))
    return CocoDataset(root=folder, split="train", images=".", annotations="a.json")


def test_objects_that_overlap_are_scored_whole(tmp_path):
    data = overlapping(tmp_path)
    objective = InstanceObjective(num_classes=2, things=(True, True), class_names=("cup", "box"))
    for sample in data:
        assert [m.is_crowd for m in sample["masks"]] == [False] * 3 + [True] * 2
        codes = [m.mask for m in sample["masks"]]
        masks = torch.from_numpy(coco.decode(codes)).permute(2, 0, 1)[None] * 40.0 - 20
        classes = torch.tensor([[m.class_id for m in sample["masks"]]])
        logits = 20.0 * torch.nn.functional.one_hot(classes, 3)
        output = HeadOutput(Masks(masks, logits))
        objective.update(output, collate_eval([sample], ("objects",)))
    scores = objective.compute()
    assert scores["ap"] == scores["recall"] == 1
    again = decode_sample(encode_sample(data[1]), source="x")
    assert again["masks"] == data[1]["masks"]


def test_training_samples_have_no_masks(tmp_path):
    transform = TrainTransform(image_size=(32, 32))
    assert "masks" not in transform(overlapping(tmp_path)[0], seed=0)


# ------------------------------------------------------------------------------ sizes and outlines


@pytest.mark.parametrize("size", [(1, 100_000_000), (64, 48)])
def test_claimed_size_is_compared_with_the_image_first(instances, tmp_path, size):
    def change(content):
        content["images"][0].update(height=size[0], width=size[1])
        first_segment(content).update(segmentation=[[0, 0, 1, 0, 1, 1]])

    data = edited(instances, tmp_path, change)
    with pytest.raises(DataError, match=r"000000\.jpg: .*64x48"):
        data[0]


@pytest.mark.parametrize(
    ("polygons", "size"),
    [
        ([[-600, -600, 1200, 900] * 50_000], (480, 640)),
        ([[0, 0, 90_000_000, 0, 0, 1]], (1, 100_000_000)),
    ],
)
def test_long_outlines_are_refused(polygons, size):
    with pytest.raises(ValueError, match="outline"):
        encode_mask(polygons, size)


@pytest.mark.parametrize("shift", [(0, 20), (-30, 0), (1e9, 0), (0, -1e9)])
def test_polygons_outside_have_no_pixel(shift):
    corners = np.array([[0, 0], [30, 0], [30, 20], [0, 20]], float)
    outside, inside = ((corners + offset).ravel().tolist() for offset in (shift, (0, 0)))
    assert not coco.decode(encode_mask([outside], (20, 30))).any()
    assert coco.decode(encode_mask([outside, inside], (20, 30))).all()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 65])
def test_many_small_polygons_are_one_mask(count):
    random = np.random.default_rng(0)
    corners = random.integers(0, (600, 440), (count, 2))[:, None] + random.integers(0, 40, (3, 2))
    polygons = corners.reshape(count, -1).astype(float).tolist()
    assert encode_mask(polygons, (480, 640)) == coco.merge(coco.frPyObjects(polygons, 480, 640))


def test_shard_with_a_damaged_mask_is_refused(tmp_path):
    parts = encode_sample(overlapping(tmp_path)[0])
    stored = json.loads(parts["json"])
    stored["masks"][0][1]["counts"] = "zzzz"
    with pytest.raises(DataError, match="pack the data again"):
        decode_sample({**parts, "json": json.dumps(stored).encode()}, source="x")
