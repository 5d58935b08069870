"""Reads data files: pictures, depth, labels, tables. No other module decodes them."""

import csv
import io
import math
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import (
    EXTRASAMPLES,
    IMAGELENGTH,
    IMAGEWIDTH,
    ImageFileDirectory_v2,
)

from dpt.data.formats.depth_encoding import DepthRule
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
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".npy", ".npz", ".h5", ".hdf5",
                  ".mat")  # fmt: skip
DEPTH_SUFFIXES = (*LABEL_SUFFIXES, ".pgm", ".pfm", ".exr")

MAX_COLORS = 1 << 16
"""Largest number of colours of a label file whose colours stand for classes."""
MAX_RED_ID = 63
"""Largest id in the red channel of an RGB label file; larger values are those of red colours."""
OTHER_COLOR = -1
"""The id of colours that are far from all in a table."""

# This module raises each failure with the file's name; OpenCV's log would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
warnings.filterwarnings("ignore", module="PIL")  # about large or damaged pictures

COPY_AGAIN = "copy or download it again"
_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_PACKED = np.array([65536, 256, 1], np.int32)  # from R, G and B to one number
_HDF5_START = b"\x89HDF\r\n\x1a\n"
_HEADER_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")
"""Pillow's names; some of its other formats start external programs."""
_TIFF_STARTS, _ORIENTATION = (b"II", b"MM"), 0x0112
_ALPHA = (2,)
"""Of EXTRASAMPLES: an alpha by which OpenCV multiplies colours of 8 bits; Pillow does not."""
_AS_STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda upright: np.rot90(upright, 2),
    4: np.flipud,
    5: lambda upright: upright.swapaxes(0, 1),
    6: np.rot90,
    7: lambda upright: np.rot90(upright, 2).swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
"""By orientation: the pixels as a TIFF stores them, which OpenCV turns upright in any case."""


