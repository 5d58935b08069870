"""Procedural textures: two-colour patterns and windows, as functions of metres along a surface.

Colours are linear RGB in 0..1. Legend: N points, arrays are (N,), colours (3, N), all float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np


@dataclass(frozen=True)
class Material:
    """A two-colour pattern."""

    pattern: str  # a key of PATTERNS
    colors: np.ndarray  # (2, 3)
    scale: float  # period of the pattern, metres
    gloss: float = 0.0  # strength of the highlight
    turn: float = 0.0  # rotation of the pattern, radians


@dataclass(frozen=True)
class Windows:
    """A grid of windows on upright faces: ``rows`` of them, starting at height ``sill``; metres."""

    period: tuple[float, float]
    size: tuple[float, float]
    sill: float
    rows: int
    glass: np.ndarray  # (3,) colour
    glow: float  # emitted light, relative to the colour


def surface_color(
    material: Material, windows: Windows | None, uv: np.ndarray, pixel: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Albedo of a surface.

    Args:
        uv: (2, N) metres along the surface; v is the height on upright faces.
        pixel: (N,) size of a pixel on the surface in metres; finer detail fades to its mean.

    Returns:
        Albedo (3, N), and which points lie in windows (N,), None without windows.
    """
    cos, sin = np.float32(np.cos(material.turn)), np.float32(np.sin(material.turn))
    u = (cos * uv[0] - sin * uv[1]) / np.float32(material.scale)
    v = (sin * uv[0] + cos * uv[1]) / np.float32(material.scale)
    fade = np.clip(1.6 - 3.5 * pixel / np.float32(material.scale), 0, 1)
    mix = 0.5 + (PATTERNS[material.pattern](u, v) - 0.5) * fade
    first, second = material.colors[:, :, None]
    color = first + (second - first) * mix
    color *= 0.8 + 0.4 * noise(uv[0], uv[1], 18.0)  # stains
    if windows is None:
        return color, None
    across, up = uv[0] / np.float32(windows.period[0]), (uv[1] - windows.sill) / windows.period[1]
    column, row = np.floor(across), np.floor(up)
    across, up = (across - column) * windows.period[0], (up - row) * windows.period[1]
    wide, high = windows.size
    pane = (across < wide) & (up < high) & (row >= 0) & (row < windows.rows)
    frame = pane & (
        (across < 0.05) | (across > wide - 0.05) | (up < 0.05) | (np.abs(up - high / 2) < 0.025)
    )
    color[:, pane] = windows.glass[:, None] * (0.5 + 0.6 * up[pane] / np.float32(high))
    color[:, frame] = second * 0.4
    return color, pane


@cache
def _noise_tables() -> tuple[np.ndarray, np.ndarray]:
    """Two periodic tables of 256²: smooth fractal noise and white noise."""
    rng = np.random.default_rng(20)
    smooth = np.zeros((256, 256), np.float32)
    for cells in (4, 8, 16, 32, 64):
        grid = np.pad(rng.random((cells, cells), np.float32), 2, mode="wrap")
        scale = 256 // cells
        large = cv2.resize(grid, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        smooth += large[2 * scale : -2 * scale, 2 * scale : -2 * scale] * (4 / cells) ** 0.7
    low, high = np.quantile(smooth, [0.01, 0.99])
    return np.clip((smooth - low) / (high - low), 0, 1), rng.random((256, 256), np.float32)


def _look_up(table: np.ndarray, column: np.ndarray, row: np.ndarray) -> np.ndarray:
    return table.ravel()[(row.astype(np.int32) & 255) * 256 + (column.astype(np.int32) & 255)]


def noise(u: np.ndarray, v: np.ndarray, period: float) -> np.ndarray:
    """Smooth noise in 0..1 that repeats after ``period`` in u and v."""
    per = np.float32(256 / period)
    return _look_up(_noise_tables()[0], np.floor(u * per), np.floor(v * per))


def _white_noise(column: np.ndarray, row: np.ndarray) -> np.ndarray:
    """A number in 0..1 for each cell of a grid."""
    return _look_up(_noise_tables()[1], column, row)


def _is_odd(cell: np.ndarray) -> np.ndarray:
    return cell.astype(np.int32) & 1


def _dots(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    du, dv = u - np.floor(u), v - np.floor(v)
    return ((du - 0.5) ** 2 + (dv - 0.5) ** 2 < 0.09).astype(np.float32)


def _tiles(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    column, row = np.floor(u), np.floor(v)
    joint = (u - column < 0.07) | (v - row < 0.07)
    return np.where(joint, np.float32(0), 0.6 + 0.4 * _white_noise(column, row))


def _planks(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    row = np.floor(4 * v)
    tone = _white_noise(np.floor(0.6 * u + 0.37 * row), row)
    grain = noise(0.15 * u, v + tone, 1.5)
    return np.where(4 * v - row < 0.09, np.float32(0), 0.15 + 0.5 * tone + 0.35 * grain)


PATTERNS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "plain": lambda u, v: 0.35 + 0.3 * noise(u, v, 5.0),
    "checker": lambda u, v: _is_odd(np.floor(2 * u) + np.floor(2 * v)).astype(np.float32),
    "stripes": lambda u, v: (u - np.floor(u) < 0.5).astype(np.float32),
    "dots": _dots,
    "tiles": _tiles,
    "bricks": lambda u, v: _tiles(u + 0.5 * _is_odd(np.floor(2.5 * v)), 2.5 * v),
    "planks": _planks,
    "marble": lambda u, v: np.minimum(np.abs(2 * noise(u, v, 6.0) - 1) * 2, 1),
    "grass": lambda u, v: np.clip(1.2 * (noise(u, v, 2.5) + noise(u, v, 12.0)) - 0.7, 0, 1),
}
"""Share of the second colour, 0..1, at points given in periods of the pattern."""
