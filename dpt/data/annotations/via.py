"""JSON files of the VGG Image Annotator (VIA), versions 1 and 2: exported regions, and projects.

VIA states points in pixels, with the upper left corner of the image at 0, 0, and rounds them: pixel
edges lie at whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from dpt.data.annotations.base import (
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
    Polygons,
    Shape,
    as_ring,
)
from dpt.data.annotations.reading import Reading, files_like, read_json
from dpt.data.annotations.shapes import box_ring, ellipse_ring, rotated
from dpt.files import DataError, few

_ONE_CLASS = "object"
_CLASS_ATTRIBUTE = "class"
_PATTERN = rb'"_via_img_metadata"|"_via_settings"|"regions"\s*:.*"region_attributes"'


@dataclass(frozen=True, kw_only=True)
class _Shape:
    name: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    cx: float = 0.0
    cy: float = 0.0
    r: float = 0.0
    rx: float = 0.0
    ry: float = 0.0
    theta: float = 0.0  # radians
    all_points_x: list[float] = field(default_factory=list)
    all_points_y: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Region:
    shape_attributes: _Shape
    region_attributes: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Image:
    filename: str
    regions: list[_Region] | dict[str, _Region] = field(default_factory=list)

    @property
    def every_region(self) -> list[_Region]:
        return [*(self.regions.values() if isinstance(self.regions, dict) else self.regions)]


def _images_of_project(content: object) -> object:
    """Returns the images in a project; other content as it is."""
    return content.get("_via_img_metadata", content) if isinstance(content, dict) else content


_CONTENT = TypeAdapter(Annotated[dict[str, _Image], BeforeValidator(_images_of_project)])


class ViaFormat(AnnotationFormat):
    """A region is an object; the later one is in front.

    Its class is the value of the only attribute of regions, or of that named ``class``; if regions
    have no attributes, all are of one class, ``object``.
    """

    name: ClassVar[str] = "via"
    title: ClassVar[str] = "JSON files of the VGG Image Annotator"
    front: ClassVar[Front] = "later"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith(".json")]
        return files_like(root, candidates, _PATTERN)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading = Reading(root, self.title, files)
        rows: list[tuple[str, _Image]] = []
        for source in sources:
            content = read_json(_CONTENT, root / source, self.title)
            rows += [(source, row) for row in content.values()]
        attribute = _class_attribute([row for _, row in rows], root / sources[0])
        for source, row in rows:
            image = reading.image([row.filename], source)
            objects: list[Annotation] = []
            for region in row.every_region:
                class_name = _class_name(region, attribute)
                if not class_name:
                    reading.leave_out("region", f"without one {attribute}", row.filename)
                    continue
                shape = _shape(reading, region.shape_attributes, row.filename)
                if shape is not None:
                    objects.append(Annotation(class_name=class_name, shape=shape))
            reading.images.append(AnnotatedImage(image=image, objects=objects))
        return reading.result()


def _class_attribute(images: Sequence[_Image], source: Path) -> str:
    """Returns the name of the attribute that is the class; empty if regions have none."""
    names = {
        name: None
        for image in images
        for region in image.every_region
        for name, value in region.region_attributes.items()
        if value
    }
    if len(names) < 2 or _CLASS_ATTRIBUTE in names:
        return _CLASS_ATTRIBUTE if _CLASS_ATTRIBUTE in names else next(iter(names), "")
    fault = f"the attributes {few([*names], 6)} of regions could each be the class"
    remedy = f"rename the one that is to {_CLASS_ATTRIBUTE!r}, or remove the others"
    raise DataError(f"{source}: {fault}: {remedy}")


def _class_name(region: _Region, attribute: str) -> str:
    """Returns the class of a region; empty if it has none, or several."""
    if not attribute:
        return _ONE_CLASS
    value = region.region_attributes.get(attribute)
    if isinstance(value, Mapping):  # of a check box
        chosen = [str(name) for name, is_chosen in value.items() if is_chosen]
        return chosen[0] if len(chosen) == 1 else ""
    return "" if value is None else str(value).strip()


def _shape(reading: Reading, row: _Shape, place: str) -> Shape | None:
    """Returns the pixels of a region; None if it has no area, which ``reading`` counts."""
    if row.name == "rect":
        return reading.box(box_ring(row.x, row.y, row.x + row.width, row.y + row.height))
    if row.name not in ("polygon", "circle", "ellipse"):
        reading.leave_out(row.name or "region", "without an area", place)
        return None

    def corners() -> np.ndarray:
        if row.name == "polygon":
            return as_ring([*zip(row.all_points_x, row.all_points_y, strict=True)])
        radii = (row.r, row.r) if row.name == "circle" else (row.rx, row.ry)
        return rotated(ellipse_ring(row.cx, row.cy, *radii), row.cx, row.cy, row.theta)

    ring = reading.ring(corners, row.name, place)
    return None if ring is None else Polygons([ring])
