"""What the readers of label tools' formats share: looking for files, and what they leave out."""

import codecs
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter

from dpt.data.annotations.base import (
    UNLABELLED,
    AnnotatedClass,
    AnnotatedImage,
    Annotation,
    Annotations,
    ImageFinder,
    Shape,
    local_name,
)
from dpt.data.annotations.shapes import Union
from dpt.data.formats.io import IMAGE_SUFFIXES
from dpt.data.formats.label_rule import name_of_class
from dpt.data.splits import SPLITS, natural_key
from dpt.files import MAX_BYTES, DataError, few, open_file, parse_as, plural, read_bytes

MAX_IMAGE_BYTES = 64 << 20
"""Largest label file of one image."""
_MOST_PROBED = 8
_START = 1 << 16

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A name in JSON, which may be written as a number."""
_Coordinate = Annotated[float, Field(allow_inf_nan=False)]
Points = list[tuple[_Coordinate, _Coordinate]]
"""Points of x and y in JSON."""


def images_of(files: Iterable[str]) -> list[str]:
    """Returns the paths that end as images do."""
    return [path for path in files if path.lower().endswith(IMAGE_SUFFIXES)]


def with_suffixes(stem: str) -> list[str]:
    """Returns the names that an image can have."""
    return [f"{stem}{suffix}" for suffix in IMAGE_SUFFIXES]


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def as_rgb(text: str) -> tuple[int, ...]:
    """Returns a colour such as ``#1E90FF`` as RGB, 0..255; empty if it is none."""
    is_color = re.fullmatch("#?[0-9A-Fa-f]{6}", text) is not None
    return tuple(bytes.fromhex(text.removeprefix("#"))) if is_color else ()


def files_like(root: Path, candidates: Sequence[str], pattern: bytes) -> list[str]:
    """Returns the candidates without those in folders where no file that was looked at matches.

    Args:
        pattern: regular expression, searched in the beginning of at most 8 candidates.
    """
    step = max(1, len(candidates) / _MOST_PROBED)
    probed = {candidates[int(k * step)] for k in range(min(_MOST_PROBED, len(candidates)))}
    matching = {folder_of(path) for path in probed if starts_with(root / path, pattern)}
    others = {folder_of(path) for path in probed} - matching
    return [path for path in candidates if folder_of(path) not in others] if matching else []


def starts_with(path: Path, pattern: bytes) -> bool:
    """Returns whether the beginning of a file matches; False if it cannot be read."""
    with suppress(DataError), open_file(path) as file:
        start = file.read(_START).removeprefix(codecs.BOM_UTF8)
        return re.search(pattern, start, re.DOTALL | re.MULTILINE) is not None
    return False


def read_json(kind: TypeAdapter, path: Path, title: str, *, limit: int = MAX_BYTES) -> Any:
    """Returns the content of a label file as the type of ``kind``."""
    remedy = "export it again, or set data.annotation_files to the right files"
    what = f"one of {title}"
    return parse_as(kind, read_bytes(path, limit=limit), path, what=what, remedy=remedy)


