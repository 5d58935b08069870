"""Colours of depth, labels and other maps. Black is kept for invalid and ignored pixels.

Every picture is uint8 (H, W, 3) RGB.
"""

from __future__ import annotations

from colorsys import hsv_to_rgb
from functools import cache

import cv2
import numpy as np

from dpt.types import IGNORE_INDEX, OutputSpec

COLORMAPS = ("inferno", "turbo", "magma", "viridis", "spectral", "gray")
"""Matplotlib's colormaps from far to near; ``spectral`` is its ``Spectral_r``."""


@cache
def color_table(name: str) -> np.ndarray:
    """The colormap as uint8 RGB (256, 3), from far to near."""
    from matplotlib import colormaps  # a quarter of a second

    if name not in COLORMAPS:
        raise ValueError(f"unknown colormap {name!r}; choose from {', '.join(COLORMAPS)}")
    cmap = colormaps["Spectral_r" if name == "spectral" else name]
    table = cmap(np.arange(256), bytes=True)[:, :3].copy()
    if table[0].max() < 30:  # start a little brighter than black
        table = table[np.rint(np.linspace(20, 255, 256)).astype(int)]
    table.flags.writeable = False  # shared by all callers
    return table


def colorize(
    values: np.ndarray, valid: np.ndarray, *, colormap: str, low: float, high: float
) -> np.ndarray:
    """Numbers (H, W) to colours: ``low`` gets the first, ``high`` the last; not valid is black."""
    level = np.where(valid, _level(values, low, high), 0)
    picture = color_table(colormap)[level]
    picture[~valid] = 0
    return picture


def _level(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values from ``low`` to ``high`` as uint8 from 0 to 255, NaN as 0."""
    share = np.nan_to_num((values - low) / max(high - low, 1e-12))
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)


def heatmap(values: np.ndarray, *, high: float | None = None) -> np.ndarray:
    """Numbers (H, W) in viridis, from 0 to ``high``; None for the 99 % quantile."""
    high = float(np.quantile(values, 0.99)) if high is None else high
    return colorize(values, np.isfinite(values), colormap="viridis", low=0.0, high=high)


def nearness(
    depth: np.ndarray, valid: np.ndarray | None = None, *, inverse: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Inverse depth, float64 (H, W), 0 where invalid, and where it is defined, bool (H, W).

    Arguments as for :func:`colorize_depth`.
    """
    depth = np.asarray(depth)
    if depth.ndim != 2:
        raise ValueError(f"a depth map must have the shape (H, W), got {depth.shape}")
    usable = np.isfinite(depth) & ((depth > 0) | (not inverse))
    if valid is not None:
        usable &= valid
    near = np.where(usable, depth, 1.0).astype(np.float64)
    return np.where(usable, 1 / near if inverse else near, 0.0), usable


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

    The colours are linear in inverse depth, between the 2 % and 98 % quantiles of the valid pixels
    or within the given range.

    Args:
        depth: (H, W) metres; with ``inverse=False`` inverse depth, larger is nearer.
        valid: bool (H, W); None: non-finite values, and depths of 0 or less, are invalid.
        colormap: one of ``COLORMAPS``.
        vmin, vmax: range of the colours in the unit of ``depth``.
        inverse: whether ``depth`` has to be inverted.
    """
    if vmin is not None and vmax is not None and not vmin < vmax:
        raise ValueError(f"vmin must be smaller than vmax, got {vmin} and {vmax}")
    near, usable = nearness(depth, valid, inverse=inverse)
    low, high = near_range(near, usable)
    if inverse:  # the nearest depth is the largest inverse depth
        vmin, vmax = (None if v is None else 1 / max(v, 1e-6) for v in (vmax, vmin))
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    return colorize(near, usable, colormap=colormap, low=low, high=high)


@cache
def _palette_row(k: int) -> tuple[int, ...]:
    from matplotlib import colormaps

    if k < 9:
        return tuple(round(255 * channel) for channel in colormaps["Set1"](k)[:3])
    hue = (0.07 + k * 0.6180339887) % 1.0  # steps by the golden ratio spread evenly
    saturation, value = (0.75, 0.5, 0.95)[k % 3], (0.95, 0.6, 0.75, 0.45)[k // 3 % 4]
    return tuple(round(255 * channel) for channel in hsv_to_rgb(hue, saturation, value))


def default_palette(num_classes: int) -> np.ndarray:
    """Distinct colours, always the same: uint8 (num_classes, 3) RGB."""
    return np.array([_palette_row(k) for k in range(num_classes)], np.uint8)


def as_palette(palette: object, num_classes: int = 1) -> np.ndarray:
    """A palette as uint8 (K, 3) RGB; the default colours for None or an empty one."""
    rows = np.asarray(() if palette is None else palette)
    if rows.size == 0:
        return default_palette(num_classes)
    if rows.ndim != 2 or rows.shape[1] != 3 or rows.min() < 0 or rows.max() > 255:
        raise ValueError(f"a palette must be (K, 3) with values in 0..255, got {rows.shape}")
    return rows.astype(np.uint8)


def colorize_labels(
    labels: np.ndarray, palette: object = None, *, ignore_index: int = IGNORE_INDEX
) -> np.ndarray:
    """Class ids as a picture.

    Args:
        labels: integer (H, W).
        palette: (K, 3) RGB in 0..255; None or empty for the default colours.
        ignore_index: the id of pixels without a class, which are black.

    Raises:
        ValueError: an id has no row in the palette.
    """
    labels = np.asarray(labels)
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers (H, W), got {labels.dtype} {labels.shape}")
    known = labels != ignore_index
    ids = np.where(known, labels, 0).astype(np.int64)
    lowest, highest = int(ids.min(initial=0)), int(ids.max(initial=0))
    rows = as_palette(palette, highest + 1)
    if lowest < 0 or highest >= len(rows):
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"label {wrong} has no colour: the palette has {len(rows)} rows")
    picture = rows[ids]
    picture[~known] = 0
    return picture


def colorize_output(
    values: np.ndarray, output: OutputSpec, *, limits: tuple[float, float] | None = None
) -> np.ndarray:
    """A dense prediction of one image as a picture, as its declaration says; NaN is black.

    Args:
        values: (H, W) or (C, H, W): ``logits`` as class ids or logits, drawn with the palette;
            ``depth`` with a colormap; ``map`` of three channels as RGB, of others the first
            channel with a colormap.
        output: the declaration.
        limits: smallest and largest value of a ``map``'s colours; None for ``output.value_range``
            or the range of the values.
    """
    values = np.asarray(values)
    if not output.dense:
        raise ValueError(f"output {output.name!r} is not dense: it has no picture")
    if output.kind == "logits":
        return colorize_labels(values.argmax(0) if values.ndim == 3 else values, output.palette)
    if output.kind == "depth":
        return colorize_depth(values, inverse=not output.is_inverse_depth)
    low, high = limits or output.value_range or value_limits(values)
    if values.ndim == 3 and len(values) == 3:
        return _level(values, low, high).transpose(1, 2, 0)
    first = values if values.ndim == 2 else values[0]
    return colorize(first, np.isfinite(first), colormap="viridis", low=low, high=high)


def value_limits(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest finite value; (0, 1) if there are none."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def overlay(image: np.ndarray, color: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    """Blends two pictures of one size, ``alpha`` being the weight of ``color``.

    Black pixels of ``color`` leave the image unchanged.
    """
    mixed = cv2.addWeighted(image, 1 - alpha, color, alpha, 0)
    return np.where(color.any(axis=2, keepdims=True), mixed, image)
