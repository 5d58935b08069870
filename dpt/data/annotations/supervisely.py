"""Supervisely's projects: ``DATASET/img``, ``DATASET/ann/IMAGE.json``, and ``meta.json``.

Supervisely states points as the pixels in which they lie: the pixels of an outline belong to its
polygon, those of the outline of a hole to the hole. A bitmap begins with the pixel of its origin.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from pydantic import TypeAdapter

from dpt.data.annotations import base
from dpt.data.formats.rle import encode_pixels
from dpt.types.samples import Rle


def _encode_pixel_rings(
    outer: np.ndarray, holes: Sequence[np.ndarray], size: tuple[int, int]
) -> Rle:
    """Returns the pixels of rings, float64 (N, 2) of x and y, with what they enclose."""
    side = max(size)
    for ring in (outer, *holes):
        if not ((ring >= -side) & (ring <= 2 * side)).all():
            raise ValueError(f"a polygon is far outside the image of {size[0]}x{size[1]}")
    pixels = np.zeros(size, np.uint8)
    cv2.fillPoly(pixels, [np.floor(outer).astype(np.int32)], 1)
    cv2.fillPoly(pixels, [np.floor(hole).astype(np.int32) for hole in holes], 0)
    return encode_pixels(pixels > 0)


@dataclass(frozen=True, kw_only=True)
class _Outlines:
    exterior: base.Points = field(default_factory=list)
    interior: list[base.Points] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _BitmapRow:
    data: str = ""
    origin: tuple[float, float] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class _Object:
    classTitle: str  # noqa: N815
    geometryType: str = ""  # noqa: N815 - absent in old exports
    points: _Outlines | None = None
    bitmap: _BitmapRow | None = None

    @property
    def region(self) -> base.Region:
        return base.Region(self.classTitle, self.geometryType or "object", self.encoder)

    def encoder(self) -> base.Encoder:
        """Returns its mask; ValueError if it has no area."""
        outlines = self.points or _Outlines()
        if self.bitmap is not None and self.bitmap.data:
            left, top = np.floor(self.bitmap.origin).astype(int).tolist()
            return partial(base.encode_bitmap, self.bitmap.data, (left, top))
        if self.geometryType == base.BOX and len(outlines.exterior) == 2:
            (x0, y0), (x1, y1) = outlines.exterior
            return base.rectangle(x0, y0, x1 + 1, y1 + 1)
        if self.geometryType in ("polygon", ""):
            holes = [np.array(hole) for hole in outlines.interior if len(hole)]
            return partial(_encode_pixel_rings, base.as_ring(outlines.exterior), holes)
        raise ValueError("no area")


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


class SuperviselyFormat(base.ToolFormat):
    """An object of a file is one of the image; the later one is in front."""

    name = "supervisely"
    title = "Supervisely's JSON files"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if re.search(r"(^|/)ann/[^/]*\.json$", path, re.I)]
        sources = base.files_like(root, candidates, rb'"(objects|size)"\s*:')
        return [*_metas(sources, files), *sources]

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        metas = _metas(sources, reading.files)
        for meta in metas:
            for row in base.read_json(_META, reading.root / meta, self.title).classes:
                reading.add_class(row.title, color=row.color)
        for source in sorted({*sources}.difference(metas)):
            content = base.read_json(
                _FILE, reading.root / source, self.title, limit=base.MAX_IMAGE_BYTES
            )
            stem = f"../img/{PurePosixPath(source).stem}"
            parts = reading.parts([row.region for row in content.objects], source)
            image = reading.finder.path([stem, *base.with_suffixes(stem)], source)
            reading.add_image(image, parts, size=(content.size.height, content.size.width))


def _metas(sources: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns the files of classes of the projects of label files."""
    datasets = {PurePosixPath(source).parent.parent for source in sources}
    return sorted({str(dataset.parent / "meta.json") for dataset in datasets}.intersection(files))
