"""Maps of class ids and object ids from the records of label tools, and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pycocotools import mask as coco
from scipy.ndimage import find_objects

from dpt.data.annotations.base import AnnotatedClass, AnnotatedImage, Annotation, Mask
from dpt.data.annotations.tracing import trace
from dpt.types.samples import IGNORE_INDEX, ObjectMask, Sample

_CODES = 2**16
"""Larger than every object id: class · _CODES + object is a code for both."""


class Objects(NamedTuple):
    """The objects of an image."""

    annotations: list[Annotation]  # later ones are in front
    num_cut: int = 0  # objects without the pixels that others cover
    num_empty: int = 0  # objects without a pixel, which are left out


def maps_of(
    image: AnnotatedImage, size: tuple[int, int], classes: Sequence[AnnotatedClass]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns class ids, uint8 (H, W), and object ids, uint16; later objects are in front."""
    class_ids = {row.name: k for k, row in enumerate(classes)}
    things = [k for k, row in enumerate(classes) if row.is_thing]
    raster = image.rasterise(size, "later")
    labels, objects = image.maps(raster, class_ids, things, IGNORE_INDEX)
    return labels.astype(np.uint8), objects.astype(np.uint16)


def objects_of(sample: Sample, classes: Sequence[AnnotatedClass]) -> Objects:
    """Returns the objects of a sample with labels.

    Each connected part of a class that is not a thing is an object. Pixels of a thing without an
    object are a crowd. Other objects are whole, where ``sample`` holds whole masks and its maps are
    those masks with the smaller ones in front.
    """
    labels = sample["labels"]
    stuff = [
        Annotation(class_name=row.name, shape=part)
        for class_id, row in enumerate(classes)
        if not row.is_thing
        for part in trace(labels == class_id)
    ]
    if "objects" not in sample:
        return Objects(stuff)
    masks = sample.get("masks", ())
    whole = _whole_objects(masks, labels.shape, classes)
    num_empty = len(masks) - len(whole)
    if whole and _make_maps_of(stuff + whole, sample, classes):
        return Objects(stuff + whole, num_empty=num_empty)
    visible = _visible_objects(labels, sample["objects"], classes)
    return Objects(stuff + visible, num_cut=len(whole), num_empty=num_empty)


def _whole_objects(
    masks: Sequence[ObjectMask], size: tuple[int, ...], classes: Sequence[AnnotatedClass]
) -> list[Annotation]:
    """Returns the objects that have a pixel, in their order; the larger first if some overlap."""
    codes = [mask.mask for mask in masks]
    areas = [int(coco.area(code)) for code in codes]
    order = [k for k, area in enumerate(areas) if area]
    if order and sum(areas) > coco.area(coco.merge(codes)):
        order.sort(key=lambda k: -areas[k])
    return [
        Annotation(
            class_name=classes[masks[k].class_id].name,
            shape=Mask(codes[k]),
            is_crowd=masks[k].is_crowd,
            area=masks[k].area,
        )
        for k in order
    ]


def _make_maps_of(
    objects: Sequence[Annotation], sample: Sample, classes: Sequence[AnnotatedClass]
) -> bool:
    """Returns whether the maps of the objects are those of the sample, but for the objects' ids."""
    image = AnnotatedImage(image=Path(sample.get("name", "")), objects=objects)
    size = sample["labels"].shape
    labels, numbers = maps_of(image, (size[0], size[1]), classes)
    pairs = numbers.astype(np.int64) * _CODES + sample["objects"]
    counts = {len(np.unique(ids)) for ids in (numbers, sample["objects"], pairs)}
    return len(counts) == 1 and np.array_equal(labels, sample["labels"])


def _visible_objects(
    labels: np.ndarray, objects: np.ndarray, classes: Sequence[AnnotatedClass]
) -> list[Annotation]:
    """Returns the objects of things in the order of their ids, and the crowds after them."""
    is_thing = np.zeros(IGNORE_INDEX + 1, bool)
    is_thing[: len(classes)] = [row.is_thing for row in classes]
    numbers = np.where(objects > 0, objects.astype(np.int64), _CODES)
    codes = np.where(is_thing[labels], numbers * _CODES + labels, -1)
    present, positions = np.unique(codes, return_inverse=True)
    positions = positions.reshape(labels.shape) + 1
    found = []
    for position, window in enumerate(find_objects(positions), 1):
        number, class_id = divmod(int(present[position - 1]), _CODES)
        if number < 0:
            continue
        mask = np.zeros(labels.shape, np.uint8, order="F")
        mask[window] = positions[window] == position
        shape, name = Mask(coco.encode(mask)), classes[class_id].name
        found.append(Annotation(class_name=name, shape=shape, is_crowd=number == _CODES))
    return found
