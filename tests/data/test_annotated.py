"""Objects of label tools as labels of a data set: masks, overlaps, classes and splits."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from coco_files import save
from PIL import Image
from pycocotools import mask as coco

from dpt.data import FolderDataset
from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import UNLABELLED, AnnotatedImage, Annotation, Annotations
from dpt.data.annotations.coco import CocoFormat
from dpt.data.base import require_same_classes
from dpt.data.datasets.annotated import ObjectLabels
from dpt.data.formats.rle import areas_of, encode_mask, encode_pixels, pixels_of, subtract_mask
from dpt.files import DataError
from dpt.objectives import InstanceObjective, PanopticObjective
from dpt.objectives.segmentation import SegmentationObjective
from dpt.segments import segments_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fraction", [0, 0.3, 0.9, 1])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (6, 11)])
def test_masks_as_runs_equal_masks_as_pixels(fraction, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask, other = rng.random((2, *size)) < [[[fraction]], [[0.5]]]
        code = encode_pixels(mask)
        pixels = np.zeros(mask.size, bool)
        pixels[pixels_of(code)] = True
        np.testing.assert_array_equal(coco.decode(code), mask)
        np.testing.assert_array_equal(pixels.reshape(size[::-1]).T, mask)
        assert subtract_mask(code, encode_pixels(other)) == encode_pixels(mask & ~other)
        assert areas_of([code]) == mask.sum()


def test_every_format_that_is_read_is_documented():
    guide = (ROOT / ".github/guide/data.md").read_text()
    comment = (ROOT / "conf/data/folder.yaml").read_text()
    assert all(f"| `{k}` |" in guide and re.search(rf"\b{k}\b", comment) for k in FORMATS)


# ---------------------------------------------------------------- a folder of boxes on the pixels


def box(left, top, right, bottom):
    return [[left, top, right, top, right, bottom, left, bottom]]


def write_boxes(folder, boxes, *, file="a.json", size=(20, 30), names=("cup", "plate")):
    """Images ``NAME.png`` and COCO's JSON; ``boxes[NAME]`` are pairs of a class and a mask."""
    path = folder / file
    images, rows = [], []
    for name, objects in boxes.items():
        save(path.parent / f"{name}.png", np.full((*size, 3), len(images), np.uint8))
        row = {"id": name, "file_name": f"{name}.png", "height": size[0], "width": size[1]}
        images.append(row)
        for class_name, mask in objects:
            row = {"id": len(rows) + 1, "image_id": name, "segmentation": mask}
            rows.append(row | {"category_id": 5 + names.index(class_name)})
    categories = [{"id": 5 + k, "name": name} for k, name in enumerate(names)]
    content = {"images": images, "annotations": rows, "categories": categories}
    path.write_text(json.dumps(content))


def folder_data(folder, split="train", **options):
    options = {"fractions": {"train": 1.0}, "annotations": "coco"} | options
    return FolderDataset(root=folder, split=split, **options)


def drawn(size, *boxes):
    """A map in which the boxes are drawn one after the other."""
    values = np.zeros(size, int)
    for value, (left, top, right, bottom) in boxes:
        values[top:bottom, left:right] = value
    return values


LARGE, SMALL = (0, 0, 20, 15), (5, 5, 9, 9)


@pytest.mark.parametrize("first", [LARGE, SMALL])
@pytest.mark.parametrize("front", ["smaller", "later"])
def test_overlaps_follow_the_order_of_the_format(tmp_path, monkeypatch, first, front):
    monkeypatch.setattr(CocoFormat, "front", front)
    second = SMALL if first == LARGE else LARGE
    write_boxes(tmp_path, {"a": [("cup", box(*first)), ("plate", box(*second))]})
    class_of = {first: 1, second: 2}
    order = [LARGE, SMALL] if front == "smaller" else [first, second]
    sample = folder_data(tmp_path)[0]
    expected = drawn((20, 30), *((class_of[corners], corners) for corners in order))
    np.testing.assert_array_equal(sample["labels"], expected)
    areas = {mask.class_id: mask.area for mask in sample["masks"]}
    assert areas == {class_of[LARGE]: 300, class_of[SMALL]: 16}


