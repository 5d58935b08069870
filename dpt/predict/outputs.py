"""The files that ``dpt predict`` writes, by the kind of output and the format.

===========  ==========  ======================  ===================================================
``png``      depth       depth/NAME.png          16-bit: value = (depth - offset) / scale, 0 invalid
``png``      logits      labels/NAME.png         class ids with a palette (16-bit above 256 classes)
``png``      map         HEAD/NAME.png           8-bit picture of the value range, 1 or 3 channels
``npy``      any         depth_npy/, HEAD_npy/   the arrays as they are
``color``    depth       depth_color/NAME.png    depth in colours, bright is near
``overlay``  logits      overlay/NAME.png        classes over the image
``panel``    any         panel/NAME.png          image and all of the above pictures side by side
===========  ==========  ======================  ===================================================

The files of a second output of kind depth or logits are in folders that begin with its head's name.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import cv2
import numpy as np
import PIL.Image

from dpt.predict.predictor import Prediction, depth_unit
from dpt.types import OutputSpec
from dpt.viz import COLORMAPS, colorize_labels, overlay, side_by_side
from dpt.viz.color import as_palette, colorize, near_range, nearness
from dpt.viz.panel import shrink

MILLIMETRE = 0.001
KITTI_SCALE = 1 / 256
_LARGEST = 65535
PIXELS_AT_ONCE = 2**20
"""Pictures of larger images are painted in bands of rows of this many pixels."""
CELL_WIDTH = 960
"""Largest width of a picture in a panel."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """How predictions are painted.

    Attributes:
        colormap: of depth, one of :data:`dpt.viz.COLORMAPS`.
        depth_range: (smallest, largest) depth of the colour map, in the prediction's unit; None
            uses each image's own, the 2 % and 98 % quantiles of nearness.
        spans: by output, the same range as nearness (1 / metres, or relative inverse depth);
            overrides ``depth_range``.
    """

    colormap: str = "inferno"
    depth_range: Span | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.colormap not in COLORMAPS:
            raise ValueError(f"--colormap {self.colormap}: choose from {', '.join(COLORMAPS)}")
        if self.depth_range is not None and not self.depth_range[0] < self.depth_range[1]:
            low, high = self.depth_range
            raise ValueError(f"--range {low:g} {high:g}: the first value must be smaller")


Photo = np.ndarray | None
"""The image, uint8 (H, W, 3); None where no product is a picture."""


@dataclass(frozen=True)
class Product:
    """One kind of file.

    Attributes:
        folder: in the output folder; the files have the names of the inputs.
        suffix: of the files.
        make: (prediction, image, style) to the content: an array, or encoded bytes.
        is_picture: whether ``make`` reads the image and returns uint8 (h, w, 3) RGB, of which
            videos can be made.
    """

    folder: str
    suffix: str
    make: Callable[[Prediction, Photo, Style], np.ndarray | bytes]
    is_picture: bool = False

    def encode(self, prediction: Prediction, image: Photo, style: Style) -> bytes:
        """The content of the file."""
        content = self.make(prediction, image, style)
        if isinstance(content, bytes):
            return content
        if self.suffix == ".npy":
            file = io.BytesIO()
            np.save(file, content, allow_pickle=False)
            return file.getvalue()
        if content.ndim == 3:
            content = cv2.cvtColor(content, cv2.COLOR_RGB2BGR)
        return cv2.imencode(".png", content)[1].tobytes()


# ------------------------------------------------------------------------------ which files


def folder_names(outputs: Mapping[str, OutputSpec]) -> dict[str, str]:
    """By dense output, the folder of its files."""
    usual = {"depth": "depth", "logits": "labels"}
    return {name: usual.pop(spec.kind, name) for name, spec in outputs.items() if spec.dense}


def is_paintable(spec: OutputSpec) -> bool:
    """Whether an output can be shown as a picture: depth, classes, maps of a known value range."""
    if spec.kind in ("depth", "logits"):
        return spec.dense
    return spec.dense and spec.value_range is not None and spec.channels in (None, 1, 3)


def all_products(outputs: Mapping[str, OutputSpec]) -> dict[str, list[Product]]:
    """By format, the files that can be made of these outputs."""
    found: dict[str, list[Product]] = {
        name: [] for name in ("png", "npy", "color", "overlay", "panel")
    }
    for name, folder in folder_names(outputs).items():
        kind, painter = outputs[name].kind, partial(paint, name)
        found["npy"].append(Product(f"{folder}_npy", ".npy", partial(_array, name)))
        if kind == "depth":
            found["png"].append(Product(folder, ".png", partial(encode_depth, name)))
            found["color"].append(Product(f"{folder}_color", ".png", painter, is_picture=True))
        elif kind == "logits":
            found["png"].append(Product(folder, ".png", partial(encode_labels, name)))
            place = "overlay" if folder == "labels" else f"{folder}_overlay"
            found["overlay"].append(Product(place, ".png", painter, is_picture=True))
        elif is_paintable(outputs[name]):
            found["png"].append(Product(folder, ".png", painter, is_picture=True))
    if any(found.values()):
        found["panel"].append(Product("panel", ".png", paint_panel, is_picture=True))
    return found


def products_of(formats: Sequence[str], outputs: Mapping[str, OutputSpec]) -> list[Product]:
    """The files for each image.

    Args:
        formats: names of formats; by default ``png``, ``color`` and ``overlay``, and the arrays of
            outputs of kind ``map``.
        outputs: of the model.

    Raises:
        ValueError: an unknown format, or one that fits no output.
    """
    possible = all_products(outputs)
    for name in formats:
        if name not in possible:
            raise ValueError(f"--format {name}: choose from {', '.join(possible)}")
        if not possible[name]:
            kinds = ", ".join(f"{n} ({s.kind})" for n, s in outputs.items())
            raise ValueError(f"--format {name} fits none of this model's outputs: {kinds}")
    chosen = [p for name in formats or ("png", "color", "overlay") for p in possible[name]]
    if not formats:
        maps = {f"{n}_npy" for n, s in outputs.items() if s.kind not in ("depth", "logits")}
        chosen += [p for p in possible["npy"] if p.folder in maps]
    return list(dict.fromkeys(chosen))


def videos_of(products: Sequence[Product], outputs: Mapping[str, OutputSpec]) -> list[Product]:
    """The files for each video: of the chosen products that are pictures, or the default ones."""
    pictures = [p for p in products if p.is_picture]
    pictures = pictures or [p for p in products_of((), outputs) if p.is_picture]
    return [replace(p, suffix=".mp4") for p in pictures]


def facts(prediction: Prediction) -> dict[str, Any]:
    """An image's line in predictions.jsonl: how to read its files, and image-level outputs."""
    found: dict[str, Any] = {}
    for name, folder in folder_names(prediction.outputs).items():
        found["size"] = list(prediction.arrays[name].shape[:2])
        if prediction.outputs[name].kind == "depth":
            scale, offset = depth_coding(prediction, name)
            unit = depth_unit(prediction.outputs[name])
            found[folder] = {"scale": scale, "offset": offset, "unit": unit}
    if prediction.probabilities is not None:
        found["class_id"], found["class"] = prediction.class_id, prediction.class_name
        found["probability"] = round(float(prediction.probabilities.max()), 6)
    if prediction.value is not None:
        found["value"] = prediction.value
    return found | {name: values.tolist() for name, values in prediction.vectors.items()}