class Reading:
    """Collects what a reader finds, and counts what it leaves out.

    Args:
        title: the format's, see :class:`AnnotationFormat`.
        files: all files below ``root``.

    Attributes:
        images: those of the label files read so far.
    """

    def __init__(self, root: Path, title: str, files: Sequence[str]) -> None:
        self.root, self.title = root, title
        self.images: list[AnnotatedImage] = []
        self._finder = ImageFinder(root, images_of(files))
        self._missing: list[Path] = []
        self._has_boxes = False
        self._left_out: dict[tuple[str, str], list[str]] = defaultdict(list)

    def image(self, names: Sequence[str], source: str) -> Path:
        """Returns the image that a label file names; if it is missing, a path in its folder.

        Args:
            names: paths from the folder of ``source``, or from the root; the first that is there
                counts.
        """
        paths = (self._finder.find(name, source) for name in names if name)
        path = next(filter(None, paths), None)
        if path is None:
            last = local_name(names[0] or source).rpartition("/")[2]
            path = self.root / folder_of(source) / last
            self._missing.append(path)
        return path

    def leave_out(self, noun: str, why: str, place: str) -> None:
        """Counts one more, such as a "point" that is "without an area"."""
        self._left_out[noun, why].append(place)

    def leave_out_box(self, place: str) -> None:
        """Counts the bounding box of an object, whose pixels it does not tell."""
        self._has_boxes = True
        self.leave_out("rectangle", "without a mask", place)

    def ring(self, make: Callable[[], np.ndarray], noun: str, place: str) -> np.ndarray | None:
        """Returns the corners that ``make`` returns; None if they have no area, which counts."""
        try:
            return make()
        except ValueError as error:
            self.leave_out(noun, f"without an area ({error})", place)
            return None

    @property
    def class_names(self) -> set[str]:
        return {item.class_name for image in self.images for item in image.objects} - {UNLABELLED}

    def result(self, classes: Sequence[AnnotatedClass] | None = None) -> Annotations:
        """Returns the records, after checks that some image has an object.

        Args:
            classes: as the files state them; None: the names that occur, in natural order.
        """
        self._check_images()
        shapes = [
            item.shape for i in self.images for item in i.objects if item.class_name != UNLABELLED
        ]
        boxes = sum(shape.is_box for shape in shapes)
        notes = [
            f"{plural(len(places), noun)} {why}: {few([*dict.fromkeys(places)])}"
            for (noun, why), places in self._left_out.items()
        ]
        if len(shapes) == boxes:
            fault = "boxes, but no masks" if boxes or self._has_boxes else "no masks"
            notes += [f"{plural(boxes, 'rectangle')} alone"] if boxes else []
            counted = "; ".join(notes) or "no object"
            remedy = "draw polygons or masks, or set data.annotations to another format"
            raise DataError(f"{self.root}: {fault}: {self.title} hold {counted}: {remedy}")
        if boxes:
            notes.append(f"{boxes} of {plural(len(shapes), 'object')} are rectangles")
        if classes is None:
            names = sorted(self.class_names, key=natural_key)
            classes = [AnnotatedClass(name=name) for name in names]
        rows = [replace(row, name=name_of_class(row.name, self.root)) for row in classes]
        images = _split_by_folders(self.root, self.images)
        return Annotations(source=self.root, images=images, classes=rows, notes=notes)

    def _check_images(self) -> None:
        if len(self._missing) == len(self.images):
            fault = f"no image of {self.title} is there ({few([*map(str, self._missing)])})"
            raise DataError(f"{self.root}: {fault}: copy the images into the folder")
        times = Counter(image.image for image in self.images)
        repeated = [str(path.relative_to(self.root)) for path, count in times.items() if count > 1]
        if repeated:
            fault = f"{self.title} label {few(repeated)} more than once"
            raise DataError(f"{self.root}: {fault}: set data.annotation_files to one of the files")


def _split_by_folders(root: Path, images: Sequence[AnnotatedImage]) -> list[AnnotatedImage]:
    """Returns the images with their splits, if all lie in folders named after splits."""
    if any(image.split for image in images):
        return [*images]
    splits = []
    for image in images:
        folders = image.image.relative_to(root).parts[:-1]
        splits.append(next((SPLITS[f.lower()] for f in folders if f.lower() in SPLITS), ""))
    if "train" not in splits or "" in splits or len({*splits}) < 2:
        return [*images]
    return [replace(image, split=split) for image, split in zip(images, splits, strict=True)]


def join_groups(parts: Iterable[tuple[str, str, Shape]]) -> list[Annotation]:
    """Returns objects of shapes, in their order; those of a class with the same group are one.

    Args:
        parts: class name, group ("" for a shape that is an object of its own), and shape.
    """
    groups: dict[tuple[str, str, int], list[Shape]] = defaultdict(list)
    for number, (class_name, group, shape) in enumerate(parts):
        groups[class_name, group, -1 if group else number].append(shape)
    return [
        Annotation(class_name=class_name, shape=shapes[0] if len(shapes) == 1 else Union(shapes))
        for (class_name, _, _), shapes in groups.items()
    ]
