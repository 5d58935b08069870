"""Label Studio's JSON export: polygons, ellipses, brush masks and bitmasks.

Label Studio states points as percentages of the image's width and height. A brush mask is the RGBA
picture of a region, of which alpha counts, compressed by runs (rle-pack of @thi.ng/umbrella). A
bitmask is a transparent PNG file of the image's size.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated
from urllib.parse import unquote

import numpy as np
from pydantic import AliasChoices, Field, TypeAdapter

from dpt.data.annotations import base
from dpt.data.formats import io, rle
from dpt.types.samples import Rle

_KINDS = ("polygon", "brush", "bitmask", "ellipse", base.BOX, "keypoint", "vector")


_WORKS = AliasChoices("annotations", "completions")  # before version 1
_LABELS = AliasChoices("polygonlabels", "brushlabels", "bitmasklabels", "ellipselabels", "labels")


def _encode_brush(content: bytes, size: tuple[int, int]) -> Rle:
    """Returns the alpha of an RGBA picture, compressed."""
    alpha = unpack_runs(content, 4 * size[0] * size[1]).reshape(*size, 4)[..., 3]
    return rle.encode_pixels(alpha > alpha.max() / 2)  # imported masks have any level, such as 100


def unpack_runs(content: bytes, count: int) -> np.ndarray:
    """Returns the bytes, uint8 (count,), that rle-pack has compressed.

    A stream of bits: the number of bytes (32 bits), the bits of a word minus 1 (5), and four widths
    minus 1 (4 each). Then blocks: whether it is a run (1), which width its length has (2), its
    length minus 1, and the byte that is repeated or, of other blocks, all bytes.

    Raises:
        ValueError: the content is damaged, or holds another number of bytes.
    """
    bits = np.unpackbits(np.frombuffer(content, np.uint8))
    digits = (bits + ord("0")).tobytes()
    if len(bits) < 53 or (int(digits[:32], 2), int(digits[32:37], 2)) != (count, 7):
        raise ValueError(f"its brush mask does not hold {count} bytes")
    widths = [int(digits[k : k + 4], 2) + 1 for k in range(37, 53, 4)]
    unpacked, done, position = np.zeros(count, np.uint8), 0, 53
    while done < count:
        start = position + 3
        position = start + widths[int(digits[start - 2 : start], 2)]
        length = int(digits[start:position], 2) + 1
        block = bits[position : position + 8 * (1 if digits[start - 3] == ord("1") else length)]
        unpacked[done : done + length] = np.packbits(block)
        done, position = done + length, position + len(block)
    return unpacked


@dataclass(frozen=True, kw_only=True)
class _Value:
    points: base.Points = field(default_factory=list)
    labels: Annotated[list[str], Field(validation_alias=_LABELS)] = field(default_factory=list)
    rle: list[Annotated[int, Field(ge=0, le=255)]] = field(default_factory=list)
    imageDataURL: str = ""  # noqa: N815
    x: float = 0.0
    y: float = 0.0
    radiusX: float = 0.0  # noqa: N815
    radiusY: float = 0.0  # noqa: N815
    rotation: float = 0.0  # degrees, clockwise


@dataclass(frozen=True, kw_only=True)
class _Result:
    id: base.Text = ""
    type: str = ""
    to_name: str = ""
    value: _Value = field(default_factory=_Value)
    original_width: int | None = None
    original_height: int | None = None
    image_rotation: float = 0.0

    @property
    def size(self) -> tuple[int, int] | None:
        return base.size_of(self.original_height, self.original_width)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What one person has drawn on an image."""

    result: list[_Result]
    was_cancelled: bool = False
    ground_truth: bool = False


@dataclass(frozen=True, kw_only=True)
class _Task:
    data: dict[str, object]
    annotations: Annotated[list[_Work] | None, Field(validation_alias=_WORKS)] = None

    @property
    def works(self) -> list[_Work]:
        """Returns what was submitted; of several, those that are marked as ground truth."""
        works = [work for work in self.annotations or () if not work.was_cancelled]
        return [work for work in works if work.ground_truth] or works


_CONTENT = TypeAdapter(list[_Task])


class LabelStudioFormat(base.AnnotationFormat):
    """A region is an object; the later one is in front.

    Of several annotations of an image, that marked as ground truth counts, or the last one.
    """

    name = "labelstudio"
    title = "Label Studio's JSON files"
    patterns = (
        rb"\A\s*\[\s*\{",
        rb'"(annotations|completions)"\s*:\s*\[',
        rb'"(result|completed_by)"',
    )

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        for source in sources:
            for number, task in enumerate(reading.content(_CONTENT, source)):
                _add_task(reading, source, task, number)


def _add_task(reading: base.Reading, source: str, task: _Task, number: int) -> None:
    images, works = _images(task), task.works
    if not images:
        reading.leave_out("task", "no image", f"{source}.{number}")
        return
    place = images[0][0]
    present = {reading.finder.find(names, source) for names in images} - {None}
    if len(present) > 1 or not works:
        why = "it is not told which of its images" if works else "no annotation"
        reading.leave_out("task", why, place)
        return
    for _ in works[:-1]:
        reading.leave_out("annotation", "the image has a later one", place)
    size = next(filter(None, (row.size for row in works[-1].result)), None)
    parts = reading.parts(_regions(works[-1]), place)
    image = reading.finder.path([name for names in images for name in names], source)
    reading.add_image(image, parts, size=size)


def _images(task: _Task) -> list[list[str]]:
    """Returns the names that the image of a task can have, the stated one first, by the entries of
    its data: those with the name of the tag on which regions are drawn, or all."""
    images: dict[str, list[str]] = {}
    for key, text in task.data.items():
        name = base.local_name(unquote(text.rpartition("?d=")[2])) if isinstance(text, str) else ""
        if name.lower().endswith(io.IMAGE_SUFFIXES):
            folder, _, last = name.rpartition("/")
            original = re.sub("^[0-9a-f]{8}-", "", last)  # uploads begin with eight digits
            images[key] = [name, f"{folder}/{original}".lstrip("/"), original]
    tags = {row.to_name for work in task.works for row in work.result}
    return [names for key, names in images.items() if key in tags] or [*images.values()]


def _regions(work: _Work) -> Iterator[base.Region]:
    names_of_region = {row.id: row.value.labels for row in work.result if row.value.labels}
    for row in work.result:
        kind = row.type.removesuffix("labels")
        if kind in _KINDS:  # others are such as a text or a choice
            names = row.value.labels or names_of_region.get(row.id, [])
            class_name = names[0] if len(names) == 1 else None
            yield base.Region(class_name, kind, partial(_encoder, row, kind), name=row.id)


def _encoder(row: _Result, kind: str) -> base.Encoder:
    """Returns the mask of a region; ValueError if it has no area."""
    value, size = row.value, row.size
    if kind == base.BOX:
        raise ValueError("no mask")
    if row.image_rotation % 360:
        raise ValueError("its image is turned")
    if kind == "brush":
        return partial(_encode_brush, bytes(value.rle))
    if kind == "bitmask":
        return partial(base.encode_bitmap, value.imageDataURL.partition(",")[2], (0, 0))
    if kind == "polygon":
        return partial(rle.encode_relative, base.as_ring(value.points) / 100)
    if kind == "ellipse" and size is not None:
        x, radius_x = value.x * size[1] / 100, value.radiusX * size[1] / 100
        y, radius_y = value.y * size[0] / 100, value.radiusY * size[0] / 100
        return base.ellipse(x, y, radius_x, radius_y, math.radians(value.rotation))
    raise ValueError("no area" if size is not None else "no size of its image")