@pytest.mark.parametrize(
    ("names", "background", "expected", "outside"),
    [
        (("cup",), None, ("background", "cup"), 0),
        (("cup",), True, ("background", "cup"), 0),
        (("cup",), False, ("cup",), 255),
        (("cup", "_background_"), None, ("_background_", "cup"), 0),
        (("cup", "Background"), False, ("cup", "Background"), 255),
    ],
)
def test_background_is_a_class_of_stuff(tmp_path, names, background, expected, outside):
    write_boxes(tmp_path, {"a": [("cup", box(*SMALL))]}, names=names)
    data = folder_data(tmp_path, background=background)
    assert data.info.class_names == expected
    assert data.info.things == tuple(name == "cup" for name in expected)
    labels = data[0]["labels"]
    assert labels[0, 0] == outside
    assert (labels[5:9, 5:9] == expected.index("cup")).all()


def test_pixels_to_ignore_have_no_label_and_no_object(tmp_path):
    write_boxes(tmp_path, {"a": [("cup", box(*LARGE))]})
    outlines = {"cup": box(*LARGE), UNLABELLED: box(*SMALL)}
    objects = [
        Annotation(class_name=name, encode=partial(encode_mask, outline))
        for name, outline in outlines.items()
    ]
    image = AnnotatedImage(image=tmp_path / "a.png", objects=objects)
    labels = ObjectLabels(
        Annotations(source=tmp_path, images=[image], classes=[]), [image], front="smaller"
    )
    maps = labels.maps(image, (20, 30))
    assert labels.rule.class_names == ("background", "cup")
    np.testing.assert_array_equal(maps.labels, drawn((20, 30), (1, LARGE), (255, SMALL)))
    np.testing.assert_array_equal(maps.objects > 0, maps.labels == 1)
    assert [mask.class_id for mask in maps.masks] == [1]


# --------------------------------------------------------------------------------- three tasks


@pytest.mark.parametrize("background", [True, False])
def test_one_folder_serves_three_tasks(tmp_path, background):
    """Segmentation tells a class from the background, instances and panoptic see two objects."""
    boxes = (1, 1, 6, 6), (10, 8, 20, 18)
    write_boxes(tmp_path, {"a": [("cup", box(*corners)) for corners in boxes]}, names=("cup",))
    data = folder_data(tmp_path, background=background)
    labels, objects = (torch.from_numpy(data[0][key].astype(int)) for key in ("labels", "objects"))
    cup = int(background)
    for kind, stuff in ((InstanceObjective, False), (PanopticObjective, True)):
        objective = kind(**kind.from_data(data, {}))
        segments = segments_of(labels, objects, objective.things, stuff=stuff)
        assert segments.classes.tolist() == [0] * (background and stuff) + [cup] * 2
        for mask, (left, top, right, bottom) in zip(segments.masks[-2:], boxes, strict=True):
            assert mask[top:bottom, left:right].all()
            assert mask.sum() == (bottom - top) * (right - left)
        assert segments.compared.all() == (background or not stuff)
    objective = SegmentationObjective(**SegmentationObjective.from_data(data, {}))
    assert objective.num_classes == 1 + background
    assert (labels == 255).any() != background


# ------------------------------------------------------------------------------------- splits


def names_of(data):
    return [Path(data.name(index)).stem for index in range(len(data))]


CUP = [("cup", box(*SMALL))]


@pytest.fixture
def three_splits(tmp_path):
    """As Roboflow writes them: a placeholder, and a class that only val has objects of."""
    for split, boxes in (
        ("train", {"a": CUP, "b": CUP, "c": []}),
        ("valid", {"a": [("plate", box(*SMALL))]}),
        ("test", {"e": CUP}),
    ):
        (tmp_path / split).mkdir()
        write_boxes(tmp_path, boxes, file=f"{split}/_annotations.coco.json")
    return tmp_path


