"""CVAT's XML files, "CVAT for images 1.1".

CVAT states points in pixels, with the upper left corner of the image at 0, 0: pixel edges lie at
whole numbers, and the width of a box is xbr - xtl. A mask is the run lengths of the pixels inside a
box, row by row, the first run outside the object.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np

from dpt.data.annotations.base import (
    AnnotatedClass,
    AnnotatedImage,
    AnnotationFormat,
    Annotations,
    Front,
    Polygons,
    Shape,
    as_ring,
)
from dpt.data.annotations.reading import Reading, as_rgb, files_like, join_groups
from dpt.data.annotations.shapes import ellipse_ring, placed, rotated
from dpt.data.formats.rle import Rle, encode_pixels
from dpt.data.splits import SPLITS
from dpt.files import COPY_AGAIN, DataError, read_text

_MAX_XML = 256 << 20


@dataclass(frozen=True, eq=False)
class _BoxedRuns(Shape):
    """Run lengths of the pixels in a box of the image, row by row."""

    runs: np.ndarray  # int64 (N,)
    left: int
    top: int
    height: int
    width: int

    def encode(self, size: tuple[int, int]) -> Rle:
        count = self.height * self.width
        if count > size[0] * size[1] or self.runs.min() < 0 or self.runs.sum() != count:
            raise ValueError(f"the runs of a mask do not fill {self.width}x{self.height} pixels")
        is_inside = np.arange(len(self.runs)) % 2 == 1
        mask = np.repeat(is_inside, self.runs).reshape(self.height, self.width)
        return encode_pixels(placed(mask, self.left, self.top, size))


class CvatFormat(AnnotationFormat):
    """Polygons, ellipses and masks are objects; those of a label in the same group are one.

    Boxes are left out. The shape with the larger ``z_order`` is in front, of equal ones the later.
    """

    name: ClassVar[str] = "cvat"
    title: ClassVar[str] = "CVAT's XML files"
    front: ClassVar[Front] = "later"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith(".xml")]
        return files_like(root, candidates, rb"<annotations>\s*<(version|meta|image)\b")

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading = Reading(root, self.title, files)
        classes: dict[str, AnnotatedClass] = {}
        for source in sources:
            try:
                _read_file(reading, source, classes)
            except (ElementTree.ParseError, KeyError, ValueError, OverflowError) as error:
                if isinstance(error, DataError):
                    raise
                fault = f"not usable XML of CVAT ({type(error).__name__}: {str(error)[:200]})"
                raise DataError(f"{root / source}: {fault}: {COPY_AGAIN}") from None
        return reading.result([*classes.values()] or None)


def _read_file(reading: Reading, source: str, classes: dict[str, AnnotatedClass]) -> None:
    """Adds the images of a file to ``reading``, and its labels to ``classes``."""
    text = read_text(reading.root / source, limit=_MAX_XML)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:  # with which a short file can be of any size
        raise DataError(f"{reading.root / source}: holds a DTD: export it from CVAT again")
    content = ElementTree.fromstring(text)
    if content.find("track") is not None:
        fault, remedy = "tracks of a video, not of images", 'export "CVAT for images 1.1"'
        raise DataError(f"{reading.root / source}: {fault}: {remedy}")
    for label in content.iterfind("meta//label"):
        if label.find("parent") is None:  # no point of a skeleton
            name, color = label.findtext("name", ""), label.findtext("color", "")
            classes.setdefault(name, AnnotatedClass(name=name, color=as_rgb(color)))
    for image in content.iterfind("image"):
        _read_image(reading, source, image)


def _read_image(reading: Reading, source: str, element: ElementTree.Element) -> None:
    name = element.attrib["name"]
    parts: list[tuple[str, str, Shape]] = []
    for row in sorted(element, key=lambda row: int(row.get("z_order", "0"))):
        shape = None if row.tag == "tag" else _shape(reading, row, name)
        if shape is not None:
            parts.append((row.attrib["label"], row.get("group_id", ""), shape))
    image = AnnotatedImage(
        image=reading.image([name], source),
        size=(int(element.attrib["height"]), int(element.attrib["width"])),
        objects=join_groups(parts),
        split=SPLITS.get(element.get("subset", "").lower(), ""),
    )
    reading.images.append(image)


def _shape(reading: Reading, row: ElementTree.Element, place: str) -> Shape | None:
    """Returns the pixels of a shape; None if it has no area, which ``reading`` counts."""

    def numbers(*keys: str) -> list[float]:
        return [float(row.attrib[key]) for key in keys]

    if row.tag == "mask":
        left, top, height, width = map(int, numbers("left", "top", "height", "width"))
        runs = np.array([int(count) for count in row.attrib["rle"].split(",")], np.int64)
        return _BoxedRuns(runs, left, top, height, width)
    if row.tag == "box":
        reading.leave_out_box(place)
        return None
    if row.tag not in ("polygon", "ellipse"):
        reading.leave_out(row.tag, "without an area", place)
        return None

    def corners() -> np.ndarray:
        if row.tag == "polygon":
            return as_ring([pair.split(",") for pair in row.attrib["points"].split(";")])
        x, y, radius_x, radius_y = numbers("cx", "cy", "rx", "ry")
        angle = math.radians(float(row.get("rotation", "0")))
        return rotated(ellipse_ring(x, y, radius_x, radius_y), x, y, angle)

    ring = reading.ring(corners, row.tag, place)
    return None if ring is None else Polygons([ring])
