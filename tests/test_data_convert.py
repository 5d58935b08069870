"""``dpt data convert``: labels in the formats of label tools, and back without a difference."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from photos import photo_of, save_photo, save_picture
from PIL import Image
from pycocotools.coco import COCO

from dpt.data.annotations import WRITERS
from dpt.data.annotations.base import AnnotatedClass
from dpt.data.annotations.conversion import Conversion

SIZE = (24, 36)
NAMES = ("a field", "b cow", "c dog")  # in the order of the alphabet, as labelme has no list
SPLITS = {"train": 3, "val": 2}
MAPS = (f"data.class_names=[{','.join(NAMES)}]", "data.labels=masks")
OBJECTS = (*MAPS, "data.objects=objects", "data.things=[1,2]")


def maps(seed):
    """Returns class ids and object ids: objects of several parts, with holes and contacts."""
    random = np.random.default_rng(seed)
    blocks = cv2.resize(random.integers(0, 6, (6, 9), np.uint8), SIZE[::-1], interpolation=0)
    objects = np.where(random.random(SIZE) < 0.05, 0, blocks).astype(np.uint16)
    labels = np.array([0, 0, 1, 1, 2, 2], np.uint8)[objects]
    objects[labels == 0] = 0
    labels[0, :4] = 255
    objects[0, :4] = 0
    return labels, objects


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)


@pytest.fixture
def source(tmp_path):
    """A folder of class ids and object ids."""
    root = tmp_path / "source"
    for split, count in SPLITS.items():
        for k in range(count):
            name = f"{split}/drive/{k}"
            labels, objects = maps(10 * k + len(split))
            save_photo(root / f"images/{name}.png", *SIZE, seed=k)
            save(root / f"masks/{name}.png", labels)
            save(root / f"objects/{name}.png", objects)
    return root


@pytest.fixture
def convert(dpt_command, tmp_path):
    """convert(source, format, *keys): the new folder, and the lines that say what it lacks."""

    def convert(source, to, *keys):
        out = tmp_path / f"{source.name}-{to}"
        code, said, err = dpt_command("data", "convert", source, out, "--to", to, *keys)
        assert code == 0, err
        return out, said

    return convert


def pictures(root, kind):
    paths = (root / kind).rglob("*.png")
    return {f"{p.parts[-2]}/{p.stem}".replace("drive", p.parts[-3]): p for p in paths}


def numbered(objects):
    """Returns object ids as 1, 2, ... in their order."""
    return np.unique(np.append(objects, 0), return_inverse=True)[1][:-1].reshape(objects.shape)


def assert_same(root, source):
    """Class ids are equal, and object ids are in the same order."""
    for kind in ("masks", "objects"):
        found, wanted = pictures(root, kind), pictures(source, kind)
        assert found.keys() == wanted.keys()
        for name, path in wanted.items():
            maps = [cv2.imread(str(p), cv2.IMREAD_UNCHANGED) for p in (found[name], path)]
            if kind == "objects":
                maps = [numbered(ids) for ids in maps]
            np.testing.assert_array_equal(*maps, f"{kind} {name}")


READ = {
    "coco": ("data.annotations=coco", "data.background=false"),
    "yolo": ("data.background=false",),
    "labelme": ("data.background=false",),
    "voc": (),
}


def test_convert_through_all_formats_returns_to_the_same_maps(convert, source):
    root, keys = source, OBJECTS
    for to, options in READ.items():
        root, _ = convert(root, to, *keys)
        root, _ = convert(root, "folder", *options, "data.things=[1,2]")
        assert_same(root, source)
        assert (root / "classes.txt").read_text().splitlines() == [*NAMES]
        keys = OBJECTS
    copies = sorted(path.read_bytes() for path in (root / "images").rglob("*.png"))
    assert copies == sorted(path.read_bytes() for path in (source / "images").rglob("*.png"))


def test_convert_writes_coco_as_pycocotools_reads_it(convert, source):
    out, _ = convert(source, "coco", *OBJECTS)
    coco = COCO(str(out / "annotations/instances_train.json"))
    assert [(row["name"], row["isthing"]) for row in coco.loadCats(coco.getCatIds())] == [
        *((name, int(name != "a field")) for name in NAMES)
    ]
    kinds = {type(row["segmentation"]) for row in coco.anns.values()}
    assert kinds == {list, dict}  # polygons, and RLE for objects with holes
    for image in coco.imgs.values():
        labels, objects = maps(10 * int(image["file_name"][6]) + len("train"))
        assert (out / "images" / image["file_name"]).is_file()
        for row in coco.loadAnns(coco.getAnnIds(image["id"])):
            mask = coco.annToMask(row) > 0
            assert row["area"] == mask.sum()
            assert row["bbox"] == [*cv2.boundingRect(mask.astype(np.uint8))]
            class_id = row["category_id"] - 1
            assert (labels[mask] == class_id).all()
            if row["iscrowd"]:
                np.testing.assert_array_equal(mask, (labels == class_id) & (objects == 0))
            elif class_id:
                number = objects[mask][0]
                np.testing.assert_array_equal(mask, (labels == class_id) & (objects == number))


LABELME_KEYS = "version flags shapes imagePath imageData imageHeight imageWidth".split()
SHAPE_KEYS = "label points group_id description shape_type flags mask".split()


def test_convert_writes_what_labelme_reads(convert, source):
    out, _ = convert(source, "labelme", *OBJECTS)
    assert (out / "labels.txt").read_text().splitlines() == [*NAMES]
    for path in sorted(out.rglob("*.json")):
        content = json.loads(path.read_text())
        assert [*content] == LABELME_KEYS
        assert (path.parent / content["imagePath"]).is_file()
        assert (content["imageHeight"], content["imageWidth"]) == SIZE
        groups = [shape["group_id"] for shape in content["shapes"]]
        assert any(groups.count(group) > 1 for group in groups if group is not None)
        for shape in content["shapes"]:
            assert [*shape] == SHAPE_KEYS
            assert (shape["shape_type"], shape["label"] in NAMES) == ("polygon", True)


def test_convert_writes_what_ultralytics_reads(convert, source):
    out, _ = convert(source, "yolo", *OBJECTS)
    settings = yaml.safe_load((out / "data.yaml").read_text())
    assert settings["names"] == dict(enumerate(NAMES))
    for split, count in SPLITS.items():
        images = sorted((out / settings[split]).rglob("*.png"))
        assert len(images) == count
        for image in images:
            label = str(image.with_suffix(".txt")).replace("/images/", "/labels/")
            for line in Path(label).read_text().splitlines():
                class_id, *numbers = line.split()
                assert class_id in ("0", "1", "2")
                assert len(numbers) >= 8
                assert len(numbers) % 2 == 0
                assert all(0 <= float(number) <= 1 for number in numbers)


def test_convert_writes_pictures_with_voc_palette(convert, source):
    out, _ = convert(source, "voc", *OBJECTS, "data.label_colors=[[1,2,3],[4,5,6],[7,8,9]]")
    lines = (out / "labelmap.txt").read_text().splitlines()[1:]
    assert lines == ["a field:1,2,3::", "b cow:4,5,6::", "c dog:7,8,9::"]
    names = (out / "ImageSets/Segmentation/val.txt").read_text().splitlines()
    assert names == ["val/0", "val/1"]  # the same names in train
    labels, objects = maps(len("val"))
    shown = np.asarray(Image.open(out / "SegmentationClass/val/0.png").convert("RGB"))
    table = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [224, 224, 192]])
    np.testing.assert_array_equal(shown, table[np.minimum(labels, 3)])
    shown = np.asarray(Image.open(out / "SegmentationObject/val/0.png").convert("RGB"))
    first = objects == objects[objects > 0].min()
    assert (shown[first] == [128, 0, 0]).all()
    assert (shown[labels == 255] == [224, 224, 192]).all()


def test_voc_classes_have_colors_that_nothing_else_has():
    colors = [(0, 0, 0), (0, 0, 0), (1, 2, 3)]
    rows = [*zip(["background", *NAMES], colors, strict=False)]
    classes = [AnnotatedClass(name=name, color=color) for name, color in rows]
    writer = WRITERS["voc"](classes)
    assert [row.name for row in writer.classes] == [name for name, _ in rows]
    written = [row.color for row in writer.classes]
    assert len({(224, 224, 192), *written}) == 4
    assert (0, 0, 0) not in written[1:]


def test_convert_leaves_the_background_to_pixels_without_an_object(convert, source):
    keys = [*OBJECTS, "data.class_names=[background,cow,dog]"]
    out, said = convert(source, "coco", *keys)
    content = json.loads((out / "annotations/instances_val.json").read_text())
    assert [row["name"] for row in content["categories"]] == ["cow", "dog"]
    assert "data.background=true" in said
    assert "unlabelled pixels become background: 5 images" in said
    back, said = convert(out, "folder", "data.annotations=coco", "data.background=true")
    for name, path in pictures(source, "masks").items():
        labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        found = cv2.imread(str(pictures(back, "masks")[name]), cv2.IMREAD_UNCHANGED)
        np.testing.assert_array_equal(found, np.where(labels == 255, 0, labels))


def overlapping(folder):
    """Saves a photo, and COCO's JSON of a large and a small square that overlap, and of a crowd."""
    save_photo(folder / "images/a.png", 10, 12)
    squares = [[1, 1, 9, 1, 9, 9, 1, 9]], [[6, 6, 11, 6, 11, 9, 6, 9]]
    crowd = {"size": [10, 12], "counts": [0, 10, 110]}
    content = {
        "images": [{"id": 7, "file_name": "a.png", "height": 10, "width": 12}],
        "categories": [{"id": 4, "name": "cow"}],
        "annotations": [
            {"id": k, "image_id": 7, "category_id": 4, "segmentation": outline, "iscrowd": k == 3}
            for k, outline in enumerate([*squares, crowd], 1)
        ],
    }
    (folder / "all.json").write_text(json.dumps(content))
    return folder


