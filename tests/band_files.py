"""Writes small data sets whose images have other bands than 8-bit grey or RGB."""

from pathlib import Path

import cv2
import numpy as np
import tifffile

SIZE = (72, 96)
NODATA = -9999


def disc(random: np.random.Generator) -> np.ndarray:
    """Returns class ids uint8 (H, W): 1 within a disc."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    row, column, radius = random.integers(20, 50), random.integers(20, 70), random.integers(8, 18)
    return ((rows - row) ** 2 + (columns - column) ** 2 < radius**2).astype(np.uint8)


def write_tiff(path: Path, bands: np.ndarray, nodata: float | None = None) -> None:
    """Writes bands (H, W, C) pixel by pixel, with GDAL's tag of "no data"."""
    tags = [] if nodata is None else [(42113, "s", 0, f"{nodata:g}", True)]
    tifffile.imwrite(path, bands, planarconfig="contig", photometric="minisblack", extratags=tags)


def write_multispectral(root: Path, *, count: int = 8, bands: int = 12) -> Path:
    """Writes int16 TIFF files with a border without data, and masks of two classes."""
    random = np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        mask = disc(random)
        values = random.normal(500, 100, (*SIZE, bands))
        values += mask[..., None] * np.linspace(-600, 900, bands)
        values[:6] = NODATA
        write_tiff(root / f"images/{i}.tif", values.astype(np.int16), NODATA)
        cv2.imwrite(str(root / f"masks/{i}.png"), mask)
    return root


def write_grey(root: Path, *, count: int = 8) -> Path:
    """Writes 16-bit grey PNG files, of 12 bits, and masks of two classes."""
    random = np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
        mask = disc(random)
        values = random.normal(1500, 200, SIZE) + 1800.0 * mask
        cv2.imwrite(str(root / f"images/{i}.png"), values.clip(0, 4095).astype(np.uint16))
        cv2.imwrite(str(root / f"masks/{i}.png"), mask)
    return root
