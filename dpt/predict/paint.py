"""Pictures of a prediction, also of a very large one: painted a band of rows at a time.

Each painter takes a prediction, the photo and a style, and gives uint8 (h, w, 3) RGB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from dpt.predict.predictor import Prediction
from dpt.viz import colorize_labels, default_palette, overlay, side_by_side
from dpt.viz.color import colorize, near_range, nearness

ROWS_AT_ONCE = 2**20
"""Pixels of a band."""
CELL_WIDTH = 960
"""Widest picture in a panel."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """How predictions are painted.

    Attributes:
        colormap: of depth, one of :data:`dpt.viz.COLORMAPS`.
        depth_range: (smallest, largest) depth told apart, in the prediction's unit; None takes
            each picture's own, the 2 % and 98 % quantiles of nearness.
        span: the same as nearness (1 / metres, or relative inverse depth): overrides it.
    """

    colormap: str = "inferno"
    depth_range: tuple[float, float] | None = None
    span: Span | None = None


def nearness_span(prediction: Prediction, style: Style) -> Span:
    """What the ends of the colour map stand for; of large maps, found on every n-th pixel."""
    assert prediction.depth is not None
    inverse = prediction.unit == "metres"
    if style.span is not None:
        return style.span
    if style.depth_range is not None:
        low, high = style.depth_range
        return (1 / high, 1 / max(low, 1e-6)) if inverse else (low, high)
    step = max(1, int((prediction.depth.size / ROWS_AT_ONCE) ** 0.5))
    return near_range(*nearness(prediction.depth[::step, ::step], inverse=inverse))


def paint_depth(prediction: Prediction, photo: np.ndarray | None, style: Style) -> np.ndarray:
    """Near is bright and warm."""
    assert prediction.depth is not None
    low, high = nearness_span(prediction, style)
    inverse = prediction.unit == "metres"

    def paint(depth: np.ndarray) -> np.ndarray:
        near, usable = nearness(depth, inverse=inverse)
        return colorize(near, usable, colormap=style.colormap, low=low, high=high)

    return _by_bands(paint, prediction.depth)


def paint_overlay(prediction: Prediction, photo: np.ndarray | None, style: Style) -> np.ndarray:
    """Classes laid over the photo."""
    assert prediction.labels is not None
    assert photo is not None
    palette = label_palette(prediction)

    def paint(labels: np.ndarray, photo: np.ndarray) -> np.ndarray:
        return overlay(photo, colorize_labels(labels, palette, ignore_index=-1))

    return _by_bands(paint, prediction.labels, photo)


def paint_panel(prediction: Prediction, photo: np.ndarray | None, style: Style) -> np.ndarray:
    """photo | depth | classes, as far as they were predicted."""
    assert photo is not None
    pictures, captions = [photo], ["photo"]
    if prediction.depth is not None:
        pictures.append(paint_depth(prediction, photo, style))
        captions.append(_depth_caption(prediction, style))
    if prediction.labels is not None:
        pictures.append(paint_overlay(prediction, photo, style))
        captions.append("classes")
    height, width = photo.shape[:2]
    if width > CELL_WIDTH:
        size = (CELL_WIDTH, max(1, round(height * CELL_WIDTH / width)))
        pictures = [cv2.resize(p, size, interpolation=cv2.INTER_AREA) for p in pictures]
    return side_by_side(pictures, captions)


Painter = Callable[[Prediction, np.ndarray | None, Style], np.ndarray]


def label_palette(prediction: Prediction) -> np.ndarray:
    """A colour for every id that occurs or can occur."""
    assert prediction.labels is not None
    return default_palette(max(int(prediction.labels.max()) + 1, len(prediction.class_names)))


def _depth_caption(prediction: Prediction, style: Style) -> str:
    low, high = nearness_span(prediction, style)
    if prediction.unit != "metres":
        return "relative depth: near is bright"
    far = f"{1 / low:.3g}" if low > 0 else "inf"
    return f"depth, {1 / max(high, 1e-6):.3g}..{far} m: near is bright"


def _by_bands(paint: Callable[..., np.ndarray], *maps: np.ndarray) -> np.ndarray:
    height, width = maps[0].shape[:2]
    picture = np.empty((height, width, 3), np.uint8)
    step = max(1, ROWS_AT_ONCE // width)
    for start in range(0, height, step):
        rows = slice(start, start + step)
        picture[rows] = paint(*(m[rows] for m in maps))
    return picture
