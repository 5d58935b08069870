"""Reads data files: pictures, depth, labels, tables. No other module decodes them."""

import csv
import io
import math
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    EXTRASAMPLES,
    IMAGELENGTH,
    IMAGEWIDTH,
    PHOTOMETRIC_INTERPRETATION,
    SAMPLESPERPIXEL,
    ImageFileDirectory_v2,
)

from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.matlab import check_mat
from dpt.data.formats.pnm import is_pnm, read_pnm
from dpt.files import (
    MAX_BYTES,
    MAX_PIXELS,
    DataError,
    few,
    open_file,
    read_bytes,
    read_text,
    require,
)

JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".jpe", ".mpo")
IMAGE_SUFFIXES = (*JPEG_SUFFIXES, ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".gif", ".jp2", ".jxl", ".arw", ".cr2", ".cr3",
                   ".dng", ".nef", ".orf", ".raf", ".rw2")  # fmt: skip
"""Pictures, also raw ones of cameras, in formats that are not read as photos."""
_ARRAY_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5", ".mat")
_MAP_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", *_ARRAY_SUFFIXES, ".pgm")
LABEL_SUFFIXES = (*_MAP_SUFFIXES, ".gif", ".webp", ".pbm", ".ppm")
DEPTH_SUFFIXES = (*_MAP_SUFFIXES, ".pfm", ".exr")

MAX_COLORS = 1 << 16
"""Largest number of colours of a label file whose colours stand for classes."""
MAX_RED_ID = 63
"""Largest id in the red channel of an RGB label file; larger values are those of red colours."""
OTHER_COLOR = -1
"""The id of colours that are far from all in a table."""
TRANSPARENT = -(2**31)
"""The id of transparent pixels of label files, which are unlabelled."""

# This module raises each failure with the file's name; OpenCV's log would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
warnings.filterwarnings("ignore", module="PIL")  # about large or damaged pictures

COPY_AGAIN = "copy or download it again"
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_PACKED = np.array([65536, 256, 1], np.int32)  # from R, G and B to one number
_HDF5_START = b"\x89HDF\r\n\x1a\n"
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "GIF", "TIFF")
"""Pillow's names; some of its other formats start external programs."""
_TIFF_STARTS, _ORIENTATION = (b"II", b"MM"), 0x0112
_SUBFILE_TYPE, _REDUCED = 0x00FE, 1
_MAX_PAGES = 1 << 16
_ALPHA = ((1,), (2,))
"""Values of a TIFF's EXTRASAMPLES."""
_COLORS = {2: 3, 5: 4, 6: 3, 8: 3}
"""Number of colours by a TIFF's photometric interpretation; 1 for all others."""
_LOSSLESS = (1, 2, 3, 4, 5, 8, 32773, 32946, 34925, 50000)
"""Compressions of TIFF files that keep ids: none, fax, LZW, Deflate, PackBits, LZMA, Zstandard."""
_WEBP = b"WEBPVP8X"  # with flags of what it holds
_FEW_BITS = 14
"""Images of 16 bits with smaller values only were probably made by a camera of fewer bits."""
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
class Parts:
    """What is read of files that hold more than one grey or RGB picture of 8 bits, or one map.

    Attributes:
        page: the page or frame of files that hold several, from 0.
        key: the name of the array in files that hold several.
        bands: the three bands of images, from 0, that are red, green and blue, or one that is grey.
        image_max: the value of white in images of more than 8 bits; larger ones are white too.
            None: of 16 bits the upper 8 are taken.
    """

    page: int | None = None
    key: str | None = None
    bands: Sequence[int] | None = None
    image_max: float | None = None


_ALL = Parts()


def read_image(
    path: str | Path, *, exif: bool = False, data: bytes | None = None, parts: Parts = _ALL
) -> np.ndarray:
    """A JPEG, PNG, WebP, BMP, TIFF or PPM file as uint8 (H, W, 3) RGB, transparency over white.

    Args:
        exif: turn the picture upright by its EXIF orientation, as viewers do.
        data: the file's content, if known; ``path`` is then for messages only.
        parts: bands and range of files that hold more than 8-bit grey or RGB, and the page.
    """
    data = _one_page(path, data or read_bytes(path), parts.page)
    orientation = orientation_of(data) if exif else 1
    image = _eight_bits(path, _color_pixels(path, data, parts.bands), parts.image_max)
    if image.shape[2] == 4:
        image = over_white(image)
    return turned_upright(image, orientation)


