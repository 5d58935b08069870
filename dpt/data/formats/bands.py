"""Images of any number of bands: TIFF, GeoTIFF and NumPy files, one or several for an image.

An image whose chosen bands are one or three of 8 bits, or of which ``image_max`` names the value of
white, is RGB. Every other image is its bands in the files' own values, float32, with NaN where they
have no data.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpt.data.formats.arrays import ARRAY_READERS, size_of
from dpt.data.formats.part import FilePart
from dpt.data.formats.pictures import read_stored_bands
from dpt.files import DataError, check_pixels, plural, read_bytes

MAX_BANDS = 512  # of an image; OpenCV resizes no more


@dataclass(frozen=True)
class Bands:
    """The chosen bands of an image.

    Attributes:
        path: of the first file, for messages.
        values: (H, W, C), as stored.
        missing: bool (H, W, C), where the value means "no data".
    """

    path: str | Path
    values: np.ndarray
    missing: np.ndarray

    @property
    def form(self) -> str:
        """What all images of a data set must have in common."""
        count = plural(self.values.shape[2], "band")
        return f"{count} of {self.values.dtype.newbyteorder('=')}"

    @property
    def is_rgb(self) -> bool:
        """Whether the bands are those of an 8-bit picture."""
        return self.values.dtype == np.uint8 and self.values.shape[2] in (1, 3)

    def own_values(self) -> np.ndarray:
        """Returns float32 (H, W, C) in the files' own values, NaN where there is no data."""
        image = self.values.astype(np.float32)
        image[self.missing | ~np.isfinite(image)] = np.nan
        return image


def read_bands(paths: Sequence[str | Path], part: FilePart, *, data: bytes | None = None) -> Bands:
    """Reads the bands that ``part`` names of the files of an image, one file after the other.

    ``data`` is the content of the only file, if known.
    """
    return _chosen([_read_all(path, part, data) for path in paths], part)


def _chosen(stack: Sequence[Bands], part: FilePart) -> Bands:
    """Returns the chosen bands of the files of an image; DataError if their sizes differ."""
    path, (height, width, _) = stack[0].path, stack[0].values.shape
    for bands in stack[1:]:
        if bands.values.shape[:2] != (height, width):
            rows, columns = bands.values.shape[:2]
            fault = f"is {columns}x{rows}, but {path} is {width}x{height}"
            raise DataError(f"{bands.path}: {fault}: save all files of an image in one size")
    values = np.concatenate([bands.values for bands in stack], axis=2)
    missing = np.concatenate([bands.missing for bands in stack], axis=2)
    if part.bands is None or part.bands == "all":
        return Bands(path, values, missing)
    chosen = [int(band) for band in part.bands]
    if max(chosen) >= values.shape[2]:
        fault = f"holds {values.shape[2]} bands, from 0, not data.bands={chosen}"
        raise DataError(f"{path}: {fault}: choose others, or data.bands=all")
    return Bands(path, np.ascontiguousarray(values[..., chosen]), missing[..., chosen])


def _read_all(path: str | Path, part: FilePart, data: bytes | None) -> Bands:
    """Returns all bands of a file."""
    nodata = set() if part.nodata is None else {part.nodata}
    if Path(path).suffix.lower() in ARRAY_READERS:
        reader = ARRAY_READERS[Path(path).suffix.lower()]
        values = _bands_last(path, reader(path, part.key))
    else:
        values, stated = read_stored_bands(path, data or read_bytes(path), part.page)
        nodata |= stated
    if values.dtype.kind not in "uif" or values.shape[2] > MAX_BANDS:
        fault = f"{values.shape[2]} bands of {values.dtype}, not numbers of at most {MAX_BANDS}"
        raise DataError(f"{path}: holds {fault}: save it with fewer bands, as int16 or float32")
    check_pixels(path, *values.shape[:2])
    return Bands(path, values, is_any_of(values, nodata))


def is_any_of(values: np.ndarray, nodata: Iterable[float]) -> np.ndarray:
    """Returns which values mean "no data", each rounded to the type of ``values`` if that is a
    float: ArcGIS writes -3.40282346600000016e+38 for the lowest float32."""
    with np.errstate(over="ignore"):
        rounded = np.array([*nodata], values.dtype if values.dtype.kind == "f" else np.float64)
    return np.isin(values, rounded)


def _bands_last(path: str | Path, array: np.ndarray) -> np.ndarray:
    """Returns an array (H, W), (H, W, C) or (C, H, W) as (H, W, C); C is the smaller number."""
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3 or not array.size:
        raise DataError(
            f"{path}: its array is {array.shape}, not (H, W, C) or (C, H, W): reshape it"
        )
    return array if array.shape[:2] == size_of(array.shape) else np.moveaxis(array, 0, -1)
