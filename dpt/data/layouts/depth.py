"""Settings of depth maps: the unit of their values, what is not measured, and the range."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpt.data.formats import io
from dpt.data.formats.rules import UNITS, DepthRule, are_normalised, likely_scale, top_of
from dpt.files import DataError, few
from dpt.validation import Plain, PlainMapping

_MAX_MAPS = 48  # from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_NEAR_ROOM = 2.5  # metres: rooms mostly reach farther, so that the unit may be another
_SPARSE = 0.3  # fraction of measured pixels: laser scanners measure fewer
_NOT_MEASURED = (65.535, 65535.0, 65504.0, 1e10)
"""What means "not measured" in floats: the end of 16 bits, also of halves, and Blender's sky."""
_DISPARITY = r"(?i)(^|[-_. /])disp(s|arity|arities)?([-_. /0-9]|$)"


def depth_settings(paths: Sequence[Path], given: PlainMapping) -> tuple[Plain, list[str]]:
    """Returns the settings of depth maps, and notes about them.

    Raises:
        DataError: disparity, maps scaled to their own range, or an unknown unit.
    """
    folder = paths[0].parent
    if re.search(_DISPARITY, str(paths[0])):
        remedy = "convert it, metres = focal length x baseline / disparity, and rename the files"
        raise DataError(f"{folder}: disparity, not depth: {remedy}")
    key, page = given.get("depth_key", given.get("array_key")), given.get("page")
    places = np.linspace(0, len(paths) - 1, min(len(paths), _MAX_MAPS)).astype(int)
    maps = [io.read_raw_depth(paths[i], key=key, page=page) for i in places]
    dtype = maps[0].dtype
    if len({values.dtype.kind == "f" for values in maps}) > 1:
        types = sorted({str(values.dtype) for values in maps})
        raise DataError(f"{folder}: depth maps of {few(types)}: save all in one unit and type")
    if "depth_scale" not in given and are_normalised([top_of(values) for values in maps]):
        fault = f"all depth maps end at {maps[0].max():g}, as if each was scaled to its own range"
        raise DataError(f"{folder}: {fault}: save metres, or set data.depth_scale if they share it")
    invalid = given.get("invalid_depth", [0, *_missing_values(maps)])
    rule = DepthRule(invalid=invalid)
    measured = [values[rule.is_measured(values)] for values in maps]
    pixels = sum(values.size for values in maps)
    fraction = sum(values.size for values in measured) / pixels
    measured = [values for values in measured if values.size]
    if not measured:
        raise DataError(f"{folder}: no depth map holds a measured depth: check the files")
    typical = float(np.median([np.median(values) for values in measured]))
    high = float(np.median([np.quantile(values, 0.99) for values in measured]))
    scale = given.get("depth_scale") or _scale(folder, dtype, typical, high, fraction)
    farthest = scale * max(float(values.max()) for values in measured)
    ranges = [limit for limit in _RANGES if limit >= farthest]
    settings = {
        "depth_scale": scale,
        "invalid_depth": invalid,
        "max_depth": ranges[0] if ranges else float(np.ceil(farthest)),
    }
    unit = f"{UNITS.get(scale, scale)}, {typical * scale:.2g} m typically"
    shown = few([str(value) for value in invalid])
    notes = [f"depth: {len(paths)} files of {dtype} in {unit}; {shown} and NaN: not measured"]
    below = sum(int(np.count_nonzero(values < 0)) for values in maps)
    if below:
        fault = f"{below / pixels:.2%} of the pixels are below 0, not measured"
        notes.append(f"depth: {fault}; if they are heights, make distances of them")
    return settings, notes


def _missing_values(maps: Sequence[np.ndarray]) -> list[float]:
    """Returns the values in maps that mean "not measured", besides 0."""
    dtype = maps[0].dtype
    largest = [] if dtype.kind == "f" else [np.iinfo(dtype).max]
    candidates = dict.fromkeys([*largest, *_NOT_MEASURED])
    wide = [values.astype(np.promote_types(values.dtype, np.float32)) for values in maps]
    return [value for value in candidates if any((values == value).any() for values in wide)]


def _scale(folder: Path, dtype: np.dtype, typical: float, high: float, fraction: float) -> float:
    """Returns the metres of a unit.

    Args:
        typical, high: the median and the 99 % quantile of the values.
        fraction: of the pixels that are measured.

    Raises:
        DataError: several units are likely, or none.
    """
    is_whole = dtype.kind != "f"
    scale = likely_scale(typical, high, max_depth=None, scale=np.inf)
    if is_whole and typical >= 250:
        scale = 0.001
    if scale is None or dtype.itemsize == 1:
        fault = "maps of 8 bits have no usual unit" if scale else "no usual unit is plausible"
        remedy = f"with a typical depth of {typical:.4g}: set data.depth_scale to metres of a unit"
        raise DataError(f"{folder}: {fault}, {remedy}")
    alternatives = [0.001]
    if is_whole and fraction < _SPARSE:
        alternatives = [1 / 256]
    elif is_whole and high * scale > _ROOM:
        alternatives = [0.0002]
    elif is_whole and high * scale < _NEAR_ROOM:
        alternatives = [0.01 if scale == 0.001 else 0.001, 1 / 256, 1 / 512]
    units = dict.fromkeys([scale, *alternatives])
    if scale != 1.0 and len(units) > 1:
        shown = ", ".join(
            f"{typical * unit:.2g} m with data.depth_scale={unit:.9g}" for unit in units
        )
        raise DataError(f"{folder}: the typical depth {typical:.4g} may be {shown}: set it")
    return scale