def over_white(rgba: np.ndarray) -> np.ndarray:
    """RGB of RGBA, both uint8, as viewers show transparent pixels on a white page."""
    alpha = rgba[..., 3:] / np.float32(255)
    return np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def turned_upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels as a file stores them, as its EXIF orientation says that they are to be seen."""
    turn = _AS_STORED.get({6: 8, 8: 6}.get(orientation, orientation))
    return image if turn is None else np.ascontiguousarray(turn(image))


def _color_pixels(path: str | Path, data: bytes, bands: Sequence[int] | None) -> np.ndarray:
    """Pixels of any type, as stored, RGB (H, W, 3), or (H, W, 4) if some are transparent."""
    if bands is not None:
        return _select_bands(path, data, bands)
    if is_pnm(data):
        with _decoding(path, "a picture"):
            values, largest = read_pnm(data)
        white = np.iinfo(values.dtype).max
        values = np.rint(values * (white / largest)).astype(values.dtype)
        return values if values.ndim == 3 else np.repeat(values[..., None], 3, axis=2)
    if _has_alpha(data):
        rgba = _rgba_pixels(path, data)
        opaque = rgba[..., 3].min() == np.iinfo(rgba.dtype).max
        return np.ascontiguousarray(rgba[..., :3]) if opaque else rgba
    if data[:2] not in _TIFF_STARTS:
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
        return _decode(path, data, flags)
    # OpenCV confuses RGB with BGR in those of 16 bits, and makes no colours of floats
    is_deep = max(_tags(data).get(BITSPERSAMPLE, (8,))) > 8
    flags = cv2.IMREAD_UNCHANGED if is_deep else cv2.IMREAD_COLOR
    image = _decode(path, data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    image = image[..., ::-1] if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
    return np.ascontiguousarray(image)


def _eight_bits(path: str | Path, image: np.ndarray, image_max: float | None) -> np.ndarray:
    """Pixels as uint8; DataError if it is not certain which value is white."""
    if image.dtype == np.uint8:
        return image
    if image_max is not None:
        scaled = np.nan_to_num(image[..., :3].astype(np.float32)) * np.float32(255 / image_max)
        bits = np.rint(scaled.clip(0, 255)).astype(np.uint8)
        alpha = image[..., 3:] >> 8 if image.shape[2] == 4 else image[..., 3:]
        return np.concatenate([bits, alpha.astype(np.uint8)], axis=2)
    remedy = "set data.image_max to the value that means white, or save it as 8-bit RGB"
    if image.dtype != np.uint16:
        raise DataError(f"{path}: pixels are {image.dtype}, not 8-bit: {remedy}")
    if (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all():
        raise DataError(
            f"{path}: a 16-bit single-channel file looks like depth, not like a photo: check "
            f"data.images, or {remedy}"
        )
    largest = int(image[..., :3].max())
    if largest < 1 << _FEW_BITS:
        raise DataError(
            f"{path}: 16-bit, but its largest value is {largest}, as in files of "
            f"{max(9, largest.bit_length())} bits: {remedy} (65535 if it is only dark)"
        )
    return (image >> 8).astype(np.uint8)


def read_depth(
    path: str | Path, *, key: str | None = None, scale: float = 1.0, **rule: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Depth, float32 (H, W) in metres, 0 where invalid, and its validity, bool (H, W).

    :func:`read_raw_depth` explains ``key``, :class:`DepthRule` ``scale`` and the other options.
    """
    return DepthRule(scale=scale, **rule)(read_raw_depth(path, key=key))


def read_raw_depth(
    path: str | Path, *, key: str | None = None, page: int | None = None
) -> np.ndarray:
    """The numbers of a depth file as they are stored, (H, W).

    PNG files with the texts ``near`` and ``far``, as MoGe writes them, hold logarithms; these are
    returned as depth, float32, in MoGe's unit (metres, or up to scale).

    Args:
        path: PNG, TIFF or PGM of any number of bits, PFM, NPY, NPZ, EXR, HDF5 or MATLAB.
        key: name of the array in files that hold several: an EXR channel, an HDF5 data set, a
            variable of a ``.mat`` or ``.npz`` file. None: the only map.
        page: the page of files that hold several, from 0.
    """
    reader = _READERS.get(Path(path).suffix.lower())
    raw = _without_single_axes(reader(path, key) if reader else read_picture(path, page))
    if raw.ndim == 3 and raw.shape[2] in (3, 4):
        raise DataError(
            f"{path}: this is a colour picture, not depth: check data.depth; depth that is coded "
            "in colours (as CARLA's in 24 bits) must be converted to one channel first"
        )
    if raw.ndim != 2 or raw.dtype.kind not in "uif":
        raise DataError(f"{path}: depth must be numbers of (H, W), found {raw.dtype} {raw.shape}")
    check_pixels(path, *raw.shape)
    return raw


