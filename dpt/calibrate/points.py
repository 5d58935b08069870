"""Known depths: of single pixels from a table, or of whole maps from a folder."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from dpt.data.datasets.folder import scan
from dpt.data.errors import DataError
from dpt.data.formats import io

COLUMNS = ("image", "x", "y", "depth_m")
POINTS_PER_IMAGE = 2000  # drawn from a depth map; more do not improve two numbers


@dataclass(frozen=True, eq=False)
class Known:
    """The known depths of one image.

    Attributes:
        image: its file.
        x, y: float (N,), columns and rows as shares of width and height, in 0..1.
        depth: float (N,), metres.
        exif: whether the points refer to the image rotated upright, as viewers show it.
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
    found: dict[str, list[list[float]]] = {}
    remedy = f"its first line must name {','.join(COLUMNS)}"
    for where, (image, *values) in io.read_table(path, COLUMNS, remedy=remedy):
        try:
            point = [float(value) for value in values]
        except ValueError:
            raise DataError(f"{where}: {values} must be three numbers: x, y, depth_m") from None
        if not 0 < point[2] < inf:
            raise DataError(f"{where}: depth_m={point[2]} must be metres above 0")
        found.setdefault(image, []).append(point)
    folder = Path(path).parent if images is None else Path(images)
    known = []
    for name, points in found.items():
        height, width = io.read_image(folder / name, exif=True).shape[:2]
        for x, y, _ in points:
            if not (0 <= x < width and 0 <= y < height):
                file = f"{folder / name} ({width}x{height} pixels)"
                raise DataError(f"{path}: x={x:g}, y={y:g} lies outside of {file}")
        x, y, depth = np.array(points).T
        known.append(Known(folder / name, (x + 0.5) / width, (y + 0.5) / height, depth, exif=True))
    return known


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
    if not photos.keys() & maps.keys():
        raise DataError(
            f"no file of {images} has the stem of one of {depth} (such as {next(iter(photos))} and "
            f"{next(iter(maps))}): name them alike"
        )
    known = []
    for key in [key for key in photos if key in maps]:
        metres, valid = io.read_depth(maps[key], scale=scale, invalid=invalid)
        height, width = metres.shape
        places = np.flatnonzero(valid)
        if len(places) > POINTS_PER_IMAGE:
            random = np.random.default_rng(zlib.crc32(photos[key].name.encode()))
            places = np.sort(random.choice(places, POINTS_PER_IMAGE, replace=False))
        y, x = np.divmod(places, width)
        chosen = metres.flat[places].astype(float)
        known.append(Known(photos[key], (x + 0.5) / width, (y + 0.5) / height, chosen, exif=False))
    return known


def _scan(folder: str | Path, suffixes: Sequence[str], option: str) -> dict[str, Path]:
    if not Path(folder).is_dir():
        raise DataError(f"{folder}: no such folder: check {option}")
    return scan(Path(folder), "%stem", suffixes, option=option)
