"""Conversion of the values of a depth file to metres."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpt.files import DataError


@dataclass(frozen=True, kw_only=True)
class DepthRule:
    """Converts values to depth: metres = value in the file × scale, valid within limits.

    Attributes:
        scale: metres for each unit: 0.001 for millimetres, 1/256 for KITTI's PNGs.
        invalid: values in the file that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; None for no limit.
        decode: converts stored values (H, W) that are not proportional to depth, before ``scale``.
    """

    scale: float = 0.001
    invalid: Sequence[float] = (0.0,)
    min_depth: float = 0.0
    max_depth: float | None = None
    decode: Callable[[np.ndarray], np.ndarray] | None = None

    def __post_init__(self) -> None:
        if not 1e-30 < self.scale < 1e30:
            raise DataError(f"data.depth_scale={self.scale} must be above 0, in metres")
        if self.max_depth is not None and not 0 <= self.min_depth < self.max_depth:
            limits = f"0..data.max_depth={self.max_depth}"
            raise DataError(f"data.min_depth={self.min_depth} must lie in {limits} (metres)")

    def __call__(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns depth, float32 (H, W) in metres, 0 where invalid, and valid, bool (H, W).

        NaN, infinity and values not above zero are always invalid.
        """
        values = raw if self.decode is None else self.decode(raw)
        inverse = round(1.0 / self.scale)
        # Whole divisors (1000 for millimetres) divide: the result is then rounded correctly.
        if inverse and abs(inverse * self.scale - 1.0) < 1e-9:
            depth = np.divide(values, np.float32(inverse), dtype=np.float32, casting="unsafe")
        else:
            depth = np.multiply(values, np.float32(self.scale), dtype=np.float32, casting="unsafe")
        valid = (depth > 0) & (depth >= self.min_depth) & (depth < np.inf)
        if self.max_depth is not None:
            valid &= depth <= self.max_depth
        valid &= self.is_declared_valid(raw)
        return np.where(valid, depth, np.float32(0)), valid

    def is_declared_valid(self, raw: np.ndarray) -> np.ndarray:
        """Returns where the values of a file are none of ``invalid``, bool (H, W)."""
        valid = np.ones(raw.shape, bool)
        for value in self.invalid:
            whole = raw.dtype.kind != "f" and float(value).is_integer()
            valid &= raw != (int(value) if whole else value)  # integers compare 8 times as fast
        return valid

    def is_measured(self, raw: np.ndarray) -> np.ndarray:
        """Returns where values are finite, above 0 and declared valid, bool (H, W)."""
        return np.isfinite(raw) & (raw > 0) & self.is_declared_valid(raw)

    def explain(self, raw: np.ndarray) -> str:
        """Returns why no pixel of a file is valid, with a remedy."""
        values = raw if self.decode is None else self.decode(raw)
        usable = values[np.isfinite(values) & (values > 0) & self.is_declared_valid(raw)]
        if usable.size == 0:
            return "the file holds only values of data.invalid_depth: check the file"
        limits = f"{self.min_depth:g}..{self.max_depth or np.inf:g} m"
        fault = f"its values {usable.min():g}..{usable.max():g} times data.depth_scale"
        if np.median(usable) * self.scale > 1000:
            remedy = "these look like millimetres: set data.depth_scale=0.001"
        else:
            remedy = "check data.depth_scale, data.invalid_depth and data.max_depth"
        return f"{fault}={self.scale:g} lie outside {limits}: {remedy}"