# ------------------------------------------------------------------------------ encoding


def _array(name: str, prediction: Prediction, *_: object) -> np.ndarray:
    return prediction.arrays[name]


def depth_coding(prediction: Prediction, name: str) -> tuple[float, float]:
    """(scale, offset) of a 16-bit PNG: depth = value × scale + offset.

    Metres have one scale for all images and no offset: millimetres, or 1/256 m (KITTI's, up to
    256 m) for models whose depth exceeds 65.5 m. Relative depth is stretched from its smallest to
    its largest value in each image.
    """
    depth, spec = prediction.arrays[name], prediction.outputs[name]
    if not spec.is_inverse_depth:
        largest = spec.value_range[1] if spec.value_range else np.inf
        is_far = _LARGEST * MILLIMETRE < largest < np.inf
        return KITTI_SCALE if is_far else MILLIMETRE, 0.0
    known = depth[np.isfinite(depth)]
    if not known.size:
        return 1.0, 0.0
    low, high = float(known.min()), float(known.max())
    return (high - low) / _LARGEST or 1.0, low


def encode_depth(name: str, prediction: Prediction, *_: object) -> np.ndarray:
    """Depth as uint16 (H, W), see :func:`depth_coding`.

    Values that are not finite are 0, and so are metres that do not fit into 16 bits: clipped, they
    would be wrong depths.
    """
    scale, offset = depth_coding(prediction, name)
    with np.errstate(invalid="ignore"):
        value = np.subtract(prediction.arrays[name], np.float32(offset))
        value /= np.float32(scale)
        np.rint(value, out=value)
        if prediction.outputs[name].is_inverse_depth:  # the largest may be rounded up
            np.minimum(value, _LARGEST, out=value)
        value[~((value >= 0) & (value <= _LARGEST))] = 0  # NaN too
    return value.astype(np.uint16)