def _without_single_axes(array: np.ndarray) -> np.ndarray:
    """(H, W) of arrays (1, H, W) or (H, W, 1)."""
    while array.ndim > 2 and 1 in (array.shape[0], array.shape[-1]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    return array


def read_labels(
    path: str | Path,
    *,
    colors: Sequence[Sequence[int]] | None = None,
    distance: int | None = None,
    parts: Parts = _ALL,
) -> np.ndarray:
    """Class ids, an integer array (H, W) of the file's own type.

    If some pixels are transparent, it is int64 with ``TRANSPARENT`` there.

    Args:
        path: PNG (also with a palette, whose indices are the ids), TIFF, BMP, GIF, PGM, lossless
            WebP, or arrays as in :func:`read_raw_depth`.
        colors: an RGB row for each id, for RGB files. A colour for "unlabelled" goes after the
            last class; its row number is the ignore index. None: the ids of an RGB file are in all
            three channels, or in R alone with 0 in the others.
        distance: a colour that ``colors`` lacks becomes the nearest row, if no channel differs by
            more than this; else ``OTHER_COLOR``. Then the colours of palettes count, not their
            indices. None: a colour that ``colors`` lacks is an error.
        parts: the page or the name of the array.
    """
    use_palette = distance is not None
    labels, transparent = _read_stored_labels(path, parts, use_palette=use_palette)
    if transparent is None:
        return labels if labels.ndim == 2 else _ids_of_colors(path, labels, colors, distance)
    ids = np.full(transparent.shape, TRANSPARENT)
    opaque = labels[~transparent]
    if labels.ndim == 3:
        opaque = _ids_of_colors(path, opaque[None], colors, distance)[0]
    ids[~transparent] = opaque
    return ids


def _palette(path: str | Path) -> np.ndarray | None:
    """The colours of a palette, uint8 (256, 3), 0 where there are none; None for other files."""
    try:
        with open_file(path) as file:
            picture = Image.open(file, formats=_FORMATS)
            stored = picture.getpalette("RGB") if picture.mode == "P" else None
    except Exception:  # of many kinds; arrays, or damaged files
        return None
    return None if stored is None else np.resize([*stored, *[0] * 768][:768], (256, 3)).astype("u1")


def _read_stored_labels(
    path: str | Path, parts: Parts, *, use_palette: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Integers (H, W), or colours uint8 (H, W, 3), and where the file is transparent, bool (H, W);
    None if it is nowhere. With ``use_palette``, colours of a palette in place of its indices."""
    reader = _READERS.get(Path(path).suffix.lower())
    labels, alpha = reader(path, parts.key) if reader else None, None
    if labels is None:
        labels, alpha = _read_label_picture(path, parts.page)
    labels = _without_single_axes(labels)
    if labels.dtype == bool:
        labels = labels.astype(np.uint8)
    if labels.ndim == 3 and labels.shape[2] in (3, 4) and labels.dtype == np.uint8:
        alpha = labels[..., 3] if labels.shape[2] == 4 else alpha
        return labels[..., :3], _transparent(path, alpha)
    if labels.ndim != 2 or labels.dtype.kind not in "ui":
        raise DataError(
            f"{path}: found {labels.dtype} {labels.shape}: label files hold one whole-number "
            "class id per pixel; save them as single-channel PNG"
        )
    check_pixels(path, *labels.shape)
    palette = _palette(path) if use_palette else None
    return labels if palette is None else palette[labels], _transparent(path, alpha)


def _transparent(path: str | Path, alpha: np.ndarray | None) -> np.ndarray | None:
    """Where the alpha of a label file is 0, bool; None if it is nowhere.

    Raises:
        DataError: it is 0 everywhere, or has several other values, which may be a part of the ids.
    """
    if alpha is None:
        return None
    levels = np.unique(alpha).tolist()
    if levels == [0] or len([level for level in levels if level]) > 1:
        listed = few([str(level) for level in levels], 6)
        raise DataError(
            f"{path}: its alpha is {listed}: label files are opaque, or transparent where they are "
            "unlabelled; save the ids without alpha"
        )
    return None if levels[0] else alpha == 0


def read_objects(path: str | Path, *, parts: Parts = _ALL) -> np.ndarray:
    """Object ids, int64 (H, W): a file of whole numbers, or R + 256 G + 65536 B of an RGB file; 0
    where it is transparent."""
    stored, transparent = _read_stored_labels(path, parts)
    ids = stored.astype(np.int64)
    if stored.ndim == 3:
        ids = ids @ np.array([1, 256, 65536])
    return ids if transparent is None else np.where(transparent, 0, ids)


def read_table(
    path: str | Path, columns: Sequence[str], *, remedy: str
) -> Iterator[tuple[str, list[str]]]:
    """The ``columns`` of each row of a CSV file with a header line, in capitals or not, whose cells
    are separated by commas, semicolons or tabs.

    Yields:
        The row's place for messages, ``FILE: line N``, and its texts; "" where it is too short.
    """
    with _decoding(path, "a table"):
        text = read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        source = io.StringIO(text, newline="")
        rows = csv.reader(source, delimiter=separator, skipinitialspace=True, strict=True)
        header = [name.strip() for name in next(rows, ())]
        known = {name.lower(): name for name in columns if name not in header}
        header = [known.get(name.lower(), name) for name in header]
        if absent := [name for name in columns if name not in header]:
            found = few(header, 6) or "none"
            raise DataError(f"{path}: no column {', '.join(absent)} (it has {found}): {remedy}")
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise DataError(f"{path}: the column {twice[0]} occurs twice: rename or remove one")
        places = [header.index(name) for name in columns]
        for row in rows:
            place = f"{path}: line {rows.line_num}"
            if len(row) > len(header) and any(row[len(header) :]):
                fault = f"{len(row)} cells for {len(header)} columns"
                raise DataError(f"{place}: {fault}: put texts that hold {separator!r} in quotes")
            lines = [line for cell in row for line in cell.splitlines()[1:]]
            if any(line.count(separator) >= len(header) - 1 for line in lines):
                fault = "a cell in quotes holds line breaks and what looks like further rows"
                raise DataError(f"{place}: {fault}: close its quote, or write it in one line")
            if row:
                yield place, [row[k].strip() if k < len(row) else "" for k in places]


def parse_number(text: str) -> float:
    """A number in plain ASCII; ValueError for others that ``float`` reads, such as 1_0."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a plain number")
    return float(text)


def label_values(
    path: str | Path,
    *,
    colors: Sequence[Sequence[int]] = (),
    parts: Parts = _ALL,
    use_palette: bool = False,
) -> dict[tuple[int, ...], int]:
    """Pixel counts by class id ``(i,)``, or by colour ``(r, g, b)`` (RGB file, no ``colors``; with
    ``use_palette`` also those of a palette), without transparent pixels."""
    labels, transparent = _read_stored_labels(path, parts, use_palette=use_palette)
    if transparent is not None:
        labels = labels[~transparent][None]
    if labels.ndim == 3 and not colors:
        return _count_colors(path, labels)
    if labels.ndim == 3:
        labels = _ids_of_colors(path, labels, colors, None)
    if labels.dtype in (np.uint8, np.uint16):  # faster than sorting
        counts = np.bincount(labels.ravel())
        ids, counts = np.flatnonzero(counts), counts[counts > 0]
    else:
        ids, counts = np.unique(labels, return_counts=True)
    return {(i,): n for i, n in zip(ids.tolist(), counts.tolist(), strict=True)}


def _count_colors(path: str | Path, rgb: np.ndarray) -> dict[tuple[int, ...], int]:
    codes, counts = np.unique(rgb.astype(np.int32) @ _PACKED, return_counts=True)
    if len(codes) > MAX_COLORS:
        raise DataError(f"{path}: a picture of {len(codes)} colours, not labels: check data.labels")
    colors = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1).tolist()
    return dict(zip(map(tuple, colors), counts.tolist(), strict=True))


