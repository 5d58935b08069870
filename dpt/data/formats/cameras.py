"""Cameras of images: files of intrinsics, numbers and fields of view.

Pixel centres are at whole numbers, see :class:`dpt.geometry.Camera`.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from dpt.files import DataError, few, parse_json, parse_yaml, plural, read_table, read_text
from dpt.geometry import Camera, aspects_agree
from dpt.process import log
from dpt.validation import Plain, PlainMapping

_MAX_BYTES = 1 << 26
_MATRICES = ("K", "intrinsics", "intrinsic", "intrinsic_matrix", "camera_matrix")
_NUMBERS = {  # the names of each number, in all forms of files
    "fx": ("fx", "fl_x", "fx_color", "focal", "focal_length", "f"),
    "fy": ("fy", "fl_y", "fy_color", "focal", "focal_length", "f", "fl_x"),
    "cx": ("cx", "ppx", "mx_color"),
    "cy": ("cy", "ppy", "my_color"),
}
_DISTORTIONS = "distortion_coefficients distortion_coeffs dist_coeffs distortion D coeffs k1 k2 k3"
_MODELS = ("camera_model", "distortion_model", "model")
_FISHEYE = re.compile("fisheye|equidistant|kannala|omni|mei", re.IGNORECASE)
_HEIGHTS = ("height", "image_height", "h", "yres", "color_height")
_WIDTHS = ("width", "image_width", "w", "xres", "color_width")
_WIDTH_AND_HEIGHT = ("resolution", "S_rect_02")  # of Kalibr and KITTI
_OTHER_FILES = {
    ".bin": "export COLMAP's as text: colmap model_converter --output_type TXT",
    ".conf": "write fx, fy, cx and cy of one camera and resolution (ZED's LEFT_CAM_HD) as JSON",
}
_MVSNET = re.compile(r"^intrinsic((?:\s+[-+.\deE]+){9})", re.MULTILINE)
_NAMED = re.compile(r"^ *[\w.]+\s*[:=]", re.MULTILINE)  # of YAML, or of lines name: value


class CameraSource(Protocol):
    """What states the cameras of images."""

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        """Returns the camera of an image of ``size`` (H, W); DataError if there is none."""


@dataclass(frozen=True)
class StatedCamera:
    """A camera in numbers.

    Attributes:
        numbers: nine, the rows of K.
        source: what states them, for messages.
        size: (H, W) of the image to which K belongs, and which may be scaled; None: of any.
    """

    numbers: tuple[float, ...]
    source: str
    size: tuple[int, int] | None = None

    @classmethod
    def parse(
        cls, values: object, source: str | Path, size: tuple[int, int] | None = None
    ) -> "StatedCamera":
        """Returns the camera of nested numbers or texts: K, 3×3, 3×4 or 4×4; or fx, fy, cx, cy.

        Raises:
            DataError: ``values`` hold another count of numbers; the message names ``source``.
        """
        numbers = _numbers(values)
        if numbers.size == 4:
            fx, fy, cx, cy = numbers
            numbers = np.array([fx, 0, cx, 0, fy, cy, 0, 0, 1])
        elif numbers.size in (12, 16):
            numbers = numbers.reshape(-1, 4)[:3, :3]
        if numbers.size != 9 or not np.isfinite(numbers).all():
            fault = f"found {plural(numbers.size, 'number')} in place of a camera matrix"
            raise DataError(f"{source}: {fault}: write K as 3x3 numbers")
        K = numbers.reshape(3, 3)
        is_transposed = (K[:, 2] == (0, 0, 1)).all()  # Open3D stores the columns
        return cls(tuple((K.T if is_transposed else K).ravel().tolist()), str(source), size)

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        stated = self.size or size
        if not aspects_agree(stated, size):
            fault = f"is for {stated[1]}x{stated[0]} pixels, and {image} has {size[1]}x{size[0]}"
            raise DataError(f"{self.source}: {fault}: give the camera of this image")
        camera = Camera(np.reshape(self.numbers, (3, 3)).astype(float), stated)
        camera.require_plausible(self.source)
        return camera if stated == size else camera.resized(size)


@dataclass(frozen=True)
class FieldOfView:
    """A horizontal field of view in degrees; the camera looks at the image's centre."""

    degrees: float

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        return Camera.from_fov(self.degrees, size)


