"""Random colours for training pictures: one affine map of RGB, so one pass over the pixels.

Brightness, contrast, saturation and hue are each an affine map of a pixel's colour, and so is all
of them in a row. The usual implementations make four passes and clip after each; here only the
result is clipped. Hue turns the colour about the grey axis, as SVG's and CSS's ``hueRotate`` does,
where others go through HSV: the range of colours is alike, single pixels are not.
"""

from __future__ import annotations

import cv2
import numpy as np

LUMA = np.array([0.299, 0.587, 0.114])
"""Share of R, G and B in how bright a colour looks (ITU-R BT.601)."""
_GREY = np.tile(LUMA, (3, 1))
_YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""RGB to luma and the two axes of hue (NTSC)."""


def draw_colors(random: np.random.Generator, strength: float) -> dict[str, float]:
    """Arguments of :func:`change_colors`, for a strength in 0..1."""
    factors = 1 + 0.4 * strength * random.uniform(-1, 1, 3)
    made = dict(zip(("brightness", "contrast", "saturation"), factors.tolist(), strict=True))
    return {**made, "hue": 0.1 * strength * random.uniform(-1, 1)}


def change_colors(
    image: np.ndarray, *, brightness: float, contrast: float, saturation: float, hue: float
) -> np.ndarray:
    """A copy with other colours, uint8 RGB (H, W, 3).

    Args:
        image: uint8 RGB (H, W, 3).
        brightness: factor of every value.
        contrast: factor of the distance to the picture's mean luma.
        saturation: factor of the distance to a pixel's own luma; 0 makes it grey.
        hue: turns about the grey axis; a third takes red to about green.
    """
    angle = -2 * np.pi * hue  # of I towards Q is against the order of hues
    turn = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    matrix = np.linalg.inv(_YIQ) @ turn @ _YIQ
    matrix = matrix @ (saturation * np.eye(3) + (1 - saturation) * _GREY)
    middle = brightness * float(LUMA @ cv2.mean(image)[:3])
    # greys stay what they are under saturation and hue, so this is all that contrast adds
    shift = np.full((3, 1), (1 - contrast) * middle)
    return cv2.transform(image, np.hstack([brightness * contrast * matrix, shift]))
