"""Folders of label tools and of other people: what is read equals the masks that were drawn."""

from dataclasses import dataclass
from pathlib import Path

import foreign_folders as made
import numpy as np
import pytest
from pycocotools import mask as coco

from dpt.data.annotations import FORMATS
from dpt.files import files_below

PICTURES = made.scene_pictures()
KINDS = {
    "any": PICTURES,
    "parts": [picture.without_holes() for picture in PICTURES],
    "solid": [picture.solid() for picture in PICTURES],
}
RECORDS = {  # the name of the format, its maker, and what it can draw
    "coco": (made.coco_instances, "any"),
    "coco RLE": (made.coco_rle, "any"),
    "coco Roboflow": (made.roboflow_coco, "any"),
    "labelme": (made.labelme, "any"),
    "labelme folders": (made.labelme_in_folders, "solid"),
    "via": (made.via, "solid"),
    "via project": (made.via_project, "solid"),
    "yolo": (made.yolo, "parts"),
    "cvat": (made.cvat, "any"),
    "labelstudio": (made.label_studio, "solid"),
    "labelstudio brush": (made.label_studio_brush, "any"),
    "supervisely": (made.supervisely, "any"),
    "object_masks": (made.mask_per_object, "any"),
    "class_masks": (made.mask_per_class, "any"),
}
OF_ONE_CLASS = {"object_masks"}
SPLITS = {"coco", "coco Roboflow", "via", "yolo", "supervisely"}


def paths_below(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files_below(root)]


def things_of(picture: made.Picture, *, by_class: bool) -> set[tuple[str, bytes]]:
    """Class and pixels of each object; of each class instead if it has one mask for all of them."""
    if by_class:
        ids = np.unique(picture.labels[picture.labels > 0]).tolist()
        return {(made.CLASSES[k - 1], np.packbits(picture.labels == k).tobytes()) for k in ids}
    return {(thing.name, np.packbits(thing.mask).tobytes()) for thing in picture.things}


@pytest.mark.parametrize("case", RECORDS)
def test_annotations_equal_the_masks(tmp_path, case):
    maker, kind = RECORDS[case]
    name = case.split()[0]
    if name not in FORMATS:
        pytest.skip("not there yet")
    written = maker(tmp_path, KINDS[kind])
    files = paths_below(tmp_path)
    sources = FORMATS[name].find(tmp_path, files)
    for other, tool in FORMATS.items():
        assert other == name or not tool.find(tmp_path, files)
    annotations = FORMATS[name].read(tmp_path, sources, files)
    assert {image.image.relative_to(tmp_path).as_posix() for image in annotations.images} == {
        *written
    }
    for image in annotations.images:
        picture = written[image.image.relative_to(tmp_path).as_posix()]
        read = {
            (item.class_name, np.packbits(coco.decode(item.shape.encode(picture.size))).tobytes())
            for item in image.objects
        }
        expected = things_of(picture, by_class=name == "class_masks")
        if name in OF_ONE_CLASS:
            (class_name,) = {row.name for row in annotations.classes}
            expected = {(class_name, pixels) for _, pixels in expected}
        assert read == expected
        assert image.size in (None, picture.size)
        assert image.split == (picture.split if case in SPLITS else "")
