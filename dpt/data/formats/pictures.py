"""Decodes pictures by Pillow, OpenCV and tifffile, and tells what their headers state.

Each library misreads some files in silence, so the checks here decide which one decodes: Pillow up
to 8 bits and palettes, OpenCV JPEG, plain RGB and 16 bits, tifffile every other TIFF file.
"""

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Literal

import cv2
import numpy as np
from PIL import ExifTags, Image, PngImagePlugin
from tifffile import TiffFile, TiffPage

from dpt.data.formats.arrays import NUMPY_START, check_numpy_header, size_of
from dpt.files import DataError, check_bytes, check_pixels, decoding, open_file, read_bytes

# This module raises each failure with the file's name; OpenCV's log would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
warnings.filterwarnings("ignore", module="PIL")  # about large or damaged pictures
logging.getLogger("PIL").setLevel(logging.CRITICAL)  # about pictures of many bands
logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # about ArcGIS' value of no data
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY  # a long comment is no fault

_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_EXIF = b"Exif", b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp", b"tiff:Orientation"
"""One of which a JPEG or PNG with an orientation holds."""
_TIFF_STARTS = (b"II", b"MM")
ExifRule = Literal["apply", "ignore"] | None
"""Whether labels fit images turned upright by EXIF, or as stored; None: their size tells."""
_FILM = math.hypot(36, 24)  # mm
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
"""Pillow's names; some of its other formats start external programs."""
_BY_PILLOW = ("1", "P", "LA", "PA", "RGBA")
"""Pillow's modes of 8 bits or fewer that OpenCV turns into colours, or multiplies by alpha."""
_PNM = re.compile(rb"P[56]" + 3 * rb"(?:\s|#[^\n]*\n)+(\d{1,9})\b")
_MAX_PAGES = 1024  # of a TIFF file, with smaller copies
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
"""By orientation: the pixels as a TIFF stores them, which Pillow and OpenCV turn upright."""


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


# --- EXIF ---------------------------------------------------------------------------------------


def turned_upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns pixels as a file stores them upright, by their EXIF orientation."""
    turn = _AS_STORED.get({6: 8, 8: 6}.get(orientation, orientation))
    return image if turn is None else np.ascontiguousarray(turn(image))


def labels_are_upright(
    path: str | Path,
    orientation: int,
    rule: ExifRule,
    *,
    fits_stored: bool = True,
    fits_upright: bool = True,
) -> bool:
    """Returns whether the labels of an image are those of its pixels turned upright, not as stored.

    Args:
        rule: what the user says; None: their size tells.
        fits_stored, fits_upright: whether their size is that of these pixels.

    Raises:
        DataError: their size does not tell.
    """
    if orientation == 1 or rule is not None:
        return rule == "apply"
    if fits_stored == fits_upright:
        fault = f"EXIF orientation {orientation}, with labels that may fit stored or upright pixels"
        raise DataError(f"{path}: {fault}: set data.exif=ignore or data.exif=apply")
    return fits_upright


def exif_orientation(path: str | Path) -> int:
    """Returns the EXIF orientation of a file, 1 (upright, or no such tag) to 8."""
    try:
        return orientation_of(read_bytes(path))
    except DataError:
        return 1


def orientation_of(data: bytes) -> int:
    """Returns the EXIF orientation, 1 to 8, of a picture's content."""
    with suppress(Exception):  # damaged tags raise many kinds
        orientation = _exif(data).get(ExifTags.Base.Orientation)
        return next(turn for turn in _AS_STORED if turn == orientation)
    return 1


def exif_focal(path: str | Path, *, data: bytes | None = None) -> float | None:
    """Returns the focal length in pixels that the EXIF tags of a picture state; None if they do
    not.

    FocalLengthIn35mmFilm belongs to a picture whose diagonal is that of 36 mm × 24 mm.
    """
    with suppress(Exception):  # damaged tags raise many kinds
        data = data or read_bytes(path)
        tags = _exif(data).get_ifd(ExifTags.IFD.Exif)
        diagonal = math.hypot(*_read_header(path, io.BytesIO(data)).size)
        focal = float(tags[ExifTags.Base.FocalLengthIn35mmFilm]) / _FILM * diagonal
        return focal if 0 < focal < math.inf else None
    return None


