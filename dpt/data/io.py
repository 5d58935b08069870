"""The only file that reads data files: pictures, depth, labels, lists.

OpenCV's defaults are traps (16-bit depth loses its low byte, palette masks come back as colours,
missing files as None, truncated files as half a picture in some versions), so nothing else in the
package decodes a file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from dpt.data.base import DataError, missing_path
from dpt.data.metres import DepthEncoding, DepthRule

# Every failure is raised with the file's name; OpenCV's own lines would only repeat it.
cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".npy", ".npz", ".jpg", ".jpeg")
DEPTH_SUFFIXES = (".png", ".tif", ".tiff", ".npy", ".npz", ".pfm", ".jpg", ".jpeg")

_JPEG_START, _JPEG_SCAN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_AGAIN = "copy or download it again"


def read_image(path: str | Path, *, exif: bool = False) -> np.ndarray:
    """A photo as uint8 (H, W, 3) RGB; grey becomes RGB, alpha is dropped.

    Args:
        path: JPEG, PNG, WebP, BMP, TIFF or PPM.
        exif: turn the picture upright by its EXIF orientation. Off for data sets, whose label
            files carry no such tag and match the stored pixels; on for a user's own photo.
    """
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
    if not exif:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    image = _decode(path, _read_bytes(path), flags)
    if image.dtype == np.uint16:
        if (image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all():
            raise DataError(
                f"{path}: a 16-bit single-channel file, not a photo: it looks like depth; "
                "check data.images, or save it as 8-bit"
            )
        image = (image >> 8).astype(np.uint8)
    if image.dtype != np.uint8:
        raise DataError(f"{path}: pixels are {image.dtype}, not 8-bit: save photos as 8-bit RGB")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


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
        path: 16-bit or 8-bit PNG, TIFF, ``.npy``, ``.npz`` (its first array) or ``.pfm``.
        scale: metres = value in the file × scale; 0.001 for millimetres.
        invalid: values in the file, before scaling, that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; None for no limit.

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
    """The numbers of a depth file as they are stored, (H, W)."""
    reader = _DEPTH_READERS.get(Path(path).suffix.lower(), _read_picture)
    raw = reader(path)
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
        path: PNG, TIFF, BMP, ``.npy`` or ``.npz``.
        colors: an RGB row for each id; needed for RGB files, unused for others. A colour for
            "unlabelled" goes after the last class, its row number being the ignore index.
    """
    suffix = Path(path).suffix.lower()
    if suffix in (".npy", ".npz"):
        labels = _read_numpy(path)
        if labels.dtype == bool:
            labels = labels.astype(np.uint8)
    else:
        labels = _read_label_picture(path)
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
        return _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file in UTF-8: save it as UTF-8") from None


def _read_bytes(path: str | Path) -> bytes:
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        if not path.is_file():
            raise missing_path(path, what="file", remedy="check the path") from None
        raise DataError(f"{path}: cannot be read ({error.strerror}): check its rights") from None
    if not data:
        raise DataError(f"{path}: the file is empty: {_AGAIN}")
    return data


def _decode(path: str | Path, data: bytes, flags: int) -> np.ndarray:
    """Pixels by OpenCV, BGR, once the file is known to be whole."""
    if data.startswith(_JPEG_START):
        # The mark is sought after the last scan: an embedded thumbnail has one of its own.
        scan = 0 if data.endswith(_JPEG_END) else data.rfind(_JPEG_SCAN)
        whole = data.find(_JPEG_END, max(scan, 0)) >= 0
    elif data.startswith(_PNG_START):
        whole = data.endswith(_PNG_END) or data.rfind(_PNG_END) >= 0
    else:
        whole = True
    if not whole:
        raise DataError(f"{path}: the file is truncated ({len(data)} bytes, no end mark): {_AGAIN}")
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise DataError(f"{path}: cannot be decoded ({error.err}): {_AGAIN}") from None
    if image is None:
        raise DataError(f"{path}: not a picture that can be decoded, or damaged: {_AGAIN}")
    return image


def _read_picture(path: str | Path) -> np.ndarray:
    return _decode(path, _read_bytes(path), cv2.IMREAD_UNCHANGED)


def _read_label_picture(path: str | Path) -> np.ndarray:
    data = _read_bytes(path)
    if data.startswith(_JPEG_START):
        raise DataError(f"{path}: JPEG compression changes class ids: save label files as PNG")
    has_header = data.startswith(_PNG_START) and len(data) > 25
    bits, color_type = (data[24], data[25]) if has_header else (8, 0)
    if color_type == 3:
        if _PNG_END not in data:
            raise DataError(f"{path}: the file is truncated ({len(data)} bytes): {_AGAIN}")
        try:
            return np.asarray(Image.open(io.BytesIO(data)))
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path}: cannot be decoded ({error}): {_AGAIN}") from None
    labels = _decode(path, data, cv2.IMREAD_UNCHANGED)
    if bits < 8:  # OpenCV stretches 1, 2 and 4 bits to 0..255
        labels = labels // np.uint8(255 // (2**bits - 1))
    if labels.ndim == 3 and labels.shape[2] >= 3:
        labels = labels[..., 2::-1]  # BGR(A) to RGB
    return labels


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


def _read_numpy(path: str | Path) -> np.ndarray:
    data = _read_bytes(path)
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]]
    except Exception as error:  # truncated archives raise BadZipFile, EOFError, OSError, ...
        raise DataError(f"{path}: cannot be read as a NumPy file ({error}): {_AGAIN}") from None


def _read_pfm(path: str | Path) -> np.ndarray:
    """Portable float map: a header split on white space, then rows from bottom to top."""
    data = _read_bytes(path)
    header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(\S+?)(?:[ \t\r]*\n|\s)", data)
    try:
        kind, width, height, scale = header.groups()  # type: ignore[union-attr]
        channels = 3 if kind == b"PF" else 1
        shape = (int(height), int(width), channels)
        dtype = np.dtype("<f4" if float(scale) < 0 else ">f4")
    except (AttributeError, ValueError):
        raise DataError(
            f"{path}: not a PFM file (must begin with Pf, width, height, scale): {_AGAIN}"
        ) from None
    body = data[header.end() :]  # type: ignore[union-attr]
    size = int(np.prod(shape)) * 4
    if len(body) < size:
        raise DataError(f"{path}: truncated, {len(body)} of {size} bytes of pixels: {_AGAIN}")
    if body[size:].strip():
        raise DataError(f"{path}: {len(body) - size} bytes too many for its size: {_AGAIN}")
    pixels = np.frombuffer(body, dtype, count=int(np.prod(shape))).reshape(shape)
    return np.ascontiguousarray(pixels[::-1]).astype(np.float32)


# Files not named here are pictures and are told apart by their first bytes, not by their suffix.
_DEPTH_READERS: dict[str, Callable[[str | Path], np.ndarray]] = {
    ".npy": _read_numpy,
    ".npz": _read_numpy,
    ".pfm": _read_pfm,
}
