"""Labels from the objects that a label tool wrote, whatever its format."""

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from dpt.data.annotations import FORMATS, base, unread_files
from dpt.data.datasets.files import RawMaps
from dpt.data.formats.rle import areas_of
from dpt.data.formats.rules import LabelRule, alike_names
from dpt.files import DataError, few, files_below
from dpt.types.samples import IGNORE_INDEX, ObjectMask, Rle


class ObjectLabels:
    """The classes of annotated objects, and the maps that the objects make.

    Args:
        annotations: of all splits, which share the classes.
        images: those of the split.
        front: which of two objects that overlap is in front in the maps.
        background: whether pixels without an object are of a class ``background``, which comes
            first and is stuff; otherwise they are unlabelled. None: as the format says.
        things: names or ids of the classes whose objects are told apart; None: as the format says.
    """

    def __init__(
        self,
        annotations: base.Annotations,
        images: Sequence[base.AnnotatedImage],
        *,
        front: base.Front,
        background: bool | None = None,
        things: Sequence[str | int] | None = None,
    ) -> None:
        self._front, self.source = front, annotations.source
        self._image_of_class = {  # the first one with an object of the class
            name: image.image for image in reversed(images) for name in sorted(names_in([image]))
        }
        rows = _with_unlisted(annotations.classes, names_in(annotations.images))
        self._background = ""  # the class of pixels without an object
        if annotations.background if background is None else background:
            rows = _with_background(rows)
            self._background = rows[0].name
        if things is not None:
            flags = thing_flags(things, [row.name for row in rows])
            rows = [replace(row, is_thing=flag) for row, flag in zip(rows, flags, strict=True)]
        if not rows:
            raise DataError(f"{self.source}: no object has a class: label some")
        self._number(rows)
        self.fault = ""  # why no object can be trained and scored
        if not self._can_train(images):
            self.fault = f"{self.source}: none of its images has an object that is no crowd"

    def _can_train(self, images: Sequence[base.AnnotatedImage]) -> bool:
        """Returns whether there are objects, and those of things are not all crowds."""
        things = [item for item in _objects(images) if self._id_of(item) in self._thing_ids]
        has_object = any(image.objects for image in images)
        return has_object and not (things and all(item.is_crowd for item in things))

    def _number(self, rows: Sequence[base.AnnotatedClass]) -> None:
        names = [row.name for row in rows]
        self._rows = rows
        self._id_of_name = {name: names.index(name) for name in names}
        self._id_of_name[base.UNLABELLED] = IGNORE_INDEX
        has_background = self._background in names
        self._outside = names.index(self._background) if has_background else IGNORE_INDEX
        self._thing_ids = {class_id for class_id, row in enumerate(rows) if row.is_thing}
        colors = [row.color for row in rows] if all(len(row.color) == 3 for row in rows) else ()
        self.rule = LabelRule(num_classes=len(rows), class_names=names, colors=colors)

    def _id_of(self, item: base.Annotation) -> int:
        return self._id_of_name[item.class_name]

    @property
    def things(self) -> tuple[bool, ...]:
        """For each class, whether it is a thing."""
        return tuple(row.is_thing for row in self._rows)

    def adopt(self, names: Sequence[str]) -> None:
        """Numbers the classes as ``names``, unless some of the split is none of them."""
        has_background = not self._background or self._background in names
        if names and has_background and not self.unknown_class(names):
            row_of_name = {row.name: row for row in self._rows}
            self._number([row_of_name.get(name) or _class_of_name(name) for name in names])

    def unknown_class(self, names: Collection[str]) -> str:
        """Returns which image has an object of none of the classes ``names``; empty if none has."""
        for name, image in self._image_of_class.items():
            if name not in names:
                return f"{self.source}: {image.name} has objects of the class {name!r}"
        return ""

    def maps(self, image: base.AnnotatedImage, size: tuple[int, int]) -> RawMaps:
        """Returns the maps of an image of ``size`` (H, W), and its objects one by one where they
        can overlap."""
        raster = image.rasterise(size, self._front)
        classes = [(self._id_of(item), item.is_crowd) for item in image.objects]
        labels, objects = base.label_maps(raster.positions, classes, self._thing_ids, self._outside)
        if raster.codes is None:
            return RawMaps(labels, objects)
        pairs = zip(image.objects, raster.codes, strict=True)
        masks = [
            _mask(self._id_of(item), item, code)
            for item, code in pairs
            if self._id_of(item) in self._thing_ids
        ]
        positions = np.flatnonzero(areas_of(raster.codes) == 0).tolist()
        empty = [image.objects[k].name or str(k + 1) for k in positions]
        return RawMaps(labels, objects, masks, empty)