@dataclass(frozen=True)
class FocalLength:
    """A focal length in pixels of each image; the camera looks at the image's centre."""

    pixels: float

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        return Camera.from_focal(self.pixels, size)


@dataclass(frozen=True)
class CameraFile:
    """A file of intrinsics, for all images or with a row for each.

    - Text: the 3×3 numbers of K, or 4×4; COLMAP's ``cameras.txt`` of one camera; MVSNet's.
    - JSON, YAML and lines ``name: value``: a matrix, OpenCV's and ROS' form of one, or four
      numbers, under the names of Open3D, OpenCV, ROS, RealSense, nerfstudio, Record3D, ORB-SLAM,
      ScanNet, KITTI (the left colour camera) and Kalibr (cam0). With width and height, K is scaled
      to images of another size.
    - A CSV table with the columns image, fx, fy, cx, cy. An image is the end of a path, with or
      without suffix.

    Distortion is not corrected, and a warning says so; models of fisheye lenses are refused.
    """

    path: Path

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        stated = self._of_image(self.read(), PurePath(image))
        camera = stated.camera(image, size)
        height, width = stated.size or size
        if (height, width) != size:
            fault = f"scaled from {width}x{height} to {size[1]}x{size[0]} pixels"
            _log_once(logging.INFO, f"{self.path}: {fault}")
        cx, cy = camera.K[:2, 2]
        if not (0 <= cx < size[1] and 0 <= cy < size[0]):
            reasons = "is K that of a larger image, or of a photo before its EXIF tags turn it?"
            _log_once(logging.WARNING, f"{self.path}: cx, cy is outside the image: {reasons}")
        return camera

    def read(self) -> Mapping[str, StatedCamera]:
        """Returns the cameras by the names of images; "" is for all others."""
        state = os.stat(self.path).st_mtime_ns if self.path.is_file() else 0
        return _read_cameras(self.path, state)

    def _of_image(self, cameras: Mapping[str, StatedCamera], image: PurePath) -> StatedCamera:
        ends = [PurePath(*image.parts[i:]) for i in range(len(image.parts))]
        names = [name for end in ends for name in (end.as_posix(), end.with_suffix("").as_posix())]
        for name in (*names, ""):
            if name in cameras:
                return cameras[name]
        raise DataError(f"{self.path}: has no row for {image}: add it")


@cache
def _log_once(level: int, message: str) -> None:
    log.log(level, message)


@lru_cache(maxsize=64)
def _read_cameras(path: Path, state: int) -> Mapping[str, StatedCamera]:
    """Reads a file; ``state`` is the time of its last change."""
    if path.suffix.lower() == ".csv":
        return dict(_table_rows(path))
    if path.suffix.lower() in _OTHER_FILES:
        raise DataError(f"{path}: is not read: {_OTHER_FILES[path.suffix.lower()]}")
    return {"": _camera_in(_content(read_text(path, limit=_MAX_BYTES), path), path)}


def _content(text: str, path: Path) -> Any:
    """Returns the values by names, or the numbers, in the text of a file."""
    if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        return parse_json(text, path)
    matrix = _MVSNET.search(text)
    if matrix:
        return matrix[1].split()
    if _NAMED.search(text):  # OpenCV's first line and tags are not of YAML 1.2
        text = re.sub(r"\A%YAML[^\n]*|!!opencv-matrix", "", text)
        return parse_yaml(re.sub(r"(?<!\s)\s*=\s*", ": ", text), path)
    lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    words = re.sub(r"[\[\],;]", " ", " ".join(lines)).split()
    if len(words) > 6 and words[1].isupper():
        if len(lines) > 1:
            raise DataError(f"{path}: holds {len(lines)} cameras: give a file with one of them")
        return _fields_of_colmap(*words[1:])
    return words


