"""Labels from the objects that a label tool wrote, whatever its format."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.annotations import FORMATS, base
from dpt.data.annotations.coco import CocoFile, CocoFormat
from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, RawMaps, require_files
from dpt.data.formats.pictures import exif_orientation, labels_are_upright, read_size, upright_size
from dpt.data.formats.rle import areas_of, pixels_of
from dpt.data.formats.rules import LabelRule
from dpt.files import DataError, few, files_below, path_below, plain_name, required_file
from dpt.geometry import aspects_agree
from dpt.plugins import register
from dpt.types.samples import IGNORE_INDEX, DatasetInfo, ObjectMask, Rle


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
        return RawMaps(labels, objects, masks)

    def faults(self, image: base.AnnotatedImage, size: tuple[int, int]) -> tuple[list[str], int]:
        """Returns the names of objects without a pixel in an image of ``size`` (H, W), and the
        number of pixels that are in several objects."""
        codes = image.rasterise(size, self._front).codes or ()
        cover = np.zeros(size[0] * size[1], np.uint16)
        empty: list[str] = []
        for number, (item, code) in enumerate(zip(image.objects, codes, strict=False), 1):
            pixels = pixels_of(code)
            cover[pixels] += not item.is_crowd
            if not len(pixels):
                empty.append(item.name or str(number))
        return empty, int((cover > 1).sum())


def _mask(class_id: int, item: base.Annotation, code: Rle) -> ObjectMask:
    """Returns an object with the area that the file states, or else that of its mask."""
    area = item.area
    if area is None or not area >= 0:  # NaN too
        area = float(areas_of([code])[0])
    return ObjectMask(class_id, code, item.is_crowd, area)


def record_of(image: base.AnnotatedImage) -> Files:
    """Returns the record of an image with objects."""
    return Files(image.image, objects=image.map_file, extra=image)


def thing_flags(things: Sequence[str | int], names: Sequence[str]) -> tuple[bool, ...]:
    """Returns for each class whether it is among ``things``, names or ids."""
    unknown = [
        str(thing) for thing in things if thing not in names and thing not in range(len(names))
    ]
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
        remedy = "check data.root, data.annotations and data.annotation_files"
        raise DataError(f"{[*chosen, root][0]}: holds no {form.title}: {remedy}")
    pictures = {*base.images_of(every_file)} - {*sources}
    left_out = {path for path in pictures if not (root / path).is_relative_to(images)}
    annotations = form.read(root, sources, [path for path in every_file if path not in left_out])
    paths = {image.image for image in annotations.images}
    folders = {path.parent for path in paths}
    others = {root / path for path in pictures - left_out} - paths
    return annotations, sorted(path for path in others if path.parent in folders)


def _sources(
    form: base.AnnotationFormat, root: Path, files: Sequence[str], chosen: Sequence[Path]
) -> list[str]:
    """Returns the label files that are chosen, or lie in chosen folders, or all of them."""
    if chosen and all(path.is_file() for path in chosen):
        names = [os.path.relpath(path, root) for path in chosen]
        below = [path_below(root, name, "data.annotation_files") for name in names]
        return [Path(os.path.relpath(path, root)).as_posix() for path in below]
    sources = form.find(root, files)  # also by the images beside label files
    within = chosen or [root]
    return [path for path in sources if any((root / path).is_relative_to(k) for k in within)]


@dataclass(kw_only=True, eq=False)
class AnnotatedDataset(FileDataset):
    """Makes labels of objects; without objects it reads label files, as its base class does.

    A subclass calls :meth:`use` in ``list_files``, and makes records by :func:`record_of`.
    """

    def __post_init__(self) -> None:
        self.object_labels: ObjectLabels | None = None
        super().__post_init__()

    def use(self, labels: ObjectLabels, notes: Sequence[str]) -> None:
        """Makes labels of objects; ``notes`` say what their files hold that is left out."""
        self.object_labels, self.label_rule = labels, labels.rule
        self.objects_fault, self.notes = labels.fault, notes

    def annotation_id(self, index: int) -> int | str | None:
        image: base.AnnotatedImage | None = self._files[index].extra
        return None if image is None else image.id

    def adopt_classes(self, names: Sequence[str]) -> None:
        if self.object_labels is not None and self.label_rule is not None:
            self.object_labels.adopt(names)
            self.label_rule = self.object_labels.rule
            self.info = self.make_info()

    def unknown_class(self, names: Sequence[str]) -> str:
        return "" if self.object_labels is None else self.object_labels.unknown_class(names)

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        if self.object_labels is None:
            return info
        return replace(info, targets=(*info.targets, "objects"), things=self.object_labels.things)

    def read_raw_maps(self, index: int) -> RawMaps:
        if self.object_labels is None:
            return super().read_raw_maps(index)
        image: base.AnnotatedImage | None = self._files[index].extra
        if image is None:
            return RawMaps()
        return self.object_labels.maps(image, self._label_size(image))

    def _label_size(self, image: base.AnnotatedImage) -> tuple[int, int]:
        """Returns the (H, W) in which the objects are drawn, that of the stored pixels or upright.

        It is known before memory for the masks is allocated.
        """
        path, stored, stated = image.image, read_size(image.image), image.size
        if stated is None:
            is_upright = labels_are_upright(path, exif_orientation(path), self.exif)
            return upright_size(path) if is_upright else stored
        if self.fits(stated, stored) or self.fits(stated[::-1], stored):
            return stated
        sizes = f"{stored[1]}x{stored[0]} pixels, but {stated[1]}x{stated[0]} in its labels"
        remedy = "correct it, or use the original image"
        if aspects_agree(stated, stored):
            remedy = "use the original image, or set data.resize_labels=true if it is only scaled"
        raise DataError(f"{path}: {sizes}: {remedy}")

    def object_faults(self, index: int) -> list[str]:
        image: base.AnnotatedImage | None = self._files[index].extra
        if self.object_labels is None or image is None:
            return []
        empty, shared = self.object_labels.faults(image, self._label_size(image))
        faults = [f"no pixel in the mask of object {few(empty)}"] if empty else []
        return faults + ([f"{shared} pixels are in several masks"] if shared else [])


@register("coco")
@dataclass(kw_only=True, eq=False)
class CocoDataset(AnnotatedDataset):
    """A folder of images and a JSON file of their segments, of which COCO has two kinds.

    Classes are the categories in the order of their ids, without Roboflow's placeholder; the ids
    are added to names that occur twice. Where objects overlap, which they may in the instances
    format, the smaller one is in front in the maps; ``masks`` of a sample holds each one whole.
    Pixels of a crowd have a class and no object.

    Args:
        images, annotations: folder and JSON file, where ``%split`` is the split's name on disk.
        masks: of the panoptic format: folder of the PNG files; None is the JSON file's path
            without its suffix.
        background: see :class:`ObjectLabels`.
        split_names: the splits' names on disk, where they differ.
        missing: ``skip`` leaves images out that do not exist.
    """

    images: str = "%split"
    annotations: str = "annotations/panoptic_%split.json"
    masks: str | None = None
    split_names: Mapping[str, str] | None = None
    missing: Literal["raise", "skip"] = "raise"
    background: bool | None = False

    def list_files(self) -> list[Files]:
        path = self.path_of(self.annotations)
        required_file(path, remedy="check data.root and data.annotations")
        content, self.annotation_file = CocoFile(path), path
        classes = content.classes(content.used_names)
        folder = path.with_suffix("") if self.masks is None else self.path_of(self.masks)
        images = content.images(
            self._find_images(content.image_names, path),
            classes,
            lambda name: self.file_below(folder, name, path),
        )
        if self.missing == "skip":
            missing = {image.image for image in images if not image.image.is_file()}
            self.unpaired = (), sorted(missing)
            images = [image for image in images if image.image not in missing]
        annotations = base.Annotations(
            source=path, images=images, classes=[*classes.values()], notes=content.notes
        )
        front, background = CocoFormat.front, self.background
        self.use(
            ObjectLabels(annotations, images, front=front, background=background), content.notes
        )
        remedy = "check data.images and data.masks, or set data.missing=skip"
        return require_files([*map(record_of, images)], source=path, remedy=remedy)

    def _find_images(self, names: Mapping[int | str, str], path: Path) -> dict[int | str, Path]:
        """Returns the image files by id."""
        folder = self.path_of(self.images)
        images = {i: self.file_below(folder, name, path) for i, name in names.items()}
        absent = {i: image for i, image in images.items() if not image.is_file()}
        if not all(str(image).isascii() for image in absent.values()):
            on_disk = {plain_name(str(path)): path for path in folder.rglob("*")}
            images |= {i: on_disk.get(plain_name(str(p)), p) for i, p in absent.items()}
        return images
