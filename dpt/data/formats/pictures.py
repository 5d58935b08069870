"""Decodes pictures, and tells what their files hold: pages, bands, bits, alpha, compression."""

import io
import logging
import math
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from PIL import ExifTags, Image, PngImagePlugin
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from dpt.data.formats.arrays import NUMPY_START, check_numpy_header, size_of
from dpt.files import (
    COPY_AGAIN,
    MAX_PIXELS,
    DataError,
    check_bytes,
    check_pixels,
    decoding,
    open_file,
    read_bytes,
    require,
)

# This module raises each failure with the file's name; OpenCV's log would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
warnings.filterwarnings("ignore", module="PIL")  # about large or damaged pictures
logging.getLogger("PIL").setLevel(logging.CRITICAL)  # about pictures of many bands
logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # about ArcGIS' value of no data
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY  # a long comment is no fault

_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_TIFF_STARTS, _ORIENTATION = (b"II", b"MM"), 0x0112
_FILM = math.hypot(36, 24)  # mm
_MILLIMETRES = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
"""Of EXIF's FocalPlaneResolutionUnit."""
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
"""Pillow's names; some of its other formats start external programs."""
_BY_PILLOW = ("1", "P", "LA", "PA", "RGBA")
"""Pillow's modes of 8 bits or fewer that OpenCV turns into colours, or multiplies by alpha."""
_MAX_PAGES = 1 << 16
_MAX_BAND_PAGES = 1024  # with smaller copies
_ALPHA = ((1,), (2,))
"""Values of a TIFF's ExtraSamples."""
_COLORS = {2: 3, 5: 4, 6: 3, 8: 3}
"""Number of colours by a TIFF's photometric interpretation; 1 for all others."""
_GEO_TAGS = (33550, 33922, 34264, 34735, 50844)
"""GeoTIFF's pixel scale, tie points, transformation and key directory, and a sensor's model."""
_LOSSLESS = (1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000)
"""Compressions of TIFF files that keep ids: none, fax, LZW, Deflate, PackBits, LZMA, Zstandard."""
_AS_STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.swapaxes(0, 1),
    6: np.rot90,
    7: lambda upright: np.rot90(upright, 2).swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
"""By orientation: the pixels as a TIFF stores them, which libraries turn upright in any case."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A decoded picture, or an array, as its file stores it.

    Attributes:
        pixels: grey values or indices of a palette (H, W), or RGB (H, W, 3), of any type.
        alpha: how opaque each pixel is, (H, W), of the same type; None if the file has no alpha.
        palette: the colours of the indices, uint8 (256, 3).
        white: the value that means white, if it is not the largest of the type.
        lossy: the compression, if it changes ids.
        texts: what Pillow tells of the file, such as the texts of a PNG.
    """

    pixels: np.ndarray
    alpha: np.ndarray | None = None
    palette: np.ndarray | None = None
    white: int | None = None
    lossy: str = ""
    texts: Mapping[str | tuple[int, int], object] = field(default_factory=dict)

    @property
    def colors(self) -> np.ndarray:
        """Returns grey (H, W) or RGB; the largest value of an integer type is white."""
        colors = self.pixels if self.palette is None else self.palette[self.pixels]
        if self.white is None:
            return colors
        factor = np.iinfo(colors.dtype).max / self.white
        return np.rint(colors * factor).astype(colors.dtype)

    @property
    def own_values(self) -> np.ndarray:
        """Returns what :attr:`colors` does, but values of more than 8 bits as they are stored."""
        return self.colors if self.pixels.dtype == np.uint8 else self.pixels


