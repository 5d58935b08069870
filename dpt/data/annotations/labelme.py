"""labelme's JSON files, one for each image.

labelme states points in pixels, with the upper left corner of the image at 0, 0: pixel edges lie at
whole numbers. A bitmap ("mask") begins with the pixel that its first point names, rounded, and may
lie partly outside the image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import dist
from pathlib import PurePosixPath

from pydantic import TypeAdapter

from dpt.data.annotations.base import UNLABELLED, Polygons, Shape, as_ring
from dpt.data.annotations.reading import (
    MAX_IMAGE_BYTES,
    Points,
    Reading,
    Region,
    Text,
    ToolFormat,
    read_json,
    with_suffixes,
)
from dpt.data.annotations.shapes import Bitmap, Box, Difference, ellipse
from dpt.data.formats.rules import name_of_class

_BACKGROUND, _IGNORED = "_background_", "__ignore__"
_CLASS_LISTS = ("labels.txt", "class_names.txt")
_POLYGONS = ("polygon", "rotation", "oriented_rectangle")


@dataclass(frozen=True, kw_only=True)
class _Shape:
    label: Text
    points: Points
    shape_type: str | None = None
    group_id: Text | None = None
    mask: str | None = None

    @property
    def region(self) -> Region:
        label = UNLABELLED if self.label == _IGNORED else self.label
        return Region(label, self.kind, self.shape, self.group_id or "")

    @property
    def kind(self) -> str:
        return self.shape_type or "polygon"

    def shape(self) -> Shape:
        """Returns its pixels; ValueError if it has no area."""
        points = self.points
        if self.kind in _POLYGONS:
            return Polygons([as_ring(points)])
        if self.kind == "rectangle" and len(points) == 4:  # of X-AnyLabeling
            return Box([as_ring(points)])
        if self.kind in ("rectangle", "circle", "mask") and len(points) == 2:
            (x0, y0), (x1, y1) = points
            if self.kind == "rectangle":
                return Box.of_corners(x0, y0, x1, y1)
            if self.kind == "circle":  # its centre, and a point on it
                radius = dist(*points)
                return ellipse(x0, y0, radius, radius)
            if self.mask:
                return Bitmap(self.mask, round(x0), round(y0), is_cropped=True)
        raise ValueError("no area")


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


class LabelmeFormat(ToolFormat):
    """A shape is an object; shapes of a label with the same ``group_id`` are one.

    A later shape is in front. One with the label ``_background_`` is cut out of the shapes before
    it; the pixels of one with the label ``__ignore__`` are unlabelled.
    """

    name = "labelme"
    title = "labelme's JSON files"
    pattern = rb'"(shapes|imageData)"\s*:.*"(shape_type|image\w+)"'

    def collect(self, reading: Reading, sources: Sequence[str]) -> None:
        for source in sources:
            content = read_json(_FILE, reading.root / source, self.title, limit=MAX_IMAGE_BYTES)
            if content.shapes is None:
                reading.leave_out("file", "of another format", source)
                continue
            names = [content.imagePath, *with_suffixes(PurePosixPath(source).stem)]
            parts = reading.parts([row.region for row in content.shapes], source)
            for k, (label, shape, *_) in enumerate(parts):
                if label == _BACKGROUND:
                    parts[:k] = [p._replace(shape=Difference(p.shape, [shape])) for p in parts[:k]]
            reading.add_image(reading.image(names, source), parts, size=content.size)
        _add_listed_classes(reading)


def _add_listed_classes(reading: Reading) -> None:
    """Adds the classes of ``labels.txt``, if it lists all classes of objects."""
    for path in (path for path in reading.files if PurePosixPath(path).name in _CLASS_LISTS):
        names = [name_of_class(line, path) for line in reading.lines(path) if line != _IGNORED]
        if not reading.class_names <= {*names}:
            reading.leave_out("list", "it lacks classes of objects", path)
            continue
        for name in names:
            reading.add_class(name)
