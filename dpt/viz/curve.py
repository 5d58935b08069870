"""A curve over a logarithmic axis, drawn without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

_MARGINS = (24, 24, 44, 72)  # top, right, bottom, left
_INK, _GRID, _FAINT, _MARK = (40, 40, 40), (228, 228, 228), (170, 190, 215), (200, 60, 40)
_LINE = (40, 90, 160)


def log_curve(
    x: Sequence[float],
    y: Sequence[float],
    *,
    faint: Sequence[float] = (),
    mark: float | None = None,
    top: float = np.inf,
    labels: tuple[str, str] = ("", ""),
    size: tuple[int, int] = (400, 640),
) -> np.ndarray:
    """A line through (x, y), x on a logarithmic axis.

    Args:
        x: ascending, > 0.
        y: finite, one for each x.
        faint: a second line behind the first, at the edges where it leaves the range of ``y``.
        mark: the x of a vertical line.
        top: larger y are drawn at the upper edge.
        labels: of the two axes; ASCII.
        size: height and width in pixels.

    Returns:
        uint8 RGB.
    """
    height, width = size
    above, right, below, left = _MARGINS
    low, high = float(np.min(y)), min(float(np.max(y)), top)
    room = 0.05 * (high - low) or 1.0
    low, high = low - room, high + room
    first, last = np.log10(x[0]), np.log10(x[-1])

    def column(value: float) -> int:
        share = (np.log10(value) - first) / (last - first)
        return round(left + share * (width - left - right))

    def row(value: float) -> int:
        share = (min(max(value, low), high) - low) / (high - low)
        return round(height - below - share * (height - above - below))

    picture = np.full((height, width, 3), 255, np.uint8)

    def text(words: str, at: tuple[int, int]) -> None:
        cv2.putText(picture, words, at, cv2.FONT_HERSHEY_SIMPLEX, 0.42, _INK, 1, cv2.LINE_AA)

    for power in range(int(np.ceil(first - 1e-9)), int(np.floor(last + 1e-9)) + 1):
        place = column(10.0**power)
        cv2.line(picture, (place, above), (place, height - below), _GRID, 1)
        text(f"1e{power}", (place - 14, height - below + 16))
    for value in np.linspace(low, high, 6)[1:-1]:
        cv2.line(picture, (left, row(value)), (width - right, row(value)), _GRID, 1)
        text(f"{value:.3g}", (8, row(value) + 4))
    cv2.rectangle(picture, (left, above), (width - right, height - below), _INK, 1)
    for values, colour, thickness in ((faint, _FAINT, 1), (y, _LINE, 2)):
        points = [(column(a), row(b)) for a, b in zip(x, values, strict=False) if np.isfinite(b)]
        if points:
            line = np.array(points, np.int32).reshape(-1, 1, 2)
            cv2.polylines(picture, [line], False, colour, thickness, cv2.LINE_AA)
    if mark is not None:
        cv2.line(picture, (column(mark), above), (column(mark), height - below), _MARK, 1)
        text(f"{mark:.1e}", (column(mark) + 4, above + 14))
    text(labels[0], ((width - 8 * len(labels[0])) // 2, height - 10))
    text(labels[1], (8, 16))
    return picture
