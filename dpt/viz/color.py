"""Colours for depth and labels: near is bright and warm, what is invalid or ignored is black."""

from __future__ import annotations

from colorsys import hsv_to_rgb
from functools import cache

import cv2
import numpy as np

from dpt.types import IGNORE_INDEX

# ColorBrewer's Spectral with 11 classes, from blue (far) to red (near).
_SPECTRAL = (
    (94, 79, 162),
    (50, 136, 189),
    (102, 194, 165),
    (171, 221, 164),
    (230, 245, 152),
    (255, 255, 191),
    (254, 224, 139),
    (253, 174, 97),
    (244, 109, 67),
    (213, 62, 79),
    (158, 1, 66),
)
_OPENCV = {
    "inferno": cv2.COLORMAP_INFERNO,
    "turbo": cv2.COLORMAP_TURBO,
    "magma": cv2.COLORMAP_MAGMA,
    "viridis": cv2.COLORMAP_VIRIDIS,
}
COLORMAPS = (*_OPENCV, "spectral", "gray")

_FIRST_COLORS = (
    (66, 133, 200),
    (240, 150, 60),
    (95, 175, 90),
    (215, 80, 85),
    (150, 115, 190),
    (235, 205, 80),
    (85, 190, 200),
    (230, 140, 185),
    (150, 105, 80),
    (170, 200, 110),
)


@cache
def color_table(name: str) -> np.ndarray:
    """The colour map as uint8 RGB (256, 3), from far to near."""
    if name not in COLORMAPS:
        raise ValueError(f"unknown colormap {name!r}; there are {', '.join(COLORMAPS)}")
    steps = np.arange(256, dtype=np.uint8)
    if name in _OPENCV:
        table = cv2.applyColorMap(steps[:, None], _OPENCV[name])[:, 0, ::-1].copy()
    elif name == "gray":
        table = np.repeat(steps[:, None], 3, axis=1)
    else:
        knots = np.linspace(0, 255, len(_SPECTRAL))
        channels = [np.interp(steps, knots, channel) for channel in zip(*_SPECTRAL, strict=True)]
        table = np.rint(np.stack(channels, axis=1)).astype(np.uint8)
    if table[0].max() < 30:  # start a little brighter: black is kept for what is invalid
        table = table[np.rint(np.linspace(20, 255, 256)).astype(int)]
    table.flags.writeable = False  # it is shared
    return table


def colorize(
    values: np.ndarray,
    valid: np.ndarray,
    *,
    colormap: str,
    low: float,
    high: float,
) -> np.ndarray:
    """Numbers to colours: ``low`` takes the first, ``high`` the last; invalid is black.

    Args:
        values: (H, W), any unit.
        valid: bool (H, W).

    Returns:
        uint8 (H, W, 3) RGB.
    """
    span = max(high - low, 1e-12)
    level = np.where(valid, (values - low) / span, 0.0)
    picture = color_table(colormap)[np.rint(np.clip(level, 0, 1) * 255).astype(np.uint8)]
    picture[~valid] = 0
    return picture


