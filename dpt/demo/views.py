"""What the page shows for an image: pictures, and legends and notes as HTML."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpt.data.formats.io import read_image, read_size
from dpt.data.resize import resize_image, resize_map
from dpt.predict import Prediction
from dpt.predict.outputs import (
    Style,
    depth_coding,
    is_paintable,
    label_palette,
    nearness_span,
    paint,
)
from dpt.types import OutputSpec
from dpt.viz.color import color_table

VIEW_SIDE = 1280
"""Longer side of the pictures shown, in pixels. Downloads have the image's own size."""
MAX_CLASSES = 24
"""Number of classes in a legend, the largest first."""


def is_shown(spec: OutputSpec) -> bool:
    """Whether an output is shown as a picture."""
    return spec.dense and (spec.kind in ("depth", "logits") or is_paintable(spec))


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


@dataclass(frozen=True, eq=False)
class View:
    """An image and its prediction, both shrunk to at most :data:`VIEW_SIDE` pixels a side."""

    image: np.ndarray
    prediction: Prediction

    @classmethod
    def of(cls, image: np.ndarray, prediction: Prediction) -> View:
        height, width = image.shape[:2]
        scale = min(1.0, VIEW_SIDE / max(height, width))
        size = max(1, round(height * scale)), max(1, round(width * scale))
        arrays = {
            name: resize_map(values, size) if prediction.outputs[name].dense else values
            for name, values in prediction.arrays.items()
        }
        small = Prediction(arrays, prediction.outputs)
        return cls(resize_image(image, size, rule="area"), small)

    def picture(self, name: str, colormap: str) -> np.ndarray:
        """The picture of an output, uint8 (h, w, 3)."""
        return paint(name, self.prediction, self.image, Style(colormap))

    def legend(self, name: str, colormap: str) -> str:
        """HTML that explains the picture of an output."""
        spec = self.prediction.outputs[name]
        if spec.kind == "depth":
            return self._depth_legend(name, colormap)
        if spec.kind == "logits":
            return self._class_legend(name)
        assert spec.value_range is not None
        low, high = spec.value_range
        return f"<div>{html.escape(name)}: {low:g} to {high:g} {html.escape(spec.unit)}</div>"

    def _depth_legend(self, name: str, colormap: str) -> str:
        inverse = self.prediction.outputs[name].is_inverse_depth
        ends = nearness_span(name, self.prediction, Style(colormap))
        low, high = (f"{v:.3g}" if inverse else _metres(v) for v in ends)
        stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in color_table(colormap)[::15].tolist())
        bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})"></span>'
        return f'<div class="legend">{low} (far) {bar} {high} (near)</div>'

    def _class_legend(self, name: str) -> str:
        """Each class that occurs, its colour and its share of the image."""
        labels, names = self.prediction.arrays[name], self.prediction.outputs[name].class_names
        palette = label_palette(self.prediction, name)
        ids, counts = np.unique(labels, return_counts=True)
        entries = []
        for i in np.argsort(-counts, kind="stable")[:MAX_CLASSES]:
            color = "rgb({} {} {})".format(*palette[ids[i]].tolist())
            swatch = f'<span class="swatch" style="background: {color}"></span>'
            text = f"{_class_name(names, int(ids[i]))} {counts[i] / labels.size:.1%}"
            entries.append(f"<span>{swatch} {text}</span>")
        return f'<div class="legend">{"".join(entries)}</div>'


def note(prediction: Prediction) -> str:
    """HTML: outputs for the whole image, and units and ranges of depth; may be empty."""
    lines = []
    if prediction.probabilities is not None and prediction.class_name is not None:
        probability = f"probability {prediction.probabilities.max():.1%}"
        lines.append(f"<b>{html.escape(prediction.class_name)}</b>, {probability}")
    if prediction.value is not None:
        lines.append(f"value <b>{prediction.value:.4g}</b>")
    for name, values in prediction.vectors.items():
        lines.append(f"{html.escape(name)} {html.escape(np.array2string(values, precision=4))}")
    for name, spec in prediction.outputs.items():
        if spec.kind == "depth":
            depth = prediction.arrays[name]
            known = depth[np.isfinite(depth)]
            low, high = (known.min(), known.max()) if known.size else (np.nan, np.nan)
            scale, offset = depth_coding(prediction, name)
            if spec.is_inverse_depth:
                lines.append(
                    f"<b>{low:.3g} to {high:.3g}</b>, relative inverse depth: no unit, larger is "
                    f"nearer. In the 16-bit PNG, depth = value × {scale:.6g} + {offset:.6g}."
                )
            else:
                lines.append(
                    f"<b>{low:.2f} to {high:.2f} m</b>, metric. In the 16-bit PNG, metres = value "
                    f"× {scale:.6g}."
                )
    return "".join(f"<div>{line}</div>" for line in lines)


def _class_name(names: tuple[str, ...], k: int) -> str:
    return html.escape(names[k] if k < len(names) else f"class {k}")


def _metres(nearness: float) -> str:
    return f"{1 / nearness:.2f} m" if nearness > 0 else "infinity"
