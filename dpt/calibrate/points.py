"""Known depths: of single pixels from a table, or of whole maps from a folder."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from dpt.data.datasets.folder import scan
from dpt.data.errors import DataError, few
from dpt.data.formats import io

COLUMNS = ("image", "x", "y", "depth_m")
POINTS_PER_IMAGE = 2000
"""Of a depth map so many pixels are drawn: more do not change two numbers."""


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of one image.

    Attributes:
        image: its file.
        x, y: float (N,), columns and rows as shares of width and height, in 0..1.
        depth: float (N,), metres.
        exif: whether the points are those of the picture turned upright, as a viewer shows it.
    """

    image: Path
    x: np.ndarray
    y: np.ndarray
    depth: np.ndarray
    exif: bool

    def read_image(self) -> np.ndarray:
        """uint8 (H, W, 3), RGB."""
        return io.read_image(self.image, exif=self.exif)

    def sample(self, values: np.ndarray) -> np.ndarray:
        """The nearest ``values`` (H, W) at each point: (N,)."""
        height, width = values.shape
        rows = np.minimum((self.y * height).astype(int), height - 1)
        columns = np.minimum((self.x * width).astype(int), width - 1)
        return values[rows, columns]


def read_points(path: str | Path, *, images: str | Path | None = None) -> list[Known]:
    """A table with the columns ``image, x, y, depth_m``, in any order.

    Args:
        path: the CSV file. ``x`` and ``y`` count pixels from the image's upper left, from 0.
        images: the folder that its image names start from; None for the table's own.

    Raises:
        DataError: a column is missing, a value is no number, or a point lies outside its image.
    """
    rows = csv.DictReader(io.read_text(path).splitlines(), skipinitialspace=True)
    header = [name.strip() for name in rows.fieldnames or ()]
    if absent := [name for name in COLUMNS if name not in header]:
        raise DataError(
            f"{path}: no column {', '.join(absent)} (it has {few(header, 6) or 'none'}): its first "
            f"line must name {','.join(COLUMNS)}"
        )
    rows.fieldnames = header
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        try:
            x, y, depth = (float(row[name]) for name in COLUMNS[1:])
        except (TypeError, ValueError):
            values = [row[name] for name in COLUMNS[1:]]
            raise DataError(
                f"{path}: line {rows.line_num}: {values} must be three numbers: x, y, depth_m"
            ) from None
        if not (isfinite(depth) and depth > 0):
            raise DataError(f"{path}: line {rows.line_num}: depth_m={depth} must be metres above 0")
        found.setdefault(row["image"].strip(), []).append((x, y, depth))
    folder = Path(images) if images is not None else Path(path).parent
    return [_in_image(folder / name, np.array(points), path) for name, points in found.items()]


def _in_image(image: Path, points: np.ndarray, table: str | Path) -> Known:
    height, width = io.read_image(image, exif=True).shape[:2]
    x, y, depth = points.T
    outside = (x < 0) | (y < 0) | (x >= width) | (y >= height)
    if outside.any():
        x, y = points[outside][0, :2]
        raise DataError(
            f"{table}: the point x={x:g}, y={y:g} lies outside of {image} ({width}x{height} pixels)"
        )
    return Known(image, (x + 0.5) / width, (y + 0.5) / height, depth, exif=True)


def read_maps(
    images: str | Path, depth: str | Path, *, scale: float = 1.0, invalid: Sequence[float] = (0,)
) -> list[Known]:
    """Depth maps, dense or sparse, of any size but the image's shape, paired by file stem.

    Args:
        images, depth: folders; searched with their sub-folders.
        scale: metres = value in the file × scale; 0.001 for millimetres.
        invalid: values in the file that mean "not measured".

    Raises:
        DataError: a folder is empty, no names match, or a file cannot be read.
    """
    photos = _scan(images, io.IMAGE_SUFFIXES, "--images")
    maps = _scan(depth, io.DEPTH_SUFFIXES, "--depth")
    both = [key for key in photos if key in maps]
    if not both:
        raise DataError(
            f"no file of {images} has the stem of one of {depth} (such as {next(iter(photos))} and "
            f"{next(iter(maps))}): name them alike"
        )
    return [_of_map(photos[key], maps[key], scale=scale, invalid=invalid) for key in both]


def _scan(folder: str | Path, suffixes: Sequence[str], option: str) -> dict[str, Path]:
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: no such folder: check {option}")
    return scan(Path(folder), name="%stem", suffixes=suffixes, option=option)


def _of_map(image: Path, path: Path, *, scale: float, invalid: Sequence[float]) -> Known:
    depth, valid = io.read_depth(path, scale=scale, invalid=invalid)
    height, width = depth.shape
    places = np.flatnonzero(valid)
    if len(places) > POINTS_PER_IMAGE:
        random = np.random.default_rng(zlib.crc32(image.name.encode()))
        places = np.sort(random.choice(places, POINTS_PER_IMAGE, replace=False))
    y, x = np.divmod(places, width)
    chosen = depth.flat[places].astype(float)
    return Known(image, (x + 0.5) / width, (y + 0.5) / height, chosen, exif=False)
