"""Images of any number of bands: as a whole, or window by window.

An image whose chosen bands are one or three of 8 bits, or of which ``image_max`` names the value of
white, is RGB. Every other image is its bands in the files' own values, float32, with NaN where they
have no data. rasterio (GDAL), an extra, reads and writes windows of TIFF, PNG and JPEG files.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpt import files
from dpt.data.formats.arrays import ARRAY_READERS, size_of
from dpt.data.formats.pictures import Header, header_of, over_white, read_stored_bands
from dpt.data.formats.rules import LabelCode
from dpt.files import DataError, check_pixels, decoding, open_file, plural, read_bytes, require

BandChoice = Sequence[int] | Literal["all"]


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Says what is read of a file that holds more than an 8-bit picture, grey or RGB, or a map.

    Attributes:
        key: the name of the array in files that hold several.
        bands: the bands of images, from 0, in this order. None: images are grey or RGB, with or
            without alpha.
        image_max: the value of white in images of more than 8 bits; larger ones are white too.
            None: of 16 bits the upper 8 are taken.
        nodata: the value of bands that means "not measured", besides the one that a GeoTIFF names.
        code: how the values of masks tell objects of classes.
    """

    key: str | None = None
    bands: BandChoice | None = None
    image_max: float | None = None
    nodata: float | None = None
    code: LabelCode | None = None


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


def read_bands(path: str | Path, part: FilePart, *, data: bytes | None = None) -> Bands:
    """Reads the bands that ``part`` names of a file; ``data`` is its content, if known."""
    every_band = _read_all(path, part, data)
    if part.bands is None or part.bands == "all":
        return every_band
    chosen, values = [int(band) for band in part.bands], every_band.values
    if max(chosen) >= values.shape[2]:
        count = values.shape[2]
        raise DataError(f"{path}: holds {count} bands, counted from 0: correct data.bands={chosen}")
    missing = every_band.missing[..., chosen]
    return Bands(path, np.ascontiguousarray(values[..., chosen]), missing)


def _read_all(path: str | Path, part: FilePart, data: bytes | None) -> Bands:
    """Returns all bands of a file."""
    nodata = set() if part.nodata is None else {part.nodata}
    if Path(path).suffix.lower() in ARRAY_READERS:
        reader = ARRAY_READERS[Path(path).suffix.lower()]
        values = _bands_last(path, reader(path, part.key))
    else:
        values, stated = read_stored_bands(path, data or read_bytes(path))
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
        raise DataError(f"{path}: is {array.shape}, not (H, W, C) or (C, H, W): reshape it")
    return array if array.shape[:2] == size_of(array.shape) else np.moveaxis(array, 0, -1)


