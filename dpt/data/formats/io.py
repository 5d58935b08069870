"""Reads data files: pictures, depth, labels, lists. No other module of the package decodes them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from dpt.data.errors import DataError, few
from dpt.data.formats import decoders
from dpt.data.formats.decoders import exif_orientation, read_bytes, read_mat, read_size
from dpt.data.formats.depth_encoding import DepthRule

__all__ = ["DEPTH_SUFFIXES", "IMAGE_SUFFIXES", "LABEL_SUFFIXES", "decode_image", "decode_map",
           "exif_orientation", "read_bytes", "read_depth", "read_image", "read_labels",
           "read_mat", "read_raw_depth", "read_size", "read_text"]  # fmt: skip

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".npy", ".npz", ".h5", ".hdf5",
                  ".mat")  # fmt: skip
DEPTH_SUFFIXES = (*LABEL_SUFFIXES, ".pgm", ".pfm", ".exr")

_READERS: dict[str, Any] = {
    ".npy": decoders.read_numpy,
    ".npz": decoders.read_numpy,
    ".exr": decoders.read_exr,
    ".h5": decoders.read_hdf5,
    ".hdf5": decoders.read_hdf5,
    ".mat": decoders.read_mat,
    ".pfm": decoders.read_pfm,
}
"""By suffix; all others are pictures, whose format OpenCV finds by their first bytes."""


def read_image(path: str | Path, *, exif: bool = False) -> np.ndarray:
    """A photo as uint8 (H, W, 3) RGB; grey becomes RGB, alpha is dropped.

    Args:
        path: JPEG, PNG, WebP, BMP, TIFF or PPM; or ``.npy`` of (H, W, 3), uint8 or floats in 0..1.
        exif: turn the picture upright by its EXIF orientation. Off for data sets, whose label
            files have no such tag and match the stored pixels; on for a user's own photo.
    """
    if Path(path).suffix.lower() != ".npy":
        return decode_image(read_bytes(path), source=path, exif=exif)
    pixels = decoders.read_numpy(path)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise DataError(f"{path}: a photo must be (H, W, 3), found {pixels.shape}")
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind != "f" or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError(f"{path}: pixels are {pixels.dtype}: save uint8, or floats in 0..1")
    return np.rint(pixels * 255).astype(np.uint8)


def decode_image(data: bytes, *, source: str | Path, exif: bool = False) -> np.ndarray:
    """:func:`read_image` from the bytes of the file; ``source`` is for messages."""
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH
    if not exif:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    image = decoders.decode_picture(source, data, flags)
    if image.dtype == np.uint16:
        if (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all():
            raise DataError(
                f"{source}: a 16-bit single-channel file looks like depth, not like a photo: check "
                "data.images, or save it as 8-bit"
            )
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise DataError(f"{source}: pixels are {image.dtype}, not 8-bit: save photos as 8-bit RGB")
    return image


def decode_map(data: bytes, *, source: str | Path) -> np.ndarray:
    """The numbers (H, W) of a PNG or ``.npz`` file as stored; ``source`` is for messages."""
    if data.startswith(b"PK"):  # a ZIP archive, which .npz files are
        return decoders.decode_numpy(data, source=source)
    return decoders.decode_picture(source, data, cv2.IMREAD_UNCHANGED)


def read_depth(
    path: str | Path, *, key: str | None = None, scale: float = 1.0, **rule: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Depth in metres and its validity.

    Args:
        path, key: see :func:`read_raw_depth`.
        scale: metres = value in the file × scale; 0.001 for millimetres.
        **rule: ``invalid``, ``min_depth``, ``max_depth``, ``encoding``, see :class:`DepthRule`.

    Returns:
        depth, float32 (H, W), 0 where invalid; valid, bool (H, W). NaN, infinity and values not
        above zero are always invalid.
    """
    return DepthRule(scale=scale, **rule)(read_raw_depth(path, key=key))


def read_raw_depth(path: str | Path, *, key: str | None = None) -> np.ndarray:
    """The numbers of a depth file as they are stored, (H, W).

    Args:
        path: PNG, TIFF or PGM of any number of bits, ``.pfm``, ``.npy``, ``.npz``, ``.exr``,
            ``.h5`` or ``.hdf5``, ``.mat``.
        key: name of the array in files that hold several: an EXR channel, an HDF5 data set, a
            variable of a ``.mat`` or ``.npz`` file. None: the only one; of ``.npz`` the first.
    """
    raw = _READERS.get(Path(path).suffix.lower(), decoders.read_picture)(path, key)
    if raw.ndim == 3 and raw.shape[2] == 1:
        raw = raw[..., 0]
    if raw.ndim == 3 and raw.shape[2] in (3, 4):
        raise DataError(f"{path}: this is a colour picture, not depth: check data.depth")
    if raw.ndim != 2 or raw.dtype.kind not in "uif":
        raise DataError(f"{path}: depth must be numbers of (H, W), found {raw.dtype} {raw.shape}")
    return raw


def read_labels(path: str | Path, *, colors: Sequence[Sequence[int]] | None = None) -> np.ndarray:
    """Class ids, an integer array (H, W) of the file's own type.

    Args:
        path: PNG (also with a palette, whose indices are the ids), TIFF, BMP, ``.npy``, ``.npz``
            (its first array), HDF5 or ``.mat`` (the only one).
        colors: an RGB row for each id, for RGB files. A colour for "unlabelled" goes after the
            last class; its row number is the ignore index.
    """
    labels = _READERS.get(Path(path).suffix.lower(), decoders.read_label_picture)(path, None)
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


def read_table(
    path: str | Path, columns: Sequence[str], *, remedy: str
) -> Iterator[tuple[str, list[str]]]:
    """The ``columns`` of each row of a CSV file with a header line.

    Yields:
        The row's place for messages, ``FILE: line N``, and its texts; "" where it is too short.
    """
    rows = csv.DictReader(read_text(path).splitlines(), skipinitialspace=True)
    header = rows.fieldnames = [name.strip() for name in rows.fieldnames or ()]
    if absent := [name for name in columns if name not in header]:
        found = few(header, 6) or "none"
        raise DataError(f"{path}: no column {', '.join(absent)} (it has {found}): {remedy}")
    for row in rows:
        yield f"{path}: line {rows.line_num}", [(row[name] or "").strip() for name in columns]


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
    ids = order[np.searchsorted(codes, packed, sorter=order).clip(max=len(codes) - 1)]
    unknown = codes[ids] != packed
    if unknown.any():
        raise DataError(
            f"{path}: colour {rgb[unknown][0].tolist()} ({int(unknown.sum())} pixels not in the "
            "table) has no class: add it to data.label_colors; if it means unlabelled, add it "
            "after the last class and set data.ignore_index to its row number"
        )
    return ids.astype(np.uint8 if len(codes) <= 256 else np.uint16)