def nearness(
    depth: np.ndarray, valid: np.ndarray | None = None, *, inverse: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse depth, and where it means something.

    Args:
        depth: (H, W) metres, positive; with ``inverse=False`` it is inverse depth already.
        valid: bool (H, W); None takes every finite value (and, of depths, every positive one).
        inverse: whether ``depth`` has to be inverted.

    Returns:
        float64 (H, W), 0 where invalid, and bool (H, W).
    """
    depth = np.asarray(depth)
    if depth.ndim != 2:
        raise ValueError(f"a depth map must have the shape (H, W), got {depth.shape}")
    usable = np.isfinite(depth)
    if inverse:
        usable &= depth > 0
    if valid is not None:
        valid = np.asarray(valid)
        if valid.shape != depth.shape:
            raise ValueError(f"valid has the shape {valid.shape}, but depth {depth.shape}")
        usable &= valid.astype(bool)
    near = np.where(usable, depth, 1.0).astype(np.float64)
    if inverse:
        near = 1 / near
    return np.where(usable, near, 0.0), usable


def near_range(near: np.ndarray, valid: np.ndarray) -> tuple[float, float]:
    """2 % and 98 % quantiles of the valid values; (0, 1) if there are none."""
    if not valid.any():
        return 0.0, 1.0
    low, high = np.quantile(near[valid], [0.02, 0.98])
    return float(low), float(high)


def colorize_depth(
    depth: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    colormap: str = "inferno",
    vmin: float | None = None,
    vmax: float | None = None,
    inverse: bool = True,
) -> np.ndarray:
    """Depth as a picture: near is bright and warm, invalid is black.

    Inverse depth is what is coloured, between the 2 % and 98 % quantiles of the valid pixels or
    within the range given.

    Args:
        depth: (H, W) metres; with ``inverse=False`` relative inverse depth, larger is nearer.
        valid: bool (H, W); without it non-finite values, and depths of 0 or less, are invalid.
        colormap: one of ``COLORMAPS``.
        vmin, vmax: range in the unit of ``depth``: smallest and largest value told apart.
        inverse: whether ``depth`` is depth (True) or inverse depth already (False).

    Returns:
        uint8 (H, W, 3) RGB.
    """
    if vmin is not None and vmax is not None and not vmin < vmax:
        raise ValueError(f"vmin must be smaller than vmax, got {vmin} and {vmax}")
    near, usable = nearness(depth, valid, inverse=inverse)
    low, high = near_range(near, usable)
    if inverse:  # the nearest depth is the largest inverse depth
        low = 1 / vmax if vmax is not None else low
        high = 1 / max(vmin, 1e-6) if vmin is not None else high
    else:
        low = vmin if vmin is not None else low
        high = vmax if vmax is not None else high
    return colorize(near, usable, colormap=colormap, low=low, high=high)


def _spiral_color(k: int) -> tuple[int, int, int]:
    hue = (0.07 + k * 0.6180339887) % 1.0  # steps by the golden ratio spread evenly
    saturation, value = (0.75, 0.5, 0.9)[k % 3], (0.95, 0.6, 0.75, 0.45)[k // 3 % 4]
    red, green, blue = (round(channel * 255) for channel in hsv_to_rgb(hue, saturation, value))
    return red, green, blue


@cache
def _palette_rows(num_classes: int) -> tuple[tuple[int, int, int], ...]:
    rows = list(_FIRST_COLORS[:num_classes])
    while len(rows) < num_classes:
        # Of six colours on the golden spiral, the one farthest from all before.
        spiral = [_spiral_color(len(rows) * 6 + k) for k in range(6)]
        apart = np.abs(np.array(spiral)[:, None] - np.array(rows)).sum(axis=2).min(axis=1)
        rows.append(spiral[int(apart.argmax())])
    return tuple(rows)


def default_palette(num_classes: int) -> np.ndarray:
    """Colours that tell classes apart, always the same ones: uint8 (num_classes, 3) RGB."""
    if num_classes < 1:
        raise ValueError(f"a palette needs at least one class, got {num_classes}")
    return np.array(_palette_rows(num_classes), np.uint8)


def as_palette(palette: object, num_classes: int = 1) -> np.ndarray:
    """Rows of RGB as uint8 (K, 3); the default colours where there are none."""
    rows = np.asarray(() if palette is None else palette)
    if rows.size == 0:
        return default_palette(num_classes)
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.min() < 0 or rows.max() > 255:
        raise ValueError(f"a palette must be (K, 3) with values in 0..255, got {rows.shape}")
    return rows.astype(np.uint8)


def colorize_labels(
    labels: np.ndarray, palette: object = None, *, ignore_index: int = IGNORE_INDEX
) -> np.ndarray:
    """Class ids as a picture; ``ignore_index`` is black.

    Args:
        labels: integer (H, W).
        palette: (K, 3) RGB in 0..255; None or empty takes the default colours.
        ignore_index: the id of pixels without a class.

    Returns:
        uint8 (H, W, 3) RGB.

    Raises:
        ValueError: an id has no row in the palette.
    """
    labels = np.asarray(labels)
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers (H, W), got {labels.dtype} {labels.shape}")
    known = labels != ignore_index
    ids = np.where(known, labels, 0).astype(np.int64)
    rows = as_palette(palette, int(ids.max(initial=0)) + 1)
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= len(rows):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise ValueError(f"label {wrong} has no colour: the palette has {len(rows)} rows")
    picture = rows[ids]
    picture[~known] = 0
    return picture


def overlay(image: np.ndarray, color: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    """Lays a coloured map over an image; black pixels of the map leave the image alone.

    Args:
        image, color: uint8 (H, W, 3) RGB of one size.
        alpha: weight of the colours, 0..1.

    Returns:
        uint8 (H, W, 3) RGB.
    """
    if image.shape != color.shape or image.dtype != np.uint8 or color.dtype != np.uint8:
        raise ValueError(
            "overlay takes two uint8 (H, W, 3) pictures of one size, got "
            f"{image.dtype} {image.shape} and {color.dtype} {color.shape}"
        )
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in 0..1, got {alpha}")
    mixed = cv2.addWeighted(image, 1 - alpha, color, alpha, 0)
    return np.where(color.any(axis=2, keepdims=True), mixed, image)