def test_convert_keeps_objects_that_overlap_whole(convert, tmp_path):
    source = overlapping(tmp_path / "source")
    out, said = convert(source, "yolo")
    assert "a crowd" in said
    text = (out / "labels/train/a.txt").read_text()
    assert sorted(len(line.split()) for line in text.splitlines()) == [9, 9, 9]
    back, _ = convert(out, "coco")
    coco = COCO(str(back / "annotations/instances_train.json"))
    assert sorted(row["area"] for row in coco.anns.values()) == [10, 15, 64]
    out, said = convert(source, "folder")
    assert "overlap" in said
    assert "a.png" in said
    labels = cv2.imread(str(out / "masks/train/a.png"), cv2.IMREAD_UNCHANGED)
    objects = cv2.imread(str(out / "objects/train/a.png"), cv2.IMREAD_UNCHANGED)
    assert (labels == 1).sum() == 10 + 64 + 15 - 9
    assert sorted(np.unique(objects, return_counts=True)[1]) == [15, 50, 55]


def test_convert_enlarges_labels_to_their_images(convert, source, tmp_path):
    for path in (source / "images").rglob("*.png"):
        save_photo(path, 2 * SIZE[0], 2 * SIZE[1])
    out, _ = convert(source, "folder", *OBJECTS)
    for kind in ("masks", "objects"):
        for name, path in pictures(out, kind).items():
            small = cv2.imread(str(pictures(source, kind)[name]), cv2.IMREAD_UNCHANGED)
            large = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            small, large = (numbered(m) if kind == "objects" else m for m in (small, large))
            np.testing.assert_array_equal(large, small.repeat(2, axis=0).repeat(2, axis=1))
    # objects that overlap, each as a whole
    squares = overlapping(tmp_path / "squares")
    save_photo(squares / "images/a.png", 20, 24)
    out, _ = convert(squares, "coco", "data.resize_labels=true")
    coco = COCO(str(out / "annotations/instances_train.json"))
    assert [(row["height"], row["width"]) for row in coco.imgs.values()] == [(20, 24)]
    assert sorted(row["area"] for row in coco.anns.values()) == [4 * 10, 4 * 15, 4 * 64]
    assert sorted(coco.annToMask(row).sum() for row in coco.anns.values()) == [40, 60, 256]