DRIVERS = {".tif": "GTiff", ".tiff": "GTiff", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""GDAL's readers by the suffixes of the files."""
_CACHE = 64 << 20  # bytes of decoded blocks that GDAL keeps; its own default grows with the machine
_BLOCK = 256  # side of the squares in which files are written


def needs_windows(path: Path) -> bool:
    """Whether a file has a georeference, or is too large to be read as a whole."""
    header = header_of(path) if path.suffix.lower() in DRIVERS else None
    if header is None or header.is_georeferenced:
        return header is not None
    return math.prod(header.size) > files.MAX_PIXELS or header.bytes > files.MAX_BYTES


def is_tiff(path: Path) -> bool:
    """Whether a file's suffix is that of TIFF files."""
    return DRIVERS.get(path.suffix.lower()) == "GTiff"


class Raster:
    """A file that is read window by window, of which ``part`` says what is read.

    Attributes:
        size: (H, W).
    """

    def __init__(self, path: Path, part: FilePart, source: Any) -> None:
        self.path, self.part, self._source = path, part, source
        self.size: tuple[int, int] = source.height, source.width
        self._has_alpha = False  # of a picture of 8 bits: a band, or a mask
        if part.bands is None:  # RGB, as other pictures
            meanings = _rasterio(path).enums.ColorInterp
            by_index = dict(zip(source.indexes, source.colorinterp, strict=True))
            self._indexes = [i for i, meaning in by_index.items() if meaning != meanings.alpha]
            if {*source.dtypes} == {"uint8"}:
                first = self._indexes[0]
                masks = source.mask_flag_enums[first - 1]
                self._has_alpha = _rasterio(path).enums.MaskFlags.per_dataset in masks
                has_few_bits = "NBITS" in source.tags(first, ns="IMAGE_STRUCTURE")
                if by_index[first] == meanings.palette or has_few_bits:
                    raise DataError(f"{path}: has a palette, or fewer than 8 bits: save it as RGB")
        elif part.bands == "all":
            self._indexes = [*source.indexes]
        else:
            self._indexes = [int(band) + 1 for band in part.bands]
        if max(self._indexes) > source.count:
            fault = f"holds {source.count} bands, from 0, not {max(self._indexes) - 1}"
            raise DataError(f"{path}: {fault}: give it files as in training")
        self._nodata = {source.nodata, part.nodata} - {None}

    def read(self, rows: slice, columns: slice) -> Bands:
        """Returns the bands of a window, which lies within the file."""
        window = ((rows.start, rows.stop), (columns.start, columns.stop))
        with decoding(self.path, "an image"):
            values = np.moveaxis(self._source.read(self._indexes, window=window), 0, -1)
            if self.part.bands is None:  # alpha counts, too
                masks = self._source.read_masks(self._indexes, window=window)
                missing = np.moveaxis(masks == 0, 0, -1)
                rgba = self._rgba(values, window)
                if rgba is None:
                    return Bands(self.path, values, missing)
                is_clear = missing.all(axis=2, keepdims=True) | (rgba[..., 3:] == 0)
                return Bands(self.path, over_white(rgba), np.repeat(is_clear, 3, axis=2))
        return Bands(self.path, values, is_any_of(values, self._nodata))

    def _rgba(self, values: np.ndarray, window: tuple[tuple[int, int], ...]) -> np.ndarray | None:
        """Returns the colours (h, w, 4) of ``values``; None if they are opaque colours already."""
        if not self._has_alpha or values.shape[2] not in (1, 3):
            return None
        rgb = np.repeat(values, 3 // values.shape[2], axis=2)
        return np.dstack([rgb, self._source.read_masks(self._indexes[0], window=window)])

    @contextmanager
    def writing(
        self, path: Path, *, count: int, nodata: np.generic, palette: np.ndarray | None
    ) -> Iterator[Any]:
        """Opens a compressed TIFF file of this size, with the same georeference, of rasterio.

        Args:
            nodata: the value of pixels without data, in the type of the file.
            palette: the colours of class ids, uint8 (K, 3), that maps show.
        """
        points, crs = self._source.gcps
        place = {"transform": self._source.transform, "crs": self._source.crs}
        place = {"gcps": points, "crs": crs} if points else place
        height, width = self.size
        shape = {"height": height, "width": width, "count": count, "dtype": nodata.dtype}
        profile = {"nodata": nodata.item(), "rpcs": self._source.rpcs, "tiled": True} | place
        profile |= {"compress": "deflate", "blockxsize": _BLOCK, "blockysize": _BLOCK}
        library = _rasterio(path)
        with library.open(path, "w", "GTiff", **shape, **profile, BIGTIFF="IF_SAFER") as target:
            if palette is not None:
                colors = {k: (*color, 255) for k, color in enumerate(palette.tolist())}
                target.write_colormap(1, colors)
            yield target


def _rasterio(path: Path) -> Any:
    return require("rasterio", f"{path}: reading it window by window", extra="geo")


@contextmanager
def open_raster(path: Path, part: FilePart) -> Iterator[Raster]:
    """Opens a file of any size for reading; DataError if that fails."""
    library = _rasterio(path)
    driver = DRIVERS[path.suffix.lower()]
    with open_file(path), library.Env(GDAL_CACHEMAX=_CACHE), warnings.catch_warnings():
        warnings.simplefilter("ignore", library.errors.NotGeoreferencedWarning)
        with decoding(path, f"a {driver} file"):
            source = library.open(path, driver=driver)
        with source:
            header = header_of(path) or Header((source.height, source.width))
            is_turned = header.orientation != 1 and not header.is_georeferenced
            if is_turned or source.tags().get("EXIF_Orientation", "1") != "1":
                raise DataError(f"{path}: is stored turned: save it as shown, as TIFF or PNG")
            yield Raster(path, part, source)
