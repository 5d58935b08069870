"""Shapes that several label tools have: bitmaps, rectangles, ellipses, and objects of parts."""

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpt.data.annotations.base import Polygons, Shape
from dpt.data.formats.io import read_objects
from dpt.data.formats.pictures import Picture, decode_picture, one_page
from dpt.data.formats.rle import encode_pixels, merge_masks, subtract_mask
from dpt.files import MAX_PIXELS, DataError, reason
from dpt.types.samples import Rle


class Box(Polygons):
    """A rectangle."""

    @property
    def is_box(self) -> bool:
        return True

    @classmethod
    def of_corners(cls, x0: float, y0: float, x1: float, y1: float) -> "Box":
        return cls([np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])])


@dataclass(frozen=True, eq=False)
class Union(Shape):
    """The pixels of any of several shapes."""

    parts: Sequence[Shape]

    @property
    def is_box(self) -> bool:
        return all(part.is_box for part in self.parts)

    def encode(self, size: tuple[int, int]) -> Rle:
        return merge_masks([part.encode(size) for part in self.parts])


@dataclass(frozen=True, eq=False)
class Difference(Shape):
    """The pixels of a shape that others do not have."""

    shape: Shape
    others: Sequence[Shape]

    def encode(self, size: tuple[int, int]) -> Rle:
        return subtract_mask(self.shape.encode(size), Union(self.others).encode(size))


@dataclass(frozen=True, eq=False)
class Bitmap(Shape):
    """A picture of a part of the image, in base64; it is decoded when it is used.

    Attributes:
        left, top: the pixel of the image where it begins.
        is_zipped: whether zlib may have compressed the picture's file once more.
        is_cropped: whether a part of the picture may be outside the image.
    """

    content: str
    left: int
    top: int
    is_zipped: bool = False
    is_cropped: bool = False

    def encode(self, size: tuple[int, int]) -> Rle:
        try:
            data = base64.b64decode(self.content)
            if self.is_zipped and not data.startswith(b"\x89PNG"):
                data = zlib.decompressobj().decompress(data, MAX_PIXELS)
            mask = mask_of(decode_picture("bitmap", one_page("bitmap", data, None)))
        except Exception as error:  # damaged content raises many kinds
            raise ValueError(f"its bitmap is damaged ({reason(error)})") from None
        start = np.array([self.top, self.left])
        if self.is_cropped:
            (y0, x0), (y1, x1) = np.maximum(-start, 0), np.maximum(size - start, 0)
            mask, start = mask[y0:y1, x0:x1], start.clip(0, size)
        return encode_pixels(placed(mask, start[1], start[0], size))


@dataclass(frozen=True, eq=False)
class RelativePolygon(Shape):
    """A polygon whose corners, float64 (N, 2), are fractions of the image's width and height."""

    ring: np.ndarray

    def encode(self, size: tuple[int, int]) -> Rle:
        return Polygons([self.ring * (size[1], size[0])]).encode(size)


@dataclass(frozen=True, eq=False)
class MaskFile(Shape):
    """The pixels of a picture that are not 0, or those with one id."""

    path: Path
    id: str = ""

    def encode(self, size: tuple[int, int]) -> Rle:
        ids = read_objects(self.path)
        if ids.shape != size:
            sizes = f"{ids.shape[1]}x{ids.shape[0]} pixels, but its image {size[1]}x{size[0]}"
            raise DataError(f"{self.path}: {sizes}: use masks of the image's size")
        return encode_pixels(ids == int(self.id) if self.id else ids != 0)


def mask_of(picture: Picture) -> np.ndarray:
    """Returns where a picture is opaque and, without alpha, where it is not 0; bool (H, W).

    Black that is opaque everywhere is a full mask.
    """
    alpha, pixels = picture.alpha, picture.pixels
    if alpha is not None and (alpha.min() < alpha.max() or not pixels.any()):
        return alpha > 0
    return pixels != 0 if pixels.ndim == 2 else (pixels != 0).any(axis=2)


def placed(mask: np.ndarray, left: int, top: int, size: tuple[int, int]) -> np.ndarray:
    """Returns a mask of an image, bool (H, W), of which ``mask`` is a part.

    Raises:
        ValueError: the part is not inside the image.
    """
    height, width = mask.shape
    if not (0 <= top <= size[0] - height and 0 <= left <= size[1] - width):
        place = f"{width}x{height} at {left}, {top}"
        raise ValueError(f"a mask of {place} is not inside the image of {size[1]}x{size[0]}")
    whole = np.zeros(size, bool)
    whole[top : top + height, left : left + width] = mask
    return whole


def ellipse(x: float, y: float, radius_x: float, radius_y: float, radians: float = 0.0) -> Polygons:
    """Returns an ellipse, turned clockwise, as a polygon that differs by at most 0.05 pixels.

    Raises:
        ValueError: a radius is not a number above 0 and below a million.
    """
    if not (0 < radius_x < 1e6 and 0 < radius_y < 1e6):
        raise ValueError("no area")
    count = 8 + math.ceil(10 * math.sqrt(max(radius_x, radius_y)))
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    along, across = radius_x * np.cos(angles), radius_y * np.sin(angles)
    cos, sin = math.cos(radians), math.sin(radians)
    return Polygons([np.stack([x + along * cos - across * sin, y + along * sin + across * cos], 1)])
