"""Pictures of images, depth, labels and other outputs.

Every picture is uint8 (H, W, 3) RGB. Black is reserved for invalid and ignored pixels. Sections:
colours; legends, which explain the colours; panels, which are captioned pictures in a row.
"""

import re
from collections.abc import Sequence
from colorsys import hsv_to_rgb
from functools import cache
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np

from dpt.files import write_bytes
from dpt.segments import OBJECT_IDS
from dpt.types.outputs import OutputSpec
from dpt.types.samples import IGNORE_INDEX

COLORMAPS = ("inferno", "turbo", "magma", "viridis", "spectral", "gray")
"""Matplotlib's colormaps from far to near; ``spectral`` is its ``Spectral_r``."""
_CELL_WIDTH = 240  # smaller pictures are upsampled to this width at least
_MAX_ERROR = 0.5  # relative depth error of the last colour
_CAPTION_HEIGHT = 20
_TEXT_SIZE = 0.42
_GAP = 4
_PAPER = 24  # gray level behind captions and between cells
_BACKGROUND = (70, 70, 70)

_AXES = "red: right, green: up, blue: to the viewer"

Limits = tuple[float, float]
"""The values of the first and the last colour."""


# --- colours ------------------------------------------------------------------------------------


@cache
def color_table(name: str) -> np.ndarray:
    """Returns the colormap as uint8 RGB (256, 3), from far to near."""
    from matplotlib import colormaps  # a quarter of a second

    cmap = colormaps["Spectral_r" if name == "spectral" else name]
    table = cmap(np.arange(256), bytes=True)[:, :3].copy()
    if table[0].max() < 30:  # start a little brighter than black
        table = table[np.rint(np.linspace(20, 255, 256)).astype(int)]
    table.flags.writeable = False  # shared by all callers
    return table


def colorize(
    values: np.ndarray, valid: np.ndarray, *, colormap: str, low: float, high: float
) -> np.ndarray:
    """Returns numbers (H, W) as colours: ``low`` gets the first one, ``high`` the last one, and
    invalid pixels are black."""
    picture = color_table(colormap).take(_to_uint8(values, low, high), axis=0)
    picture[~valid] = 0
    return picture


