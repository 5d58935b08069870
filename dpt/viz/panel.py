"""Rows and grids of captioned pictures: input, truth, prediction and error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from dpt.atomic import write_bytes
from dpt.types import IGNORE_INDEX, OutputSpec
from dpt.viz.color import (
    as_palette,
    colorize,
    colorize_labels,
    colorize_output,
    near_range,
    nearness,
    value_limits,
)

CELL_WIDTH = 240
"""Smaller pictures are upsampled to this width at least."""
MAX_ERROR = 0.5
"""Relative depth error of the last colour."""

_CAPTION_HEIGHT = 20
_GAP = 4
_PAPER = 24  # gray level behind captions and between cells
_WRONG = np.array((225, 45, 45), np.uint8)


def depth_panel(
    image: np.ndarray, truth: np.ndarray, valid: np.ndarray | None, prediction: np.ndarray
) -> np.ndarray:
    """image | truth | prediction | error, truth and prediction with one range of colours.

    The range is the truth's (the prediction's where nothing is valid). The error is
    |prediction - truth| / truth from blue (0) to red (0.5), black without truth.

    Args:
        image: uint8 (H, W, 3) RGB.
        truth: (h, w) metres.
        valid: bool (h, w), or None for every positive finite truth.
        prediction: (h, w) metres, aligned to the truth.

    Returns:
        uint8 RGB, about four cells wide.
    """
    truth_near, truth_valid = nearness(truth, valid)
    near, near_valid = nearness(prediction)
    low, high = near_range(truth_near, truth_valid)
    if not truth_valid.any():
        low, high = near_range(near, near_valid)
    maps = [
        colorize(values, usable, colormap="inferno", low=low, high=high)
        for values, usable in ((truth_near, truth_valid), (near, near_valid))
    ]
    scale = np.where(truth_valid, truth, 1.0)
    error = np.nan_to_num(np.abs(prediction - truth) / scale, nan=MAX_ERROR, posinf=MAX_ERROR)
    maps.append(colorize(error, truth_valid, colormap="spectral", low=0.0, high=MAX_ERROR))
    mean = f"mean {error[truth_valid].mean():.3f}" if truth_valid.any() else "no truth"
    captions = ("image", "truth", "prediction", f"|error|/truth 0..{MAX_ERROR:g}, {mean}")
    return side_by_side([image, *maps], captions)


def segmentation_panel(
    image: np.ndarray, labels: np.ndarray, prediction: np.ndarray, palette: object = None
) -> np.ndarray:
    """image | truth | prediction | error: wrong pixels red on the dimmed image, ignored ones black.

    Args:
        image: uint8 (H, W, 3) RGB.
        labels, prediction: integer (h, w) class ids, 255 where ignored or no class.
        palette: (K, 3) RGB in 0..255; None or empty for the default colours.

    Returns:
        uint8 RGB, about four cells wide.
    """
    known = labels != IGNORE_INDEX
    largest = max(int(ids[ids != IGNORE_INDEX].max(initial=0)) for ids in (labels, prediction))
    rows = as_palette(palette, largest + 1)
    wrong = known & (prediction != labels)
    height, width = labels.shape
    error = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) // 3
    error[wrong] = _WRONG
    error[~known] = 0
    share = f"wrong {wrong.sum() / known.sum():.1%}" if known.any() else "no truth"
    maps = [colorize_labels(ids, rows) for ids in (labels, prediction)]
    return side_by_side([image, *maps, error], ("image", "truth", "prediction", share))


def inpainting_panel(image: np.ndarray, hidden: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """image | input of the model | prediction where hidden, the image elsewhere.

    Args:
        image: uint8 (H, W, 3) RGB.
        hidden: bool (H, W).
        prediction: uint8 (H, W, 3) RGB.

    Returns:
        uint8 RGB, about three cells wide.
    """
    shown = np.where(hidden[..., None], np.uint8(128), image)
    painted = np.where(hidden[..., None], prediction, image)
    return side_by_side(
        [image, shown, painted], ("image", f"input, {hidden.mean():.0%} hidden", "prediction")
    )


def output_panel(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, output: OutputSpec
) -> np.ndarray:
    """image | truth | prediction of any dense output, with one range of colours.

    Args:
        image: uint8 (H, W, 3) RGB.
        truth, prediction: (h, w) or (C, h, w), as :func:`colorize_output` takes them; NaN where
            unknown.
        output: the declaration of the output.

    Returns:
        uint8 RGB, about three cells wide.
    """
    limits = output.value_range or value_limits(truth)
    maps = [colorize_output(values, output, limits=limits) for values in (truth, prediction)]
    return side_by_side([image, *maps], ("image", "truth", "prediction"))


def stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Panels below one another, narrower ones padded at the right; uint8 RGB."""
    width = max(row.shape[1] for row in rows)
    pads = [((0, 0), (0, width - row.shape[1]), (0, 0)) for row in rows]
    return np.concatenate(
        [np.pad(row, pad, constant_values=_PAPER) for row, pad in zip(rows, pads, strict=True)]
    )