def _ids_of_colors(
    path: str | Path,
    rgb: np.ndarray,
    colors: Sequence[Sequence[int]] | None,
    distance: int | None,
) -> np.ndarray:
    if not colors:
        red, *others = np.moveaxis(rgb, 2, 0)
        is_dark_red = red.max() <= MAX_RED_ID and not any(other.any() for other in others)
        if is_dark_red or all((other == red).all() for other in others):
            return red
        found = [list(color) for color in _count_colors(path, rgb)]
        shown = str(found).replace(" ", "") if len(found) <= 12 else "[[r,g,b],...]"
        raise DataError(
            f"{path}: an RGB picture of {len(found)} colours: label files hold one class id per "
            f"pixel; save ids, or set data.label_colors={shown} and the colours of other files, "
            "one row for each id (dpt data check lists all)"
        )
    codes = np.asarray(colors, np.int32) @ _PACKED
    if len(np.unique(codes)) < len(codes):
        raise DataError(f"data.label_colors has a colour twice, so {path} has no certain ids: give "
                        "each id its own")  # fmt: skip
    packed = rgb.astype(np.int32) @ _PACKED
    order = np.argsort(codes)
    ids = order[np.searchsorted(codes, packed, sorter=order).clip(max=len(codes) - 1)]
    unknown = codes[ids] != packed
    if distance is not None and unknown.any():
        strange, places = np.unique(packed[unknown], return_inverse=True)
        _count_colors(path, rgb)  # refuses pictures
        channels = [(strange >> bits & 255)[:, None] for bits in (16, 8, 0)]
        table = np.asarray(colors, np.int32).T
        away = np.maximum.reduce([np.abs(c - row) for c, row in zip(channels, table, strict=True)])
        nearest = np.where(away.min(axis=1) <= distance, away.argmin(axis=1), OTHER_COLOR)
        ids[unknown] = nearest[places]
        return ids
    if unknown.any():
        raise DataError(
            f"{path}: colour {rgb[unknown][0].tolist()} ({int(unknown.sum())} pixels not in the "
            "table) has no class: add it to data.label_colors; if it means unlabelled, add it "
            "after the last class and set data.ignore_index to its row number"
        )
    return ids.astype(np.uint8 if len(codes) <= 256 else np.uint16)


# ------------------------------------------------------------------------ files and decoders


def check_pixels(path: str | Path, height: int, width: int) -> None:
    """DataError if a picture or map is larger than ``MAX_PIXELS``."""
    if height * width > MAX_PIXELS:
        most = f"{MAX_PIXELS / 1e6:g} million"
        raise DataError(f"{path}: has more than {most} pixels, the limit: cut or shrink it")


def _check_array(path: str | Path, shape: Sequence[int], dtype: Any) -> None:
    """DataError if an array in a file is larger than ``MAX_BYTES``."""
    if math.prod(shape) * np.dtype(dtype).itemsize > MAX_BYTES:
        found, most = f"{dtype} {tuple(shape)}", f"{MAX_BYTES / 1e6:g} MB"
        raise DataError(f"{path}: {found} takes more than {most}, the limit: cut or shrink it")