def _to_uint8(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns values from ``low`` to ``high`` as 0 to 255, NaN as 0."""
    fraction = np.asarray(values - low)
    fraction /= max(high - low, 1e-12)  # in place, which takes half the time
    np.nan_to_num(fraction, copy=False)
    np.clip(fraction, 0, 1, out=fraction)
    fraction *= 255
    return np.rint(fraction, out=fraction).astype(np.uint8)


def heatmap(values: np.ndarray, *, high: float | None = None) -> np.ndarray:
    """Returns numbers (H, W) in viridis, from 0 to ``high``; None takes the 99 % quantile."""
    high = float(np.quantile(values, 0.99)) if high is None else high
    return colorize(values, np.isfinite(values), colormap="viridis", low=0.0, high=high)


def _inverse_depth(
    depth: np.ndarray, valid: np.ndarray | None = None, *, inverse: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Returns inverse depth, float64 (H, W), 0 where invalid, and where it is valid, bool (H, W).

    With ``inverse=False``, ``depth`` is inverse depth already.
    """
    usable = np.isfinite(depth) & ((depth > 0) | (not inverse))
    if valid is not None:
        usable &= valid
    filled = np.where(usable, depth, 1.0).astype(np.float64)
    values = np.divide(1, filled, out=filled) if inverse else filled
    values[~usable] = 0
    return values, usable


def _central_range(values: np.ndarray, valid: np.ndarray) -> Limits:
    """Returns the 2 % and 98 % quantiles of the valid values; (0, 1) if there are none."""
    low, high = np.quantile(values[valid], [0.02, 0.98]) if valid.any() else (0, 1)
    return float(low), float(high)


def colorize_depth(
    depth: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    colormap: str = "inferno",
    vmin: float | None = None,
    vmax: float | None = None,
    inverse: bool = True,
) -> np.ndarray:
    """Returns depth as a picture: near is bright and warm, invalid is black.

    The colours are linear in inverse depth, between the 2 % and 98 % quantiles of the valid pixels
    or from ``vmin`` to ``vmax``, in the unit of ``depth``.

    Args:
        depth: (H, W) metres; with ``inverse=False`` inverse depth, larger is nearer.
        valid: bool (H, W); values that are not finite, and metres of 0 or less, never are.
        colormap: one of ``COLORMAPS``.
    """
    values, usable = _inverse_depth(depth, valid, inverse=inverse)
    low, high = _central_range(values, usable)
    if inverse:  # the nearest depth is the largest inverse depth
        vmin, vmax = (None if v is None else 1 / max(v, 1e-6) for v in (vmax, vmin))
    low, high = low if vmin is None else vmin, high if vmax is None else vmax
    return colorize(values, usable, colormap=colormap, low=low, high=high)


def default_palette(num_classes: int) -> np.ndarray:
    """Returns distinct colours, always the same: uint8 (num_classes, 3) RGB."""
    from matplotlib import colormaps

    colors = [colormaps["Set1"](k)[:3] for k in range(9)]
    for k in range(9, num_classes):  # steps by the golden ratio spread the hues evenly
        saturation, value = (0.75, 0.5, 0.95)[k % 3], (0.95, 0.6, 0.75, 0.45)[k // 3 % 4]
        colors.append(hsv_to_rgb((0.07 + k * 0.6180339887) % 1.0, saturation, value))
    return np.rint(255 * np.array(colors[:num_classes])).astype(np.uint8).reshape(-1, 3)


def as_palette(palette: object, num_classes: int, names: Sequence[str] = ()) -> np.ndarray:
    """Returns a palette as uint8 (K, 3) RGB; the default colours for None or an empty one.

    Among the default colours, a class named background is dark grey, so that the others stand out.
    """
    rows = np.asarray(() if palette is None else palette)
    if rows.size:
        return rows.astype(np.uint8)
    is_background = [name.lower() == "background" for name in names[:num_classes]]
    rows = default_palette(num_classes)
    rows[: len(is_background)][is_background] = _BACKGROUND
    return rows


def output_palette(output: OutputSpec) -> np.ndarray:
    """Returns a colour for every class of an output, uint8 (K, 3) RGB."""
    return as_palette(output.palette, output.num_classes or 1, output.class_names)


def colorize_labels(
    labels: np.ndarray, palette: object = None, *, ignore_index: int = IGNORE_INDEX
) -> np.ndarray:
    """Returns class ids, integer (H, W), as a picture; pixels of ``ignore_index`` are black.

    ``palette`` is (K, 3) RGB in 0..255 for K classes; None or empty for the default colours.
    """
    labelled = labels != ignore_index
    ids = np.where(labelled, labels, 0).astype(np.int64)
    rows = as_palette(palette, int(ids.max(initial=0)) + 1)
    picture = rows.take(ids, axis=0)
    picture[~labelled] = 0
    return picture


def colorize_segments(
    codes: np.ndarray, palette: object = None, things: Sequence[bool] = ()
) -> np.ndarray:
    """Returns segments in the colours of their classes, objects in shades, with white outlines.

    Args:
        codes: class · ``OBJECT_IDS`` + number (H, W), -1 where there is no segment.
        palette: see :func:`colorize_labels`.
        things: for each class, whether its objects have shades; empty means all classes.
    """
    present, indices = np.unique(codes, return_inverse=True)
    classes, numbers = np.divmod(present, OBJECT_IDS)
    rows = as_palette(palette, int(classes.max(initial=0)) + 1)[classes].astype(float)
    shaded = np.asarray(things)[classes] if things else np.ones(len(classes), bool)
    rows *= 1 - 0.13 * (numbers * shaded % 4)[:, None]
    rows[classes < 0] = 0
    picture = rows.astype(np.uint8)[indices.reshape(codes.shape)]
    picture[1:][codes[1:] != codes[:-1]] = 255
    picture[:, 1:][codes[:, 1:] != codes[:, :-1]] = 255
    return picture


def colorize_output(
    values: np.ndarray,
    output: OutputSpec,
    *,
    limits: Limits | None = None,
    colormap: str = "inferno",
) -> np.ndarray:
    """Returns a dense prediction of one image as a picture, as its declaration says; NaN is black.

    ``values`` are (H, W) or (C, H, W): ``logits`` as class ids or logits, drawn with the palette;
    ``depth`` with a colormap; ``map`` of three channels as RGB, of others the first channel with a
    colormap; ``masks`` as codes, see :func:`colorize_segments`.
    """
    if output.kind == "logits":
        ids = values.argmax(0) if values.ndim == 3 else values
        is_class = (output.num_classes or 0) > IGNORE_INDEX  # which is then the id of one
        ignored = -1 if is_class else IGNORE_INDEX
        return colorize_labels(ids, output_palette(output), ignore_index=ignored)
    if output.kind == "masks":
        return colorize_segments(values, output_palette(output), output.things)
    low, high = limits or color_limits(values, output)
    if output.kind == "depth":
        inverse, usable = _inverse_depth(values, inverse=not output.is_inverse_depth)
        return colorize(inverse, usable, colormap=colormap, low=low, high=high)
    if output.is_direction:
        values = values * np.array([1, -1, -1], values.dtype)[:, None, None]
    if values.ndim == 3 and len(values) == 3:
        return _to_uint8(values, low, high).transpose(1, 2, 0)
    first = values if values.ndim == 2 else values[0]
    return colorize(first, np.isfinite(first), colormap="viridis", low=low, high=high)


def color_limits(values: np.ndarray, output: OutputSpec) -> Limits:
    """Returns the first and last value of the colours of a prediction.

    They are the 2 % and 98 % quantiles of inverse depth (in large maps, of every n-th pixel); and
    ``output.value_range`` of a map, or the range of its finite values, (0, 1) if there are none.
    """
    if output.kind == "depth":
        step = max(1, int((values.size / 2**20) ** 0.5))
        sampled = values[::step, ::step]
        return _central_range(*_inverse_depth(sampled, inverse=not output.is_inverse_depth))
    if output.kind in ("logits", "masks") or output.value_range:
        return output.value_range or (0.0, 1.0)
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def overlay(image: np.ndarray, color: np.ndarray, alpha: float = 0.5) -> np.ndarray:
    """Returns the image mixed with the fraction ``alpha`` of ``color`` where that is not black."""
    mixed = cv2.addWeighted(image, 1 - alpha, color, alpha, 0)
    is_black = (color[..., 0] | color[..., 1] | color[..., 2]) == 0  # faster than any(axis=2)
    mixed[is_black] = image[is_black]
    return mixed


# --- legends ------------------------------------------------------------------------------------


def legend(
    values: np.ndarray, output: OutputSpec, *, width: int, limits: Limits, colormap: str = "inferno"
) -> np.ndarray:
    """Returns what the colours of a prediction mean: a strip of ``width`` pixels, 240 at least.

    Its height depends on the output and the width alone, so that the frames of a video agree.
    ``values`` are class ids (H, W) of ``logits`` or codes of ``masks``, and not used for others.
    """
    scale = max(1, width // 1000)  # text stays readable below large pictures
    width = max(_CELL_WIDTH, width // scale)
    if output.kind in ("logits", "masks"):
        ids = values // OBJECT_IDS if output.kind == "masks" else values
        strip = class_legend(ids, output_palette(output), output.class_names, width=width)
    elif output.kind == "depth":
        inverse = not output.is_inverse_depth
        strip = color_bar(colormap, *limits, width=width, unit=output.unit, inverse=inverse)
    elif output.is_direction:
        strip = _write(np.full((_CAPTION_HEIGHT, width, 3), _PAPER, np.uint8), _AXES, (4, 14))
    elif output.channels == 3:  # red, green and blue are the values
        return np.zeros((0, 0, 3), np.uint8)
    else:
        strip = color_bar("viridis", *limits, width=width, unit=output.unit)
    return cv2.resize(strip, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


def class_legend(
    ids: np.ndarray, palette: np.ndarray, names: Sequence[str] = (), *, width: int
) -> np.ndarray:
    """Returns colours and names of the classes in ``ids`` (H, W), frequent ones first, in up to 3
    rows.

    Other ids than 0..K - 1 are left out.
    """
    count = len(palette)
    names = [*names, *(f"class {k}" for k in range(len(names), count))]
    entry = min(_CELL_WIDTH, width, 34 + max(map(_text_width, names)))
    columns = width // entry
    strip = np.full((_CAPTION_HEIGHT * min(3, -(-count // columns)), width, 3), _PAPER, np.uint8)
    # by rows: bincount makes 64 bits of each id
    pixels = sum(np.bincount(row[(row >= 0) & (row < count)], minlength=count) for row in ids)
    order = np.argsort(-pixels, kind="stable")[: np.count_nonzero(pixels)]
    for i, k in enumerate(order[: 3 * columns].tolist()):
        x, y = entry * (i % columns), _CAPTION_HEIGHT * (i // columns)
        cell = strip[y : y + _CAPTION_HEIGHT, x : x + entry]
        cell[4:16, 4:16] = palette[k]
        _write(cell, names[k], (20, 14))
    return strip


def color_bar(
    colormap: str, low: float, high: float, *, width: int, unit: str = "", inverse: bool = False
) -> np.ndarray:
    """Returns the colours from ``low`` to ``high`` above their values, or if ``inverse`` above
    1/value."""
    bar = np.full((36, width, 3), _PAPER, np.uint8)
    bar[5:17] = color_table(colormap)[np.linspace(0, 255, width).astype(int)]
    fractions = np.linspace(0, 1, 5 if width > 4 * (_text_width(unit) + 60) else 2)
    values = [low + fraction * (high - low) for fraction in fractions]
    texts = _tick_texts([1 / max(value, 1e-6) if inverse else value for value in values])
    texts[-1] = f"{texts[-1]} {unit}".strip()
    for fraction, text in zip(fractions, texts, strict=True):
        _write(bar, text, (int(fraction * (width - _GAP - _text_width(text))), 30))
    return bar


def _tick_texts(values: Sequence[float]) -> list[str]:
    """Returns the values with the fewest digits, 3 to 6, by which neighbouring ones differ."""
    for digits in range(3, 7):
        texts = [f"{value:.{digits}g}" for value in values]
        if all(a != b for a, b in pairwise(texts)):
            break
    return texts


# --- panels -------------------------------------------------------------------------------------


def depth_panel(
    image: np.ndarray,
    ground_truth: np.ndarray,
    valid: np.ndarray | None,
    prediction: np.ndarray,
    *,
    unit: str = "m",
) -> np.ndarray:
    """Returns image | ground truth | prediction | error, with one range of colours for depth.

    Both depths are of one ``unit``, (h, w), the prediction aligned; ``valid`` is bool (h, w), or
    None for every positive finite ground truth. The error is |prediction - ground truth| / ground
    truth from blue (0) to red (0.5).
    """
    output = OutputSpec("depth", "depth", unit="m")  # colours, larger is farther
    valid = _inverse_depth(ground_truth, valid)[1]
    ground_truth = np.where(valid, ground_truth, np.nan)
    limits = color_limits(ground_truth if valid.any() else prediction, output)
    relative = np.abs(prediction - ground_truth) / ground_truth
    error = np.nan_to_num(relative, nan=_MAX_ERROR, posinf=_MAX_ERROR)
    maps = [colorize_output(depth, output, limits=limits) for depth in (ground_truth, prediction)]
    maps.append(colorize(error, valid, colormap="spectral", low=0.0, high=_MAX_ERROR))
    mean = f"mean {error[valid].mean():.3f}" if valid.any() else "no ground truth"
    captions = ["image", "ground truth", "prediction", f"relative error, {mean}"]
    cells = side_by_side([image, *maps], captions)
    cell = cells.shape[1] // 4
    depths = color_bar("inferno", *limits, unit=unit, width=3 * cell, inverse=True)
    errors = color_bar("spectral", 0.0, _MAX_ERROR, width=cell)
    return stack([cells, np.concatenate([depths, errors], axis=1)])


def segmentation_panel(
    image: np.ndarray,
    labels: np.ndarray,
    prediction: np.ndarray,
    palette: object = None,
    names: Sequence[str] = (),
) -> np.ndarray:
    """Returns image | ground truth | prediction | error: wrong pixels are red on the dimmed image,
    ignored ones black.

    Args:
        labels, prediction: integer (h, w) class ids, 255 where ignored or no class.
        names: of the classes, for the legend below; empty for their ids.
    """
    both = np.concatenate([labels, prediction])
    rows = as_palette(palette, int(both[both != IGNORE_INDEX].max(initial=0)) + 1, names)
    labelled = labels != IGNORE_INDEX
    wrong = labelled & (prediction != labels)
    error = cv2.resize(image, labels.shape[::-1], interpolation=cv2.INTER_AREA) // 3
    error[wrong] = (225, 45, 45)
    error[~labelled] = 0
    fraction = f"wrong {wrong.sum() / labelled.sum():.1%}" if labelled.any() else "no ground truth"
    maps = [colorize_labels(ids, rows) for ids in (labels, prediction)]
    cells = side_by_side([image, *maps, error], ["image", "ground truth", "prediction", fraction])
    return stack([cells, class_legend(both, rows, names, width=cells.shape[1])])


def output_panel(
    image: np.ndarray,
    ground_truth: np.ndarray,
    prediction: np.ndarray,
    output: OutputSpec,
    captions: tuple[str, str] = ("ground truth", "prediction"),
) -> np.ndarray:
    """Returns image | ground truth | prediction of any dense output, with one range of colours.

    Maps are (h, w) or (C, h, w), as :func:`colorize_output` takes them; NaN where unknown.
    """
    limits = color_limits(ground_truth, output)
    maps = [colorize_output(values, output, limits=limits) for values in (ground_truth, prediction)]
    cells = side_by_side([image, *maps], ["image", *captions])
    both = np.concatenate([ground_truth, prediction])
    return stack([cells, legend(both, output, width=cells.shape[1], limits=limits)])


def stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns panels below one another, narrower ones padded at the right."""
    panel = np.full((sum(map(len, rows)), max(row.shape[1] for row in rows), 3), _PAPER, np.uint8)
    for row, bottom in zip(rows, np.cumsum([*map(len, rows)]), strict=True):
        panel[bottom - len(row) : bottom, : row.shape[1]] = row
    return panel


def shrink(picture: np.ndarray, width: int) -> np.ndarray:
    """Returns the picture, downsampled to ``width`` pixels if it is wider."""
    if picture.shape[1] <= width:
        return picture
    height = max(1, round(picture.shape[0] * width / picture.shape[1]))
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)


def save_png(path: str | Path, picture: np.ndarray) -> None:
    """Writes a picture atomically."""
    write_bytes(Path(path), encode_png(picture))


def encode_png(picture: np.ndarray) -> bytes:
    """Returns a PNG file of a picture uint8 (H, W, 3) RGB, or of values uint8 or uint16 (H, W)."""
    pixels = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
    return cv2.imencode(".png", pixels)[1].tobytes()


def side_by_side(pictures: Sequence[np.ndarray], captions: Sequence[str]) -> np.ndarray:
    """Returns captioned cells in a row, all of the first picture's shape; the first is an image."""
    height, width = pictures[0].shape[:2]
    scale = max(1, -(-_CELL_WIDTH // width))  # whole: every pixel becomes a square
    rules = [cv2.INTER_NEAREST_EXACT] * len(pictures)
    rules[0] = cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA
    cells = zip(pictures, captions, rules, strict=True)
    return np.concatenate([_cell(*cell, (height * scale, width * scale)) for cell in cells], axis=1)


def tiles(
    pictures: Sequence[np.ndarray], captions: Sequence[str], *, size: tuple[int, int], columns: int
) -> np.ndarray:
    """Returns a grid of captioned cells of ``size`` = (h, w), row by row; pixels of small pictures
    become squares."""
    cells = []
    for picture, caption in zip(pictures, captions, strict=True):
        is_large = picture.shape[0] > size[0]
        rule = cv2.INTER_AREA if is_large else cv2.INTER_NEAREST_EXACT
        cells.append(_cell(picture, caption, rule, size))
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    return stack([np.concatenate(row, axis=1) for row in rows])


def heading(text: str, *, width: int) -> np.ndarray:
    """Returns a bar of ``width`` pixels with a line of text."""
    return _write(np.full((26, width, 3), 60, np.uint8), text, (6, 18), 0.5)


def _text_width(text: str) -> int:
    return cv2.getTextSize(_in_font(text), cv2.FONT_HERSHEY_SIMPLEX, _TEXT_SIZE, 1)[0][0]


def _in_font(text: str) -> str:
    """Returns the text with ``?`` for what OpenCV's font lacks: surrogates even end the process."""
    return re.sub("[^ -~]", "?", text)


def _cell(picture: np.ndarray, caption: str, rule: int, size: tuple[int, int]) -> np.ndarray:
    """Returns a resized picture below a line of text, with a gap at the right."""
    cell = np.full((size[0] + _CAPTION_HEIGHT, size[1] + _GAP, 3), _PAPER, np.uint8)
    cell[_CAPTION_HEIGHT:, :-_GAP] = cv2.resize(picture, size[::-1], interpolation=rule)
    return _write(cell, caption, (4, _CAPTION_HEIGHT - 6))


def _write(
    picture: np.ndarray, text: str, position: tuple[int, int], size: float = _TEXT_SIZE
) -> np.ndarray:
    """Draws text, cut where it is too long."""
    text = _in_font(text)[: picture.shape[1]]  # each letter is wider than a pixel
    font, width = cv2.FONT_HERSHEY_SIMPLEX, picture.shape[1] - position[0] - _GAP
    while text and cv2.getTextSize(text, font, size, 1)[0][0] > width:
        text = text[:-1]
    return cv2.putText(picture, text, position, font, size, (235,) * 3, 1, cv2.LINE_AA)
