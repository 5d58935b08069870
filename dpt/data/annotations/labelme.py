"""labelme's JSON files, one for each image.

labelme states points in pixels, with the upper left corner of the image at 0, 0: pixel edges lie at
whole numbers. A bitmap ("mask") begins with the pixel that its first point names, rounded, and may
lie partly outside the image.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import dist
from pathlib import PurePosixPath

from pydantic import TypeAdapter

from dpt.data.annotations import base
from dpt.data.formats import rle, rules
from dpt.validation import Plain

_BACKGROUND, _IGNORED = "_background_", "__ignore__"
_CLASS_LISTS = ("labels.txt", "class_names.txt")
_POLYGONS = ("polygon", "rotation", "oriented_rectangle")


@dataclass(frozen=True, kw_only=True)
class _Shape:
    label: base.Text
    points: base.Points
    shape_type: str | None = None
    group_id: base.Text | None = None
    mask: str | None = None

    @property
    def region(self) -> base.Region:
        label = base.UNLABELLED if self.label == _IGNORED else self.label
        return base.Region(label, self.kind, self.encoder, self.group_id or "")

    @property
    def kind(self) -> str:
        return self.shape_type or "polygon"

    def encoder(self) -> base.Encoder:
        """Returns its mask; ValueError if it has no area."""
        points = self.points
        has_corners = self.kind == base.BOX and len(points) == 4  # X-AnyLabeling's
        if self.kind in _POLYGONS or has_corners:
            return base.polygon(points)
        if len(points) != 2:
            raise ValueError("no area")
        (x, y), other = points
        if self.kind == base.BOX:
            return base.rectangle(x, y, *other)
        if self.kind == "circle":  # its centre, and a point on it
            return base.ellipse(x, y, dist(*points), dist(*points))
        if self.kind == "mask" and self.mask:
            return partial(base.encode_bitmap, self.mask, (round(x), round(y)))
        raise ValueError("no area")


@dataclass(frozen=True, kw_only=True)
class _File:
    shapes: list[_Shape] | None = None  # absent in JSON files of other programs
    imagePath: str = ""  # noqa: N815
    imageHeight: int | None = None  # noqa: N815
    imageWidth: int | None = None  # noqa: N815


_FILE = TypeAdapter(_File)


class LabelmeFormat(base.AnnotationFormat):
    """A shape is an object; shapes of a label with the same ``group_id`` are one.

    A later shape is in front. One with the label ``_background_`` is cut out of the shapes before
    it; the pixels of one with the label ``__ignore__`` are unlabelled.
    """

    name = "labelme"
    title = "labelme's JSON files"
    patterns = (rb'"(shapes|imageData)"\s*:', rb'"(shape_type|image\w+)"')

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        for source in sources:
            content: _File = reading.content(_FILE, source)
            if content.shapes is None:
                reading.leave_out("file", "of another format", source)
                continue
            names = [content.imagePath, *base.with_suffixes(PurePosixPath(source).stem)]
            parts = reading.parts([row.region for row in content.shapes], source)
            for k, part in enumerate(parts):
                holes = tuple(p.encode for p in parts[k + 1 :] if p.class_name == _BACKGROUND)
                if holes and part.class_name != _BACKGROUND:
                    encode = partial(base.encode_difference, part.encode, holes)
                    parts[k] = replace(part, encode=encode)
            size = base.size_of(content.imageHeight, content.imageWidth)
            reading.add_image(reading.finder.path(names, source), parts, size=size)
        _add_listed_classes(reading)


def _add_listed_classes(reading: base.Reading) -> None:
    """Adds the classes of ``labels.txt``, if it lists all classes of objects."""
    for path in (path for path in reading.files if PurePosixPath(path).name in _CLASS_LISTS):
        lines = [line for line in reading.listed(path) if line != _IGNORED]
        names = [rules.name_of_class(line, path) for line in lines]
        if not reading.class_names <= {*names}:
            reading.leave_out("list", "it lacks classes of objects", path)
            continue
        for name in names:
            reading.add_class(name)


class LabelmeWriter(base.Writer):
    """A JSON file beside each image: a polygon for each part of an object, with bridges to its
    holes; ``group_id`` joins the parts."""

    name = "labelme"
    image_file = "{split}/{name}"
    label_files = ("{split}/{name}.json",)
    class_list = "labels.txt"

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        shapes: list[Plain] = []
        for number, item in enumerate(entry.objects, 1):
            parts = rle.trace_code(item.mask)
            for part in parts:
                shape: Plain = {"label": self.class_of(item).name}
                shape["points"] = rle.one_ring([part]).tolist()
                shape["group_id"] = number if len(parts) > 1 else None
                shape |= {"description": "", "shape_type": "polygon", "flags": {}, "mask": None}
                shapes.append(shape)
        content: Plain = {"version": "5.5.0", "flags": {}, "shapes": shapes}
        content["imagePath"] = entry.name.rpartition("/")[2] + entry.image.suffix
        content |= {"imageData": None, "imageHeight": entry.size[0], "imageWidth": entry.size[1]}
        return (json.dumps(content).encode(),)