def _exif(data: bytes) -> Image.Exif:
    """Returns the EXIF tags of a picture's content, if it can have any: Pillow needs the time to
    open a picture, and decodes all pixels of a PNG, to find none."""
    if data.startswith((_JPEG_START, _PNG_START)) and not any(text in data for text in _EXIF):
        return Image.Exif()
    return Image.open(io.BytesIO(data), formats=_FORMATS).getexif()


# --- what headers state -------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """What the header of an image states, or that of the first page of a TIFF file.

    Attributes:
        size: (H, W).
        bytes: of the pixels of a TIFF file.
        orientation: of a TIFF file, 1 (upright) to 8.
    """

    size: tuple[int, int]
    bytes: int = 0
    orientation: int = 1
    is_georeferenced: bool = False


def read_size(path: str | Path) -> tuple[int, int]:
    """Returns (H, W) of an image or an array as it is stored, without decoding pixels."""
    with open_file(path) as file:
        height, width = _read_header(path, file).size
    check_pixels(path, height, width)
    return height, width


def upright_size(path: str | Path) -> tuple[int, int]:
    """Returns (H, W) of an image that is turned upright by its EXIF orientation."""
    height, width = read_size(path)
    return (width, height) if exif_orientation(path) > 4 else (height, width)


def header_of(path: str | Path) -> Header | None:
    """Returns the header of an image of any size; None of damaged files."""
    with suppress(DataError), open_file(path) as file:
        return _read_header(path, file)
    return None


def _read_header(path: str | Path, file: BinaryIO) -> Header:
    start = file.read(8)
    file.seek(0)
    with decoding(path, "a picture"):
        if start[:2] in _TIFF_STARTS:
            with TiffFile(file) as tiff:
                page = tiff.pages.first
                is_georeferenced = any(tag in page.tags for tag in _GEO_TAGS)
                return Header(_tiff_size(page), page.nbytes, _orientation(page), is_georeferenced)
        if start.startswith(NUMPY_START):
            return Header(size_of(check_numpy_header(path, file)))
        try:
            picture = Image.open(file, formats=_FORMATS)
        except Image.DecompressionBombError:  # far above MAX_PIXELS
            return Header((1 << 20, 1 << 20))
        return Header((picture.height, picture.width))


def _tiff_size(page: TiffPage) -> tuple[int, int]:
    return int(page.imagelength), int(page.imagewidth)


def _orientation(page: TiffPage) -> int:
    tag = page.tags.get("Orientation")
    return 1 if tag is None else int(tag.value)


def palette_of(path: str | Path) -> bytes:
    """Returns the palette of a picture, without decoding pixels; b"" if it has none."""
    with suppress(Exception), open_file(path) as file:
        table = Image.open(file, formats=_FORMATS).palette
        return bytes(table.palette) if table else b""
    return b""


# --- decoding -----------------------------------------------------------------------------------


def decode_picture(path: str | Path, data: bytes) -> Picture:
    """Decodes a picture in the order and the units of its file; ``path`` is for messages."""
    with decoding(path, "a picture"):
        _refuse_misread(data)
        if data[:2] in _TIFF_STARTS:
            with TiffFile(io.BytesIO(data)) as file:
                return _decode_tiff(path, data, file)
        opened = Image.open(io.BytesIO(data), formats=_FORMATS)
        check_pixels(path, opened.height, opened.width)
        if data.startswith(_JPEG_START):
            return Picture(pixels=_by_opencv(data), lossy="JPEG")
        _require_one_page(path, getattr(opened, "n_frames", 1))
        is_lossy = data[8:12] == b"WEBP" and b"VP8 " in data[12:].partition(b"VP8L")[0]
        lossy = "lossy WebP" if is_lossy else ""
        bits = data[24] if data.startswith(_PNG_START) else 8
        is_small = bits < 8 or (bits == 8 and opened.mode in _BY_PILLOW)
        if is_small:
            _by_opencv(data, cv2.IMREAD_GRAYSCALE)  # unlike Pillow, it refuses missing rows
        if is_small or opened.format in ("BMP", "GIF"):
            return _picture(*_by_pillow(opened, bits), opened, lossy)
        pixels = _by_opencv(data)
        if data[24:26] == b"\x10\x04":  # a PNG of 16 bits, grey and alpha
            pixels = pixels[..., [0, 3]]
        return _picture(pixels, None, opened, lossy)


def _refuse_misread(data: bytes) -> None:
    """Raises ValueError for a JPEG or PNG without its end, of which OpenCV decodes what there is,
    and for a PNM file of texts or several pictures, or whose values libraries scale."""
    # an embedded thumbnail, before the last scan, has an end mark of its own
    is_cut = data.startswith(_JPEG_START) and data.rfind(_JPEG_END) < data.rfind(_JPEG_SCAN)
    if is_cut or (data.startswith(_PNG_START) and _PNG_END not in data):
        raise ValueError(f"truncated after {len(data)} bytes")
    if data[:1] == b"P":
        header = _PNM.match(data)
        width, height, largest = map(int, header.groups()) if header else (0, 0, 0)
        size = width * height * (3 if data[1:2] == b"6" else 1) * (2 if largest > 255 else 1)
        if header is None or largest not in (255, 65535) or data[header.end() + 1 + size :].strip():
            raise ValueError("not one picture P5 or P6 of 8 or 16 bits: save it as PNG")


def _require_one_page(path: str | Path, count: int) -> None:
    """Raises DataError if a file holds several pages or frames."""
    if count > 1:
        raise DataError(f"{path}: holds {count} pages or frames: save each as a file of its own")


def _by_pillow(opened: Image.Image, bits: int) -> tuple[np.ndarray, int | None]:
    """Returns pixels, and the value that means white if it is not the largest of the type."""
    if opened.mode == "La":  # multiplied by its alpha
        opened = opened.convert("LA")
    if opened.mode == "1" or (opened.mode == "L" and bits < 8):  # which Pillow stretches to 0..255
        white = 1 if opened.mode == "1" else 2**bits - 1
        return np.asarray(opened.convert("L")) // np.uint8(255 // white), white
    return np.asarray(opened), None


def _by_opencv(data: bytes, flags: int = cv2.IMREAD_UNCHANGED) -> np.ndarray:
    """Returns grey values (H, W), RGB or RGBA; ValueError if OpenCV cannot decode them."""
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if pixels is None:
        raise ValueError("damaged, or of a kind that is not read: convert it to PNG")
    if pixels.ndim == 2:
        return pixels
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)  # much faster
    return pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]


def _picture(
    pixels: np.ndarray, white: int | None, opened: Image.Image | None, lossy: str
) -> Picture:
    """Returns decoded pixels with what Pillow knows of the file: a palette, a transparent value."""
    info = {} if opened is None else opened.info
    alpha, palette = None, None
    transparency = info.get("transparency")
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        alpha = pixels[..., -1]
        pixels = pixels[..., 0 if pixels.shape[2] == 2 else slice(3)]
    elif isinstance(transparency, bytes):  # the alpha of each index
        alpha = np.frombuffer(transparency.ljust(256, b"\xff"), np.uint8)[pixels]
    elif transparency is not None:  # a grey value or a colour
        color = min(transparency, white) if white else transparency
        is_clear = np.atleast_3d(pixels == color).all(axis=2)
        alpha = np.where(is_clear, 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)
    if opened is not None and opened.mode in ("P", "PA") and pixels.ndim == 2:
        table = [*(opened.getpalette("RGB") or ()), *[0] * 768][:768]
        palette = np.reshape(table, (256, 3)).astype(np.uint8)
    pixels = np.ascontiguousarray(pixels)
    return Picture(
        pixels=pixels, alpha=alpha, palette=palette, white=white, lossy=lossy, texts=info
    )


# --- TIFF ---------------------------------------------------------------------------------------


def _decode_tiff(path: str | Path, data: bytes, file: TiffFile) -> Picture:
    """Decodes a TIFF file, without its smaller copies; its mask is the alpha."""
    page = _tiff_page(path, file)
    _check_bands(path, page)
    picture = _tiff_picture(data, page)
    return replace(picture, alpha=_mask_of(file, page)) if picture.alpha is None else picture


def _mask_of(file: TiffFile, page: TiffPage) -> np.ndarray | None:
    """Returns the mask that follows a page, as alpha, uint8 (H, W); None if it has none."""
    for mask in file.pages[page.index + 1 :]:
        if isinstance(mask, TiffPage) and mask.is_mask and mask.shape == page.shape[:2]:
            return np.uint8(255) * (mask.asarray(maxworkers=1) > 0)
    return None


def _tiff_page(path: str | Path, file: TiffFile) -> TiffPage:
    """Returns the only page of a TIFF file that is no smaller copy and no mask."""
    pages = [page for page in file.pages[:_MAX_PAGES] if isinstance(page, TiffPage)]
    page, *others = [k for k in pages if not (k.is_reduced or k.is_mask)] or pages[:1]
    _require_one_page(path, 1 + len(others))
    check_pixels(path, *_tiff_size(page))
    check_bytes(path, (page.nbytes,), 1)
    return page


def _tiff_picture(data: bytes, page: TiffPage) -> Picture:
    """Decodes a page by the library that reads its kind right, see the module."""
    bits = page.bitspersample if page.sampleformat == 1 else 64
    white = None if bits in (8, 16, 32, 64) else 2**bits - 1
    lossy = "" if page.compression in _LOSSLESS else f"TIFF's method {int(page.compression)}"
    turn = _AS_STORED.get(_orientation(page), np.asarray)
    if bits <= 8 and page.photometric < 5:
        with suppress(Image.UnidentifiedImageError):
            opened = Image.open(io.BytesIO(data), formats=_FORMATS)
            opened.seek(page.index)
            pixels, white = _by_pillow(opened, bits)
            return _picture(turn(pixels), white, opened, lossy)
    if 8 <= bits <= 16 and page.index == 0:
        is_converted = bits == 8 and page.photometric > 4
        with suppress(ValueError):
            flags = cv2.IMREAD_COLOR if is_converted else cv2.IMREAD_UNCHANGED
            pixels = turn(_by_opencv(data, flags))
            if white:  # of fewer than 16 bits, which OpenCV stretches
                pixels = np.right_shift(pixels, 16 - bits)
            return _picture(pixels, white, None, lossy)
    if white or page.photometric not in ((0, 1, 2) if bits > 16 else (1, 2)):
        raise ValueError(f"{page.photometric} of {bits} bits: save it as 8 or 16 bits")
    return _picture(_tiff_values(page), None, None, lossy)


def _tiff_values(page: TiffPage) -> np.ndarray:
    """Returns the values of a page as tifffile decodes them, (H, W) or (H, W, C)."""
    values = page.asarray(maxworkers=1)
    values = np.moveaxis(values, 0, -1) if page.axes.startswith("S") else values
    if values.shape[:2] != _tiff_size(page):
        raise ValueError(f"pixels of the shape {values.shape}")
    return values


def _check_bands(path: str | Path, page: TiffPage) -> None:
    """Raises DataError for a TIFF of other bands than grey or colours and an alpha.

    OpenCV misreads bands of many bits with an unusual alpha, or stored one after the other.
    """
    colors = _COLORS.get(page.photometric, 1)
    bits = page.bitspersample if page.sampleformat == 1 else 64
    is_read = page.extrasamples in ((1,), (2,)) if bits <= 8 else page.extrasamples == (2,)
    has_alpha = is_read and (bits <= 8 or (bits == 16 and colors > 1))
    is_misread = page.planarconfig == 2 and page.samplesperpixel > 1 and bits > 8
    if page.samplesperpixel != colors + has_alpha or is_misread:
        fault = f"holds {page.samplesperpixel} bands, which are not grey or RGB pixel by pixel"
        raise DataError(f"{path}: {fault}: set data.bands=all, or save a map with one band")


def read_stored_bands(path: str | Path, data: bytes) -> tuple[np.ndarray, set[float]]:
    """Returns all bands (H, W, C) of a picture of any type, and its values of no data."""
    if data[:2] not in _TIFF_STARTS:
        picture = decode_picture(path, data)
        colors, alpha = picture.own_values, picture.alpha
        return np.atleast_3d(colors) if alpha is None else np.dstack([colors, alpha]), set()
    with decoding(path, "a TIFF file"), TiffFile(io.BytesIO(data)) as file:
        page = _tiff_page(path, file)
        nodata = page.tags.get("GDAL_NODATA")
        stated = set() if nodata is None else {float(nodata.value.strip("\0 "))}
        return np.atleast_3d(_tiff_values(page)), stated


def read_thumbnail(path: str | Path, size: tuple[int, int]) -> np.ndarray:
    """Returns a picture's grey values, uint8, scaled down to ``size`` (H, W); large
    ones are decoded at an eighth of their size, which is fast for JPEG."""
    is_large = min(read_size(path)) >= 8 * max(size)
    flags = cv2.IMREAD_REDUCED_GRAYSCALE_8 if is_large else cv2.IMREAD_GRAYSCALE
    with decoding(path, "a picture"):
        picture = _by_opencv(read_bytes(path), flags)
    return cv2.resize(picture, size[::-1], interpolation=cv2.INTER_AREA)


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Returns RGB of RGBA, both uint8, as viewers show transparent pixels on a white page."""
    alpha = rgba[..., 3:] / np.float32(255)
    return np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
