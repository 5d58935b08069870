"""Cameras of images: files of intrinsics, numbers and fields of view.

Pixel centres are at whole numbers, see :class:`dpt.geometry.Camera`; in COLMAP's files, where the
centre of the first pixel is at 0.5, principal points are moved by half a pixel.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np

from dpt.data.formats.tables import parse_number, read_table
from dpt.files import DataError, parse_json, parse_yaml, plural, read_text
from dpt.geometry import Camera, aspects_agree

log = logging.getLogger("dpt")

_MAX_BYTES = 1 << 26
_MATRIX_KEYS = ("K", "intrinsics", "intrinsic_matrix", "camera_matrix")
_DISTORTION_KEYS = ("distortion_coefficients", "distortion", "D")
_SIZE_KEYS = (("height", "width"), ("image_height", "image_width"), ("h", "w"))
_COLMAP_LINE = re.compile(r"\d+ [A-Z_]+ \d+ \d+ ")
_COLMAP_MODELS = {"SIMPLE_PINHOLE": 3, "PINHOLE": 4, "SIMPLE_RADIAL": 3, "RADIAL": 3, "OPENCV": 4}
"""Number of parameters without distortion, by model: f cx cy, or fx fy cx cy."""


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
    def pinhole(
        cls, intrinsics: Sequence[float], source: str, size: tuple[int, int] | None
    ) -> "StatedCamera":
        """Returns the camera without skew of fx, fy, cx and cy."""
        fx, fy, cx, cy = intrinsics
        return cls((fx, 0.0, cx, 0.0, fy, cy, 0.0, 0.0, 1.0), source, size)

    @classmethod
    def of(cls, camera: Camera, source: str) -> "StatedCamera":
        """Returns a camera of images of one size."""
        return cls(tuple(np.ravel(camera.K).tolist()), source, camera.size)

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
      form of one, or [fx, fy, cx, cy]), or fx, fy, cx and cy; with width and height K is scaled to
      images of another size.
    - COLMAP's cameras.txt with one camera, whose size is stated.
    - A CSV table with the columns image, fx, fy, cx, cy. An image is the end of a path, with or
      without suffix.

    Distortion is not corrected, and a warning says so; models of fisheye lenses are refused.
    """

    path: Path

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        stated = self._of_image(self.read(), PurePath(image))
        camera = stated.camera(image, size)
        if stated.size not in (None, size):
            _say_scaled(self.path, stated.size, size)
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
def _say_scaled(path: Path, stated: tuple[int, int] | None, size: tuple[int, int]) -> None:
    """Says once that the intrinsics of a file are scaled."""
    if stated is not None:
        sizes = f"{stated[1]}x{stated[0]} to {size[1]}x{size[0]}"
        log.info("%s: scaled from %s pixels, the size of the images", path, sizes)


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
    if lines and _COLMAP_LINE.match(lines[0]):
        return {"": _of_colmap(lines, path)}
    return {"": _of_matrix(" ".join(lines).replace(",", " ").split(), path)}


def _table_rows(path: Path) -> Iterator[tuple[str, StatedCamera]]:
    names: set[str] = set()
    for where, (image, *texts) in read_table(
        path, ("image", "fx", "fy", "cx", "cy"), remedy="name the columns so"
    ):
        name = PurePath(image.replace("\\", "/")).as_posix()
        if name in names:
            raise DataError(f"{where}: {image} is there twice: remove one")
        names.add(name)
        try:
            intrinsics = [*map(parse_number, texts)]
        except ValueError:
            fault = f"{image} has the camera {', '.join(texts)}"
            raise DataError(f"{where}: {fault}: must be four numbers") from None
        yield name, StatedCamera.pinhole(intrinsics, where, None)


def _of_matrix(values: object, path: Path, size: tuple[int, int] | None = None) -> StatedCamera:
    """Returns the camera of nine, sixteen or four numbers, nested in any way."""
    numbers = _numbers(values)
    if numbers.size == 4:
        return StatedCamera.pinhole(numbers.tolist(), str(path), size)
    if numbers.size == 16:
        numbers = numbers.reshape(4, 4)[:3, :3]
    if numbers.size != 9:
        fault = f"found {plural(numbers.size, 'number')} in place of a camera matrix"
        raise DataError(f"{path}: {fault}: write K as 3x3 numbers")
    K = numbers.reshape(3, 3)
    is_transposed = (K[:, 2] == (0, 0, 1)).all()  # Open3D stores the columns
    return StatedCamera(tuple((K.T if is_transposed else K).ravel().tolist()), str(path), size)


def _numbers(values: object) -> np.ndarray:
    """Returns nested numbers as one array; empty if there are other values."""
    try:
        return np.asarray(values, np.float64).ravel()
    except (TypeError, ValueError):
        return np.empty(0)


def _of_mapping(values: Any, path: Path) -> StatedCamera:
    """Returns the camera in the data of a JSON or YAML file."""
    if not isinstance(values, Mapping):
        return _of_matrix(values, path)
    matrix = next((values[key] for key in _MATRIX_KEYS if key in values), values)
    if isinstance(matrix, Mapping):
        values = {**values, **matrix}
        matrix = matrix.get("data") or [matrix.get(key) for key in ("fx", "fy", "cx", "cy")]
    sizes = (_numbers([values.get(key) for key in keys]) for keys in _SIZE_KEYS)
    size = next((size for size in sizes if (size >= 1).all() and size.size), None)
    for key in _DISTORTION_KEYS:
        held = values.get(key)
        if np.nan_to_num(_numbers(held.get("data") if isinstance(held, Mapping) else held)).any():
            _warn_of_distortion(path)
    return _of_matrix(matrix, path, None if size is None else (int(size[0]), int(size[1])))


def _of_colmap(lines: Sequence[str], path: Path) -> StatedCamera:
    if len(lines) > 1:
        remedy = "keep that of the images, or give a table with a row for each image"
        raise DataError(f"{path}: holds {len(lines)} cameras: {remedy}")
    _, model, width, height, *texts = lines[0].split()
    count = _COLMAP_MODELS.get(model)
    numbers = _numbers(texts)
    if count is None or numbers.size < count:
        remedy = "undistort the images (colmap image_undistorter)"
        raise DataError(f"{path}: model {model} of {plural(len(texts), 'parameter')}: {remedy}")
    if numbers[count:].any():
        _warn_of_distortion(path)
    *focal, cx, cy = numbers[:count].tolist()
    intrinsics = focal[0], focal[-1], cx - 0.5, cy - 0.5
    return StatedCamera.pinhole(intrinsics, str(path), (int(height), int(width)))


def _warn_of_distortion(path: Path) -> None:
    log.warning("%s: distortion is not corrected: undistort the images for exact points", path)
