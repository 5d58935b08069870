"""Rows of small captioned pictures: the input, the truth, the prediction and where it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from dpt.atomic import write_bytes
from dpt.types import IGNORE_INDEX
from dpt.viz.color import as_palette, colorize, colorize_labels, near_range, nearness

CELL_WIDTH = 240
"""Smaller pictures are enlarged to this width at least."""

_CAPTION_HEIGHT = 20
_GAP = 4
_PAPER = 24  # gray level behind captions and between cells
_WRONG = np.array((225, 45, 45), np.uint8)


def depth_panel(
    image: np.ndarray,
    truth: np.ndarray,
    valid: np.ndarray | None,
    prediction: np.ndarray,
    *,
    colormap: str = "inferno",
    max_error: float = 0.5,
    inverse: bool = True,
    captions: Sequence[str] | None = None,
) -> np.ndarray:
    """image | truth | prediction | error, truth and prediction coloured in one range.

    The range is the truth's (the prediction's where nothing is valid). The error is
    |prediction − truth| / truth from blue (0) to red (``max_error``), black without truth.

    Args:
        image: uint8 (H, W, 3) RGB.
        truth: (h, w) metres; with ``inverse=False`` inverse depth.
        valid: bool (h, w), or None for every positive finite truth.
        prediction: (H', W') in the truth's unit, aligned to it; enlarged to the truth's size.
        colormap: of truth and prediction.
        max_error: error at which its colours end.
        inverse: whether the maps are depth (True) or inverse depth (False).
        captions: four of them, in place of the usual ones.

    Returns:
        uint8 RGB, about four cells wide.
    """
    truth = np.asarray(truth, np.float32)
    prediction = _resized(np.asarray(prediction, np.float32), truth.shape)
    truth_near, truth_valid = nearness(truth, valid, inverse=inverse)
    near, near_valid = nearness(prediction, inverse=inverse)
    low, high = near_range(truth_near, truth_valid)
    if not truth_valid.any():
        low, high = near_range(near, near_valid)
    maps = [
        colorize(values, usable, colormap=colormap, low=low, high=high)
        for values, usable in ((truth_near, truth_valid), (near, near_valid))
    ]
    scale = np.where(truth_valid & (truth > 0), truth, 1.0)
    error = np.nan_to_num(np.abs(prediction - truth) / scale, nan=max_error, posinf=max_error)
    maps.append(colorize(error, truth_valid, colormap="spectral", low=0.0, high=max_error))
    mean = f"mean {error[truth_valid].mean():.3f}" if truth_valid.any() else "no truth"
    usual = ("image", "truth", "prediction", f"|error|/truth 0..{max_error:g}, {mean}")
    return side_by_side([image, *maps], captions or usual)


def segmentation_panel(
    image: np.ndarray,
    labels: np.ndarray,
    prediction: np.ndarray,
    palette: object = None,
    *,
    ignore_index: int = IGNORE_INDEX,
    captions: Sequence[str] | None = None,
) -> np.ndarray:
    """image | truth | prediction | error: wrong pixels red on the dimmed image, ignored ones black.

    Args:
        image: uint8 (H, W, 3) RGB.
        labels: integer (h, w) class ids.
        prediction: integer (H', W') class ids; resized to the size of ``labels``.
        palette: (K, 3) RGB in 0..255; None or empty takes the default colours.
        ignore_index: the label of pixels without a class.
        captions: four of them, in place of the usual ones.

    Returns:
        uint8 RGB, about four cells wide.
    """
    labels, prediction = np.asarray(labels), np.asarray(prediction)
    prediction = _resized(prediction, labels.shape, nearest=True)
    known = labels != ignore_index
    largest = max(int(ids[ids != ignore_index].max(initial=0)) for ids in (labels, prediction))
    rows = as_palette(palette, largest + 1)
    wrong = known & (prediction != labels)
    height, width = labels.shape
    error = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA) // 3
    error[wrong] = _WRONG
    error[~known] = 0
    share = f"wrong {wrong.sum() / known.sum():.1%}" if known.any() else "no truth"
    maps = [colorize_labels(ids, rows, ignore_index=ignore_index) for ids in (labels, prediction)]
    usual = ("image", "truth", "prediction", share)
    return side_by_side([image, *maps, error], captions or usual)


def inpainting_panel(
    image: np.ndarray,
    hidden: np.ndarray,
    prediction: np.ndarray,
    *,
    captions: Sequence[str] | None = None,
) -> np.ndarray:
    """image | what was shown of it | prediction where it was hidden, the image elsewhere.

    Args:
        image: uint8 (H, W, 3) RGB.
        hidden: bool (H, W).
        prediction: uint8 (H, W, 3) RGB.
        captions: three of them, in place of the usual ones.

    Returns:
        uint8 RGB, about three cells wide.
    """
    shown = np.where(hidden[..., None], np.uint8(128), image)
    painted = np.where(hidden[..., None], prediction, image)
    usual = ("image", f"shown, {hidden.mean():.0%} hidden", "inpainted")
    return side_by_side([image, shown, painted], captions or usual)


def stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Panels one below the other; narrower ones are filled up. uint8 RGB."""
    if not rows:
        raise ValueError("stack needs at least one panel")
    for row in rows:
        _check_picture(row)
    width = max(row.shape[1] for row in rows)
    parts = []
    for row in rows:
        missing = width - row.shape[1]
        parts.append(np.pad(row, ((0, 0), (0, missing), (0, 0)), constant_values=_PAPER))
    return np.concatenate(parts)


