"""What is read of a file that holds more than an 8-bit picture, grey or RGB, or a map."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BandChoice = Sequence[int] | Literal["all"]


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Says what is read of a file that holds more than an 8-bit picture, grey or RGB, or a map.

    Attributes:
        page: the page or frame of files that hold several, from 0.
        key: the name of the array in files that hold several.
        bands: the bands of images, from 0, in this order; of several files, those of the first come
            first. None: images are grey or RGB, with or without alpha.
        image_max: the value of white in images of more than 8 bits; larger ones are white too.
            None: of 16 bits the upper 8 are taken.
        nodata: the value of bands that means "not measured", besides the one that a GeoTIFF names.
    """

    page: int | None = None
    key: str | None = None
    bands: BandChoice | None = None
    image_max: float | None = None
    nodata: float | None = None
