"""What the page shows of a photo: pictures, legends, files to download. No web in here."""

from __future__ import annotations

import html
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from dpt.data.formats.io import read_image, read_size
from dpt.predict.outputs import depth_coding, products_of
from dpt.predict.paint import Style, label_palette, nearness_span, paint_depth, paint_overlay
from dpt.predict.predictor import Prediction
from dpt.viz.color import color_table

VIEW_SIDE = 1280
"""Longer side of what is shown, in pixels. What is downloaded has the photo's own size."""
MOST_CLASSES = 24
"""Classes in the legend, the largest first."""
DOWNLOADS = {
    "depth": ("Download depth, 16-bit PNG", "depth"),
    "depth_npy": ("Download depth, NPY", "depth"),
    "labels": ("Download classes, PNG", "segmentation"),
}
"""What a button says and the head it needs, by the folder that ``dpt predict`` writes to."""

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class View:
    """A photo and its prediction, shrunk to what is shown, so that they can be painted again."""

    photo: np.ndarray
    prediction: Prediction

    def depth(self, colormap: str) -> Pair:
        """The photo, and its depth in colours, for a slider between the two."""
        return self.photo, paint_depth(self.prediction, None, Style(colormap))

    def classes(self) -> Pair:
        """The photo, and its classes laid over it."""
        return self.photo, paint_overlay(self.prediction, self.photo, Style())


def open_photo(path: Path, *, max_pixels: int) -> np.ndarray:
    """uint8 (H, W, 3) RGB, upright. Its size is read from the header before a pixel is decoded.

    Raises:
        ValueError: more than ``max_pixels``, or no whole picture; the message names no folder.
    """
    try:
        height, width = read_size(path)
        if height * width > max_pixels:
            raise ValueError(
                f"{path.name}: {width} x {height} = {width * height:,} pixels, and at most "
                f"{max_pixels:,} are taken: shrink it, or start the demo with more --max-pixels"
            )
        return read_image(path, exif=True)
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), path.name)) from None


def make_view(photo: np.ndarray, prediction: Prediction) -> View:
    """Both with at most :data:`VIEW_SIDE` pixels a side."""
    height, width = photo.shape[:2]
    scale = min(1.0, VIEW_SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))

    def shrunk(values: Any, way: int) -> Any:
        return None if values is None else cv2.resize(values, size, interpolation=way)

    small = replace(
        prediction,
        depth=shrunk(prediction.depth, cv2.INTER_AREA),
        labels=shrunk(prediction.labels, cv2.INTER_NEAREST_EXACT),
    )
    return View(shrunk(photo, cv2.INTER_AREA), small)


def write_files(prediction: Prediction, folder: Path, *, stem: str) -> dict[str, Path]:
    """The files of :data:`DOWNLOADS` that this prediction has, at the photo's own size."""
    has = {"depth": prediction.depth is not None, "segmentation": prediction.labels is not None}
    written = {}
    for product in products_of(("png", "npy"), [head for head, there in has.items() if there]):
        if product.folder in DOWNLOADS:
            kind = product.folder.partition("_")[0]
            written[product.folder] = folder / f"{stem}_{kind}{product.suffix}"
            product.save(written[product.folder], prediction, None, Style())
    return written


def depth_legend(view: View, colormap: str) -> str:
    """A bar of the colours and what its ends stand for, as HTML."""
    prediction = view.prediction
    low, high = nearness_span(prediction, Style(colormap))
    if prediction.unit == "metres":
        ends = f"{_metres(low)} (far)", f"{_metres(high)} (near)"
    else:
        ends = f"{low:.3g} (far)", f"{high:.3g} (near)"
    stops = ", ".join(f"rgb({r} {g} {b})" for r, g, b in color_table(colormap)[::15].tolist())
    bar = f'<span class="bar" style="background: linear-gradient(to right, {stops})"></span>'
    return f'<div class="legend">{ends[0]} {bar} {ends[1]}</div>'


def depth_note(prediction: Prediction) -> str:
    """The unit and range of the depth, and how its 16-bit PNG is read, as HTML."""
    depth = prediction.depth
    assert depth is not None
    known = depth[np.isfinite(depth)]
    low, high = (known.min(), known.max()) if known.size else (np.nan, np.nan)
    scale, offset = depth_coding(prediction)
    if prediction.unit == "metres":
        what = f"<b>{low:.2f} to {high:.2f} m</b>, metric"
        png = f"metres = value × {scale:.6g}"
    else:
        what = f"<b>{low:.3g} to {high:.3g}</b>, relative inverse depth: no unit, larger is nearer"
        png = f"depth = value × {scale:.6g} + {offset:.6g}"
    return f"<div>{what}. In the 16-bit PNG, {png}.</div>"


def classes_legend(view: View) -> str:
    """Each class that occurs, its colour and its share of the photo, as HTML."""
    prediction = view.prediction
    assert prediction.labels is not None
    names, palette = prediction.class_names, label_palette(prediction)
    ids, counts = np.unique(prediction.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_CLASSES]
    entries = []
    for k, count in zip(ids[order].tolist(), counts[order].tolist(), strict=True):
        name = names[k] if k < len(names) else f"class {k}"
        red, green, blue = palette[k].tolist()
        swatch = f'<span class="swatch" style="background: rgb({red} {green} {blue})"></span>'
        entries.append(
            f"<span>{swatch} {html.escape(name)} {count / prediction.labels.size:.1%}</span>"
        )
    return f'<div class="legend">{"".join(entries)}</div>'


def whole_note(prediction: Prediction) -> str:
    """What was said of the photo as a whole, as HTML; empty where nothing was."""
    said = []
    if prediction.class_id is not None and prediction.probabilities is not None:
        k, names = prediction.class_id, prediction.class_names
        name = names[k] if k < len(names) else f"class {k}"
        said.append(f"<b>{html.escape(name)}</b>, {prediction.probabilities[k]:.1%} sure")
    if prediction.value is not None:
        said.append(f"value <b>{prediction.value:.4g}</b>")
    return f"<div>{'; '.join(said)}</div>" if said else ""


def _metres(nearness: float) -> str:
    return f"{1 / nearness:.2f} m" if nearness > 0 else "infinity"
