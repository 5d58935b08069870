"""The only door to data files: pictures, depth, labels, lists.

Behind it lie ``decode_pictures`` and ``decode_arrays``; nothing else in the package decodes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from dpt.data.errors import DataError
from dpt.data.formats.decode_arrays import decode_numpy, read_exr, read_hdf5, read_mat, read_numpy
from dpt.data.formats.decode_pictures import (
    decode_picture,
    read_label_picture,
    read_pfm,
    read_picture,
)
from dpt.data.formats.decode_pictures import exif_orientation as exif_orientation
from dpt.data.formats.decode_pictures import read_bytes as read_bytes
from dpt.data.formats.decode_pictures import read_size as read_size
from dpt.data.formats.depth_encoding import DepthEncoding, DepthRule

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".npy", ".npz", ".h5", ".hdf5",
                  ".mat")  # fmt: skip
DEPTH_SUFFIXES = (*LABEL_SUFFIXES, ".pgm", ".pfm", ".exr")

_ZIP_START = b"PK"
_ARRAY_READERS = {
    ".npy": read_numpy,
    ".npz": read_numpy,
    ".exr": read_exr,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".mat": read_mat,
}


def read_image(path: str | Path, *, exif: bool = False) -> np.ndarray:
    """A photo as uint8 (H, W, 3) RGB; grey becomes RGB, alpha is dropped.

    Args:
        path: JPEG, PNG, WebP, BMP, TIFF or PPM; or ``.npy`` of (H, W, 3), uint8 or floats in 0..1.
        exif: turn the picture upright by its EXIF orientation. Off for data sets, whose label
            files carry no such tag and match the stored pixels; on for a user's own photo.
    """
    if Path(path).suffix.lower() == ".npy":
        return _image_of_array(path, read_numpy(path))
    return decode_image(read_bytes(path), source=path, exif=exif)


def decode_image(data: bytes, *, source: str | Path, exif: bool = False) -> np.ndarray:
    """A photo as :func:`read_image` gives it, from the bytes of its file.

    Args:
        data: the whole file.
        source: where it came from, for messages.
        exif: see :func:`read_image`.
    """
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
    if not exif:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    image = decode_picture(source, data, flags)
    if image.dtype == np.uint16:
        if (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all():
            raise DataError(
                f"{source}: a 16-bit single-channel file, not a photo: it looks like depth; "
                "check data.images, or save it as 8-bit"
            )
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise DataError(f"{source}: pixels are {image.dtype}, not 8-bit: save photos as 8-bit RGB")
    return image


def decode_map(data: bytes, *, source: str | Path) -> np.ndarray:
    """The numbers (H, W) of a PNG or an ``.npz`` file, as they are stored.

    Args:
        data: the whole file.
        source: where it came from, for messages.
    """
    if data.startswith(_ZIP_START):
        return decode_numpy(data, source=source)
    return decode_picture(source, data, cv2.IMREAD_UNCHANGED)


def read_depth(
    path: str | Path,
    *,
    scale: float = 1.0,
    invalid: Sequence[float] = (0,),
    min_depth: float = 0.0,
    max_depth: float | None = None,
    encoding: DepthEncoding = "linear",
    key: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Depth in metres and where it was measured.

    Args:
        path: see ``read_raw_depth``.
        scale: metres = value in the file × scale; 0.001 for millimetres.
        invalid: values in the file, before scaling, that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; None for no limit.
        encoding: what the numbers are, where they do not grow with depth; see ``DepthRule``.
        key: name of the array in files that hold several.

    Returns:
        depth, float32 (H, W), 0 where invalid; valid, bool (H, W). NaN, infinity and anything not
        above zero are always invalid.
    """
    rule = DepthRule(
        encoding=encoding,
        scale=scale,
        invalid=tuple(invalid),
        min_depth=min_depth,
        max_depth=max_depth,
    )
    return rule(read_raw_depth(path, key=key))