def _fields_of_colmap(model: str, width: str, height: str, *words: str) -> Plain:
    """Returns the camera of a line of cameras.txt, with one or two focal lengths."""
    if model.startswith(("SIMPLE", "RADIAL")):
        words = (words[0], *words)
    fields = {"K": words[:4], "D": words[4:], "model": model}
    return {**fields, "width": width, "height": height}


def _table_rows(path: Path) -> Iterator[tuple[str, StatedCamera]]:
    columns = ("image", "fx", "fy", "cx", "cy")
    names: set[str] = set()
    for where, (image, *texts) in read_table(path, columns, remedy="name the columns so"):
        name = PurePath(image.replace("\\", "/")).as_posix()
        if name in names:
            raise DataError(f"{where}: {image} is there twice: remove one")
        names.add(name)
        yield name, StatedCamera.parse(texts, where)


def _numbers(values: Any) -> np.ndarray:
    """Returns nested numbers, those of a text or of a matrix of OpenCV, as one array; empty if
    there are other values."""
    values = values.get("data") if isinstance(values, Mapping) else values
    values = values.split() if isinstance(values, str) else values
    try:
        return np.asarray(values, np.float64).ravel()
    except (TypeError, ValueError):
        return np.empty(0)


def _camera_in(values: Any, path: Path) -> StatedCamera:
    """Returns the camera in the content of a file."""
    if not isinstance(values, Mapping):
        return StatedCamera.parse(values, path)
    fields, matrix, missing = _fields_of(values)
    inner = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    if missing and ("cam0" in inner or len(inner) == 1):  # the first of several of Kalibr
        fields, matrix, missing = _fields_of(inner.get("cam0") or next(iter(inner.values())))
    if missing:
        fault = f"found the keys {few([*map(str, values)], 12)}, but no {', '.join(missing)}"
        remedy = "write fx, fy, cx and cy, or K, of one camera at the top of the file"
        raise DataError(f"{path}: {fault}: {remedy}")
    model = str(_first(fields, _MODELS))
    if _FISHEYE.search(model):
        raise DataError(f"{path}: {model}: undistort the images")
    if any(_numbers(fields.get(_plain(name), 0)).any() for name in _DISTORTIONS.split()):
        log.warning("%s: distortion is not corrected: undistort the images", path)
    return StatedCamera.parse(matrix, path, _size_in(fields))


def _fields_of(values: Mapping[Any, Any]) -> tuple[Plain, Any, list[str]]:
    """Returns values by plain names, K as nested numbers, and which of its numbers are missing."""
    fields = {_plain(key): value for key, value in values.items()}
    matrix = _first(fields, _MATRICES) or values.get("P2") or values.get("P_rect_02")  # of KITTI
    if isinstance(matrix, Mapping):
        fields |= {_plain(key): value for key, value in matrix.items()}
        matrix = matrix.get("data")
    if matrix is not None:
        return fields, matrix, []
    numbers = {name: _first(fields, names) for name, names in _NUMBERS.items()}
    return fields, [*numbers.values()], [name for name in numbers if numbers[name] is None]


def _plain(name: object) -> str:
    """Returns a name without capitals, underscores and the ``Camera.`` of ORB-SLAM."""
    return re.sub(r"^camera1?\.|[^a-z0-9]", "", str(name).lower())


def _first(fields: PlainMapping, names: Iterable[str]) -> Any:
    """Returns the value of the first name that is there; None without one."""
    return next((fields[key] for key in map(_plain, names) if fields.get(key) is not None), None)


def _size_in(fields: PlainMapping) -> tuple[int, int] | None:
    """Returns (H, W) of the images of a camera, if its file states it."""
    size = [_first(fields, _HEIGHTS), _first(fields, _WIDTHS)]
    for sides in (_numbers(size), _numbers(_first(fields, _WIDTH_AND_HEIGHT))[::-1]):
        if sides.size == 2 and ((sides >= 1) & (sides < 1e9)).all():
            return int(sides[0]), int(sides[1])
    return None
