"""Conversion of the values of a depth file to metres."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dpt.data.errors import DataError

DepthEncoding = Literal["linear", "sunrgbd", "kinect", "disparity", "hypersim"]


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """metres = decoded value × scale, valid within limits.

    Attributes:
        encoding: what the stored values are, before ``scale``: ``linear`` if they are proportional
            to depth, else a name of ``ENCODINGS``.
        scale: metres for each decoded unit: 0.001 for millimetres, 1/256 for KITTI's PNGs.
        invalid: values in the file, before decoding, that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; None for no limit.
    """

    encoding: DepthEncoding = "linear"
    scale: float = 0.001
    invalid: Sequence[float] = (0.0,)
    min_depth: float = 0.0
    max_depth: float | None = None

    def __post_init__(self) -> None:
        if self.encoding not in get_args(DepthEncoding):
            allowed = ", ".join(get_args(DepthEncoding))
            raise DataError(f"data.depth_encoding={self.encoding}: choose one of {allowed}")
        if self.scale <= 0:
            raise DataError(f"data.depth_scale={self.scale} must be above 0")
        if self.max_depth is not None and not 0 <= self.min_depth < self.max_depth:
            limits = f"0..data.max_depth={self.max_depth}"
            raise DataError(f"data.min_depth={self.min_depth} must lie in {limits} (metres)")

    def __call__(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Converts stored values (H, W).

        Returns:
            depth, float32 (H, W) in metres, 0 where invalid; valid, bool (H, W). NaN, infinity and
            values not above zero are always invalid.
        """
        values = self._decode(raw)
        inverse = round(1.0 / self.scale) if self.scale <= 1 else 0
        # Whole divisors (1000 for millimetres) divide: the result is then rounded correctly.
        if inverse and abs(inverse * self.scale - 1.0) < 1e-9:
            depth = np.divide(values, np.float32(inverse), dtype=np.float32, casting="unsafe")
        else:
            depth = np.multiply(values, np.float32(self.scale), dtype=np.float32, casting="unsafe")
        valid = (depth >= self.min_depth) if self.min_depth > 0 else (depth > 0)
        valid &= (depth <= self.max_depth) if self.max_depth is not None else (depth < np.inf)
        for value in self.invalid:
            whole = raw.dtype.kind != "f" and float(value).is_integer()
            valid &= raw != (int(value) if whole else value)  # integers compare 8 times as fast
        if values.dtype.kind == "f":  # NaN × 0 is NaN
            return np.where(valid, depth, np.float32(0)), valid
        return np.multiply(depth, valid, out=depth), valid

    def explain(self, raw: np.ndarray) -> str:
        """Why no pixel of a file is valid, with a remedy."""
        values = self._decode(raw)
        usable = values[np.isfinite(values) & (values > 0) & ~np.isin(raw, list(self.invalid))]
        if usable.size == 0:
            return "the file holds only values of data.invalid_depth: check the file"
        text = (
            f"its values {usable.min():g}..{usable.max():g} times data.depth_scale={self.scale:g} "
            f"lie outside {self.min_depth:g}..{self.max_depth:g} m"
        )
        if np.median(usable) * self.scale > 1000:
            return f"{text}; these look like millimetres: set data.depth_scale=0.001"
        return f"{text}: check data.depth_scale, data.invalid_depth and data.max_depth"

    def _decode(self, raw: np.ndarray) -> np.ndarray:
        name = self.encoding
        if name in ("sunrgbd", "kinect") and raw.dtype != np.uint16:
            raise DataError(f"data.depth_encoding={name} needs 16-bit files, found {raw.dtype}")
        return raw if name == "linear" else ENCODINGS[name](raw)


def _sunrgbd(raw: np.ndarray) -> np.ndarray:
    """SUN RGB-D stores millimetres with their bits rotated left by three."""
    return (raw >> 3) | (raw << 13)


def _kinect(raw: np.ndarray) -> np.ndarray:
    """Raw Kinect values of NYUv2's ``.pgm`` files, their bytes swapped, to millimetres.

    The fit of NYUv2's own toolbox; undefined from 1093 on, where 2047 means "not measured".
    """
    return np.float32(351_300) / (np.float32(1092.5) - raw.byteswap().astype(np.float32))


def _disparity(raw: np.ndarray) -> np.ndarray:
    """Disparity (pixels) to its inverse; ``scale`` is baseline (metres) × focal length (pixels)."""
    with np.errstate(divide="ignore"):
        return np.float32(1) / raw.astype(np.float32)


def _hypersim(raw: np.ndarray) -> np.ndarray:
    """Hypersim's metres along the ray to metres along the optical axis.

    Its images are 1024 pixels wide with a focal length of 886.81 pixels; rays pass through pixel
    centres, and the principal point is in the middle.
    """
    height, width = raw.shape
    focal = 886.81 * width / 1024
    x = np.arange(width) - (width - 1) / 2
    y = np.arange(height) - (height - 1) / 2
    ray = np.sqrt(x[None, :] ** 2 + y[:, None] ** 2 + focal**2)
    return (raw * (focal / ray)).astype(np.float32)


ENCODINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "sunrgbd": _sunrgbd,
    "kinect": _kinect,
    "disparity": _disparity,
    "hypersim": _hypersim,
}
"""Decoders by ``depth_encoding``; the results are millimetres for ``sunrgbd`` and ``kinect``."""