def _mask(class_id: int, item: base.Annotation, code: Rle) -> ObjectMask:
    """Returns an object with the area that the file states, or else that of its mask."""
    area = item.area
    if area is None or not area >= 0:  # NaN too
        area = float(areas_of([code])[0])
    return ObjectMask(class_id, code, item.is_crowd, area)


def thing_flags(things: Sequence[str | int], names: Sequence[str]) -> tuple[bool, ...]:
    """Returns for each class whether it is among ``things``, names or ids."""
    unknown = [str(thing) for thing in things if thing not in {*names, *range(len(names))}]
    if unknown:
        raise DataError(f"data.things: {few(unknown)} are not classes: use {few(names)}")
    return tuple(k in things or name in things for k, name in enumerate(names))


def _objects(images: Iterable[base.AnnotatedImage]) -> Iterable[base.Annotation]:
    return chain.from_iterable(image.objects for image in images)


def names_in(images: Iterable[base.AnnotatedImage]) -> set[str]:
    """Returns the names of the classes that objects of images have."""
    return {item.class_name for item in _objects(images)} - {base.UNLABELLED}


def is_background(name: str) -> bool:
    """Returns whether a class has no objects, as its name says."""
    return name.strip("_").lower() in ("background", "color_000000")


def _class_of_name(name: str) -> base.AnnotatedClass:
    row = base.AnnotatedClass(name=name)
    return replace(row, is_thing=not is_background(name))


def _with_unlisted(
    rows: Sequence[base.AnnotatedClass], names: Iterable[str]
) -> list[base.AnnotatedClass]:
    """Returns the classes that a format lists, and after them those of objects alone."""
    unlisted = {*names} - {row.name for row in rows}
    rows = [replace(row, is_thing=False) if is_background(row.name) else row for row in rows]
    return [*rows, *map(_class_of_name, sorted(unlisted))]


def _with_background(rows: Sequence[base.AnnotatedClass]) -> list[base.AnnotatedClass]:
    """Returns the classes with that of pixels without an object first."""
    rows = sorted(rows, key=lambda row: not is_background(row.name))
    if rows and is_background(rows[0].name):
        return rows
    return [base.AnnotatedClass(name="background", is_thing=False, color=(0, 0, 0)), *rows]


def format_named(name: str) -> base.AnnotationFormat:
    """Returns the format of that name; DataError if there is none."""
    if name not in FORMATS:
        raise DataError(f"data.annotations={name}: choose from {', '.join(FORMATS)}")
    return FORMATS[name]


def read_annotations(
    root: Path, name: str, *, chosen: Sequence[Path], images: Path
) -> tuple[base.Annotations, list[Path]]:
    """Returns the objects in the files of a label tool, and the images beside theirs without any.

    Args:
        root: folder of images and files.
        name: of the format, see :data:`dpt.data.annotations.FORMATS`.
        chosen: the files, or the folders of files, that count; none: all are searched.
        images: folder of the images.

    Raises:
        DataError: there is no such format or file, or a file cannot be read.
    """
    form = format_named(name)
    every_file = [path.relative_to(root).as_posix() for path in files_below(root)]
    sources = _sources(form, root, every_file, chosen)
    if not sources:
        remedy = unread_files(root, every_file) or "check data.root and data.annotation_files"
        raise DataError(f"{[*chosen, root][0]}: holds no {form.title}: {remedy}")
    pictures = {*base.images_of(every_file)} - {*sources}
    left_out = {path for path in pictures if not (root / path).is_relative_to(images)}
    annotations = form.read(root, sources, [path for path in every_file if path not in left_out])
    for group in alike_names(names_in(annotations.images)):
        annotations.notes.append(f"classes {few(group)} may be one: give them one name")
    paths = {image.image for image in annotations.images}
    folders = {path.parent for path in paths}
    others = {root / path for path in pictures - left_out} - paths
    return annotations, sorted(path for path in others if path.parent in folders)


def _sources(
    form: base.AnnotationFormat, root: Path, files: Sequence[str], chosen: Sequence[Path]
) -> list[str]:
    """Returns the label files that are chosen, or lie in chosen folders, or all of them."""
    if chosen and all(path.is_file() for path in chosen):
        return [Path(os.path.relpath(path, root)).as_posix() for path in chosen]
    sources = form.find(root, files)  # also by the images beside label files
    within = chosen or [root]
    return [path for path in sources if any((root / path).is_relative_to(k) for k in within)]
