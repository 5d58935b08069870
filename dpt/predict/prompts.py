"""Sparse depth of an image, which a model takes as a further input, from a file or an array."""

from pathlib import Path

import numpy as np

from dpt.data.formats.io import read_raw_depth
from dpt.data.formats.rules import DepthRule
from dpt.files import DataError, parse_number, read_table
from dpt.validation import MAX_METRES

Prompt = str | Path | np.ndarray
_COLUMNS = ("x", "y", "depth_m")  # as dpt calibrate reads them
_REMEDY = "the columns are x,y,depth_m: pixels, from 0,0 at the upper left, and metres"


def as_prompt(prompt: Prompt, size: tuple[int, int]) -> np.ndarray:
    """Returns sparse depth as float32 (H, W) = ``size``, in metres, 0 where unknown.

    Args:
        prompt: an array (H, W), or a file: CSV with the columns x, y and depth_m, or a depth map of
            the image's size, whole numbers in millimetres, others in metres. Values that are not
            finite and above 0 are unknown.
        size: of the image.

    Raises:
        DataError: it cannot be read, has another size, a point outside the image, or no point.
    """
    if isinstance(prompt, np.ndarray):
        name, values = "prompt", prompt
    elif Path(prompt).suffix.lower() == ".csv":
        name, values = str(prompt), _read_points(prompt, size)
    else:
        name, values = str(prompt), read_raw_depth(prompt)
    if values.shape != size or values.dtype.kind not in "uif":
        fault = f"{values.dtype} {values.shape}, and the image has (H, W) = {size}"
        raise DataError(f"{name}: is {fault}: give depth for each pixel, 0 where unknown")
    is_whole = values.dtype.kind != "f"
    depth, valid = DepthRule(scale=0.001 if is_whole else 1.0, max_depth=MAX_METRES)(values)
    if not valid.any():
        raise DataError(f"{name}: holds no depth above 0: give at least one point")
    return depth


def _read_points(path: str | Path, size: tuple[int, int]) -> np.ndarray:
    depth = np.zeros(size, np.float32)
    for where, cells in read_table(path, _COLUMNS, remedy=_REMEDY):
        try:
            x, y, metres = map(parse_number, cells)
        except ValueError:
            raise DataError(f"{where}: {cells} are not three numbers: {_REMEDY}") from None
        is_inside = -0.5 <= x < size[1] - 0.5 and -0.5 <= y < size[0] - 0.5
        if not is_inside or not 0 < metres <= MAX_METRES:
            fault = f"depth_m={metres:g}: must be above 0 and at most {MAX_METRES:g}"
            if not is_inside:
                fault = f"x={x:g}, y={y:g} is outside the image of {size[1]}x{size[0]} pixels"
            raise DataError(f"{where}: {fault}: {_REMEDY}")
        depth[round(y), round(x)] = metres
    return depth
