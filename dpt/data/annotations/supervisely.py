"""Supervisely's projects: ``DATASET/img``, ``DATASET/ann/IMAGE.json``, and ``meta.json``.

Supervisely states points as the pixels in which they lie: the pixels of an outline belong to its
polygon, those of the outline of a hole to the hole. A bitmap begins with the pixel of its origin.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
from pydantic import TypeAdapter

from dpt.data.annotations.base import (
    AnnotatedClass,
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
    Shape,
    as_ring,
)
from dpt.data.annotations.reading import (
    MAX_IMAGE_BYTES,
    Points,
    Reading,
    as_rgb,
    files_like,
    folder_of,
    read_json,
    with_suffixes,
)
from dpt.data.annotations.shapes import Bitmap, Box
from dpt.data.formats.rle import Rle, encode_pixels


@dataclass(frozen=True, eq=False)
class _PixelPolygon(Shape):
    """Rings of pixels, float64 (N, 2) of x and y, with what they enclose."""

    outer: np.ndarray
    holes: Sequence[np.ndarray]

    def encode(self, size: tuple[int, int]) -> Rle:
        side = max(size)
        for ring in (self.outer, *self.holes):
            if not ((ring >= -side) & (ring <= 2 * side)).all():
                raise ValueError(f"a polygon is far outside the image of {size[0]}x{size[1]}")
        pixels = np.zeros(size, np.uint8)
        cv2.fillPoly(pixels, [np.floor(self.outer).astype(np.int32)], 1)
        for hole in self.holes:
            cv2.fillPoly(pixels, [np.floor(hole).astype(np.int32)], 0)
        return encode_pixels(pixels > 0)


@dataclass(frozen=True, kw_only=True)
class _Outlines:
    exterior: Points = field(default_factory=list)
    interior: list[Points] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _BitmapRow:
    data: str = ""
    origin: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class _Object:
    classTitle: str  # noqa: N815
    geometryType: str = ""  # noqa: N815 - absent in old exports
    points: _Outlines | None = None
    bitmap: _BitmapRow | None = None


@dataclass(frozen=True, kw_only=True)
class _Size:
    height: int
    width: int


@dataclass(frozen=True, kw_only=True)
class _File:
    size: _Size
    objects: list[_Object]


@dataclass(frozen=True, kw_only=True)
class _Class:
    title: str
    color: str = ""


@dataclass(frozen=True, kw_only=True)
class _Meta:
    classes: list[_Class]


_FILE, _META = TypeAdapter(_File), TypeAdapter(_Meta)


class SuperviselyFormat(AnnotationFormat):
    """An object of a file is one of the image; the later one is in front."""

    name: ClassVar[str] = "supervisely"
    title: ClassVar[str] = "Supervisely's JSON files"
    front: ClassVar[Front] = "later"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if re.search(r"(^|/)ann/[^/]*\.json$", path, re.I)]
        return files_like(root, candidates, rb'"(objects|size)"\s*:')

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading = Reading(root, self.title, files)
        classes: dict[str, AnnotatedClass] = {}
        projects = {folder_of(folder_of(folder_of(path))) for path in sources}
        metas = {f"{project}/meta.json".lstrip("/") for project in projects}
        for meta in sorted(metas.intersection(files)):
            for row in read_json(_META, root / meta, self.title).classes:
                listed = AnnotatedClass(name=row.title, color=as_rgb(row.color))
                classes.setdefault(row.title, listed)
        for source in sources:
            content = read_json(_FILE, root / source, self.title, limit=MAX_IMAGE_BYTES)
            folder, name = folder_of(folder_of(source)), Path(source).stem
            stem = f"{folder}/img/{name}".lstrip("/")
            objects = []
            for row in content.objects:
                shape = _shape(reading, row, source)
                if shape is not None:
                    objects.append(Annotation(class_name=row.classTitle, shape=shape))
            image = AnnotatedImage(
                image=reading.image([stem, *with_suffixes(stem)], source),
                size=(content.size.height, content.size.width),
                objects=objects,
            )
            reading.images.append(image)
        return reading.result([*classes.values()] or None)


def _shape(reading: Reading, row: _Object, place: str) -> Shape | None:
    """Returns the pixels of an object; None if it has no area, which ``reading`` counts."""
    outlines = row.points or _Outlines()
    if row.bitmap is not None and row.bitmap.data:
        return Bitmap(row.bitmap.data, *row.bitmap.origin, is_zipped=True)
    if row.geometryType == "rectangle" and len(outlines.exterior) == 2:
        (x0, y0), (x1, y1) = outlines.exterior
        return Box.of_corners(x0, y0, x1 + 1, y1 + 1)
    if row.geometryType not in ("polygon", ""):
        reading.leave_out(row.geometryType, "without an area", place)
        return None
    holes = [np.array(hole) for hole in outlines.interior if len(hole)]
    ring = reading.ring(lambda: as_ring(outlines.exterior), "polygon", place)
    return None if ring is None else _PixelPolygon(ring, holes)
