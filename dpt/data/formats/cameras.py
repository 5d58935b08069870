"""Cameras of images: files of intrinsics, numbers and fields of view.

Pixel centres are at whole numbers, see :class:`dpt.geometry.Camera`.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from dpt.files import DataError, parse_json, parse_yaml, plural, read_table, read_text
from dpt.geometry import Camera, aspects_agree

log = logging.getLogger("dpt")

_MAX_BYTES = 1 << 26
_MATRIX_KEYS = ("K", "intrinsics", "intrinsic_matrix", "camera_matrix")
_DISTORTION_KEYS = (
    "distortion_coefficients",
    "distortion_coeffs",
    "dist_coeffs",
    "distortion",
    "D",
)
_MODEL_KEYS = ("camera_model", "distortion_model")
_FISHEYE = re.compile("fisheye|equidistant|kannala|omni|mei", re.IGNORECASE)
_SIZE_KEYS = (("height", "width"), ("image_height", "image_width"), ("h", "w"), ("yres", "xres"))


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
        if numbers.size != 9:
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

    - Text: the 3×3 numbers of K, or 4×4.
    - JSON and YAML: K, intrinsics, intrinsic_matrix or camera_matrix (a matrix, OpenCV's and ROS'
      form of one, or [fx, fy, cx, cy]), or fx, fy, cx and cy; with width and height, or Kalibr's
      resolution, K is scaled to images of another size.
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
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return dict(_table_rows(path))
    text = read_text(path, limit=_MAX_BYTES)
    if suffix == ".json":
        return {"": _of_mapping(parse_json(text, path), path)}
    if suffix in (".yaml", ".yml"):  # OpenCV's first line and tags are not of YAML 1.2
        plain = re.sub(r"\A%YAML[^\n]*|!!opencv-matrix", "", text)
        return {"": _of_mapping(parse_yaml(plain, path), path)}
    lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
    return {"": StatedCamera.parse(re.sub(r"[\[\],;]", " ", " ".join(lines)).split(), path)}


def _table_rows(path: Path) -> Iterator[tuple[str, StatedCamera]]:
    columns = ("image", "fx", "fy", "cx", "cy")
    names: set[str] = set()
    for where, (image, *texts) in read_table(path, columns, remedy="name the columns so"):
        name = PurePath(image.replace("\\", "/")).as_posix()
        if name in names:
            raise DataError(f"{where}: {image} is there twice: remove one")
        names.add(name)
        yield name, StatedCamera.parse(texts, where)


def _numbers(values: object) -> np.ndarray:
    """Returns nested numbers as one array; empty if there are other values."""
    try:
        return np.asarray(values, np.float64).ravel()
    except (TypeError, ValueError, OverflowError):
        return np.empty(0)


def _of_mapping(values: Any, path: Path) -> StatedCamera:
    """Returns the camera in the data of a JSON or YAML file."""
    if not isinstance(values, Mapping):
        return StatedCamera.parse(values, path)
    matrix = next((values[key] for key in _MATRIX_KEYS if key in values), values)
    if isinstance(matrix, Mapping):
        values = {**values, **matrix}
        matrix = matrix.get("data") or [matrix.get(key) for key in ("fx", "fy", "cx", "cy")]
    for key in _MODEL_KEYS:
        if _FISHEYE.search(str(values.get(key))):
            raise DataError(f"{path}: {key} {values[key]}: undistort the images")
    if any(_is_distortion(values.get(key)) for key in _DISTORTION_KEYS):
        advice = "undistort the images for exact points"
        log.warning("%s: distortion is not corrected: %s", path, advice)
    return StatedCamera.parse(matrix, path, _size_in(values))


def _is_distortion(coefficients: Any) -> bool:
    """Whether coefficients, or a matrix of OpenCV with them, distort the image."""
    if isinstance(coefficients, Mapping):
        coefficients = coefficients.get("data")
    return bool(_numbers(coefficients or 0).any())


def _size_in(values: Mapping[str, Any]) -> tuple[int, int] | None:
    """Returns (H, W) of the images of a camera, if its file states it."""
    sizes = [[values[key] for key in keys if key in values] for keys in _SIZE_KEYS]
    resolution = _numbers(values.get("resolution")).tolist()  # width and height
    for sides in map(_numbers, (*sizes, resolution[::-1])):
        if sides.size == 2 and ((sides >= 1) & (sides < 1e9)).all():
            return int(sides[0]), int(sides[1])
    return None
