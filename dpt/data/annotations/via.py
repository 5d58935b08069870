"""JSON files of the VGG Image Annotator (VIA), versions 1 and 2: exported regions, and projects.

VIA states points in pixels, with the upper left corner of the image at 0, 0, and rounds them: pixel
edges lie at whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from dpt.data.annotations import base
from dpt.files import DataError, few

_ONE_CLASS = "object"
_CLASS_ATTRIBUTE = "class"


@dataclass(frozen=True, kw_only=True)
class _Region:
    shape_attributes: dict[str, list[float] | float | str | None]
    region_attributes: dict[str, object] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return str(self.shape_attributes.get("name", "region"))

    def encoder(self) -> base.Encoder:
        """Returns its mask; ValueError if it has no area."""
        attributes = {"theta": 0.0, **self.shape_attributes}

        def numbers(*keys: str) -> np.ndarray:
            return np.array([attributes.get(key) for key in keys], float).reshape(len(keys))

        if self.kind == "rect":
            x, y, width, height = numbers("x", "y", "width", "height")
            return base.rectangle(x, y, x + width, y + height)
        if self.kind == "polygon":
            corners = [attributes.get(key) for key in ("all_points_x", "all_points_y")]
            return base.polygon(np.array(corners, float).T)
        if self.kind == "circle":
            return base.ellipse(*numbers("cx", "cy", "r", "r"))
        if self.kind == "ellipse":
            return base.ellipse(*numbers("cx", "cy", "rx", "ry", "theta"))  # in radians
        raise ValueError("no area")

    @property
    def values(self) -> dict[str, list[str]]:
        """Returns the values of attributes that are set; those of check boxes can be several."""
        values: dict[str, list[str]] = {}
        for name, value in self.region_attributes.items():
            if isinstance(value, Mapping):
                values[name] = [str(text) for text, is_chosen in value.items() if is_chosen]
            elif value not in (None, ""):
                values[name] = [str(value).strip()]
        return {name: texts for name, texts in values.items() if any(texts)}


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


class ViaFormat(base.AnnotationFormat):
    """A region is an object; the later one is in front.

    Its class is the value of the attribute that regions have, or of that named ``class`` if they
    have several that differ. Regions without a value are of the only class of all others, or of
    one called ``object`` if there are no others.
    """

    name = "via"
    title = "JSON files of the VGG Image Annotator"
    patterns = (
        rb'"_via_img_metadata"|"_via_settings"|"region_attributes"',
        rb'\A(?!\s*\{\s*"(info|images|licenses|annotations|categories)"\s*:)',  # not COCO's
    )

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        rows: dict[Path, _Image] = {}
        for source in sources:
            for row in reading.content(_CONTENT, source).values():
                image = reading.finder.path([row.filename], source)
                if rows.get(image) == row:  # of a project and what was exported from it
                    reading.leave_out("row", "as in another file", source)
                    continue
                if image in rows:
                    fault = f"{row.filename} is in another file or row, too"
                    path = reading.root / source
                    raise DataError(f"{path}: {fault}: set data.annotation_files to the right file")
                rows[image] = row
        regions = [region for row in rows.values() for region in row.every_region]
        attribute = _ClassAttribute("", _ONE_CLASS)
        if any(region.kind != "rect" for region in regions):
            attribute = _class_attribute(regions, reading.root / sources[0])
        for image, row in rows.items():
            parts = reading.parts(map(attribute.region, row.every_region), row.filename)
            reading.add_image(image, parts)


class _ClassAttribute(NamedTuple):
    """The attribute that is the class, and the class of regions without any attribute."""

    name: str
    default: str | None

    def region(self, row: _Region) -> base.Region:
        names = row.values.get(self.name, [self.default])
        noun = {"rect": base.BOX}.get(row.kind, row.kind)
        return base.Region(names[0] if len(names) == 1 else None, noun, row.encoder)


def _class_attribute(regions: Sequence[_Region], source: Path) -> _ClassAttribute:
    columns: dict[str, list[list[str] | None]] = {}
    for name in dict.fromkeys(name for region in regions for name in region.values):
        column = [region.values.get(name) for region in regions]
        if column not in columns.values():
            columns[name] = column
    if not columns:
        return _ClassAttribute("", _ONE_CLASS)
    names = [*columns]
    if len(names) > 1 and _CLASS_ATTRIBUTE not in names:
        fault = f"the attributes {few(names, 6)} of regions could each be the class"
        raise DataError(f"{source}: {fault}: name the right one {_CLASS_ATTRIBUTE!r}")
    name = _CLASS_ATTRIBUTE if len(names) > 1 else names[0]
    classes = {text for texts in columns[name] if texts for text in texts}
    return _ClassAttribute(name, classes.pop() if len(classes) == 1 else None)