def read_raw_depth(path: str | Path, *, key: str | None = None) -> np.ndarray:
    """The numbers of a depth file as they are stored, (H, W).

    Args:
        path: PNG, TIFF or PGM of any number of bits, ``.pfm``, ``.npy``, ``.npz``, ``.exr``,
            ``.h5`` or ``.hdf5``, ``.mat``.
        key: name of the array in files that hold several: an EXR channel, an HDF5 data set, a
            variable of a ``.mat`` or ``.npz`` file. None: the only one; of ``.npz`` the first.
    """
    suffix = Path(path).suffix.lower()
    if suffix in _ARRAY_READERS:
        raw = _ARRAY_READERS[suffix](path, key)
    elif suffix == ".pfm":
        raw = read_pfm(path)
    else:  # pictures are told apart by their first bytes
        raw = read_picture(path)
    if raw.ndim == 3 and raw.shape[2] == 1:
        raw = raw[..., 0]
    if raw.ndim == 3 and raw.shape[2] in (3, 4):
        raise DataError(
            f"{path}: this is a colour picture ({raw.shape[2]} channels), not depth: depth files "
            "have one channel; check data.depth"
        )
    if raw.ndim != 2 or raw.dtype.kind not in "uif":
        raise DataError(f"{path}: depth must be numbers of (H, W), found {raw.dtype} {raw.shape}")
    return raw


def read_labels(path: str | Path, *, colors: Sequence[Sequence[int]] | None = None) -> np.ndarray:
    """Class ids, an integer array (H, W) of the file's own type.

    Single-channel files and palette PNGs hold the ids themselves (a palette's colours are only
    for show).

    Args:
        path: PNG, TIFF, BMP, ``.npy``, ``.npz`` (its first array), HDF5 or ``.mat`` (the only one).
        colors: an RGB row for each id; needed for RGB files, unused for others. A colour for
            "unlabelled" goes after the last class, its row number being the ignore index.
    """
    reader = _ARRAY_READERS.get(Path(path).suffix.lower())
    labels = read_label_picture(path) if reader is None else reader(path, None)
    if labels.dtype == bool:
        labels = labels.astype(np.uint8)
    if labels.ndim == 3 and labels.shape[2] == 1:
        labels = labels[..., 0]
    if labels.ndim == 3 and labels.shape[2] in (3, 4) and labels.dtype == np.uint8:
        return _ids_of_colors(path, labels[..., :3], colors)
    if labels.ndim != 2 or labels.dtype.kind not in "ui":
        raise DataError(
            f"{path}: found {labels.dtype} {labels.shape}: label files hold one whole-number "
            "class id per pixel; save them as single-channel PNG"
        )
    return labels


def read_text(path: str | Path) -> str:
    """A UTF-8 text file: a list of names or a table."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file in UTF-8: save it as UTF-8") from None


def read_array(path: str | Path, key: str, *, index: int | None = None) -> np.ndarray:
    """An array of a ``.mat`` file as MATLAB shows it, or its entry ``index`` along the last axis.

    Only the entry is read from a file of version 7.3, however large it is.
    """
    return read_mat(path, key, index=index)


def _image_of_array(path: str | Path, pixels: np.ndarray) -> np.ndarray:
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(f"{path}: a photo must be (H, W, 3), found {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f" or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError(f"{path}: pixels are {pixels.dtype}: save uint8, or floats in 0..1")
    return np.rint(pixels * 255).astype(np.uint8)


def _ids_of_colors(
    path: str | Path, rgb: np.ndarray, colors: Sequence[Sequence[int]] | None
) -> np.ndarray:
    if not colors:
        raise DataError(
            f"{path}: an RGB picture: label files hold one class id per pixel; "
            "set data.label_colors=[[r,g,b],...], one row for each id, or save ids"
        )
    weights = np.array([65536, 256, 1], np.int32)
    codes = np.asarray(colors, np.int32) @ weights
    packed = rgb.astype(np.int32) @ weights
    order = np.argsort(codes)
    place = np.searchsorted(codes, packed, sorter=order).clip(max=len(codes) - 1)
    ids = order[place]
    unknown = codes[ids] != packed
    if unknown.any():
        color = rgb[unknown][0].tolist()
        raise DataError(
            f"{path}: colour {color} ({int(unknown.sum())} pixels not in the table) has no class: "
            "add it to data.label_colors; if it means unlabelled, add it after the last class and "
            "set data.ignore_index to its row number"
        )
    return ids.astype(np.uint8 if len(codes) <= 256 else np.uint16)