def shrink(picture: np.ndarray, width: int) -> np.ndarray:
    """A uint8 (H, W, 3) picture, downsampled to ``width`` pixels if it is wider."""
    if picture.shape[1] <= width:
        return picture
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def save_png(path: str | Path, panel: np.ndarray) -> None:
    """Writes a uint8 RGB picture (H, W, 3) atomically."""
    _, data = cv2.imencode(".png", cv2.cvtColor(panel, cv2.COLOR_RGB2BGR))
    write_bytes(Path(path), data.tobytes())


def side_by_side(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> np.ndarray:
    """Captioned cells side by side, all of the first picture's shape; the first is a photo."""
    height, width = pictures[0].shape[:2]
    scale = max(1, -(-CELL_WIDTH // width))  # whole: every pixel becomes a square
    size = (width * scale, height * scale)
    cells = []
    for k, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        smooth = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
        way = smooth if k == 0 else cv2.INTER_NEAREST_EXACT
        cells.append(captioned(cv2.resize(picture, size, interpolation=way), caption))
    return np.concatenate(cells, axis=1)


def tiles(
    pictures: Sequence[np.ndarray], captions: Sequence[str], *, size: tuple[int, int], columns: int
) -> np.ndarray:
    """A grid of captioned cells, row by row; uint8 RGB.

    Args:
        pictures: uint8 RGB; small ones are upsampled by nearest neighbour.
        captions: one for each picture.
        size: [h, w] of a cell.
        columns: cells in a row.
    """
    cells = []
    for picture, caption in zip(pictures, captions, strict=True):
        way = cv2.INTER_AREA if picture.shape[0] > size[0] else cv2.INTER_NEAREST_EXACT
        cell = cv2.resize(picture, (size[1], size[0]), interpolation=way)
        cells.append(captioned(cell, caption))
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    return stack([np.concatenate(row, axis=1) for row in rows])


def heading(text: str, *, width: int) -> np.ndarray:
    """A bar of ``width`` pixels with a line of text; uint8 RGB."""
    return _write(np.full((26, width, 3), 60, np.uint8), text, (6, 18), 0.5)


def captioned(picture: np.ndarray, caption: str) -> np.ndarray:
    """A picture below a line of text, cut where it is too long, with a gap at the right."""
    cell = cv2.copyMakeBorder(
        picture, _CAPTION_HEIGHT, 0, 0, _GAP, cv2.BORDER_CONSTANT, value=(_PAPER,) * 3
    )
    return _write(cell, caption, (4, _CAPTION_HEIGHT - 6), 0.42)


def _write(picture: np.ndarray, text: str, place: tuple[int, int], size: float) -> np.ndarray:
    text = text.encode("ascii", "replace").decode()  # the font has no other letters
    font, room = cv2.FONT_HERSHEY_SIMPLEX, picture.shape[1] - place[0] - _GAP
    while text and cv2.getTextSize(text, font, size, 1)[0][0] > room:
        text = text[:-1]
    return cv2.putText(picture, text, place, font, size, (235,) * 3, 1, cv2.LINE_AA)
