"""TIFF, PNG and JPEG files of any size, read window by window, and TIFF files written so.

rasterio (GDAL) does it; it is an extra. Other packages use these classes.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data.formats.bands import Bands, is_any_of
from dpt.data.formats.io import over_white
from dpt.data.formats.part import FilePart
from dpt.data.formats.pictures import has_too_many_pixels, tiff_header
from dpt.files import MAX_BYTES, MAX_PIXELS, DataError, decoding, open_file, require
from dpt.geometry import Window

DRIVERS = {".tif": "GTiff", ".tiff": "GTiff", ".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""GDAL's readers by the suffixes of the files."""
_CACHE = 64 << 20  # bytes of decoded blocks that GDAL keeps; its own default grows with the machine
_BLOCK = 256  # side of the squares in which files are written


def needs_windows(path: Path) -> bool:
    """Whether a file has a georeference, or is too large to be read as a whole."""
    if not is_tiff(path):
        return path.suffix.lower() in DRIVERS and has_too_many_pixels(path)
    header = tiff_header(path)
    if header is None or header.is_georeferenced:
        return header is not None
    pixels, size = header.height * header.width, header.height * header.row_bytes
    return pixels > MAX_PIXELS or size > MAX_BYTES


def is_tiff(path: Path) -> bool:
    """Whether a file's suffix is that of TIFF files."""
    return DRIVERS.get(path.suffix.lower()) == "GTiff"


class Raster:
    """A file that is read window by window, of which ``part`` says what is read.

    Attributes:
        size: (H, W).
        count: number of the bands that are read.
        dtype: their type.
    """

    def __init__(self, path: Path, part: FilePart, source: Any) -> None:
        self.path, self.part, self._source = path, part, source
        self.size: tuple[int, int] = source.height, source.width
        self._has_alpha = False  # of a picture of 8 bits: a band, or a mask
        self._table: np.ndarray | None = None
        if part.bands is None:  # RGB, as other pictures
            meanings = _rasterio(path).enums.ColorInterp
            by_index = dict(zip(source.indexes, source.colorinterp, strict=True))
            self._indexes = [i for i, meaning in by_index.items() if meaning != meanings.alpha]
            if {*source.dtypes} == {"uint8"}:
                masks = source.mask_flag_enums[self._indexes[0] - 1]
                self._has_alpha = _rasterio(path).enums.MaskFlags.per_dataset in masks
                is_palette = by_index[self._indexes[0]] == meanings.palette
                self._table = _table_of(source, self._indexes[0], is_palette=is_palette)
        elif part.bands == "all":
            self._indexes = [*source.indexes]
        else:
            self._indexes = [int(band) + 1 for band in part.bands]
        if max(self._indexes) > source.count:
            fault = f"holds {source.count} bands, from 0, not {max(self._indexes) - 1}"
            raise DataError(f"{path}: {fault}: give it files as in training")
        self._nodata = {source.nodata, part.nodata} - {None}
        self.count, self.dtype = len(self._indexes), source.dtypes[self._indexes[0] - 1]

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
        if self._table is not None and values.shape[2] == 1:
            return self._table[values[..., 0]]
        if not self._has_alpha or values.shape[2] not in (1, 3):
            return None
        rgb = np.repeat(values, 3 // values.shape[2], axis=2)
        return np.dstack([rgb, self._source.read_masks(self._indexes[0], window=window)])

    @contextmanager
    def writing(
        self, path: Path, *, count: int, dtype: str, nodata: float
    ) -> Iterator["RasterWriter"]:
        """Opens a compressed TIFF file of this size, with the same georeference."""
        points, crs = self._source.gcps
        place = {"transform": self._source.transform, "crs": self._source.crs}
        if points:
            place = {"gcps": points, "crs": crs}
        profile = {
            "driver": "GTiff",
            "height": self.size[0],
            "width": self.size[1],
            "count": count,
            "dtype": dtype,
            "nodata": nodata,
            "rpcs": self._source.rpcs,
            **place,
            "compress": "deflate",
            "tiled": True,
            "blockxsize": _BLOCK,
            "blockysize": _BLOCK,
            "BIGTIFF": "IF_SAFER",
        }
        with _rasterio(path).open(path, "w", **profile) as target:
            yield RasterWriter(target)


class RasterWriter:
    """A TIFF file that is written window by window."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, values: np.ndarray, window: Window) -> None:
        """Writes (H, W), or (C, H, W)."""
        rows = (window.top, window.top + window.height)
        columns = (window.left, window.left + window.width)
        bands = values if values.ndim == 3 else values[None]
        self._target.write(bands, window=(rows, columns))

    def set_colors(self, palette: np.ndarray) -> None:
        """Stores the colours of class ids, uint8 (K, 3), that maps show."""
        colors = {k: (*row, 255) for k, row in enumerate(palette.tolist())}
        self._target.write_colormap(1, colors)


def _table_of(source: Any, index: int, *, is_palette: bool) -> np.ndarray | None:
    """Returns the colour of each value of a band, RGBA (256, 4), if it holds indices of a palette,
    as GDAL also reads white that is 0, or grey of fewer than 8 bits; None otherwise."""
    if is_palette:
        colors = source.colormap(index)
        return np.array([colors.get(k, (0, 0, 0, 255)) for k in range(256)], np.uint8)
    bits = int(source.tags(index, ns="IMAGE_STRUCTURE").get("NBITS", 8))
    grey = np.minimum(np.arange(256) * 255 // (2**bits - 1), 255).astype(np.uint8)
    return None if bits == 8 else np.dstack([grey, grey, grey, np.full_like(grey, 255)])[0]


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
            header = tiff_header(path)
            is_turned = source.tags().get("EXIF_Orientation", "1") != "1"
            if header is not None and not header.is_georeferenced:
                is_turned = is_turned or header.orientation != 1
            if is_turned:
                remedy = "save it as it is shown, as a TIFF or PNG file"
                raise DataError(f"{path}: is stored turned, and windows are not turned: {remedy}")
            yield Raster(path, part, source)