def test_yolo_label_files_are_where_ultralytics_looks():
    """Beside the last folder called images."""
    paths = WRITERS["yolo"]([]).label_paths("1/images/a", "train")
    assert paths == ("images/train/1/labels/a.txt",)


def test_convert_masks_of_a_detected_folder(convert, source):
    shutil.rmtree(source / "objects")
    out, _ = convert(source, "voc")
    assert not (out / "SegmentationObject").exists()
    out, said = convert(source, "coco")
    content = json.loads((out / "annotations/instances_train.json").read_text())
    assert {row["isthing"] for row in content["categories"]} == {0}
    assert "splits: train 3, val 2" in said
    for kind in ("images", "masks"):
        for path in (source / kind).rglob("train"):
            shutil.rmtree(path)
    out, said = convert(source, "yolo")
    assert sorted(path.name for path in (out / "labels/val").iterdir()) == ["0.txt", "1.txt"]
    assert "not used" not in said


def test_convert_refuses_what_it_would_destroy_or_cannot_write(dpt_command, source, tmp_path):
    def refusal(*arguments):
        code, _, err = dpt_command("data", "convert", *arguments)
        assert (code, err.count("\n")) == (1, 1), err
        return err

    (tmp_path / "full").mkdir()
    (tmp_path / "full/a.txt").write_text("")
    assert "full" in refusal(source, tmp_path / "full", "--to", "coco")
    assert "inside" in refusal(source, source / "inside", "--to", "coco")
    assert "task" in refusal(source, tmp_path / "new", "--to", "coco", "task=depth")
    assert "data.label" in refusal(source, tmp_path / "new", "--to", "coco", *MAPS, "data.label=a")
    names = "data.class_names=['a:b',c,d]"
    assert "a:b" in refusal(source, tmp_path / "colon", "--to", "voc", *OBJECTS, names)
    (source / "masks/val/drive/0.png").write_bytes(b"broken")
    assert "val/drive/0.png" in refusal(source, tmp_path / "new", "--to", "coco", *OBJECTS)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("size", "is_named"), [(SIZE, True), (SIZE[::-1], False)])
