"""Decoders of picture files. Data sets read through ``dpt.data.formats.io``.

OpenCV's defaults are traps: 16-bit depth loses its low byte, palette masks come back as colours,
missing files as None, truncated files as half a picture in some versions.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from dpt.data.errors import DataError, missing_path

# Every failure is raised with the file's name; OpenCV's own lines would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

AGAIN = "copy or download it again"
JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_HEADER_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM")
"""Pillow's names; it knows many more formats, some of which start other programs."""


def read_bytes(path: str | Path) -> bytes:
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        if not path.is_file():
            raise missing_path(path, what="file", remedy="check the path") from None
        raise DataError(f"{path}: cannot be read ({error.strerror}): check its rights") from None
    if not data:
        raise DataError(f"{path}: the file is empty: {AGAIN}")
    return data


def exif_orientation(path: str | Path) -> int:
    """How a photo says it must be turned, 1 (upright, or no such tag) to 8; no pixel is decoded."""
    try:
        with Image.open(path) as picture:
            return int(picture.getexif().get(0x0112, 1))
    except (OSError, SyntaxError, ValueError, TypeError):
        return 1


def read_size(path: str | Path) -> tuple[int, int]:
    """(H, W) of a photo as it is stored, from its header: no pixel is decoded."""
    path = Path(path)
    if not path.is_file():
        raise missing_path(path, what="file", remedy="check the path")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_HEADER_FORMATS) as picture:
                width, height = picture.size
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{path}: more than {most} pixels: shrink it") from None
    except (OSError, SyntaxError, ValueError) as error:
        reason = str(error).replace(repr(str(path)), "the file")
        raise DataError(f"{path}: not a picture that can be read ({reason}): {AGAIN}") from None
    return height, width


def decode_picture(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """Pixels by OpenCV, as ``flags`` say, once the file is known to be whole."""
    if data.startswith(JPEG_START):
        # The mark is sought after the last scan: an embedded thumbnail has one of its own.
        scan = 0 if data.endswith(_JPEG_END) else data.rfind(_JPEG_SCAN)
        whole = data.find(_JPEG_END, max(scan, 0)) >= 0
    elif data.startswith(_PNG_START):
        whole = data.endswith(_PNG_END) or data.rfind(_PNG_END) >= 0
    else:
        whole = True
    if not whole:
        raise DataError(f"{path}: the file is truncated ({len(data)} bytes, no end mark): {AGAIN}")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"{path}: cannot be decoded ({error.err}): {AGAIN}") from None
    if image is None:
        raise DataError(f"{path}: not a picture that can be decoded, or damaged: {AGAIN}")
    return image


def read_picture(path: str | Path) -> np.ndarray:
    """A picture as it is stored: PNG, TIFF, PGM, ... of any number of bits."""
    return decode_picture(path, read_bytes(path), cv2.IMREAD_UNCHANGED)


def read_label_picture(path: str | Path) -> np.ndarray:
    """Ids (H, W) of a grey or palette picture, or RGB (H, W, 3 or 4)."""
    data = read_bytes(path)
    if data.startswith(JPEG_START):
        raise DataError(f"{path}: JPEG compression changes class ids: save label files as PNG")
    has_header = data.startswith(_PNG_START) and len(data) > 25
    bits, color_type = (data[24], data[25]) if has_header else (8, 0)
    if color_type == 3:
        if _PNG_END not in data:
            raise DataError(f"{path}: the file is truncated ({len(data)} bytes): {AGAIN}")
        try:
            return np.asarray(Image.open(io.BytesIO(data)))
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path}: cannot be decoded ({error}): {AGAIN}") from None
    labels = decode_picture(path, data, cv2.IMREAD_UNCHANGED)
    if bits < 8:  # OpenCV stretches 1, 2 and 4 bits to 0..255
        labels = labels // np.uint8(255 // (2**bits - 1))
    if labels.ndim == 3 and labels.shape[2] >= 3:
        labels = labels[..., 2::-1]  # BGR(A) to RGB
    return labels


def read_pfm(path: str | Path) -> np.ndarray:
    """Portable float map: a header split on white space, then rows from bottom to top."""
    data = read_bytes(path)
    header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(\S+?)(?:[ \t\r]*\n|\s)", data)
    try:
        if header is None:
            raise ValueError
        kind, width, height, scale = header.groups()
        channels = 3 if kind == b"PF" else 1
        shape = (int(height), int(width), channels)
        dtype = np.dtype("<f4" if float(scale) < 0 else ">f4")
    except ValueError:
        raise DataError(
            f"{path}: not a PFM file (must begin with Pf, width, height, scale): {AGAIN}"
        ) from None
    body = data[header.end() :]
    size = int(np.prod(shape)) * 4
    if len(body) < size:
        raise DataError(f"{path}: truncated, {len(body)} of {size} bytes of pixels: {AGAIN}")
    if body[size:].strip():
        raise DataError(f"{path}: {len(body) - size} bytes too many for its size: {AGAIN}")
    pixels = np.frombuffer(body, dtype, count=int(np.prod(shape))).reshape(shape)
    return np.ascontiguousarray(pixels[::-1]).astype(np.float32)
