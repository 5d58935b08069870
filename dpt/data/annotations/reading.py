"""What the readers of label tools' formats share: finding files, and collecting what they hold."""

import codecs
import posixpath
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, TypeAdapter

from dpt.data.annotations.base import (
    UNLABELLED,
    AnnotatedClass,
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
    ImageFinder,
    Shape,
    local_name,
)
from dpt.data.annotations.shapes import Union
from dpt.data.formats.io import IMAGE_SUFFIXES
from dpt.data.formats.rules import name_of_class
from dpt.data.splits import natural_key, split_word
from dpt.files import MAX_BYTES, DataError, few, open_file, parse_as, plural, read_bytes, read_text

BOX = "rectangle"
"""What messages call the bounding box of an object, whose pixels it does not tell."""
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
    """Returns the folder of a path with ``/``; empty for the root."""
    return path.rpartition("/")[0]


def as_rgb(text: str) -> tuple[int, ...]:
    """Returns a colour such as ``#1E90FF`` as RGB, 0..255; empty if it is none."""
    is_color = re.fullmatch("#?[0-9A-Fa-f]{6}", text) is not None
    return tuple(bytes.fromhex(text.removeprefix("#"))) if is_color else ()


def files_like(root: Path, candidates: Sequence[str], pattern: bytes) -> list[str]:
    """Returns the candidates without those in folders where no file that was looked at matches.

    Args:
        pattern: regular expression, searched in the beginning of at most 16 candidates: some of
            all, and the first of some folders.
    """
    first_of_folder = {folder_of(path): path for path in reversed(candidates)}
    probed = {*_evenly(candidates), *_evenly([*first_of_folder.values()])}
    matching = {folder_of(path) for path in probed if starts_with(root / path, pattern)}
    others = {folder_of(path) for path in probed} - matching
    return [path for path in candidates if folder_of(path) not in others] if matching else []


def _evenly(paths: Sequence[str]) -> list[str]:
    step = max(1, len(paths) / _MOST_PROBED)
    return [paths[int(k * step)] for k in range(min(_MOST_PROBED, len(paths)))]


def starts_with(path: Path, pattern: bytes) -> bool:
    """Returns whether the beginning of a file matches; False if it cannot be read."""
    with suppress(DataError), open_file(path) as file:
        start = file.read(_START).removeprefix(codecs.BOM_UTF8)
        return re.search(pattern, start, re.DOTALL | re.MULTILINE) is not None
    return False


def read_json(kind: TypeAdapter, path: Path, title: str, *, limit: int = MAX_BYTES) -> Any:
    """Returns the content of a label file as the type of ``kind``; ``title`` is the format's."""
    remedy = "export it again, or set data.annotation_files to the right files"
    what = f"one of {title}"
    return parse_as(kind, read_bytes(path, limit=limit), path, what=what, remedy=remedy)


class Part(NamedTuple):
    """A shape of an object; shapes of a class in the same group are one object."""

    class_name: str
    shape: Shape
    group: str = ""
    name: str = ""  # what messages call it


class Region(NamedTuple):
    """A shape in a file, before it is known whether it has an area."""

    class_name: str | None  # None if it is not known, or not one
    noun: str  # what messages call its kind, such as polygon
    make: Callable[[], Shape]  # returns its pixels; ValueError if it has no area
    group: str = ""
    name: str = ""