@contextmanager
def _decoding(path: str | Path, kind: str) -> Iterator[None]:
    """Turns an error of any library (OSError, KeyError, zlib.error, ...) into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        text = " ".join(str(error).replace(repr(str(path)), "the file").split())
        raise DataError(f"{path}: cannot be read as {kind} ({text}): {COPY_AGAIN}") from None


# ------------------------------------------------------------------------------------ pictures


def exif_orientation(path: str | Path) -> int:
    """EXIF orientation, 1 (upright, or no such tag) to 8, without decoding pixels."""
    try:
        with open_file(path) as file:
            return _turn_of(file)
    except DataError:
        return 1


def orientation_of(data: bytes) -> int:
    """EXIF orientation, 1 to 8, of a picture's content."""
    if data.startswith(_JPEG_START):
        header = data[: data.find(_JPEG_SCAN)]
        may_be_turned = b"Exif" in header or b"tiff:Orientation" in header
    elif data.startswith(_PNG_START):
        may_be_turned = not _png_chunks(data).isdisjoint((b"eXIf", b"tEXt", b"zTXt", b"iTXt"))
    else:  # of WebP two flags say it
        may_be_turned = data[:2] in _TIFF_STARTS or (data[8:16] == _WEBP and bool(data[20] & 12))
    return _turn_of(io.BytesIO(data)) if may_be_turned else 1


def _png_chunks(data: bytes) -> set[bytes]:
    """The types of the chunks of a PNG; none of other pictures."""
    types: set[bytes] = set()
    place = 8 if data.startswith(_PNG_START) else len(data)
    while place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        types.add(kind)
        place += 12 + size
    return types


def _turn_of(file: BinaryIO) -> int:
    try:
        turn = int(Image.open(file, formats=_FORMATS).getexif().get(_ORIENTATION, 1))
        return turn if turn in _AS_STORED else 1
    except Exception:  # damaged tags raise many kinds
        return 1


def _tiff_pages(file: BinaryIO, most: int = _MAX_PAGES) -> list[tuple[int, ImageFileDirectory_v2]]:
    """Place and tags of each page of a TIFF file, also of those that Pillow does not open, without
    the smaller copies of a page."""
    file.seek(0)
    start = file.read(16)
    start = start[: 16 if start[2] == 43 else 8]
    pages: dict[int, ImageFileDirectory_v2] = {}
    place = ImageFileDirectory_v2(start).next
    while place and place not in pages and len(pages) < most:
        tags = ImageFileDirectory_v2(start)
        file.seek(place)
        tags.load(file)
        pages[place], place = tags, tags.next
    full = [page for page in pages.items() if not page[1].get(_SUBFILE_TYPE, 0) & _REDUCED]
    return full or list(pages.items())


def _tags(data: bytes) -> Mapping[int, Any]:
    """The tags of a TIFF's first page; none of other pictures."""
    return _tiff_pages(io.BytesIO(data), 1)[0][1] if data[:2] in _TIFF_STARTS else {}


def _one_page(path: str | Path, data: bytes, page: int | None) -> bytes:
    """A picture's content reduced to one page or frame, after checks of its end and its size."""
    _check_end(path, data)
    _stored_size(path, io.BytesIO(data))
    if data[:2] in _TIFF_STARTS:  # its header then leads to the chosen page
        places = [place for place, _ in _tiff_pages(io.BytesIO(data))]
        order, size = "<" if data[:2] == b"II" else ">", 8 if 43 in data[2:4] else 4
        place = places[_choose_page(path, len(places), page)]
        field = struct.pack(f"{order}{'Q' if size == 8 else 'I'}", place)
        data = data[:size] + field + data[2 * size :]
        _stored_size(path, io.BytesIO(data))
        return data
    is_gif = data.startswith(b"GIF8")
    is_animated = b"acTL" in _png_chunks(data) or (data[8:16] == _WEBP and data[20] & 2)
    if not is_gif and not is_animated:
        return data
    with _decoding(path, "a picture"):
        picture: Any = Image.open(io.BytesIO(data), formats=_FORMATS)
        picture.seek(_choose_page(path, picture.n_frames, page))
        copy = io.BytesIO()
        picture.save(copy, "PNG", compress_level=1)
        return copy.getvalue()


def _choose_page(path: str | Path, count: int, page: int | None) -> int:
    """The number of the page, from 0; DataError if the file holds several and it is not set."""
    if count > 1 and (page is None or not 0 <= page < count):
        chosen = "" if page is None else f", not data.page={page}"
        raise DataError(
            f"{path}: holds {count} pages or frames{chosen}: set data.page to the number of one, "
            f"0 to {count - 1}, or save it as a file of its own"
        )
    return page or 0 if count > 1 else 0


def read_size(path: str | Path) -> tuple[int, int]:
    """(H, W) of a photo as it is stored, without decoding pixels."""
    with open_file(path) as file:
        return _stored_size(path, file)


def _stored_size(path: str | Path, file: BinaryIO) -> tuple[int, int]:
    """(H, W) by a file's header; DataError if it has too many pixels."""
    try:
        start = file.read(24)
        if start.startswith(_PNG_START):
            width, height = struct.unpack(">II", start[16:])
        elif start[:2] in _TIFF_STARTS:
            tags = _tiff_pages(file, 1)[0][1]
            height, width = int(tags[IMAGELENGTH]), int(tags[IMAGEWIDTH])
            size = max(tags.get(BITSPERSAMPLE, (1,))) / 8 * tags.get(SAMPLESPERPIXEL, 1)
            _check_array(path, (height, width, math.ceil(size)), np.uint8)
        else:
            with Image.open(file, formats=_FORMATS) as picture:
                height, width = picture.height, picture.width
    except Image.DecompressionBombError:  # far above MAX_PIXELS: check_pixels raises
        height, width = MAX_PIXELS, 2
    except DataError:
        raise
    except Exception:  # damaged files raise many kinds
        raise _undecodable(path) from None
    check_pixels(path, height, width)
    return height, width