def test_splits_are_those_of_the_format(three_splits):
    def read(split, **options):
        return folder_data(three_splits, split, fractions=None, **options)

    assert [names_of(read(split)) for split in ("train", "val", "test")] == [[*"abc"], ["a"], ["e"]]
    assert read("val").name(0) == str(three_splits / "valid/a.png")
    assert read("val").info == read("train").info
    assert names_of(read("val", split_names={"val": "test"})) == ["e"]
    assert [names_of(read(split, folds=3, fold=1)) for split in ("train", "val")] == [
        ["a", "c"],
        ["b"],
    ]


NAMES = {"train": "train", "val": "valid"}


def test_class_that_another_file_lacks_is_named(three_splits):
    train, val = (
        folder_data(
            three_splits, split, fractions=None, annotation_files="%split", split_names=NAMES
        )
        for split in ("train", "val")
    )
    assert names_of(val) == ["a"]
    for path in (three_splits / "train").iterdir():
        if path.suffix == ".json":
            path.write_text(path.read_text().replace("plate", "saucer"))
    train = folder_data(three_splits, fractions=None, annotation_files="%split", split_names=NAMES)
    val.adopt_classes(train.info.class_names)
    with pytest.raises(DataError, match=r"valid/_annotations.coco.json: a\.png .*'plate'"):
        require_same_classes(train, val)


def test_lists_folds_and_fractions_divide_what_states_no_split(tmp_path):
    write_boxes(tmp_path, {f"{drive}_{k}": CUP for drive in "xyz" for k in range(4)})
    (tmp_path / "train.txt").write_text("x_0\ny_1.png\n")
    (tmp_path / "val.csv").write_text("split,image\nval,z_3.png\n")
    lists = {"fractions": None, "split_files": {"train": "train.txt", "val": "val.csv"}}
    assert names_of(folder_data(tmp_path, **lists)) == ["x_0", "y_1"]
    assert names_of(folder_data(tmp_path, "val", **lists)) == ["z_3"]
    options = {"fractions": {"train": 0.7, "val": 0.3}, "group_by": "^(.)_"}
    train, val = (names_of(folder_data(tmp_path, split, **options)) for split in ("train", "val"))
    assert len(train) == 8
    assert len({name[0] for name in val}) == 1
    assert not {*train} & {*val}
    folds = {"fractions": None, "folds": 3, "fold": 2, "group_by": "^(.)_"}
    assert {name[0] for name in names_of(folder_data(tmp_path, "val", **folds))} == {"z"}


@pytest.mark.parametrize(("missing", "count"), [("skip", 2), ("keep", 3)])
def test_images_without_labels_and_labels_without_images(tmp_path, missing, count):
    write_boxes(tmp_path, {"a": CUP, "b": CUP, "gone": CUP})
    (tmp_path / "gone.png").rename(tmp_path / "new.png")
    with pytest.raises(DataError, match=r"new\.png.*data\.missing"):
        folder_data(tmp_path)
    if missing == "skip":
        data = folder_data(tmp_path, missing="skip")
        assert [[path.name for path in paths] for paths in data.unpaired] == [
            ["new.png"],
            ["gone.png"],
        ]
    else:
        with pytest.raises(DataError, match=r"a\.json: .*gone\.png"):
            folder_data(tmp_path, missing="keep")
        save(tmp_path / "gone.png", np.zeros((20, 30, 3), np.uint8))
        data = folder_data(tmp_path, missing="keep")
        count += 1
        assert [("labels" in sample) for sample in data] == [True] * 3 + [False]
    assert len(data) == count


@pytest.mark.parametrize("root", ["./data/../data", "../{name}/data"])
def test_roots_may_be_relative(tmp_path, monkeypatch, root):
    (tmp_path / "data").mkdir()
    write_boxes(tmp_path / "data", {"a": CUP, "b": CUP})
    (tmp_path / "data/b.png").unlink()
    monkeypatch.chdir(tmp_path)
    data = folder_data(root.format(name=tmp_path.name), annotation_files="a.json", missing="skip")
    assert names_of(data) == ["a"]
    assert [path.name for path in data.unpaired[1]] == ["b.png"]


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"labels": "masks"}, r"data\.labels"),
        ({"annotation_files": "b.json"}, r"b\.json: .*data\.annotation_files"),
        ({"things": ["fork"]}, r"data\.things.*fork"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, options, key):
    root = tmp_path / "root"
    root.mkdir()
    write_boxes(root, {"a": CUP})
    with pytest.raises(DataError, match=key):
        folder_data(root, **options)


