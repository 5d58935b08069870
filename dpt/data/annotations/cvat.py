"""CVAT's XML files, "CVAT for images 1.1".

CVAT states points in pixels, with the upper left corner of the image at 0, 0: pixel edges lie at
whole numbers, and the width of a box is xbr - xtl. A mask is the run lengths of the pixels inside a
box, row by row, the first run outside the object.
"""

import math
from collections.abc import Sequence
from functools import partial
from xml.etree import ElementTree

import numpy as np

from dpt.data.annotations import base
from dpt.data.formats.rle import encode_pixels
from dpt.data.splits import SPLITS
from dpt.files import COPY_AGAIN, DataError, read_text
from dpt.types.samples import Rle

_MAX_XML = 256 << 20


def _encode_runs(runs: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]) -> Rle:
    """Returns the mask of run lengths, int64 (N,), of the pixels in a box, row by row.

    Args:
        box: left, top, height, width.
    """
    left, top, height, width = box
    count = height * width
    is_bounded = 0 <= count <= size[0] * size[1] and runs.min() >= 0 and runs.max() <= count
    if not is_bounded or len(runs) > 2 * count + 1 or runs.sum() != count:
        raise ValueError(f"the runs of a mask do not fill {width}x{height} pixels")
    is_inside = np.arange(len(runs)) % 2 == 1
    mask = np.repeat(is_inside, runs).reshape(height, width)
    return encode_pixels(base.placed(mask, (left, top), size))


class CvatFormat(base.AnnotationFormat):
    """Polygons, ellipses and masks are objects; those of a label in the same group are one.

    Boxes are left out. The shape with the larger ``z_order`` is in front, of equal ones the later.
    """

    name = "cvat"
    title = "CVAT's XML files"
    suffixes = (".xml",)
    patterns = (rb"<annotations>\s*<(version|meta|image)\b",)

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        for source in sources:
            text = read_text(reading.root / source, limit=_MAX_XML)
            if "<!DOCTYPE" in text or "<!ENTITY" in text:  # with which a file can be of any size
                raise DataError(f"{reading.root / source}: holds a DTD: export it from CVAT again")
            try:
                _add_content(reading, source, ElementTree.fromstring(text))
            except (ElementTree.ParseError, KeyError, ValueError, OverflowError) as error:
                if isinstance(error, DataError):
                    raise
                fault = f"not usable XML of CVAT ({type(error).__name__}: {str(error)[:200]})"
                raise DataError(f"{reading.root / source}: {fault}: {COPY_AGAIN}") from None


def _add_content(reading: base.Reading, source: str, content: ElementTree.Element) -> None:
    if content.find("track") is not None:
        raise DataError(f"{reading.root / source}: tracks of a video: export CVAT for images 1.1")
    for label in content.iterfind("meta//label"):
        if label.find("parent") is None:  # no point of a skeleton
            reading.add_class(label.findtext("name", ""), color=label.findtext("color", ""))
    images = [*content.iterfind("image")]
    for image in images:  # those that are there in full count first
        reading.finder.find(_names(image), source)
    for image in images:
        name = image.attrib["name"]
        rows = sorted(image, key=lambda row: int(row.get("z_order", "0")))
        parts = reading.parts(map(_region, rows), name)
        size = int(image.attrib["height"]), int(image.attrib["width"])
        split = SPLITS.get(image.get("subset", "").lower(), "")
        path = reading.finder.path(_names(image), source)
        reading.add_image(path, parts, size=size, split=split)


def _names(image: ElementTree.Element) -> list[str]:
    """Returns the names that an image can have; frames of videos are stated without suffix, and
    exported projects have a folder for each subset."""
    name = image.attrib["name"]
    names = [name] if base.images_of([name]) else base.with_suffixes(name)
    return [f"{image.get('subset', '')}/{name}".lstrip("/") for name in names] + names


def _region(row: ElementTree.Element) -> base.Region:
    noun = {"box": base.BOX}.get(row.tag, row.tag)
    return base.Region(row.get("label"), noun, partial(_encoder, row), row.get("group_id", ""))


def _encoder(row: ElementTree.Element) -> base.Encoder:
    """Returns the mask of a shape; ValueError if it has no area."""

    def numbers(*keys: str) -> list[float]:
        return [float(row.attrib[key]) for key in keys]

    if row.tag == "mask":
        left, top, height, width = map(int, numbers("left", "top", "height", "width"))
        runs = np.array([int(count) for count in row.attrib["rle"].split(",")], np.int64)
        return partial(_encode_runs, runs, (left, top, height, width))
    if row.tag == "polygon":
        return base.polygon([pair.split(",") for pair in row.attrib["points"].split(";")])
    if row.tag == "ellipse":
        x, y, radius_x, radius_y = numbers("cx", "cy", "rx", "ry")
        return base.ellipse(x, y, radius_x, radius_y, math.radians(float(row.get("rotation", "0"))))
    raise ValueError("no mask" if row.tag == "box" else "no area")
