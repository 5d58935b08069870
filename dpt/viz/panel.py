"""Rows and grids of captioned pictures: input, truth, prediction and error.

Every picture and panel is uint8 (H, W, 3) RGB; maps may have another size than the image.
"""

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


def depth_panel(
    image: np.ndarray, truth: np.ndarray, valid: np.ndarray | None, prediction: np.ndarray
) -> np.ndarray:
    """image | truth | prediction | error, truth and prediction with one range of colours.

    The range is the truth's (the prediction's where nothing is valid). The error is
    |prediction - truth| / truth from blue (0) to red (0.5), black without truth.

    Args:
        image: the photo.
        truth: (h, w) metres.
        valid: bool (h, w), or None for every positive finite truth.
        prediction: (h, w) metres, aligned to the truth.
    """
    truth_near, truth_valid = nearness(truth, valid)
    near, near_valid = nearness(prediction)
    known = truth_valid.any()
    low, high = near_range(truth_near, truth_valid) if known else near_range(near, near_valid)
    maps = [
        colorize(values, usable, colormap="inferno", low=low, high=high)
        for values, usable in ((truth_near, truth_valid), (near, near_valid))
    ]
    scale = np.where(truth_valid, truth, 1.0)
    error = np.nan_to_num(np.abs(prediction - truth) / scale, nan=MAX_ERROR, posinf=MAX_ERROR)
    maps.append(colorize(error, truth_valid, colormap="spectral", low=0.0, high=MAX_ERROR))
    mean = f"mean {error[truth_valid].mean():.3f}" if known else "no truth"
    captions = ("image", "truth", "prediction", f"|error|/truth 0..{MAX_ERROR:g}, {mean}")
    return side_by_side([image, *maps], captions)


def segmentation_panel(
    image: np.ndarray, labels: np.ndarray, prediction: np.ndarray, palette: object = None
) -> np.ndarray:
    """image | truth | prediction | error: wrong pixels red on the dimmed image, ignored ones black.

    Args:
        image: the photo.
        labels, prediction: integer (h, w) class ids, 255 where ignored or no class.
        palette: (K, 3) RGB in 0..255; None or empty for the default colours.
    """
    known = labels != IGNORE_INDEX
    largest = max(int(ids[ids != IGNORE_INDEX].max(initial=0)) for ids in (labels, prediction))
    rows = as_palette(palette, largest + 1)
    wrong = known & (prediction != labels)
    error = cv2.resize(image, labels.shape[::-1], interpolation=cv2.INTER_AREA) // 3
    error[wrong] = (225, 45, 45)
    error[~known] = 0
    share = f"wrong {wrong.sum() / known.sum():.1%}" if known.any() else "no truth"
    maps = [colorize_labels(ids, rows) for ids in (labels, prediction)]
    return side_by_side([image, *maps, error], ("image", "truth", "prediction", share))


def inpainting_panel(image: np.ndarray, hidden: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """image | input of the model | prediction where ``hidden``, bool (H, W), the image elsewhere.

    ``prediction`` is a picture of the image's size.
    """
    shown = np.where(hidden[..., None], np.uint8(128), image)
    painted = np.where(hidden[..., None], prediction, image)
    captions = ("image", f"input, {hidden.mean():.0%} hidden", "prediction")
    return side_by_side([image, shown, painted], captions)


def output_panel(
    image: np.ndarray, truth: np.ndarray, prediction: np.ndarray, output: OutputSpec
) -> np.ndarray:
    """image | truth | prediction of any dense output, with one range of colours.

    Args:
        image: the photo.
        truth, prediction: (h, w) or (C, h, w), as :func:`colorize_output` takes them; NaN where
            unknown.
        output: the declaration of the output.
    """
    limits = output.value_range or value_limits(truth)
    maps = [colorize_output(values, output, limits=limits) for values in (truth, prediction)]
    return side_by_side([image, *maps], ("image", "truth", "prediction"))


def stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Panels below one another, narrower ones padded at the right."""
    width = max(row.shape[1] for row in rows)
    pads = [((0, 0), (0, width - row.shape[1]), (0, 0)) for row in rows]
    return np.concatenate(
        [np.pad(row, pad, constant_values=_PAPER) for row, pad in zip(rows, pads, strict=True)]
    )


def shrink(picture: np.ndarray, width: int) -> np.ndarray:
    """The picture, downsampled to ``width`` pixels if it is wider."""
    if picture.shape[1] <= width:
        return picture
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def save_png(path: str | Path, panel: np.ndarray) -> None:
    """Writes a picture atomically."""
    _, data = cv2.imencode(".png", cv2.cvtColor(panel, cv2.COLOR_RGB2BGR))
    write_bytes(Path(path), data.tobytes())


def side_by_side(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> np.ndarray:
    """Captioned cells side by side, all of the first picture's shape; the first is a photo."""
    height, width = pictures[0].shape[:2]
    scale = max(1, -(-CELL_WIDTH // width))  # whole: every pixel becomes a square
    size = (height * scale, width * scale)
    ways = [cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA]
    ways += [cv2.INTER_NEAREST_EXACT] * (len(pictures) - 1)
    cells = zip(pictures, captions, ways, strict=True)
    return np.concatenate([_cell(*cell, size) for cell in cells], axis=1)


def tiles(
    pictures: Sequence[np.ndarray], captions: Sequence[str], *, size: tuple[int, int], columns: int
) -> np.ndarray:
    """A grid of captioned cells of ``size`` = (h, w), row by row; small pictures as squares."""
    cells = [
        _cell(p, c, cv2.INTER_AREA if p.shape[0] > size[0] else cv2.INTER_NEAREST_EXACT, size)
        for p, c in zip(pictures, captions, strict=True)
    ]
    rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
    return stack([np.concatenate(row, axis=1) for row in rows])


def heading(text: str, *, width: int) -> np.ndarray:
    """A bar of ``width`` pixels with a line of text."""
    return _write(np.full((26, width, 3), 60, np.uint8), text, (6, 18), 0.5)


def _cell(picture: np.ndarray, caption: str, way: int, size: tuple[int, int]) -> np.ndarray:
    """A resized picture below a line of text, with a gap at the right."""
    cell = cv2.copyMakeBorder(
        cv2.resize(picture, size[::-1], interpolation=way),
        *(_CAPTION_HEIGHT, 0, 0, _GAP),
        cv2.BORDER_CONSTANT,
        value=(_PAPER,) * 3,
    )
    return _write(cell, caption, (4, _CAPTION_HEIGHT - 6), 0.42)


def _write(picture: np.ndarray, text: str, place: tuple[int, int], size: float) -> np.ndarray:
    """Draws text, cut where it is too long."""
    text = text.encode("ascii", "replace").decode()  # the font has no other letters
    font, room = cv2.FONT_HERSHEY_SIMPLEX, picture.shape[1] - place[0] - _GAP
    while text and cv2.getTextSize(text, font, size, 1)[0][0] > room:
        text = text[:-1]
    return cv2.putText(picture, text, place, font, size, (235,) * 3, 1, cv2.LINE_AA)
