"""Cubic interpolation of position codes, written out in NumPy."""

import math

import numpy as np


def cubic_axis(values, new, scale):
    """Cubic convolution (a = -0.75, edges repeated) of axis 0 to ``new`` samples."""

    def kernel(t, a=-0.75):
        t = abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0

    rows = []
    for i in range(new):
        source = (i + 0.5) / scale - 0.5
        left = math.floor(source)
        sources = range(left - 1, left + 3)
        inside = [min(max(k, 0), len(values) - 1) for k in sources]
        rows.append(
            sum(kernel(source - k) * values[i] for k, i in zip(sources, inside, strict=True))
        )
    return np.stack(rows)


def cubic_reference(x, old, new, offset):
    maps = x.numpy().reshape(*old, -1)
    maps = cubic_axis(maps, new[0], (new[0] + offset) / old[0])
    maps = cubic_axis(maps.swapaxes(0, 1), new[1], (new[1] + offset) / old[1]).swapaxes(0, 1)
    return maps.reshape(1, new[0] * new[1], -1)