def decode_picture(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """Pixels of a picture by OpenCV with ``flags``."""
    return _decode(path, _one_page(path, data, None), flags)


def _decode(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """:func:`decode_picture` of what :func:`_one_page` returns."""
    _check_bands(path, data)
    with _decoding(path, "a picture"):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise _undecodable(path)
    return _as_stored(data, image) if flags & cv2.IMREAD_IGNORE_ORIENTATION else image


def _as_stored(data: bytes, upright: np.ndarray) -> np.ndarray:
    """Decoded pixels in the order of the file: libraries turn TIFF files upright."""
    turn = _AS_STORED.get(_tags(data).get(_ORIENTATION, 1))
    return upright if turn is None else np.ascontiguousarray(turn(upright))


def _check_bands(path: str | Path, data: bytes) -> None:
    """DataError if a TIFF holds more than grey or colours and an alpha: OpenCV drops the others."""
    tags = _tags(data)
    count = tags.get(SAMPLESPERPIXEL, 1)
    colors = _COLORS.get(tags.get(PHOTOMETRIC_INTERPRETATION, 1), 1)
    has_alpha = tags.get(EXTRASAMPLES) in _ALPHA
    if count != colors + has_alpha or (has_alpha and colors == 1 and max(tags[BITSPERSAMPLE]) > 8):
        raise DataError(
            f"{path}: holds {count} bands, which are not grey or RGB: for an image set data.bands "
            "to three of them, as in data.bands=[0,1,2]; save a mask or depth with one band"
        )


def _has_alpha(data: bytes) -> bool:
    """Whether a picture's header says that pixels may be transparent."""
    if data.startswith(_PNG_START):
        return data[25] in (4, 6) or b"tRNS" in _png_chunks(data)
    if data[:2] == b"BM" or data[8:12] == b"WEBP":
        return "A" in Image.open(io.BytesIO(data), formats=_FORMATS).mode
    return _tags(data).get(EXTRASAMPLES) in _ALPHA


def _rgba_pixels(path: str | Path, data: bytes) -> np.ndarray:
    """RGBA (H, W, 4) of 8 or 16 bits, as stored."""
    bits = data[24] if data.startswith(_PNG_START) else max(_tags(data).get(BITSPERSAMPLE, (8,)))
    if bits <= 8:  # OpenCV multiplies colours by alpha, or drops it
        _check_bands(path, data)
        with _decoding(path, "a picture"):
            picture = Image.open(io.BytesIO(data), formats=_FORMATS)
            return _as_stored(data, np.asarray(picture.convert("RGBA")))
    image = _decode(path, data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
    if image.ndim != 3 or image.shape[2] != 4:
        raise DataError(f"{path}: its transparent colour cannot be read: save it without")
    return np.ascontiguousarray(image[..., [2, 1, 0, 3]])


def _select_bands(path: str | Path, data: bytes, bands: Sequence[int]) -> np.ndarray:
    """Three bands (H, W, 3) of any type, as stored; a single one is repeated."""
    if data[:2] in _TIFF_STARTS:
        library = require("tifffile", f"{path}: data.bands", extra="bands")
        with _decoding(path, "a TIFF file"), library.TiffFile(io.BytesIO(data)) as file:
            pixels = file.pages[0].asarray(maxworkers=1)
            if file.pages[0].axes.startswith("S"):
                pixels = np.moveaxis(pixels, 0, -1)
    else:
        pixels = _decode(path, data, cv2.IMREAD_UNCHANGED | cv2.IMREAD_IGNORE_ORIENTATION)
        if pixels.ndim == 3:
            pixels = pixels[..., [2, 1, 0, 3][: pixels.shape[2]]]
    pixels = np.atleast_3d(pixels)
    if max(bands) >= pixels.shape[2]:
        raise DataError(f"{path}: holds {pixels.shape[2]} bands, from 0, not data.bands={[*bands]}")
    return np.ascontiguousarray(pixels[..., [*bands] * (3 // len(bands))])


def _undecodable(path: str | Path) -> DataError:
    remedy = COPY_AGAIN
    if Path(path).suffix.lower() not in (*IMAGE_SUFFIXES, *LABEL_SUFFIXES, *DEPTH_SUFFIXES):
        remedy = f"convert it to one of {', '.join(IMAGE_SUFFIXES)}"
    return DataError(f"{path}: not a picture that can be decoded, or damaged: {remedy}")


def _check_end(path: str | Path, data: bytes) -> None:
    """DataError if a picture has no end mark."""
    if data.startswith(_JPEG_START):
        # search after the last scan: an embedded thumbnail has an end mark of its own
        is_whole = data.endswith(_JPEG_END) or _JPEG_END in data[max(data.rfind(_JPEG_SCAN), 0) :]
    else:
        is_whole = not data.startswith(_PNG_START) or data.endswith(_PNG_END) or _PNG_END in data
    if not is_whole:
        raise DataError(
            f"{path}: the file is truncated ({len(data)} bytes, no end mark): {COPY_AGAIN}"
        )


def read_picture(path: str | Path, page: int | None = None) -> np.ndarray:
    """A PNG, TIFF, PGM, ... picture as stored: any number of bits, channels in BGR(A) order.

    Logarithms in PNG files of MoGe become depth: 0 where unknown, infinity beyond its range.
    """
    data = _one_page(path, read_bytes(path), page)
    if is_pnm(data):
        with _decoding(path, "a picture"):
            return read_pnm(data)[0]
    raw = _decode(path, data, cv2.IMREAD_UNCHANGED)
    if raw.dtype != np.uint16 or not re.search(rb"(tEXt|zTXt|iTXt)near\0", data[:4096]):
        return raw
    with _decoding(path, "logarithmic depth"):
        texts = Image.open(io.BytesIO(data), formats=("PNG",)).info
        near, far, unit = (float(texts.get(name, 1)) for name in ("near", "far", "unit"))
        if not 0 < near < far < np.inf or not 0 < unit < np.inf:
            raise ValueError(f"near={near}, far={far}")
        steps = (raw.astype(np.float32) - 1) / (2**16 - 3)
        depth = unit * np.exp(math.log(near) + steps * math.log(far / near))
    return np.select([raw == 0, raw == 2**16 - 1], [0, np.inf], depth).astype(np.float32)


def _read_label_picture(path: str | Path, page: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids (H, W) of a grey or palette picture, or RGB (H, W, 3), and alpha (H, W) if it has it."""
    data = _one_page(path, read_bytes(path), page)
    _check_lossless(path, data)
    if is_pnm(data):
        with _decoding(path, "a picture"):
            return read_pnm(data)[0], None
    _check_bands(path, data)
    bits = data[24] if data.startswith(_PNG_START) else 8
    try:
        picture = Image.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF", "WEBP"))
        mode, clear = picture.mode, picture.info.get("transparency")
    except Exception:  # of many kinds; OpenCV opens more kinds of TIFF
        mode, clear = "", None
    if bits <= 8 and mode in (
        "1",
        "P",
        "LA",
        "PA",
        "RGBA",
        "RGBX",
    ):  # of which OpenCV makes colours
        with _decoding(path, "a picture"):
            labels = _as_stored(data, np.asarray(picture))
    else:
        labels = _decode(path, data, cv2.IMREAD_UNCHANGED)
        if bits < 8:  # OpenCV stretches 2 and 4 bits to 0..255
            labels = labels // np.uint8(255 // (2**bits - 1))
        if labels.ndim == 3 and labels.shape[2] >= 3:
            labels = labels[..., [2, 1, 0, 3][: labels.shape[2]]]
    if bits == 16 and data[25] == 4:  # grey and alpha
        return labels[..., 0], labels[..., 3]
    if mode in ("LA", "PA"):
        return labels[..., 0], labels[..., 1]
    if labels.ndim == 3 and labels.shape[2] == 4:
        return labels[..., :3], labels[..., 3]
    if isinstance(clear, bytes):  # the alpha of each index of the palette
        table = np.full(256, 255, np.uint8)
        table[: len(clear)] = np.frombuffer(clear, np.uint8)
        return labels, table[labels]
    if clear is not None:
        return labels, np.where(labels == clear, np.uint8(0), np.uint8(255))
    return labels, None


def _check_lossless(path: str | Path, data: bytes) -> None:
    """DataError if a picture is compressed so that ids change."""
    kind = ""
    if data.startswith(_JPEG_START):
        kind = "JPEG"
    elif data[8:12] == b"WEBP" and b"VP8 " in data[12:]:
        kind = "lossy WebP"
    elif (code := _tags(data).get(COMPRESSION, 1)) not in _LOSSLESS:
        kind = "JPEG" if code in (6, 7) else f"TIFF's method {code}"
    if kind:
        raise DataError(f"{path}: {kind} compression changes class ids: save label files as PNG")


def read_pfm(path: str | Path, key: str | None = None) -> np.ndarray:
    """Portable float map: a header split on white space, then rows from bottom to top."""
    data = read_bytes(path)
    header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(\S+?)(?:[ \t\r]*\n|\s)", data)
    if header is None:
        raise DataError(f"{path}: not a PFM file (Pf, width, height, scale): {COPY_AGAIN}")
    kind, width, height, scale = header.groups()
    with _decoding(path, "a PFM file"):
        dtype = "<f4" if float(scale) < 0 else ">f4"
        pixels = np.frombuffer(data, dtype, offset=header.end())
        rows = pixels.reshape(int(height), int(width), 3 if kind == b"PF" else 1)
        return rows[::-1].astype(np.float32)


# -------------------------------------------------------------------------------- named arrays


def read_numpy(
    path: str | Path, key: str | None = None, *, data: bytes | None = None
) -> np.ndarray:
    """A ``.npy`` file, or an array of a ``.npz`` file: the only map, unless ``key`` names one."""
    with _decoding(path, "a NumPy file"):
        content = io.BytesIO(data or read_bytes(path))
        if not zipfile.is_zipfile(content):
            content.seek(0)
            _check_numpy_header(path, content)
            content.seek(0)
            return np.asarray(np.load(content, allow_pickle=False))
        shapes: dict[str, Sequence[int]] = {}
        with zipfile.ZipFile(content) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    name = member.filename.removesuffix(".npy")
                    shapes[name] = _check_numpy_header(path, file)
        content.seek(0)
        name = _choose(path, shapes, key)
        return np.asarray(np.load(content, allow_pickle=False)[name])


def _check_numpy_header(path: str | Path, file: Any) -> Sequence[int]:
    """The shape of an array in NumPy's format; DataError if it is too large."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = readers[np.lib.format.read_magic(file)](file)
    _check_array(path, shape, dtype)
    return tuple(shape)


def read_exr(path: str | Path, key: str | None = None) -> np.ndarray:
    """A channel of an OpenEXR file: ``key``; by default Z, or any one if all are equal."""
    library = require("OpenEXR", f"{path}: reading it", extra="exr")
    with open_file(path), _decoding(path, "an EXR file"):
        count = expected = 0
        for part in library.File(str(path), header_only=True).parts:
            first, last = part.header["dataWindow"]
            expected += len(part.header["channels"])
            count += math.prod((last - first + 1).tolist()) * len(part.header["channels"])
            _check_array(path, (count,), np.float32)
        channels: dict[str, np.ndarray] = {}
        with library.File(str(path), separate_channels=True) as file:
            for part in file.parts:
                start = f"{part.name()}." if len(file.parts) > 1 else ""
                channels |= {start + name: c.pixels for name, c in part.channels.items()}
            if len(channels) < expected:  # of damaged files the library only prints a warning
                raise ValueError("pixels are missing")
    names = [name for name in channels if name.rpartition(".")[2] == "Z"] or list(channels)
    if key is None and len({channels[name].tobytes() for name in names}) == 1:  # grey RGB
        return channels[names[0]]
    return channels[_choose(path, {name: channels[name].shape for name in channels}, key)]


def read_hdf5(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A data set of an HDF5 file, or its entry ``index`` along the first axis.

    An entry that is a reference (MATLAB stores fields of structs so) is followed. Data stored in
    other files is refused.
    """
    h5py = require("h5py", f"{path}: reading it", extra="datasets")
    # with an open file instead of a path, external links resolve inside it, and nothing is locked
    with open_file(path) as raw, _decoding(path, "an HDF5 file"), h5py.File(raw, "r") as file:
        if key is None or key not in file:
            shapes: dict[str, Sequence[int]] = {}

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.ndim >= 2 and item.dtype.kind in "uif":
                    shapes[name] = item.shape

            file.visititems(visit)
            key = _choose(path, shapes, key)
        found = file[key]
        if h5py.check_ref_dtype(found.dtype) is not None and index is not None:
            found, index = file[found[index].item()], None
        if found.external or found.is_virtual:
            raise DataError(f"{path}: {key} is stored in other files: copy it into this one")
        for shape in (found.shape if index is None else found.shape[1:], found.chunks or ()):
            _check_array(path, shape, found.dtype)
        return np.asarray(found[()] if index is None else found[index])


def read_mat(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A variable of a MATLAB file as MATLAB shows it, or its entry ``index`` along the last axis.

    Version 7.3 is HDF5 with the axes reversed, and only the entry is read; SciPy reads older
    versions, whole.
    """
    with open_file(path) as file:
        start = file.read(520)
    if _HDF5_START in (start[:8], start[512:]):  # MATLAB puts 512 bytes of text first
        return read_hdf5(path, key, index=index).T
    import scipy.io  # slow to import

    with _decoding(path, "a MATLAB file"):
        data = read_bytes(path)
        check_mat(data)
        content = io.BytesIO(data)
        shapes = {
            name: shape
            for name, shape, kind in scipy.io.whosmat(content)
            if name == key or kind.startswith(("double", "single", "logical", "int", "uint"))
        }
        key = _choose(path, shapes, key)
        _check_array(path, shapes[key], np.float64)
        found = np.asarray(scipy.io.loadmat(content, variable_names=[key])[key])
    return found if index is None else found[..., index]


def _choose(path: str | Path, shapes: Mapping[str, Sequence[int]], key: str | None) -> str:
    """``key``, or the name of the only map among arrays; DataError if there are several."""
    if key is not None and key not in shapes:
        found = few([*shapes], 8) or "no array"
        raise DataError(f"{path}: holds no {key}, but {found}: check its name")
    if key is not None:
        return key
    maps = [name for name, shape in shapes.items() if len([n for n in shape if n > 1]) > 1]
    names = maps or [*shapes]  # not single numbers and lists beside a map
    if len(names) != 1:
        found = f"several arrays ({few(names, 8)})" if names else "no array of numbers"
        remedy = "set data.array_key to its name, or data.depth_key for depth alone"
        raise DataError(f"{path}: holds {found}: {remedy}")
    return names[0]


_READERS: dict[str, Any] = {
    ".npy": read_numpy,
    ".npz": read_numpy,
    ".exr": read_exr,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".mat": read_mat,
    ".pfm": read_pfm,
}
"""By suffix; all other files are pictures, whose format OpenCV finds by their first bytes."""
