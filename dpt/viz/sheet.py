"""Many small captioned pictures of one size, under headings."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from dpt.viz.color import colorize
from dpt.viz.panel import captioned, stack

_SHADE = 60  # gray level behind headings


def heatmap(values: np.ndarray, *, high: float | None = None) -> np.ndarray:
    """Numbers from 0 up as colours, (H, W) to uint8 (H, W, 3) RGB.

    Args:
        high: what takes the last colour; None the 99 % quantile, so that a few outliers do not
            leave everything else dark.
    """
    high = float(np.quantile(values, 0.99)) if high is None else high
    return colorize(values, np.isfinite(values), colormap="viridis", low=0.0, high=high)


def tiles(
    pictures: Sequence[np.ndarray], captions: Sequence[str], *, size: tuple[int, int], columns: int
) -> np.ndarray:
    """Captioned cells, row by row; uint8 RGB.

    Args:
        pictures: uint8 RGB. Small ones are enlarged in squares, so that every patch is seen.
        size: [h, w] of a cell.
        columns: cells in a row.
    """
    cells = []
    for picture, caption in zip(pictures, captions, strict=True):
        way = cv2.INTER_AREA if picture.shape[0] > size[0] else cv2.INTER_NEAREST_EXACT
        cell = cv2.resize(picture, (size[1], size[0]), interpolation=way)
        cells.append(captioned(cell, caption))
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    return stack([np.concatenate(row, axis=1) for row in rows])


def heading(text: str, *, width: int) -> np.ndarray:
    """A bar of ``width`` pixels with a line of text; uint8 RGB."""
    bar = np.full((26, width, 3), _SHADE, np.uint8)
    return cv2.putText(
        bar, text, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255,) * 3, 1, cv2.LINE_AA
    )