class Reading:
    """Collects what a reader finds, and counts what it leaves out.

    Args:
        title: the format's, see :class:`AnnotationFormat`.
        files: all files below ``root``.
    """

    def __init__(self, root: Path, title: str, files: Sequence[str]) -> None:
        self.root, self.title, self.files = root, title, files
        self.finder = ImageFinder(root, images_of(files))
        self._images: dict[Path, AnnotatedImage] = {}
        self._missing: list[Path] = []
        self._classes: dict[str, AnnotatedClass] = {}
        self._left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._lists: list[str] = []

    def lines(self, source: str) -> list[str]:
        """Returns the lines with text of a list beside the label files."""
        self._lists.append(source)
        lines = read_text(self.root / source, limit=MAX_IMAGE_BYTES).splitlines()
        return [line.strip() for line in lines if line.strip()]

    def image(self, names: Sequence[str], source: str) -> Path:
        """Returns the image that a label file names; if it is missing, a path in its folder.

        Args:
            names: paths from the folder of ``source``, or from the root; the first that is there
                counts.
        """
        path = self.find(names, source)
        if path is None:
            name = local_name(names[0] or source.rpartition("/")[2])
            place = posixpath.normpath(posixpath.join(folder_of(source), name))
            path = self.root / re.sub(r"^(/.*/|(\.\./)+)", "", place)  # in the root
            self._missing.append(path)
        return path

    def find(self, names: Sequence[str], source: str) -> Path | None:
        """Returns the first image of :meth:`image` that is there; None if none is."""
        paths = (self.finder.find(name, source) for name in names if name)
        return next(filter(None, paths), None)

    def parts(self, regions: Iterable[Region], place: str) -> list[Part]:
        """Returns the regions with a class and an area, and counts the others.

        Args:
            place: what messages call the image.
        """
        parts: list[Part] = []
        for class_name, noun, make, group, name in regions:
            try:
                shape = make()
                if class_name is None:
                    raise ValueError("not of one class")
                parts.append(Part(class_name, shape, group, name))
            except ValueError as error:
                self.leave_out(noun, str(error), place)
        return parts

    def leave_out(self, noun: str, why: str, place: str) -> None:
        """Counts one more that has no place in the labels, such as a "line" with "no area"."""
        self._left_out[noun, why].append(place)

    def add_class(self, name: str, *, color: str = "", is_thing: bool = True) -> None:
        """Adds a class that a file lists, with its colour ``#rrggbb``."""
        name = name_of_class(name, self.root)
        row = AnnotatedClass(name=name, color=as_rgb(color), is_thing=is_thing)
        self._classes.setdefault(name, row)

    def add_image(
        self,
        image: Path,
        parts: Iterable[Part],
        *,
        size: tuple[int, int] | None = None,
        split: str = "",
    ) -> None:
        """Adds an image with the shapes of its objects, in their order.

        Raises:
            DataError: the image is there already, or a name cannot be that of a class.
        """
        if image in self._images:
            fault = f"{self.title} label {image} twice"
            raise DataError(f"{self.root}: {fault}: set data.annotation_files to a file or folder")
        groups: dict[tuple[str, str, int], list[Part]] = defaultdict(list)
        for number, part in enumerate(parts):
            if part.class_name != UNLABELLED:
                name_of_class(part.class_name, image)
            groups[part.class_name, part.group, -1 if part.group else number].append(part)
        objects = [
            Annotation(class_name=name, shape=Union([k.shape for k in group]), name=group[0].name)
            for (name, _, _), group in groups.items()
        ]
        row = AnnotatedImage(image=image, size=size, objects=objects, split=split)
        self._images[image] = row

    @property
    def class_names(self) -> set[str]:
        """The classes of objects."""
        items = (item for image in self._images.values() for item in image.objects)
        return {name_of_class(k.class_name, self.root) for k in items if k.class_name != UNLABELLED}

    def result(self) -> Annotations:
        """Returns the records, after checks that some image has an object with a mask."""
        images = _split_by_folders(self.root, [*self._images.values()])
        if len(self._missing) == len(images) and (images or not self._left_out):
            shown = f" ({few([*map(str, self._missing)])})" if images else ""
            fault = f"no image of {self.title} is there{shown}"
            raise DataError(f"{self.root}: {fault}: copy the images into the folder")
        if not self._classes:
            for name in sorted(self.class_names, key=natural_key):
                self.add_class(name)
        return Annotations(
            source=self.root,
            images=images,
            classes=[*self._classes.values()],
            notes=self._notes(),
            lists=self._lists,
        )

    def _notes(self) -> list[str]:
        """Returns what was left out; DataError if no object is left but rectangles."""
        notes = [
            f"{plural(len(places), noun)} left out ({why}): {few([*dict.fromkeys(places)])}"
            for (noun, why), places in self._left_out.items()
        ]
        bare = [str(p.relative_to(self.root)) for p, row in self._images.items() if not row.objects]
        if bare:
            notes.append(f"{plural(len(bare), 'image')} without an object: {few(bare)}")
        objects = [item for image in self._images.values() for item in image.objects]
        shapes = [item.shape for item in objects if item.class_name != UNLABELLED]
        boxes = sum(shape.is_box for shape in shapes)
        if boxes:
            notes.append(f"{boxes} of {plural(len(shapes), 'object')} are rectangles")
        if boxes == len(shapes):
            has_boxes = boxes or any(noun == BOX for noun, _ in self._left_out)
            fault = f"boxes, but no masks: {self.title}" if has_boxes else f"{self.title}: no masks"
            remedy = "draw polygons or masks, or set data.labels to the folder of masks"
            raise DataError(f"{self.root}: {fault} ({'; '.join(notes) or 'empty'}): {remedy}")
        return notes


def _split_by_folders(root: Path, images: list[AnnotatedImage]) -> list[AnnotatedImage]:
    """Returns the images with their splits, if words in the names of their folders tell all."""
    if any(image.split for image in images):
        return images
    splits = [split_word(str(image.image.parent.relative_to(root)))[0] for image in images]
    if "train" not in splits or "" in splits or len({*splits}) < 2:
        return images
    return [replace(image, split=split) for image, split in zip(images, splits, strict=True)]


class ToolFormat(AnnotationFormat):
    """A format whose files are recognised by their suffix and their beginning.

    Attributes:
        pattern: regular expression, searched in the beginning of a file.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    pattern: ClassVar[bytes] = b""
    front: ClassVar[Front] = "later"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith(self.suffixes)]
        return files_like(root, candidates, self.pattern)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading = Reading(root, self.title, files)
        self.collect(reading, sources)
        return reading.result()

    @abstractmethod
    def collect(self, reading: Reading, sources: Sequence[str]) -> None:
        """Adds the images, and the classes if the files list them, to ``reading``."""
