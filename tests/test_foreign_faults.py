"""Label files of tools with faults: one line that names the file and the remedy, or a note."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import foreign_folders as made
import numpy as np
import pytest
from test_foreign_folders import CASES, KINDS, PICTURES, open_folder, require_labels
from tiny import slow_after

from dpt.data import FolderDataset
from dpt.data.layouts import detect
from dpt.files import DataError, files_below

TOOLS = ("coco", "coco_rle", "roboflow_coco", "labelme", "labelme_in_folders", "via", "via_project")
TOOLS += ("yolo", "cvat", "label_studio", "label_studio_brush")


def make(root: Path, name: str) -> made.Folder:
    return CASES[name].make(root, KINDS[CASES[name].kind])


def rewrite(root: Path, change: Callable[[object], object]) -> None:
    """Replaces the innermost mappings in all JSON files, the values first."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return change({key: changed(inner) for key, inner in value.items()})
        return [changed(inner) for inner in value] if isinstance(value, list) else value

    for path in files_below(root, (".json",)):
        content = json.loads(path.read_text("utf-8-sig"))
        path.write_text(json.dumps(changed(content)), encoding="utf-8")


def as_box(row: dict) -> dict:
    """Returns the box of an object, as its tool writes it; other mappings as they are."""
    if "segmentation" in row:
        return row | {"segmentation": [], "bbox": [1, 2, 5, 6]}
    if "shape_type" in row:
        return row | {"shape_type": "rectangle", "points": [[1, 1], [9, 9]]}
    if "shape_attributes" in row:
        box = {"name": "rect", "x": 1, "y": 2, "width": 5, "height": 6}
        return row | {"shape_attributes": box}
    if row.get("to_name") == "image":
        value = {"x": 1, "y": 1, "width": 9, "height": 9, "rectanglelabels": ["box"]}
        return row | {"type": "rectanglelabels", "value": value}
    return row


def draw_boxes(root: Path) -> None:
    rewrite(root, as_box)
    for path in files_below(root, (".txt",)):
        lines = path.read_text().splitlines()
        path.write_text(
            "".join(f"{line.split()[0]} .5 .5 .2 .2\n" for line in lines if line[0].isdigit())
        )
    for path in files_below(root, (".xml",)):
        box = r'<box label="\1" xtl="1" ytl="1" xbr="5" ybr="6" z_order="0" />'
        text = re.sub(r'<(?:polygon|mask) label="([^"]*)"[^>]*/>', box, path.read_text())
        path.write_text(text)


@pytest.mark.parametrize("name", TOOLS)
def test_boxes_without_masks(tmp_path, name):
    make(tmp_path, name)
    draw_boxes(tmp_path)
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + ".*boxes") as error:
        detect(tmp_path, {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [name for name in TOOLS if name != "yolo"])
def test_cut_off_file(tmp_path, name):
    make(tmp_path, name)
    sources = [path for path in files_below(tmp_path, (".json", ".xml")) if path.stem != "meta"]
    cut = sources[0]
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    with pytest.raises(DataError, match=re.escape(str(cut))) as error:
        open_folder(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", slow_after(5, TOOLS))
def test_missing_image_is_named(tmp_path, name):
    written = dict(make(tmp_path / "a", name))
    lost, *_ = written
    (tmp_path / "a" / lost).unlink()
    notes = "\n".join(detect(tmp_path / "a", {}).notes)
    assert Path(lost).stem in notes
    del written[lost]
    require_labels(open_folder(tmp_path / "a"), tmp_path / "a", written, CASES[name])


@pytest.mark.parametrize("name", TOOLS)
def test_labels_without_any_image(tmp_path, name):
    for path in make(tmp_path, name):
        (tmp_path / path).unlink()
    made.save(tmp_path / "pictures/other.png", KINDS["any"][0].image)
    with pytest.raises(DataError, match=re.escape(str(tmp_path))) as error:
        detect(tmp_path, {})
    assert "\n" not in str(error.value)


def test_label_is_not_given_to_an_image_elsewhere(tmp_path):
    """A tile lacks an image, and another one the mask of that name."""
    written = dict(make(tmp_path / "a", "tiles"))
    (tmp_path / "a/Tile 1/images/image_part_001.jpg").unlink()
    (tmp_path / "a/Tile 3/masks/image_part_001.png").unlink()
    notes = "\n".join(detect(tmp_path / "a", {}).notes)
    for path in ("Tile 1/images/image_part_001.jpg", "Tile 3/images/image_part_001.jpg"):
        del written[path]
    for path in ("Tile 1/masks/image_part_001.png", "Tile 3/images/image_part_001.jpg"):
        assert path in notes
    require_labels(open_folder(tmp_path / "a"), tmp_path / "a", written, CASES["tiles"])


@pytest.mark.parametrize("name", ["", *slow_after(0, [" ", "=1+1", "x" * 300])])
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if not tool.startswith("via")])
def test_name_that_no_class_can_have(tmp_path, tool, name):
    make(tmp_path, tool)
    rename(tmp_path, name)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        open_folder(tmp_path)


def rename(root: Path, name: str) -> None:
    """Gives another name to fir trees."""
    for path in files_below(root, (".json", ".xml", ".yaml")):
        path.write_text(path.read_text("utf-8-sig").replace("fir tree", name), encoding="utf-8")


