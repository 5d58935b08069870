"""Which unit the numbers of depth maps have, by their size."""

from collections.abc import Sequence

import numpy as np

NEAR = 0.25  # metres: a smaller typical depth is implausible
UNITS = {  # by metres for each unit
    0.001: "millimetres",
    1.0: "metres",
    0.01: "centimetres",
    1 / 256: "KITTI's 1/256 m",
    0.0002: "TUM's 1/5000 m",
}
_MAX_RANGE = 100.0  # metres, if data.max_depth is unknown
_MANY_MAPS = 4
_ROUND_TOPS = {1, 10, 100, 255, 1000, 1023, 4095, 10_000, 32_767, 65_535}
"""The largest values of maps that were scaled to their own range."""


def likely_scale(
    typical: float, high: float, *, max_depth: float | None, scale: float
) -> float | None:
    """Returns the largest of ``UNITS`` but ``scale`` with which values are plausible depths.

    Args:
        typical, high: the median and the 99 % quantile of the values.
    """
    limit = _MAX_RANGE if max_depth is None else max_depth
    plausible = [unit for unit in UNITS if typical * unit >= NEAR and high * unit <= limit]
    return max((unit for unit in plausible if abs(unit / scale - 1) > 0.01), default=None)


def are_normalised(tops: Sequence[tuple[float, float, float]]) -> bool:
    """Returns whether maps, of which :func:`top_of` is known, seem each scaled to its own
    range: all end at one round value, which few pixels have."""
    values, following, fractions = map(np.array, zip(*tops, strict=True))
    return (
        len(tops) >= _MANY_MAPS
        and len({*values}) == 1
        and values[0] in _ROUND_TOPS
        and bool(np.median(following) > 0.9 and np.median(fractions) < 0.01)
    )


def top_of(values: np.ndarray) -> tuple[float, float, float]:
    """Returns the largest finite value, the next one divided by it, and the fraction of its
    pixels."""
    top = float(values.max(where=np.isfinite(values), initial=0))
    following = float(values.max(where=np.isfinite(values) & (values < top), initial=0))
    return top, following / max(top, 1e-30), float((values == top).mean())