def save_png(path: str | Path, panel: np.ndarray) -> None:
    """Writes a uint8 RGB picture (H, W, 3). The file is whole or not there, also after a crash."""
    _check_picture(panel)
    path = Path(path)
    done, data = cv2.imencode(".png", cv2.cvtColor(panel, cv2.COLOR_RGB2BGR))
    if not done:
        raise OSError(f"{path}: the picture could not be encoded")
    write_bytes(path, data.tobytes())


def side_by_side(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> np.ndarray:
    """Captioned cells side by side, all of the first picture's shape; the first is a photo."""
    if len(captions) != len(pictures):
        raise ValueError(f"{len(pictures)} captions are needed, got {len(captions)}")
    _check_picture(pictures[0])
    height, width = pictures[0].shape[:2]
    scale = max(1, -(-CELL_WIDTH // width))  # whole, so that every pixel becomes a square
    size = (width * scale, height * scale)
    cells = []
    for k, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        smooth = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
        way = smooth if k == 0 else cv2.INTER_NEAREST_EXACT
        cell = cv2.resize(picture, size, interpolation=way)
        cells.append(captioned(cell, caption))
    return np.concatenate(cells, axis=1)


def captioned(picture: np.ndarray, caption: str) -> np.ndarray:
    """A picture under a line of text, which is cut where it is too long; a gap to the right."""
    cell = cv2.copyMakeBorder(
        picture, _CAPTION_HEIGHT, 0, 0, _GAP, cv2.BORDER_CONSTANT, value=(_PAPER,) * 3
    )
    text = _fit(caption, picture.shape[1] - 8)
    where = (4, _CAPTION_HEIGHT - 6)
    return cv2.putText(
        cell, text, where, cv2.FONT_HERSHEY_SIMPLEX, 0.42, (235,) * 3, 1, cv2.LINE_AA
    )


def _fit(text: str, width: int) -> str:
    text = text.encode("ascii", "replace").decode()  # the font has no other letters
    while text and cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.42, 1)[0][0] > width:
        text = text[:-1]
    return text


def _resized(values: np.ndarray, shape: tuple[int, ...], *, nearest: bool = False) -> np.ndarray:
    if values.ndim != 2 or len(shape) != 2:
        raise ValueError(f"maps must have the shape (H, W), got {values.shape} and {shape}")
    if values.shape == shape:
        return values
    if nearest:  # class ids may have a type that OpenCV does not resize
        rows = (np.arange(shape[0]) + 0.5) * values.shape[0] / shape[0]
        columns = (np.arange(shape[1]) + 0.5) * values.shape[1] / shape[1]
        return values[rows.astype(int)[:, None], columns.astype(int)]
    return cv2.resize(values, (shape[1], shape[0]), interpolation=cv2.INTER_LINEAR)


def _check_picture(picture: np.ndarray) -> None:
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(
            f"a picture must be uint8 (H, W, 3) RGB, got {picture.dtype} {picture.shape}"
        )
