"""One decoder for each file format; other modules read through ``dpt.data.formats.io``.

OpenCV's defaults would lose the low byte of 16-bit depth, turn palette masks into colours, return
None for missing files and, in some versions, half a picture for truncated ones.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from dpt.data.errors import DataError, few, missing_path, require

# Every failure is raised with the file's name; OpenCV's own lines would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

AGAIN = "copy or download it again"
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_HDF5_START = b"\x89HDF\r\n\x1a\n"
_HEADER_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM")
"""Pillow's names; some of its other formats start external programs."""


def check_file(path: str | Path) -> None:
    if not Path(path).is_file():
        raise missing_path(Path(path), what="file", remedy="check the path")
    if Path(path).stat().st_size == 0:
        raise DataError(f"{path}: the file is empty: {AGAIN}")


def read_bytes(path: str | Path) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        check_file(path)
        raise DataError(f"{path}: cannot be read ({error.strerror}): check permissions") from None
    if not data:
        check_file(path)
    return data


@contextmanager
def _decoding(path: str | Path, kind: str) -> Iterator[None]:
    """Damaged files raise OSError, ValueError, KeyError, zlib.error, ... by library and place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        text = str(error).replace(repr(str(path)), "the file")
        raise DataError(f"{path}: cannot be read as {kind} ({text}): {AGAIN}") from None


# ------------------------------------------------------------------------------------ pictures


def exif_orientation(path: str | Path) -> int:
    """EXIF orientation, 1 (upright, or no such tag) to 8, without decoding pixels."""
    try:
        with Image.open(path) as picture:
            return int(picture.getexif().get(0x0112, 1))
    except (OSError, SyntaxError, ValueError, TypeError):
        return 1


def read_size(path: str | Path) -> tuple[int, int]:
    """(H, W) of a photo as it is stored, without decoding pixels."""
    check_file(path)
    with _decoding(path, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=_HEADER_FORMATS) as picture:
            return picture.height, picture.width


def decode_picture(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """Pixels by OpenCV with ``flags``, after a check that the file is complete."""
    if data.startswith(_JPEG_START):
        # search after the last scan: an embedded thumbnail has an end mark of its own
        scan = 0 if data.endswith(_JPEG_END) else data.rfind(_JPEG_SCAN)
        _require_end(path, data, _JPEG_END, max(scan, 0))
    elif data.startswith(_PNG_START):
        _require_end(path, data, _PNG_END)
    with _decoding(path, "a picture"):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise DataError(f"{path}: not a picture that can be decoded, or damaged: {AGAIN}")
    return image


def _require_end(path: str | Path, data: bytes, mark: bytes, start: int = 0) -> None:
    if not data.endswith(mark) and data.find(mark, start) < 0:
        raise DataError(f"{path}: the file is truncated ({len(data)} bytes, no end mark): {AGAIN}")


def read_picture(path: str | Path, key: None = None) -> np.ndarray:
    """A picture as it is stored: PNG, TIFF, PGM, ... of any number of bits."""
    return decode_picture(path, read_bytes(path), cv2.IMREAD_UNCHANGED)


def read_label_picture(path: str | Path, key: None = None) -> np.ndarray:
    """Ids (H, W) of a grey or palette picture, or RGB (H, W, 3)."""
    data = read_bytes(path)
    if data.startswith(_JPEG_START):
        raise DataError(f"{path}: JPEG compression changes class ids: save label files as PNG")
    has_header = data.startswith(_PNG_START) and len(data) > 25
    bits, color_type = (data[24], data[25]) if has_header else (8, 0)
    if color_type == 3:
        _require_end(path, data, _PNG_END)
        with _decoding(path, "a picture"):
            return np.asarray(Image.open(io.BytesIO(data)))
    labels = decode_picture(path, data, cv2.IMREAD_UNCHANGED)
    if bits < 8:  # OpenCV stretches 1, 2 and 4 bits to 0..255
        labels = labels // np.uint8(255 // (2**bits - 1))
    if labels.ndim == 3 and labels.shape[2] >= 3:
        labels = labels[..., 2::-1]  # BGR(A) to RGB
    return labels


def read_pfm(path: str | Path, key: None = None) -> np.ndarray:
    """Portable float map: a header split on white space, then rows from bottom to top."""
    data = read_bytes(path)
    header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(\S+?)(?:[ \t\r]*\n|\s)", data)
    if header is None:
        raise DataError(f"{path}: not a PFM file (Pf, width, height, scale): {AGAIN}")
    kind, width, height, scale = header.groups()
    with _decoding(path, "a PFM file"):
        dtype = np.dtype("<f4" if float(scale) < 0 else ">f4")
    shape = (int(height), int(width), 3 if kind == b"PF" else 1)
    body, size = data[header.end() :], int(np.prod(shape)) * 4
    if len(body) < size or body[size:].strip():
        raise DataError(f"{path}: {len(body)} bytes of pixels, must be {size}: {AGAIN}")
    pixels = np.frombuffer(body[:size], dtype).reshape(shape)
    return np.ascontiguousarray(pixels[::-1]).astype(np.float32)


# -------------------------------------------------------------------------------- named arrays
# ``key`` is the name of the array; without it the file must leave no choice.


def read_numpy(path: str | Path, key: str | None = None) -> np.ndarray:
    """A ``.npy`` file, or an array of a ``.npz`` file: the first, unless ``key`` names one."""
    return decode_numpy(read_bytes(path), source=path, key=key)


def decode_numpy(data: bytes, *, source: str | Path, key: str | None = None) -> np.ndarray:
    """:func:`read_numpy` from the bytes of the file; ``source`` is for messages."""
    with _decoding(source, "a NumPy file"):
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        return loaded[loaded.files[0] if key is None else _choose(source, loaded.files, key)]


def read_exr(path: str | Path, key: str | None = None) -> np.ndarray:
    """A channel of an OpenEXR file, half, float or uint.

    Without ``key``: the only channel, the only one called Z, or any of channels that are all equal
    (depth stored as grey RGB).
    """
    library = require("OpenEXR", f"{path}: reading it", extra="exr")
    check_file(path)
    with (
        _decoding(path, "an EXR file"),
        library.File(str(path), separate_channels=True) as file,
    ):
        channels = {name: c.pixels for name, c in file.channels().items()}
    if key is None and len(channels) > 1:
        called_z = [name for name in channels if name.rpartition(".")[2] == "Z"]
        if len(called_z) == 1:
            return channels[called_z[0]]
        first, *rest = channels.values()
        if all(first.tobytes() == other.tobytes() for other in rest):  # NaN included
            return first
    return channels[_choose(path, list(channels), key)]


def read_hdf5(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A data set of an HDF5 file, or its entry ``index`` along the first axis.

    An entry that is a reference, as MATLAB stores the fields of its structs, is followed.
    """
    h5py = require("h5py", f"{path}: reading it", extra="datasets")
    check_file(path)
    # without a lock: nothing is written, and network file systems often refuse it
    with _decoding(path, "an HDF5 file"), h5py.File(path, "r", locking=False) as file:
        if key is None or key not in file:
            names: list[str] = []

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.ndim >= 2 and item.dtype.kind in "uif":
                    names.append(name)

            file.visititems(visit)
            key = _choose(path, names, key)
        found = file[key]
        entry = found[()] if index is None else found[index]
        if h5py.check_ref_dtype(found.dtype) is not None and index is not None:
            return file[entry.item()][()]
        return entry