def turned_upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns pixels as a file stores them upright, by their EXIF orientation."""
    turn = _AS_STORED.get({6: 8, 8: 6}.get(orientation, orientation))
    return image if turn is None else np.ascontiguousarray(turn(image))


def exif_orientation(path: str | Path) -> int:
    """Returns the EXIF orientation of a file, 1 (upright, or no such tag) to 8."""
    try:
        return orientation_of(read_bytes(path))
    except DataError:
        return 1


def exif_focal(path: str | Path, *, data: bytes | None = None) -> float | None:
    """Returns the focal length in pixels that the EXIF tags of a picture state; None if they do
    not.

    FocalLengthIn35mmFilm belongs to a picture whose diagonal is that of 36 mm × 24 mm. Without it,
    FocalLength times FocalPlaneXResolution belongs to a picture of PixelXDimension pixels.
    """
    with suppress(Exception):  # damaged tags raise many kinds
        data = data or read_bytes(path)
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        tags = picture.getexif().get_ifd(ExifTags.IFD.Exif) if _may_have_exif(data) else {}
        diagonal = math.hypot(*picture.size)
        focal = float(tags.get(ExifTags.Base.FocalLengthIn35mmFilm, 0)) / _FILM * diagonal
        if not focal and ExifTags.Base.FocalPlaneXResolution in tags:
            unit = _MILLIMETRES[tags.get(ExifTags.Base.FocalPlaneResolutionUnit, 2)]
            density = float(tags[ExifTags.Base.FocalPlaneXResolution]) / unit
            names = (ExifTags.Base.ExifImageWidth, ExifTags.Base.ExifImageHeight)
            scale = diagonal / (math.hypot(*(tags.get(name, 0) for name in names)) or diagonal)
            focal = float(tags[ExifTags.Base.FocalLength]) * density * scale
        return focal if 0 < focal < math.inf else None
    return None


def orientation_of(data: bytes) -> int:
    """Returns the EXIF orientation, 1 to 8, of a picture's content."""
    if not _may_have_exif(data):
        return 1
    try:
        exif = Image.open(io.BytesIO(data), formats=_FORMATS).getexif()
        return next((turn for turn in _AS_STORED if turn == exif.get(_ORIENTATION)), 1)
    except Exception:  # damaged tags raise many kinds
        return 1


