"""COCO's panoptic and instances formats: scenes written and read back, and damaged files."""

import json

import numpy as np
import pytest
from coco_files import write
from pycocotools import mask as coco

from dpt.data import CocoDataset, ScenesDataset
from dpt.data.datasets.coco import encode_mask
from dpt.data_check.checks import objects
from dpt.data_check.measure import measure_objects
from dpt.data_check.scan import Scan, read_records
from dpt.files import DataError

SIZE = (48, 64)
SPLITS = {"train": "train", "val": "val"}


@pytest.fixture(scope="module", params=[True, False], ids=["panoptic", "instances"])
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("coco")
    write(folder, panoptic=request.param, lengths=[("train", 3)], size=SIZE)
    return folder, request.param


def dataset(folder, panoptic, **options):
    kind = "panoptic" if panoptic else "instances"
    return CocoDataset(
        root=folder, split="train", annotations=f"annotations/{kind}_%split.json", **options
    )


def same_partition(one, other):
    """Whether two maps of ids differ in the names of their ids alone."""
    pairs = np.unique(np.stack([one.ravel(), other.ravel()]), axis=1)
    return len(np.unique(one)) == len(np.unique(other)) == pairs.shape[1]


def test_scenes_come_back(saved):
    _folder, panoptic = saved
    data, scenes = dataset(*saved), ScenesDataset(length=3, size=SIZE)
    names = [
        n
        for n, t in zip(scenes.info.class_names, scenes.info.things, strict=False)
        if t or panoptic
    ]
    assert list(data.info.class_names) == names
    assert sum(data.info.things) == 5
    assert data.info.targets == ("labels", "objects")
    back = np.array(
        [*(scenes.info.class_names.index(n) for n in names), *[255] * (256 - len(names))]
    )
    for found, wanted in zip(data, scenes, strict=True):
        things = np.isin(wanted["labels"], np.flatnonzero(scenes.info.things))
        labels = back[found["labels"]]
        assert np.array_equal(labels[things], wanted["labels"][things])
        assert (labels[~things] == (wanted["labels"][~things] if panoptic else 255)).all()
        assert same_partition(found["objects"], wanted["objects"])
        assert found["objects"].dtype == np.uint16
        assert found["objects"].max() > 1


def edited(saved, tmp_path, change):
    """A copy of the JSON file, changed; the images stay where they are."""
    folder, panoptic = saved
    kind = "panoptic" if panoptic else "instances"
    content = json.loads((folder / f"annotations/{kind}_train.json").read_text())
    change(content)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(content))
    return CocoDataset(
        root=folder,
        split="train",
        annotations=str(path),
        masks="annotations/panoptic_train",
    )


