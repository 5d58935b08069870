"""Class ids from the colours of RGB label files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpt.files import DataError

MAX_COLORS = 1 << 16
"""Largest number of colours of a label file whose colours stand for classes."""
MAX_RED_ID = 63
"""Largest id in the red channel of an RGB label file; larger values are those of red colours."""
OTHER_COLOR = -1
"""The id of colours that are far from all in a table."""
_PACKED = np.array([65536, 256, 1], np.int32)  # from R, G and B to one number


def count_colors(path: str | Path, rgb: np.ndarray) -> dict[tuple[int, ...], int]:
    """Returns the number of pixels of each colour; DataError if a picture has too many."""
    packed = (rgb.astype(np.int32) @ _PACKED).ravel()
    starts = np.flatnonzero(np.append(True, packed[1:] != packed[:-1]))  # of runs of one colour
    if len(starts) < packed.size // 4:  # much faster, as masks have long runs
        codes, positions = np.unique(packed[starts], return_inverse=True)
        lengths = np.diff(starts, append=packed.size)
        counts = np.bincount(positions, lengths).astype(int)
    else:
        codes, counts = np.unique(packed, return_counts=True)
    if len(codes) > MAX_COLORS:
        raise DataError(f"{path}: a picture of {len(codes)} colours, not labels: check data.labels")
    colors = map(tuple, _unpacked(codes).tolist())
    return dict(zip(colors, counts.tolist(), strict=True))


def _unpacked(codes: np.ndarray) -> np.ndarray:
    """Returns R, G and B, (N, 3), of packed colours."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)


def ids_of_colors(
    path: str | Path, rgb: np.ndarray, colors: Sequence[Sequence[int]], distance: int | None
) -> np.ndarray:
    """Returns the id of each pixel's colour: its row in ``colors``.

    Args:
        rgb: uint8 (H, W, 3).
        colors: without rows, the ids are in all three channels, or in R alone with 0 in the others.
        distance: a colour that ``colors`` lacks becomes the nearest row if no channel differs by
            more than this, and ``OTHER_COLOR`` otherwise. None: such a colour is an error.
    """
    if not colors:
        return _ids_in_channels(path, rgb)
    codes = np.asarray(colors, np.int32) @ _PACKED
    if len(np.unique(codes)) < len(codes):
        raise DataError("data.label_colors has a colour twice: give each id its own")
    packed = rgb.astype(np.int32) @ _PACKED
    order = np.argsort(codes)
    ids = order[np.searchsorted(codes, packed, sorter=order).clip(max=len(codes) - 1)]
    unknown = codes[ids] != packed
    if distance is not None and unknown.any():
        strange, positions = np.unique(packed[unknown], return_inverse=True)
        count_colors(path, rgb)  # refuses pictures
        ids[unknown] = _nearest(strange, np.asarray(colors, np.int32), distance)[positions]
        return ids
    if unknown.any():
        fault = f"colour {rgb[unknown][0].tolist()} ({int(unknown.sum())} pixels) has no class"
        remedy = "add it to data.label_colors, and its row to data.ignore_index if unlabelled"
        raise DataError(f"{path}: {fault}: {remedy}")
    return ids.astype(np.uint8 if len(codes) <= 256 else np.uint16)


def _ids_in_channels(path: str | Path, rgb: np.ndarray) -> np.ndarray:
    """Returns the ids that an RGB file holds as numbers."""
    red, green, blue = np.moveaxis(rgb, 2, 0)
    is_dark_red = red.max() <= MAX_RED_ID and not green.any() and not blue.any()
    if is_dark_red or ((green == red).all() and (blue == red).all()):
        return red
    colors = [list(color) for color in count_colors(path, rgb)]
    shown = str(colors).replace(" ", "") if len(colors) <= 12 else "[[r,g,b],...]"
    fault = f"an RGB picture of {len(colors)} colours, not of class ids"
    raise DataError(f"{path}: {fault}: set data.label_colors={shown}, a row for each id")


def _nearest(codes: np.ndarray, table: np.ndarray, distance: int) -> np.ndarray:
    """Returns the row of ``table`` that is nearest to each packed colour, or ``OTHER_COLOR``."""
    from scipy.spatial.distance import cdist  # slow to import

    distances = cdist(_unpacked(codes), table, "chebyshev")
    return np.where(distances.min(axis=1) <= distance, distances.argmin(axis=1), OTHER_COLOR)