def _may_have_exif(data: bytes) -> bool:
    """Whether a picture's content may have EXIF tags, without the time to open it."""
    chunks = _png_chunks(data)
    if chunks:  # without any of these Pillow would decode all pixels
        return not chunks.isdisjoint((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
    # to open a JPEG takes as long as to decode a small one
    header = data[: data.find(_JPEG_SCAN)] if data.startswith(_JPEG_START) else b"Exif"
    return b"Exif" in header or b"tiff:Orientation" in header


def _png_chunks(data: bytes) -> set[bytes]:
    """Returns the types of the chunks of a PNG; none of other pictures."""
    types: set[bytes] = set()
    position = 8 if data.startswith(_PNG_START) else len(data)
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        types.add(kind)
        position += 12 + size
    return types


class TiffPage:
    """Position and tags of a page of a TIFF file, with the defaults of the format."""

    def __init__(self, position: int, tags: ImageFileDirectory_v2) -> None:
        self.position = position
        self.is_smaller_copy = bool(tags.get(254, 0) & 1)
        self.is_mask = bool(tags.get(254, 0) & 4)  # of the page before it, as GDAL writes it
        self.height, self.width = int(tags[257]), int(tags[256])
        self.bits: int = max(tags.get(258, (1,)))
        self.compression: int = tags.get(259, 1)
        self.photometric: int = tags.get(262, 1)
        self.orientation: int = tags.get(274, 1)
        self.bands: int = tags.get(277, 1)
        self.is_planar = tags.get(284, 1) == 2  # bands are stored one after the other
        self.extra_samples: tuple[int, ...] = tags.get(338, ())
        self.is_unsigned = tags.get(339, (1,))[0] == 1
        self.is_georeferenced = any(tag in tags for tag in _GEO_TAGS)
        self.row_bytes = math.ceil(self.width * self.bands * self.bits / 8)


def _tiff_pages(file: BinaryIO, most: int = _MAX_PAGES) -> list[TiffPage]:
    """Returns the pages of a TIFF file, also those that Pillow does not open.

    The smaller copies of a page, and its mask, are left out.
    """
    pages = _tiff_directories(file, most)
    return [p for p in pages if not (p.is_smaller_copy or p.is_mask)] or pages


def _tiff_directories(file: BinaryIO, most: int = _MAX_PAGES) -> list[TiffPage]:
    """Returns all pages of a TIFF file, smaller copies and masks, too."""
    file.seek(0)
    start = file.read(16)
    start = start[: 16 if start[2] == 43 else 8]
    pages: dict[int, TiffPage] = {}
    position = ImageFileDirectory_v2(start).next
    while position and position not in pages and len(pages) < most:
        tags = ImageFileDirectory_v2(start)
        file.seek(position)
        tags.load(file)
        pages[position] = TiffPage(position, tags)
        position = tags.next
    return [*pages.values()]


def one_page(path: str | Path, data: bytes, page: int | None) -> bytes:
    """Returns a picture's content with one page or frame, after checks of its end and its size."""
    _check_end(path, data)
    _stored_size(path, io.BytesIO(data))
    with decoding(path, "a picture"):
        if data[:2] in _TIFF_STARTS:  # its header then leads to the chosen page
            pages = _tiff_pages(io.BytesIO(data))
            position = pages[_choose_page(path, len(pages), page)].position
            order, size = "<" if data[:2] == b"II" else ">", 8 if 43 in data[2:4] else 4
            start = struct.pack(f"{order}{'Q' if size == 8 else 'I'}", position)
            data = data[:size] + start + data[2 * size :]
            _stored_size(path, io.BytesIO(data))
            return data
        is_animated = b"acTL" in _png_chunks(data) or (data[8:16] == b"WEBPVP8X" and data[20] & 2)
        if not data.startswith(b"GIF8") and not is_animated:
            return data
        picture = Image.open(io.BytesIO(data), formats=_FORMATS)
        picture.seek(_choose_page(path, getattr(picture, "n_frames", 1), page))
        copy = io.BytesIO()
        picture.save(copy, "PNG", compress_level=1)
        return copy.getvalue()


def _choose_page(path: str | Path, count: int, page: int | None) -> int:
    """Returns the page's number, from 0; DataError if the file holds several and it is not set."""
    if count > 1 and (page is None or not 0 <= page < count):
        chosen = "" if page is None else f", not data.page={page}"
        fault = f"holds {count} pages or frames{chosen}"
        raise DataError(f"{path}: {fault}: set data.page to the number of one, 0 to {count - 1}")
    return page or 0 if count > 1 else 0


def read_size(path: str | Path) -> tuple[int, int]:
    """Returns (H, W) of an image or an array as it is stored, without decoding pixels."""
    with open_file(path) as file:
        return _stored_size(path, file)


def tiff_header(path: str | Path) -> TiffPage | None:
    """Returns the tags of the first page of a TIFF file; None for other and damaged files."""
    with suppress(Exception), open_file(path) as file:
        return _tiff_pages(file, 1)[0] if file.read(2) in _TIFF_STARTS else None
    return None


def palette_of(path: str | Path) -> bytes:
    """Returns the palette of a picture, without decoding pixels; b"" if it has none."""
    with suppress(Exception), open_file(path) as file:
        table = Image.open(file, formats=_FORMATS).palette
        return bytes(table.palette) if table else b""
    return b""


def has_too_many_pixels(path: str | Path) -> bool:
    """Whether an image is too large to be decoded as a whole; False for damaged files."""
    with suppress(ValueError, OSError), open_file(path) as file:
        height, width = _header_size(path, file)
        return height * width > MAX_PIXELS
    return False


def _stored_size(path: str | Path, file: BinaryIO) -> tuple[int, int]:
    """Returns (H, W) by a file's header; DataError if it has too many pixels."""
    height, width = _header_size(path, file)
    check_pixels(path, height, width)
    return height, width


def _header_size(path: str | Path, file: BinaryIO) -> tuple[int, int]:
    """Returns (H, W) by a file's header."""
    try:
        start = file.read(24)
        if start.startswith(_PNG_START):
            width, height = struct.unpack(">II", start[16:])
        elif start[:2] in _TIFF_STARTS:
            page = _tiff_pages(file, 1)[0]
            height, width = page.height, page.width
            check_bytes(path, (height, width, math.ceil(page.bits / 8 * page.bands)), 1)
        elif start.startswith(NUMPY_START):
            file.seek(0)
            height, width = size_of(check_numpy_header(path, file))
        else:
            with Image.open(file, formats=_FORMATS) as picture:
                height, width = picture.height, picture.width
    except Image.DecompressionBombError:  # far above MAX_PIXELS
        return MAX_PIXELS, 2
    except DataError:
        raise
    except Exception:  # damaged files raise many kinds
        raise _undecodable(path) from None
    return height, width


def _undecodable(path: str | Path) -> DataError:
    remedy = f"convert it to PNG, or {COPY_AGAIN}"
    return DataError(f"{path}: not a picture that can be decoded, or damaged: {remedy}")


def _check_end(path: str | Path, data: bytes) -> None:
    """Raises DataError if a picture has no end mark."""
    if data.startswith(_JPEG_START):
        # search after the last scan: an embedded thumbnail has an end mark of its own
        is_whole = data.endswith(_JPEG_END) or _JPEG_END in data[max(data.rfind(_JPEG_SCAN), 0) :]
    else:
        is_whole = not data.startswith(_PNG_START) or data.endswith(_PNG_END) or _PNG_END in data
    if not is_whole:
        raise DataError(f"{path}: the file is truncated ({len(data)} bytes): {COPY_AGAIN}")


def decode_picture(path: str | Path, data: bytes) -> Picture:
    """Decodes what :func:`one_page` returns, in the order and the units of the file."""
    with decoding(path, "a picture"):
        if is_pnm(data):
            pixels, white = read_pnm(data)
            return Picture(pixels=pixels, white=white)
        page = _tiff_pages(io.BytesIO(data), 1)[0] if data[:2] in _TIFF_STARTS else None
        if page is not None:
            _check_bands(path, page)
        opened = Image.Image()  # of a JPEG there is nothing more to know
        if not data.startswith(_JPEG_START):
            with suppress(Exception):  # of many kinds; OpenCV opens more kinds of TIFF
                opened = Image.open(io.BytesIO(data), formats=_FORMATS)
        pixels, largest = _decode_pixels(path, data, opened, page)
        if page is not None and page.orientation in _AS_STORED:
            pixels = _AS_STORED[page.orientation](pixels)
        pixels, alpha = _without_alpha(pixels, opened.mode, opened.info.get("transparency"))
        if data.startswith(_PNG_START) and data[24:26] == b"\x10\x04":  # 16 bits, grey and alpha
            pixels = pixels[..., 0]
        is_multiplied = page is not None and page.extra_samples == (1,)
        if alpha is not None and alpha.dtype == np.uint16 and is_multiplied:
            opacity = np.maximum(alpha, 1)[..., None] / np.float32(65535)
            pixels = np.rint(np.minimum(pixels / opacity, 65535)).astype(np.uint16)
        if page is not None and alpha is None:
            alpha = _mask_of(path, data, page)
        palette = None
        if pixels.ndim == 2 and opened.mode in ("P", "PA"):
            table = [*(opened.getpalette("RGB") or ()), *[0] * 768][:768]
            palette = np.reshape(table, (256, 3)).astype(np.uint8)
        return Picture(
            pixels=np.ascontiguousarray(pixels),
            alpha=alpha,
            palette=palette,
            white=largest,
            lossy=_lossy(data, page),
            texts=opened.info,
        )


def _decode_pixels(
    path: str | Path, data: bytes, opened: Image.Image, page: TiffPage | None
) -> tuple[np.ndarray, int | None]:
    """Decodes pixels by Pillow or OpenCV, whichever keeps them as they are stored.

    Args:
        opened: the picture in Pillow, not decoded yet.
        page: the tags of a TIFF.

    Returns:
        The pixels, and the value that means white if it is not the largest of the type.
    """
    bits = data[24] if data.startswith(_PNG_START) else page.bits if page else 8
    if opened.mode == "1" or (opened.mode == "L" and bits < 8):  # which Pillow stretches to 0..255
        largest = 1 if opened.mode == "1" else 2**bits - 1
        return np.asarray(opened.convert("L")) // np.uint8(255 // largest), largest
    # OpenCV ignores some masks of a BMP's bits, and damage inside a TIFF of 8 bits
    is_plain = page is not None and page.is_unsigned and page.compression in _LOSSLESS
    modes = (*_BY_PILLOW, "L", "RGB") if is_plain else _BY_PILLOW
    if opened.format == "BMP" or (bits <= 8 and opened.mode in modes):
        return np.asarray(opened), None
    is_converted = bits == 8 and page is not None and page.photometric > 4
    flags = cv2.IMREAD_COLOR if is_converted else cv2.IMREAD_UNCHANGED
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if decoded is None and page is not None and _is_kept(opened, page):
        return np.asarray(opened), None  # of small tiles, or compressed by LZMA or Zstandard
    if decoded is None:
        raise _undecodable(path)
    largest = None
    if page is not None and 8 < bits < 16:  # which OpenCV stretches to 16
        decoded, largest = np.right_shift(decoded, 16 - bits), 2**bits - 1
    if decoded.ndim == 2:
        return decoded, largest
    if decoded.dtype == np.uint8 and decoded.shape[2] == 3:
        return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), None  # much faster
    return decoded[..., [2, 1, 0, 3][: decoded.shape[2]]], largest


def _mask_of(path: str | Path, data: bytes, page: TiffPage) -> np.ndarray | None:
    """Returns the mask of the first page of a TIFF file as alpha, uint8 (H, W); None if it has
    none."""
    if not any(directory.is_mask for directory in _tiff_directories(io.BytesIO(data))):
        return None
    library = require("tifffile", f"{path}: its mask", extra="bands")
    with library.TiffFile(io.BytesIO(data)) as file:
        masks = (p for p in file.pages if p.is_mask and p.shape == (page.height, page.width))
        mask = next(masks, None)
        return None if mask is None else np.uint8(255) * (mask.asarray(maxworkers=1) > 0)


def _is_kept(opened: Image.Image, page: TiffPage) -> bool:
    """Whether Pillow keeps the values of a TIFF file."""
    is_plain = opened.mode in ("L", "RGB", "I;16", "I;16B", "I", "F")
    return is_plain and (page.bits * page.bands <= 24 or not page.is_unsigned)


def _without_alpha(
    pixels: np.ndarray, mode: str, transparency: int | tuple[int, ...] | bytes | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns grey (H, W) or RGB, and its alpha.

    Args:
        mode: Pillow's.
        transparency: the grey value or colour that is transparent, or the alpha of each palette
            index.
    """
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        return pixels[..., 0 if mode in ("LA", "PA") else slice(3)], pixels[..., -1]
    if transparency is None:
        return pixels, None
    if isinstance(transparency, bytes):
        return pixels, np.frombuffer(transparency.ljust(256, b"\xff"), np.uint8)[pixels]
    if isinstance(transparency, int) and mode == "1":
        transparency = min(transparency, 1)
    is_clear = np.atleast_3d(pixels == transparency).all(axis=2)
    return pixels, np.where(is_clear, 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)


def _lossy(data: bytes, page: TiffPage | None) -> str:
    """Returns the name of a picture's compression, if that changes ids."""
    compression = page.compression if page else 1
    if data.startswith(_JPEG_START) or compression in (6, 7):
        return "JPEG"
    if data[8:12] == b"WEBP" and b"VP8 " in data[12:].partition(b"VP8L")[0]:
        return "lossy WebP"
    return "" if compression in _LOSSLESS else f"TIFF's method {compression}"


def _check_bands(path: str | Path, page: TiffPage) -> None:
    """Raises DataError for a TIFF of other bands than grey or colours and an alpha.

    OpenCV misreads bands of many bits with an unusual alpha, or stored one after the other.
    """
    colors = _COLORS.get(page.photometric, 1)
    has_alpha = page.extra_samples in _ALPHA
    is_plain = page.is_unsigned and (page.bits <= 8 or (page.bits == 16 and colors > 1))
    is_misread = page.is_planar and page.bands > 1 and page.bits > 8
    if page.bands != colors + has_alpha or is_misread or (has_alpha and not is_plain):
        fault = f"holds {page.bands} bands, which are not grey or RGB pixel by pixel"
        remedy = "set data.bands=all, or some as in [0,1,2], of an image; save a map with one band"
        raise DataError(f"{path}: {fault}: {remedy}")


def read_stored_bands(
    path: str | Path, data: bytes, page: int | None
) -> tuple[np.ndarray, set[float]]:
    """Returns all bands (H, W, C) of a picture of any type, as stored, and its values of no data.

    Pages of a TIFF of one size are bands, unless ``page`` names one of them.
    """
    if data[:2] not in _TIFF_STARTS:
        picture = decode_picture(path, one_page(path, data, page))
        colors, alpha = picture.own_values, picture.alpha
        return np.atleast_3d(colors) if alpha is None else np.dstack([colors, alpha]), set()
    _stored_size(path, io.BytesIO(data))
    library = require("tifffile", f"{path}: data.bands", extra="bands")
    with decoding(path, "a TIFF file"), library.TiffFile(io.BytesIO(data)) as file:
        if len(file.pages) > _MAX_BAND_PAGES:
            fault = f"holds {len(file.pages)} pages, at most {_MAX_BAND_PAGES} are read"
            raise DataError(f"{path}: {fault}: cut it into parts")
        pages = [p for p in file.pages if not (p.is_reduced or p.is_mask)] or [file.pages[0]]
        if page is not None or len({p.shape for p in pages}) > 1:
            pages = [pages[_choose_page(path, len(pages), page)]]
        check_bytes(path, (len(pages), *pages[0].shape), pages[0].dtype.itemsize)
        planes = []
        for tiff_page in pages:
            plane = np.atleast_3d(tiff_page.asarray(maxworkers=1))
            planes.append(np.moveaxis(plane, 0, -1) if tiff_page.axes.startswith("S") else plane)
        return np.concatenate(planes, axis=2), _nodata_of(pages[0])


def _nodata_of(tiff_page: Any) -> set[float]:
    """Returns the value that GDAL's tag of a page of tifffile names, if it has one."""
    with suppress(KeyError, ValueError, AttributeError):
        return {float(tiff_page.tags["GDAL_NODATA"].value.strip("\0 "))}
    return set()


def read_thumbnail(path: str | Path, size: tuple[int, int]) -> np.ndarray:
    """Returns a picture's grey values, uint8, scaled down to ``size`` (H, W); large
    ones are decoded at an eighth of their size, which is fast for JPEG."""
    is_large = min(read_size(path)) >= 8 * max(size)
    flags = cv2.IMREAD_REDUCED_GRAYSCALE_8 if is_large else cv2.IMREAD_GRAYSCALE
    picture = cv2.imdecode(np.frombuffer(read_bytes(path), np.uint8), flags)
    if picture is None:
        raise _undecodable(path)
    return cv2.resize(picture, size[::-1], interpolation=cv2.INTER_AREA)


_SPACE = rb"(?:\s|#[^\n]*\n)+"
_SIZE = 2 * (_SPACE + rb"(\d{1,9})")
_LARGEST = _SPACE + rb"(\d{1,5})"
_HEADER = re.compile(rb"P(?:([14])|([2356]))" + _SIZE + rb"(?(2)" + _LARGEST + rb")\s")


def is_pnm(data: bytes) -> bool:
    return data[:1] == b"P" and data[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6")


def read_pnm(data: bytes) -> tuple[np.ndarray, int]:
    """Returns the numbers as stored, (H, W) or RGB (H, W, 3), and the one that means white.

    Raises:
        ValueError: it is damaged or holds several pictures.
    """
    header = _HEADER.match(data)
    if header is None:
        raise ValueError("no width, height and largest value in its header")
    kind, body = data[1:2], data[header.end() :]
    width, height, largest = int(header[3]), int(header[4]), int(header[5] or 1)
    shape = (height, width, 3) if kind in b"36" else (height, width)
    count = int(np.prod(shape))
    if kind == b"4":
        size = height * (-(-width // 8))
        bits = np.frombuffer(body[:size], np.uint8).reshape(height, -1)
        values = np.unpackbits(bits, axis=1)[:, :width]
    elif kind in b"56":
        dtype = np.dtype(">u2" if largest > 255 else np.uint8)
        size = count * dtype.itemsize
        values = np.frombuffer(body[:size], dtype)
    else:
        text = re.sub(rb"#[^\n]*", b"", body)
        if kind == b"1":  # whose digits need no space between them
            text = re.sub(rb"(\d)", rb"\1 ", text)
        values, size = np.fromstring(text, int, sep=" "), len(body)
    if values.size != count or not 0 < largest < 65536 or values.max(initial=0) > largest:
        raise ValueError(f"{values.size} values up to {values.max(initial=0)} in place of {count}")
    values = 1 - values if kind in b"14" else values  # of bits 1 is black
    if body[size:].lstrip()[:1] == b"P":
        raise ValueError("it holds several pictures: save each as a file of its own")
    return values.reshape(shape).astype(np.uint8 if largest < 256 else np.uint16), largest


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Returns RGB of RGBA, both uint8, as viewers show transparent pixels on a white page."""
    alpha = rgba[..., 3:] / np.float32(255)
    return np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