def test_more_objects_than_a_byte_counts(tmp_path):
    size, stride = (128, 380), 12
    things = []
    for y, x in np.ndindex(10, 30):
        mask = np.zeros(size, bool)
        mask[y * stride : y * stride + 9, x * stride : x * stride + 8] = True
        things.append(made.Thing(len(things) % 5, mask))
    image = np.zeros((*size, 3), np.uint8)
    picture = made.Picture("a", "train", image, tuple(things), np.zeros(size, np.uint16))
    written = made.labelme(tmp_path, [picture])
    fractions = {"fractions": {"train": 1.0}}
    dataset = FolderDataset(root=tmp_path, split="train", annotations="labelme", **fractions)
    sample = dataset[0]
    assert sample["objects"].max() == len(things) == 300
    np.testing.assert_array_equal(sample["labels"] > 0, written["a.jpg"].labels > 0)


LABELS_OF_TRAIN = {
    "roboflow_coco": ("train/_annotations.coco.json", "valid"),
    "coco": ("annotations/instances_train2017.json", "val2017"),
    "yolo": ("labels/train/*", "images/val"),
    "roboflow_masks": ("train/*_mask.png", "valid"),
}
"""The files with labels of train, and the folder of the images of val."""


@pytest.mark.parametrize("name", LABELS_OF_TRAIN)
def test_val_is_not_trained_on_unless_that_is_wanted(tmp_path, name):
    root = tmp_path / "things"
    make(root, name)
    labels, images = LABELS_OF_TRAIN[name]
    for path in root.glob(labels):
        path.unlink()
    with pytest.raises(DataError, match=r"train has no labels.*\(.*train.*\.jpg") as refused:
        detect(root, {})
    assert f"data.images={images} or give the folder {root / images} " in str(refused.value)
    if name == "roboflow_masks":  # which lie beside their images
        rows = detect(root / images, {}).rows
    else:
        rows = detect(root, {"images": images}).rows
    assert sorted(row.split for row in rows) == ["train", "val"]


def test_lists_of_train_without_labels_are_a_question(tmp_path):
    make(tmp_path, "voc")
    for path in tmp_path.glob("SegmentationClass/t*"):
        path.unlink()
    lists = [tmp_path / f"ImageSets/Segmentation/{split}.txt" for split in ("train", "val")]
    with pytest.raises(DataError, match=re.escape(str(lists[0]))) as refused:
        detect(tmp_path, {})
    assert "ImageSets/Segmentation/val.txt" in str(refused.value)
    for path in lists:
        path.unlink()
    assert {row.image[:12] for row in detect(tmp_path, {}).rows} == {"JPEGImages/v"}


def test_boxes_beside_masks_do_not_count(tmp_path):
    made.tiles(tmp_path / "a", PICTURES)
    expected = detect(tmp_path / "a", {}).rows
    made.labelme(tmp_path / "b", PICTURES)
    rewrite(tmp_path / "b", as_box)
    shutil.move(tmp_path / "b", tmp_path / "a/boxes")
    detected = detect(tmp_path / "a", {})
    assert detected.rows == expected
    assert any("not used" in note and "boxes" in note for note in detected.notes)
    with pytest.raises(DataError, match="boxes"):
        detect(tmp_path / "a", {"annotations": "labelme"})


def test_boxes_of_two_tools_are_refused_at_once(tmp_path):
    made.via(tmp_path, KINDS["solid"])
    made.labelme(tmp_path / "x", PICTURES)
    draw_boxes(tmp_path)

    def with_two_attributes(row: dict) -> dict:
        return row | {"name": "a"} if "species" in row else row

    rewrite(tmp_path, with_two_attributes)
    with pytest.raises(DataError, match="boxes, but no masks") as error:
        detect(tmp_path, {})
    assert "set data.annotations" not in str(error.value)


def test_names_that_differ_little_are_said(tmp_path):
    names = iter(["disc", "Disc", "ＤＩＳＣ", "fir  tree", "fir_tree", "car 1", "car 2", "a", "A"])

    def renamed(row: dict) -> dict:
        return row | {"label": next(names, "box")} if "shape_type" in row else row

    made.labelme(tmp_path, PICTURES)
    rewrite(tmp_path, renamed)
    notes = "\n".join(detect(tmp_path, {}).notes)
    for group in ("Disc, disc", "fir tree, fir_tree", "car 1, car 2"):
        assert group in notes
    assert "A, a" not in notes


OTHER_FORMS = {  # a file and its text, {} for the number of an image: what the message names
    "VIA": ("via.csv", '#filename,region_shape_attributes\n{}.png,"{""name"":""rect""}"'),
    "run lengths": ("train.csv", "ImageId,ClassId,EncodedPixels\n{}.png,1,1 3 9 5\n"),
    "JSON-MIN": (
        "a.json",
        '[{"image": "{}.png", "label": [], "annotator": 1, "annotation_id": 2}]',
    ),
    "LabelMe": ("xml/{}.xml", "<annotation><object><polygon><pt><x>1</x></pt></polygon></object>"),
    "boxes": ("xml/{}.xml", "<annotation><object><bndbox><xmin>1</xmin></bndbox></object>"),
    "Aperio": ("{}.xml", '<Annotations><Annotation><Region><Vertex X="1" Y="2"/></Region>'),
    "in pixels": ("{}.txt", "0 10.5 10 50 10 50 40 0.87\n"),
    "with names": ("{}.txt", "red cat 0.1 0.1 0.5 0.1 0.5 0.4\n"),
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_known_files_that_are_not_read_are_named(tmp_path, name):
    path, text = OTHER_FORMS[name]
    for number, picture in enumerate(PICTURES):
        made.save(tmp_path / f"{number}.png", picture.image)
        source = tmp_path / path.replace("{}", str(number))
        source.parent.mkdir(exist_ok=True)
        source.write_text(text.replace("{}", str(number)))
    for given in ({}, {"annotations": "labelstudio"}):
        with pytest.raises(DataError, match=rf"\{source.suffix} .*not read, .*{name}.*: ") as error:
            detect(tmp_path, given)
        assert str(error.value).count("not read") == 1