def part(content):
    row = content["annotations"][0]
    return row["segments_info"][0] if "segments_info" in row else row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: part(c).update(category_id=7), "category_id 7 of an annotation is not among"),
        (lambda c: c["annotations"][0].update(image_id=99), "an annotation names no image"),
        (lambda c: part(c).pop("category_id"), "category_id None of an annotation is not among"),
        (lambda c: part(c).update(category_id=[1]), "category_id: Input should be a valid integer"),
        (lambda c: c["annotations"][0].update(segments_info=[3]), "segments_info.0: Input should"),
        (lambda c: c["annotations"].append(None), "annotations.*: Input should be an object"),
        (lambda c: c.pop("images"), "not in COCO's format .images: Field required"),
        (lambda c: c["categories"][0].pop("name"), "categories.0.name: Field required"),
        (lambda c: c["categories"][0].update(id=None), "categories.0.id: Input should be a valid"),
        (lambda c: c["categories"][0].update(color=[1, 2, 256]), "categories.0.color.2: Input"),
        (lambda c: c["images"][0].update(id=[1]), "images.0.id.int: Input should be a valid"),
        (lambda c: c["images"][0].update(height=True), "images.0.height: Input should be a valid"),
        (lambda c: c["images"][0].update(width=10**9), "has more than 175 million pixels"),
        (lambda c: c["images"].append(c["images"][0]), "an id occurs twice in 'images'"),
        (lambda c: c["images"][0].update(file_name="no.jpg"), "1 files of its 3 images do not"),
    ],
)
def test_mistakes_are_named(saved, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        edited(saved, tmp_path, change)


def test_categories_of_one_name_are_told_apart_by_their_ids(saved, tmp_path):
    def change(content):
        for row in content["categories"][:2]:
            row["name"] = "thing"

    ids = [id for id, *_ in edited(saved, tmp_path, lambda content: None).categories]
    names = edited(saved, tmp_path, change).info.class_names
    assert names[:2] == (f"thing ({ids[0]})", f"thing ({ids[1]})")


def test_a_mask_that_does_not_fit(saved, tmp_path):
    if saved[1]:
        for change, message in (
            (lambda p: p[0].update(id=99999), r"ids 1, 99999 occur in only one of the two"),
            (lambda p: p.append(p[0]), r"segment id \d+ occurs twice in the JSON file"),
        ):
            data = edited(
                saved, tmp_path, lambda c, f=change: f(c["annotations"][0]["segments_info"])
            )
            with pytest.raises(DataError, match=message):
                data[0]
        return
    for segmentation, message in (
        ({"size": [48, 63], "counts": "abc"}, "neither polygons nor an RLE of 48x64"),
        ({"size": [48, 64], "counts": [5, 5]}, "its counts sum to 10, not 3072"),
        ({"size": [48, 64], "counts": "zzzz"}, r"its counts sum to \d+, not 3072"),
        (None, "neither polygons"),
        ({"size": [48, 64], "counts": [3071, 1.0]}, "its counts are not whole numbers"),
        ({"size": [48, 64], "counts": "ä☃"}, "its counts are not whole numbers|sum to"),
        ([[1, 2, 9, 9]], "a polygon needs x and y of three points or more"),
        ([[1, 2, 9, 9, 1, 5], [7]], "a polygon needs x and y of three points or more"),
        ([], "a polygon needs x and y of three points or more"),
        ([[1, 2, 9, 9, 1, float("nan")]], "a polygon is far outside the image of 48x64"),
        ([[1, 2, 9, 9, 1, 1e9]], "a polygon is far outside the image of 48x64"),
    ):
        data = edited(saved, tmp_path, lambda c, s=segmentation: part(c).update(segmentation=s))
        with pytest.raises(DataError, match=message):
            data[0]


def test_crowds_have_a_class_and_no_object(saved, tmp_path):
    plain = dataset(*saved)[0]
    data = edited(
        saved,
        tmp_path,
        lambda c: [
            p.update(iscrowd=1) for a in c["annotations"] for p in a.get("segments_info", [a])
        ],
    )
    found = data[0]
    assert np.array_equal(found["labels"], plain["labels"])
    assert found["objects"].max() == 0 < plain["objects"].max()


def test_images_without_objects_are_samples_of_instances(saved, tmp_path):
    data = edited(saved, tmp_path, lambda content: content["annotations"].clear())
    if saved[1]:  # the panoptic format: a segment for each known pixel
        with pytest.raises(DataError):
            data.validate()
    else:
        assert data.validate() == []
        assert not data[0]["objects"].any()


def test_the_data_check_finds_faulty_objects(saved, tmp_path):
    """Empty and overlapping masks, and objects that have no class."""
    if saved[1]:
        pytest.skip("masks of the panoptic format can neither overlap nor be empty")

    def change(content):
        first, second = content["annotations"][:2]
        assert first["image_id"] == second["image_id"]
        empty = {"size": [48, 64], "counts": [48 * 64]}
        everything = {"size": [48, 64], "counts": [0, 48 * 64]}
        content["annotations"] += [
            {**first, "id": 901, "segmentation": empty},
            {**first, "id": 902, "segmentation": everything},
        ]

    data = edited(saved, tmp_path, change)
    scan = Scan("train", data, read_records(data, title="", num_workers=0))
    (finding,) = objects(scan)
    assert finding.code == "object_faults"
    assert "no pixel in the mask of annotation 901" in finding.examples[0]
    assert "pixels are in several masks" in finding.examples[1]


def test_the_data_check_finds_objects_without_class():
    labels = np.array([[4, 4, 0, 255], [5, 5, 0, 0]], np.uint8)
    numbers = np.array([[1, 1, 2, 3], [4, 1, 0, 0]], np.uint16)
    things = (False, False, False, False, True, True)
    found = measure_objects(labels, numbers, things)
    assert found.counts == {4: 1, 5: 2}
    assert found.segments == 3 + 1  # class 0 is stuff
    assert found.without_class == 2
    assert found.of_several_classes == 1


def test_polygons_are_cut_at_the_border():
    whole = encode_mask([[-5, -5, 40, -5, 40, 30, -5, 30]], (20, 30))
    half = encode_mask([[-5, -5, 15, -5, 15, 30, -5, 30]], (20, 30))
    assert coco.decode(whole).all()
    np.testing.assert_array_equal(coco.decode(half).any(axis=0), np.arange(30) < 15)
