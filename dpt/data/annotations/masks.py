"""Masks as pictures: one for each object of an image, and pictures of all ids.

A picture for each object lies in ``NAME/masks`` beside ``NAME/images`` with one image, as in the
Data Science Bowl of 2018. Its pixels are those that are not 0.
"""

import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image

from dpt.data.annotations import base
from dpt.data.formats.rle import overlay
from dpt.files import DataError
from dpt.types.samples import IGNORE_INDEX, ObjectMask

# ------------------------------------------------------------------------- a picture an object


class _Folder(NamedTuple):
    images: list[str]
    masks: list[str]


class ObjectMasksFormat(base.AnnotationFormat):
    """All objects are of one class, ``object``; the smaller one is in front."""

    name = "object_masks"
    title = "folders with a mask for each object"
    front = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        folders = [folder for folder in _folders(files).values() if folder.masks]
        sizes = {0, *(len(folder.images) for folder in folders)}  # 0: its image is missing
        if sizes != {0, 1} or all(len(folder.masks) == 1 for folder in folders):
            return []  # masks of several images, or of all objects of an image
        return [path for folder in folders for path in folder.masks]

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        chosen = {*sources}
        for folder in _folders(reading.files).values():
            masks = [path for path in folder.masks if path in chosen]
            if len(folder.images) == 1 and masks:
                encoders = [partial(base.encode_picture, reading.root / path) for path in masks]
                pairs = zip(masks, encoders, strict=True)
                parts = [base.Annotation("object", encode, name=path) for path, encode in pairs]
                reading.add_image(reading.root / folder.images[0], parts)
                continue
            for image in folder.images:
                reading.leave_out("image", "no folder of its masks", image)
            for path in masks:
                reading.leave_out("mask", "its image is not there", path)


def _folders(files: Sequence[str]) -> dict[str, _Folder]:
    """Returns the pictures in ``images`` and ``masks`` of each folder."""
    folders: dict[str, _Folder] = defaultdict(lambda: _Folder([], []))
    for path in base.images_of(files):
        folder, _, kind = base.folder_of(path).rpartition("/")
        if kind in ("images", "masks"):
            paths = folders[folder]
            (paths.images if kind == "images" else paths.masks).append(path)
    return folders


# ----------------------------------------------------------------------- pictures of all ids


def maps_of(
    objects: Sequence[ObjectMask], size: tuple[int, int], classes: Sequence[base.AnnotatedClass]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns class ids, uint8 (H, W), and object ids, uint16; later objects are in front."""
    things = {class_id for class_id, row in enumerate(classes) if row.is_thing}
    positions = overlay([item.mask for item in objects], size)
    pairs = [(item.class_id, item.is_crowd) for item in objects]
    labels, numbers = base.label_maps(positions, pairs, things, IGNORE_INDEX)
    return labels.astype(np.uint8), numbers.astype(np.uint16)


class FolderWriter(base.Writer):
    """Class ids and object ids in pictures, as ``data=folder`` reads them."""

    name = "folder"
    label_files: tuple[str, ...] = ("masks/{split}/{name}.png", "objects/{split}/{name}.png")
    class_list = "classes.txt"
    has_background = True
    has_overlaps = False
    has_crowds = True

    def __init__(self, classes: Sequence[base.AnnotatedClass]) -> None:
        super().__init__(classes)
        if not any(row.is_thing for row in classes):
            self.label_files = self.label_files[:1]

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        labels, objects = maps_of(entry.objects, entry.size, self.classes)
        return (_picture(labels), _picture(objects))[: len(self.label_files)]


_VOID, _BLACK = (224, 224, 192), (0, 0, 0)
"""The colours of unlabelled pixels and of the background in VOC's pictures."""


class VocWriter(FolderWriter):
    """Class ids and object ids in pictures with a palette; 255 is unlabelled."""

    name = "voc"
    image_file = "JPEGImages/{name}"
    label_files = ("SegmentationClass/{name}.png", "SegmentationObject/{name}.png")

    def __init__(self, classes: Sequence[base.AnnotatedClass]) -> None:
        colors = [k.color for k in classes if k.name not in base.BACKGROUND or k.color != _BLACK]
        if len({_VOID, _BLACK, *colors}) < len(colors) + 2:  # by which label tools know classes
            pairs = zip(classes, _VOC_COLORS[1:], strict=False)
            classes = [replace(row, color=color) for row, color in pairs]
        super().__init__(classes)

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        unfit = [row.name for row in self.classes if ":" in row.name]
        if unfit:
            raise DataError(f"class {unfit[0]}: labelmap.txt cannot hold the colon: rename it")
        labels, objects = maps_of(entry.objects, entry.size, self.classes)
        numbers = np.unique(objects, return_inverse=True)[1].reshape(objects.shape)
        numbers += objects.min() > 0
        if numbers.max() >= IGNORE_INDEX:
            fault = f"more than {IGNORE_INDEX - 1} objects, the limit of VOC's format"
            raise DataError(f"{entry.image}: {fault}: choose another format")
        numbers[labels == IGNORE_INDEX] = IGNORE_INDEX
        colors = [row.color for row in self.classes]
        pictures = _picture(labels, colors), _picture(numbers.astype(np.uint8), _VOC_COLORS)
        return pictures[: len(self.label_files)]

    def common_files(self, names: base.Names) -> dict[str, bytes]:
        rows = [f"{row.name}:{','.join(map(str, row.color))}::" for row in self.classes]
        folder = "ImageSets/Segmentation"
        lists = {f"{folder}/{split}.txt": base.as_lines(names[split]) for split in names}
        return {"labelmap.txt": base.as_lines(["# label:color_rgb:parts:actions", *rows]), **lists}


def _bits(k: int, channel: int) -> int:
    return sum((k >> (3 * j + channel) & 1) << (7 - j) for j in range(3))


_VOC_COLORS = [tuple(_bits(k, channel) for channel in range(3)) for k in range(256)]
"""VOC's palette, in which neighbours differ."""


def _picture(ids: np.ndarray, colors: Sequence[Sequence[int]] = ()) -> bytes:
    """Returns ids as PNG; with ``colors`` it has a palette, in which 255 is VOC's void."""
    picture = PIL.Image.fromarray(ids)
    if colors:
        rows = np.zeros((256, 3), np.uint8)
        rows[: len(colors)] = colors
        rows[IGNORE_INDEX] = _VOID
        picture.putpalette(rows.tobytes())
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