def encode_labels(name: str, prediction: Prediction, *_: object) -> np.ndarray | bytes:
    """Class ids as a PNG that holds the ids and shows their colours."""
    labels = prediction.arrays[name]
    if labels.dtype != np.uint8:
        return labels
    picture = PIL.Image.fromarray(labels)
    picture.putpalette(label_palette(prediction, name).tobytes())  # mode L becomes mode P
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


# ------------------------------------------------------------------------------ painting


def nearness_span(name: str, prediction: Prediction, style: Style) -> Span:
    """The nearness at both ends of the colour map; of large maps, from every n-th pixel."""
    depth, inverse = prediction.arrays[name], prediction.outputs[name].is_inverse_depth
    if name in style.spans:
        return style.spans[name]
    if style.depth_range is not None:
        low, high = style.depth_range
        return (low, high) if inverse else (1 / high, 1 / max(low, 1e-6))
    step = max(1, int((depth.size / PIXELS_AT_ONCE) ** 0.5))
    return near_range(*nearness(depth[::step, ::step], inverse=not inverse))


def paint(name: str, prediction: Prediction, image: Photo, style: Style) -> np.ndarray:
    """The picture of a dense output, uint8 (H, W, 3).

    Depth is painted in colours (near is bright), classes over the image, and other maps in gray or
    RGB, scaled from their value range.
    """
    values, spec = prediction.arrays[name], prediction.outputs[name]
    low, high = spec.value_range or (0.0, 1.0)
    if spec.kind == "depth":
        low, high = nearness_span(name, prediction, style)
    palette = label_palette(prediction, name) if spec.kind == "logits" else None
    picture = np.empty((*values.shape[:2], 3), np.uint8)
    step = max(1, PIXELS_AT_ONCE // values.shape[1])
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        if spec.kind == "depth":
            near, usable = nearness(values[rows], inverse=not spec.is_inverse_depth)
            band = colorize(near, usable, colormap=style.colormap, low=low, high=high)
        elif spec.kind == "logits":
            assert image is not None
            band = overlay(image[rows], colorize_labels(values[rows], palette, ignore_index=-1))
        else:
            level = np.nan_to_num((values[rows] - low) / (high - low)).clip(0, 1)
            band = np.rint(255 * level.reshape(*level.shape[:2], -1))
        picture[rows] = band
    return picture


def paint_panel(prediction: Prediction, image: Photo, style: Style) -> np.ndarray:
    """The image and a picture of each dense output, side by side."""
    assert image is not None
    pictures, captions = [image], ["photo"]
    for name, spec in prediction.outputs.items():
        if not is_paintable(spec):
            continue
        pictures.append(paint(name, prediction, image, style))
        captions.append(name)
        if spec.is_inverse_depth:
            captions[-1] = "relative depth: near is bright"
        elif spec.kind == "depth":
            far, near = (1 / max(v, 1e-6) for v in nearness_span(name, prediction, style))
            captions[-1] = f"depth, {near:.3g}..{far:.3g} m: near is bright"
    return side_by_side([shrink(picture, CELL_WIDTH) for picture in pictures], captions)


def label_palette(prediction: Prediction, name: str) -> np.ndarray:
    """uint8 (K, 3): a colour for every id that occurs or can occur."""
    labels, spec = prediction.arrays[name], prediction.outputs[name]
    count = max(int(labels.max()) + 1, spec.channels or 0)
    return as_palette(spec.palette if len(spec.palette) >= count else None, count)
