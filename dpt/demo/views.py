"""What the page shows for an image: pictures, and legends and notes as HTML."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from dpt.data.formats.io import read_image, read_size
from dpt.predict import Prediction
from dpt.predict.outputs import Style, depth_coding, image_facts, label_palette
from dpt.viz import color_table, value_limits

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
                f"{max_pixels:,} are allowed: shrink it"
            )
        return read_image(path, exif=True)
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from None


def legend(name: str, prediction: Prediction) -> str:
    """HTML that explains the picture of an output."""
    spec, values = prediction.outputs[name], prediction.arrays[name]
    if spec.kind == "logits":  # each class that occurs, its colour and its share of the image
        counts, palette = np.bincount(values.ravel()), label_palette(spec)
        entries = []
        for k in np.argsort(-counts, kind="stable")[: min(MAX_CLASSES, np.count_nonzero(counts))]:
            color = "rgb({} {} {})".format(*palette[k].tolist())
            label = spec.class_name(int(k))
            swatch = f'<span class="swatch" style="background: {color}"></span>'
            share = f"{counts[k] / values.size:.1%}"
            entries.append(f"<span>{swatch} {html.escape(label)} {share}</span>")
        return f'<div class="legend">{"".join(entries)}</div>'
    low, high = value_limits(values)
    if spec.kind != "depth":
        return f"<div>{low:g} to {high:g} {html.escape(spec.unit)}</div>"
    scale, offset = depth_coding(prediction, name)
    unit = "relative inverse depth: larger is nearer" if spec.is_inverse_depth else "m, metric"
    stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in color_table(Style().colormap)[::15])
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})"></span>'
    return (
        f'<div class="legend">far {bar} near</div><div><b>{low:.3g} to {high:.3g}</b> {unit}. '
        f"In the 16-bit PNG, depth = value × {scale:.6g} + {offset:.6g}.</div>"
    )


def note(prediction: Prediction) -> str:
    """HTML for the outputs for the whole image; empty if there are none."""
    lines = (f"{name}: {value}" for name, value in image_facts(prediction).items())
    return "".join(f"<div>{html.escape(line)}</div>" for line in lines)
