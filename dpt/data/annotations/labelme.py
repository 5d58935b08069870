"""labelme's JSON files, one for each image.

labelme states points in pixels, with the upper left corner of the image at 0, 0: pixel edges lie at
whole numbers. A bitmap ("mask") begins with the pixel that its first point names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import dist
from pathlib import Path, PurePosixPath
from typing import ClassVar

from pydantic import TypeAdapter

from dpt.data.annotations.base import (
    UNLABELLED,
    AnnotatedClass,
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
    Polygons,
    Shape,
    as_ring,
)
from dpt.data.annotations.reading import (
    MAX_IMAGE_BYTES,
    Points,
    Reading,
    Text,
    files_like,
    join_groups,
    read_json,
    with_suffixes,
)
from dpt.data.annotations.shapes import Bitmap, Box, Difference, ellipse_ring
from dpt.files import read_text

_BACKGROUND, _IGNORED = "_background_", "__ignore__"
_CLASS_LISTS = ("labels.txt", "class_names.txt")


@dataclass(frozen=True, kw_only=True)
class _Shape:
    label: Text
    points: Points
    shape_type: str | None = None
    group_id: Text | None = None
    mask: str | None = None


@dataclass(frozen=True, kw_only=True)
class _File:
    shapes: list[_Shape] | None = None  # absent in JSON files of other programs
    imagePath: str = ""  # noqa: N815
    imageHeight: int | None = None  # noqa: N815
    imageWidth: int | None = None  # noqa: N815

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.imageHeight, self.imageWidth) if self.imageHeight and self.imageWidth else None


_FILE = TypeAdapter(_File)


class LabelmeFormat(AnnotationFormat):
    """A shape is an object; shapes of a label with the same ``group_id`` are one.

    A later shape is in front. One with the label ``_background_`` is cut out of the shapes before
    it; the pixels of one with the label ``__ignore__`` are unlabelled.
    """

    name: ClassVar[str] = "labelme"
    title: ClassVar[str] = "labelme's JSON files"
    front: ClassVar[Front] = "later"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith(".json")]
        return files_like(root, candidates, rb'"(shapes|imageData)"\s*:.*"(shape_type|image\w+)"')

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading = Reading(root, self.title, files)
        for source in sources:
            content = read_json(_FILE, root / source, self.title, limit=MAX_IMAGE_BYTES)
            if content.shapes is None:
                reading.leave_out("file", "of another format", source)
                continue
            beside = with_suffixes(PurePosixPath(source).stem)
            image = reading.image([content.imagePath, *beside], source)
            objects = _objects(reading, content.shapes, source)
            reading.images.append(AnnotatedImage(image=image, size=content.size, objects=objects))
        return reading.result(_classes(reading, files))


def _classes(reading: Reading, files: Sequence[str]) -> list[AnnotatedClass] | None:
    """Returns the classes that ``labels.txt`` lists; None if there is no such file that lists all
    classes of objects."""
    names = reading.class_names
    for path in (path for path in files if PurePosixPath(path).name in _CLASS_LISTS):
        lines = read_text(reading.root / path, limit=MAX_IMAGE_BYTES).splitlines()
        listed = [*dict.fromkeys(filter(None, map(str.strip, lines)))]
        if names and names <= {*listed}:
            return [AnnotatedClass(name=name) for name in listed if name != _IGNORED]
    return None


def _objects(reading: Reading, rows: Sequence[_Shape], source: str) -> list[Annotation]:
    parts: list[tuple[str, str, Shape]] = []
    for row in rows:
        shape = _shape(reading, row, source)
        if shape is None:
            continue
        if row.label == _BACKGROUND:
            parts = [(label, group, Difference(part, [shape])) for label, group, part in parts]
        label = UNLABELLED if row.label == _IGNORED else row.label
        parts.append((label, row.group_id or "", shape))
    return join_groups(parts)


def _shape(reading: Reading, row: _Shape, source: str) -> Shape | None:
    """Returns the pixels of a shape; None if it has no area, which ``reading`` counts."""
    kind, points = row.shape_type or "polygon", row.points
    if kind == "rectangle" and len(points) == 4:  # of X-AnyLabeling
        return Box([as_ring(points)])
    if kind in ("mask", "rectangle", "circle") and len(points) != 2:
        reading.leave_out(kind, f"of {len(points)} points", source)
        return None
    if kind == "mask" and row.mask:
        return Bitmap(row.mask, int(points[0][0]), int(points[0][1]))
    if kind == "rectangle":
        return Box.of_corners(*points[0], *points[1])
    if kind == "circle":  # its centre, and a point on it
        radius = dist(*points)
        ring = reading.ring(lambda: ellipse_ring(*points[0], radius, radius), kind, source)
    elif kind in ("polygon", "rotation", "oriented_rectangle"):
        ring = reading.ring(lambda: as_ring(points), "polygon", source)
    else:
        reading.leave_out(kind, "without an area", source)
        return None
    return None if ring is None else Polygons([ring])