def read_mat(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A variable of a MATLAB file as MATLAB shows it, or its entry ``index`` along the last axis.

    Version 7.3 is HDF5, with the axes in reverse, of which only the entry is read; older versions
    are read by SciPy.
    """
    check_file(path)
    with open(path, "rb") as file:
        start = file.read(520)
    if _HDF5_START in (start[:8], start[512:]):  # MATLAB writes 512 bytes of text before it
        return read_hdf5(path, key, index=index).T
    import scipy.io  # slow to import

    with _decoding(path, "a MATLAB file"):
        variables = scipy.io.loadmat(io.BytesIO(read_bytes(path)))
    arrays = {k: v for k, v in variables.items() if isinstance(v, np.ndarray)}
    numbers = [k for k, v in arrays.items() if v.dtype.kind in "buif"]
    found = arrays[key if key in arrays else _choose(path, numbers, key)]
    return found if index is None else found[..., index]


def _choose(path: str | Path, names: Sequence[str], key: str | None) -> str:
    if key is not None and key not in names:
        found = few(names, 8) or "no array"
        raise DataError(f"{path}: holds no {key}, but {found}: check its name")
    if key is None and len(names) != 1:
        found = f"several arrays ({few(names, 8)})" if names else "no array of numbers"
        raise DataError(f"{path}: holds {found}: name the depth's with data.depth_key")
    return names[0] if key is None else key
