"""What the page shows for an image: pictures, and legends and notes as HTML."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from dpt.data.formats.io import read_image, read_size
from dpt.predict import Prediction
from dpt.predict.outputs import Style, depth_coding, label_palette, nearness_span
from dpt.viz.color import color_table

MAX_CLASSES = 24
"""Number of classes in a legend, the largest first."""


def open_image(path: Path, *, max_pixels: int) -> np.ndarray:
    """uint8 (H, W, 3) RGB, upright. The size is read from the header before decoding.

    Raises:
        ValueError: more than ``max_pixels``, or not a complete image; the message names no folder.
    """
    try:
        height, width = read_size(path)
        if height * width > max_pixels:
            raise ValueError(
                f"{path.name}: {width} x {height} = {width * height:,} pixels, but at most "
                f"{max_pixels:,} are allowed: shrink it, or start the demo with a larger "
                "--max-pixels"
            )
        return read_image(path, exif=True)
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from None


def legend(name: str, prediction: Prediction, colormap: str) -> str:
    """HTML that explains the picture of an output."""
    spec, values = prediction.outputs[name], prediction.arrays[name]
    if spec.kind == "logits":  # each class that occurs, its colour and its share of the image
        counts, palette = np.bincount(values.ravel()), label_palette(prediction, name)
        entries = []
        for k in np.argsort(-counts, kind="stable")[: min(MAX_CLASSES, np.count_nonzero(counts))]:
            color = "rgb({} {} {})".format(*palette[k].tolist())
            label = spec.class_names[k] if k < len(spec.class_names) else f"class {k}"
            swatch = f'<span class="swatch" style="background: {color}"></span>'
            share = f"{counts[k] / values.size:.1%}"
            entries.append(f"<span>{swatch} {html.escape(label)} {share}</span>")
        return f'<div class="legend">{"".join(entries)}</div>'
    if spec.kind != "depth":
        low, high = spec.value_range or (0.0, 1.0)
        return f"<div>{low:g} to {high:g} {html.escape(spec.unit)}</div>"
    far, near = nearness_span(name, prediction, Style(colormap))
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (np.nan, np.nan)
    scale, offset = depth_coding(prediction, name)
    if spec.is_inverse_depth:
        ends, unit = (f"{far:.3g}", f"{near:.3g}"), "relative inverse depth: larger is nearer"
    else:
        ends, unit = (_metres(far), _metres(near)), "m, metric"
    stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in color_table(colormap)[::15].tolist())
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})"></span>'
    return (
        f'<div class="legend">{ends[0]} (far) {bar} {ends[1]} (near)</div>'
        f"<div><b>{low:.3g} to {high:.3g}</b> {unit}. "
        f"In the 16-bit PNG, depth = value × {scale:.6g} + {offset:.6g}.</div>"
    )


def note(prediction: Prediction) -> str:
    """HTML for the outputs for the whole image; empty if there are none."""
    lines = []
    if prediction.probabilities is not None and prediction.class_name is not None:
        probability = f"probability {prediction.probabilities.max():.1%}"
        lines.append(f"<b>{html.escape(prediction.class_name)}</b>, {probability}")
    if prediction.value is not None:
        lines.append(f"value <b>{prediction.value:.4g}</b>")
    for name, values in prediction.vectors.items():
        lines.append(f"{html.escape(name)} {html.escape(np.array2string(values, precision=4))}")
    return "".join(f"<div>{line}</div>" for line in lines)


def _metres(nearness: float) -> str:
    return f"{1 / nearness:.2f} m" if nearness > 0 else "infinity"