def boxes_alone(content):
    for row in content["annotations"]:
        row.pop("segmentation")


def truncated(content):
    return json.dumps(content)[:-90]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (boxes_alone, r"a\.json: .*masks"),
        (truncated, r"a\.json: "),
        (lambda c: c["annotations"], r"a\.json: "),
        (lambda c: c["images"][0].update(width=31), r"a\.png: 30x20 .*31x20"),
    ],
)
def test_damaged_files_are_named(tmp_path, change, key):
    write_boxes(tmp_path, {"a": CUP})
    content = json.loads((tmp_path / "a.json").read_text())
    changed = change(content)
    text = changed if isinstance(changed, str) else json.dumps(changed or content)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=key):
        folder_data(tmp_path, annotation_files="a.json")[0]
    if change is truncated:
        with pytest.raises(DataError, match=key):
            folder_data(tmp_path)


def test_two_files_for_one_image_are_a_question(tmp_path):
    write_boxes(tmp_path, {"a": CUP})
    (tmp_path / "b.json").write_text((tmp_path / "a.json").read_text())
    with pytest.raises(DataError, match=r"a\.json and b\.json .*data\.annotation_files=b\.json"):
        folder_data(tmp_path)
    assert len(folder_data(tmp_path, annotation_files="b.json")) == 1


def test_file_of_many_parts_is_not_parsed(tmp_path, monkeypatch):
    write_boxes(tmp_path, {"a": CUP})
    text = (tmp_path / "a.json").read_text()
    monkeypatch.setattr("dpt.data.annotations.coco._MAX_PARTS", text.count("[") + text.count("{"))
    assert len(folder_data(tmp_path)) == 1
    (tmp_path / "a.json").write_text(text[:-1] + ', "info": []}')
    with pytest.raises(DataError, match=r"a\.json: "):
        folder_data(tmp_path)


def test_objects_without_a_mask_are_counted(tmp_path):
    """No mask, a line, a polygon outside, one without a pixel, and one that is partly outside."""
    shapes = ([], [[1, 2, 3, 4]], box(1e6, 40, 2e6, 50), box(3, 3, 3, 9), box(-9, -9, 2, 4))
    write_boxes(tmp_path, {"a": [("cup", shape) for shape in shapes]})
    data = folder_data(tmp_path)
    (note,) = data.notes
    assert "2 objects" in note
    assert "1, 2" in note
    assert data[0]["empty_objects"] == ["3", "4"]
    np.testing.assert_array_equal(data[0]["labels"], drawn((20, 30), (1, (0, 0, 2, 4))))


# ------------------------------------------------------------------------- caching and turning


@pytest.mark.parametrize(("exif", "size"), [("apply", (30, 20)), ("ignore", (20, 30))])
def test_labels_without_a_size_need_upright_or_stored_pixels(tmp_path, exif, size):
    tags = Image.Exif()
    tags[0x0112] = 6
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "images/a.png", exif=tags)
    (tmp_path / "labels/a.txt").write_text("0 0 0 0.1 0 0.1 0.5 0 0.5\n")
    (tmp_path / "data.yaml").write_text("names: [cup]\n")
    with pytest.raises(DataError, match=r"a\.png: .*data\.exif"):
        folder_data(tmp_path, annotations="yolo")[0]
    sample = folder_data(tmp_path, annotations="yolo", exif=exif)[0]
    corners = (0, 0, size[1] // 10, size[0] // 2)
    np.testing.assert_array_equal(sample["labels"], drawn(size, (1, corners)))
    assert sample["image"].shape[:2] == size


def test_background_of_a_checkpoint_is_stuff(tmp_path):
    write_boxes(tmp_path, {"a": CUP})
    data = folder_data(tmp_path, background=False)
    data.adopt_classes(("background", "plate", "cup"))
    assert data.info.things == (False, True, True)
    assert set(np.unique(data[0]["labels"])) == {2, 255}