def test_convert_names_images_that_label_tools_turn(convert, tmp_path, size, is_named):
    """The labels fit the pixels as stored, or the upright image."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for k in range(2):
        path = tmp_path / f"source/images/{k}.jpg"
        save_picture(path, photo_of(*SIZE, seed=k), exif=exif)
        labels = maps(k)[0] if size == SIZE else maps(k)[0].T
        save(tmp_path / f"source/masks/{k}.png", labels)
    out, said = convert(tmp_path / "source", "coco", "data.class_names=[a,b,c]")
    assert ("EXIF" in said) == is_named
    rows = json.loads((out / "annotations/instances_train.json").read_text())["images"]
    assert [(row["height"], row["width"]) for row in rows] == [size, size]


def test_half_of_a_conversion_is_no_data_set(dpt_command, source, tmp_path, monkeypatch):
    out, seen = tmp_path / "new", []

    def stop(self, path, *arguments, **options):
        seen.append(out.exists())
        if len(seen) == 2:
            raise OSError("the disk is full")
        return add(self, path, *arguments, **options)

    add = Conversion.add
    monkeypatch.setattr(Conversion, "add", stop)
    code, _, err = dpt_command("data", "convert", source, out, "--to", "labelme", *OBJECTS)
    assert (code, seen) == (1, [False, False]), err
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