def read_image(path: str | Path, *, exif: bool = False, data: bytes | None = None) -> np.ndarray:
    """A JPEG, PNG, WebP, BMP, TIFF or PPM file as uint8 (H, W, 3) RGB: no alpha, 16 bits cut to 8.

    Args:
        exif: turn the picture upright by its EXIF orientation. Off for data sets, whose label
            files have no such tag and match the stored pixels.
        data: the file's content, if known; ``path`` is then for messages only.
    """
    data = data or read_bytes(path)
    is_tiff = data[:2] in _TIFF_STARTS  # OpenCV confuses RGB with BGR in those of 16 bits
    flags = cv2.IMREAD_ANYDEPTH | (cv2.IMREAD_COLOR if is_tiff else cv2.IMREAD_COLOR_RGB)
    if not exif:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    image = decode_picture(path, data, flags)
    if is_tiff:
        image = np.ascontiguousarray(image[..., ::-1])
    if image.dtype == np.uint16:
        if (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all():
            raise DataError(
                f"{path}: a 16-bit single-channel file looks like depth, not like a photo: "
                f"{'' if exif else 'check data.images, or '}save it as 8-bit"
            )
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise DataError(f"{path}: pixels are {image.dtype}, not 8-bit: save photos as 8-bit RGB")
    return image


def read_depth(
    path: str | Path, *, key: str | None = None, scale: float = 1.0, **rule: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Depth, float32 (H, W) in metres, 0 where invalid, and its validity, bool (H, W).

    :func:`read_raw_depth` explains ``key``, :class:`DepthRule` ``scale`` and the other options.
    """
    return DepthRule(scale=scale, **rule)(read_raw_depth(path, key=key))


def read_raw_depth(path: str | Path, *, key: str | None = None) -> np.ndarray:
    """The numbers of a depth file as they are stored, (H, W).

    Args:
        path: PNG, TIFF or PGM of any number of bits, PFM, NPY, NPZ, EXR, HDF5 or MATLAB.
        key: name of the array in files that hold several: an EXR channel, an HDF5 data set, a
            variable of a ``.mat`` or ``.npz`` file. None: the only one; of ``.npz`` the first.
    """
    raw = _READERS.get(Path(path).suffix.lower(), read_picture)(path, key)
    if raw.ndim == 3 and raw.shape[2] == 1:
        raw = raw[..., 0]
    if raw.ndim == 3 and raw.shape[2] in (3, 4):
        raise DataError(f"{path}: this is a colour picture, not depth: check data.depth")
    if raw.ndim != 2 or raw.dtype.kind not in "uif":
        raise DataError(f"{path}: depth must be numbers of (H, W), found {raw.dtype} {raw.shape}")
    check_pixels(path, *raw.shape)
    return raw


def read_labels(
    path: str | Path,
    *,
    colors: Sequence[Sequence[int]] | None = None,
    distance: int | None = None,
) -> np.ndarray:
    """Class ids, an integer array (H, W) of the file's own type.

    Args:
        path: PNG (also with a palette, whose indices are the ids), TIFF, BMP, or arrays as in
            :func:`read_raw_depth`.
        colors: an RGB row for each id, for RGB files. A colour for "unlabelled" goes after the
            last class; its row number is the ignore index. None: the ids of an RGB file are in all
            three channels, or in R alone with 0 in the others.
        distance: a colour that ``colors`` lacks becomes the nearest row, if no channel differs by
            more than this; else ``OTHER_COLOR``. None: such a colour is an error.
    """
    labels = _read_stored_labels(path)
    return labels if labels.ndim == 2 else _ids_of_colors(path, labels, colors, distance)


def _read_stored_labels(path: str | Path) -> np.ndarray:
    """Integers (H, W), or colours uint8 (H, W, 3)."""
    labels: np.ndarray = _READERS.get(Path(path).suffix.lower(), read_label_picture)(path, None)
    if labels.dtype == bool:
        labels = labels.astype(np.uint8)
    if labels.ndim == 3 and labels.shape[2] == 1:
        labels = labels[..., 0]
    if labels.ndim == 3 and labels.shape[2] in (3, 4) and labels.dtype == np.uint8:
        return labels[..., :3]
    if labels.ndim != 2 or labels.dtype.kind not in "ui":
        raise DataError(
            f"{path}: found {labels.dtype} {labels.shape}: label files hold one whole-number "
            "class id per pixel; save them as single-channel PNG"
        )
    check_pixels(path, *labels.shape)
    return labels


def read_objects(path: str | Path) -> np.ndarray:
    """Object ids, int64 (H, W): a file of whole numbers, or R + 256 G + 65536 B of an RGB file."""
    stored = _read_stored_labels(path)
    if stored.ndim == 3:
        return stored.astype(np.int64) @ np.array([1, 256, 65536])
    return stored.astype(np.int64)


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
        rows = csv.DictReader(source, delimiter=separator, skipinitialspace=True)
        header = [name.strip() for name in rows.fieldnames or ()]
        known = {name.lower(): name for name in columns if name not in header}
        header = rows.fieldnames = [known.get(name.lower(), name) for name in header]
        if absent := [name for name in columns if name not in header]:
            found = few(header, 6) or "none"
            raise DataError(f"{path}: no column {', '.join(absent)} (it has {found}): {remedy}")
        for row in rows:
            yield f"{path}: line {rows.line_num}", [(row[name] or "").strip() for name in columns]


def label_values(
    path: str | Path, *, colors: Sequence[Sequence[int]] = ()
) -> dict[tuple[int, ...], int]:
    """Pixel counts by class id ``(i,)``, or by colour ``(r, g, b)`` (RGB file, no ``colors``)."""
    labels = read_labels(path, colors=colors) if colors else _read_stored_labels(path)
    if labels.ndim == 3:
        return _count_colors(path, labels)
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
        text = str(error).replace(repr(str(path)), "the file")
        raise DataError(f"{path}: cannot be read as {kind} ({text}): {COPY_AGAIN}") from None


# ------------------------------------------------------------------------------------ pictures


def exif_orientation(path: str | Path) -> int:
    """EXIF orientation, 1 (upright, or no such tag) to 8, without decoding pixels."""
    try:
        with open_file(path) as file:
            picture = Image.open(file, formats=(*_HEADER_FORMATS, "TIFF"))
            return int(picture.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged tags raise many kinds
        return 1


def _tiff_tags(file: BinaryIO) -> ImageFileDirectory_v2:
    """The tags of a TIFF file, also of those that Pillow does not open."""
    file.seek(0)
    start = file.read(16)
    tags = ImageFileDirectory_v2(start[: 16 if start[2] == 43 else 8])
    file.seek(tags.next)
    tags.load(file)
    return tags


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
            tags = _tiff_tags(file)
            height, width = int(tags[IMAGELENGTH]), int(tags[IMAGEWIDTH])
        else:
            with Image.open(file, formats=_HEADER_FORMATS) as picture:
                height, width = picture.height, picture.width
    except Image.DecompressionBombError:  # far above MAX_PIXELS: check_pixels raises
        height, width = MAX_PIXELS, 2
    except Exception:  # damaged files raise many kinds
        raise _undecodable(path) from None
    check_pixels(path, height, width)
    return height, width


def decode_picture(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """Pixels by OpenCV with ``flags``, after a check that the file is complete."""
    _check_picture(path, data)
    with _decoding(path, "a picture"):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise _undecodable(path)
    if data[:2] not in _TIFF_STARTS:
        return image
    tags = _tiff_tags(io.BytesIO(data))
    if image.dtype == np.uint8 and tags.get(EXTRASAMPLES) == _ALPHA and image.ndim == 3:
        with _decoding(path, "a picture"):
            upright = Image.open(io.BytesIO(data), formats=("TIFF",)).convert("RGBA")
            image = np.asarray(upright)[..., [2, 1, 0, 3][: image.shape[2]]]
    if flags & cv2.IMREAD_IGNORE_ORIENTATION:
        orientation = tags.get(_ORIENTATION, 1)
        image = np.ascontiguousarray(_AS_STORED.get(orientation, np.asarray)(image))
    return image


def _undecodable(path: str | Path) -> DataError:
    remedy = COPY_AGAIN
    if Path(path).suffix.lower() not in (*IMAGE_SUFFIXES, *DEPTH_SUFFIXES):
        remedy = f"convert it to one of {', '.join(IMAGE_SUFFIXES)}"
    return DataError(f"{path}: not a picture that can be decoded, or damaged: {remedy}")


def _check_picture(path: str | Path, data: bytes) -> None:
    """DataError if a picture has no end mark or too many pixels."""
    if data.startswith(_JPEG_START):
        # search after the last scan: an embedded thumbnail has an end mark of its own
        is_whole = data.endswith(_JPEG_END) or _JPEG_END in data[max(data.rfind(_JPEG_SCAN), 0) :]
    else:
        is_whole = not data.startswith(_PNG_START) or data.endswith(_PNG_END) or _PNG_END in data
    if not is_whole:
        raise DataError(
            f"{path}: the file is truncated ({len(data)} bytes, no end mark): {COPY_AGAIN}"
        )
    _stored_size(path, io.BytesIO(data))


def read_picture(path: str | Path, key: None = None) -> np.ndarray:
    """A PNG, TIFF, PGM, ... picture as stored: any number of bits, channels in BGR(A) order."""
    return decode_picture(path, read_bytes(path), cv2.IMREAD_UNCHANGED)


def read_label_picture(path: str | Path, key: None = None) -> np.ndarray:
    """Ids (H, W) of a grey or palette picture, or RGB (H, W, 3)."""
    data = read_bytes(path)
    if data.startswith(_JPEG_START):
        raise DataError(f"{path}: JPEG compression changes class ids: save label files as PNG")
    _check_picture(path, data)
    try:
        picture = Image.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF"))
    except Exception:  # of many kinds; OpenCV opens more kinds of TIFF
        picture = None
    if picture is not None and picture.mode in ("1", "P"):  # OpenCV makes colours of these
        with _decoding(path, "a picture"):
            turned = picture.getexif().get(_ORIENTATION, 1) if picture.format == "TIFF" else 1
            stored = _AS_STORED.get(turned, np.asarray)(np.asarray(picture))
            return np.ascontiguousarray(stored)
    bits = data[24] if data.startswith(_PNG_START) else 8
    labels = decode_picture(path, data, cv2.IMREAD_UNCHANGED)
    if bits < 8:  # OpenCV stretches 2 and 4 bits to 0..255
        labels = labels // np.uint8(255 // (2**bits - 1))
    if labels.ndim == 3 and labels.shape[2] >= 3:
        labels = labels[..., 2::-1]  # BGR(A) to RGB
    return labels


def read_pfm(path: str | Path, key: None = None) -> np.ndarray:
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
    """A ``.npy`` file, or an array of a ``.npz`` file: the first, unless ``key`` names one."""
    with _decoding(path, "a NumPy file"):
        loaded = np.load(io.BytesIO(data or read_bytes(path)), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        for member in loaded.zip.infolist():
            _check_array(path, (member.file_size,), np.uint8)
        name = loaded.files[0] if key is None else _choose(path, loaded.files, key)
        return np.asarray(loaded[name])  # np.load gives bytes for a member that is no array


def read_exr(path: str | Path, key: str | None = None) -> np.ndarray:
    """A channel of an OpenEXR file: ``key``; by default Z, or any one if all are equal."""
    library = require("OpenEXR", f"{path}: reading it", extra="exr")
    with open_file(path), _decoding(path, "an EXR file"):
        for part in library.File(str(path), header_only=True).parts:
            first, last = part.header["dataWindow"]
            size = (last - first + 1).tolist()
            _check_array(path, (*size, len(part.header["channels"])), np.float32)
        with library.File(str(path), separate_channels=True) as file:
            channels = {name: c.pixels for name, c in file.channels().items()}
    names = [name for name in channels if name.rpartition(".")[2] == "Z"] or list(channels)
    if key is None and len({channels[name].tobytes() for name in names}) == 1:  # grey RGB
        return channels[names[0]]
    return channels[_choose(path, list(channels), key)]


def read_hdf5(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A data set of an HDF5 file, or its entry ``index`` along the first axis.

    An entry that is a reference (MATLAB stores fields of structs so) is followed. Data stored in
    other files is refused.
    """
    h5py = require("h5py", f"{path}: reading it", extra="datasets")
    # with an open file instead of a path, external links resolve inside it, and nothing is locked
    with open_file(path) as raw, _decoding(path, "an HDF5 file"), h5py.File(raw, "r") as file:
        if key is None or key not in file:
            names: list[str] = []

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and item.ndim >= 2 and item.dtype.kind in "uif":
                    names.append(name)

            file.visititems(visit)
            key = _choose(path, names, key)
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
        content = io.BytesIO(read_bytes(path))
        shapes = {
            name: shape
            for name, shape, kind in scipy.io.whosmat(content)
            if name == key or kind.startswith(("double", "single", "logical", "int", "uint"))
        }
        key = _choose(path, list(shapes), key)
        _check_array(path, shapes[key], np.float64)
        found = np.asarray(scipy.io.loadmat(content, variable_names=[key])[key])
    return found if index is None else found[..., index]


def _choose(path: str | Path, names: Sequence[str], key: str | None) -> str:
    if key is not None and key not in names:
        found = few(names, 8) or "no array"
        raise DataError(f"{path}: holds no {key}, but {found}: check its name")
    if key is None and len(names) != 1:
        found = f"several arrays ({few(names, 8)})" if names else "no array of numbers"
        raise DataError(
            f"{path}: holds {found}: set data.depth_key for depth; labels need a file of one array"
        )
    return names[0] if key is None else key


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
