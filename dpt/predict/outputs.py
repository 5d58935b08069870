"""The files that ``dpt predict`` writes, by the kind of output and the format.

The table is in ``dpt predict --help``. The files of a second output of kind depth or logits are in
folders that begin with its head's name.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
import PIL.Image
from pycocotools import mask as coco

from dpt.files import few
from dpt.predict.predictor import Prediction, depth_unit
from dpt.segments import OBJECT_IDS
from dpt.types import OutputSpec
from dpt.viz import (
    COLORMAPS,
    color_limits,
    colorize_labels,
    colorize_output,
    colorize_segments,
    legend,
    overlay,
    palette_of,
    stack,
)

MILLIMETRE = 0.001
KITTI_SCALE = 1 / 256
_LARGEST = 65535
PIXELS_AT_ONCE = 2**20  # larger images are painted in bands of rows of this many pixels
FORMATS = ("png", "npy", "color", "overlay", "json")

Span = tuple[float, float]
Photo = np.ndarray | None  # the image, uint8 (H, W, 3); None where no product is a picture


@dataclass(frozen=True)
class Style:
    """How predictions are painted: the colormap of depth, and by output the limits of its colours;
    without them those of each image, see :func:`dpt.viz.color_limits`."""

    colormap: str = "inferno"
    spans: Mapping[str, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.colormap not in COLORMAPS:
            raise ValueError(f"colormap {self.colormap}: choose from {', '.join(COLORMAPS)}")

    def span(self, name: str, prediction: Prediction) -> Span:
        """The limits of an output's colours."""
        return self.spans.get(name) or color_limits(
            prediction.arrays[name], prediction.outputs[name]
        )


@dataclass(frozen=True)
class Product:
    """One kind of file."""

    name: str  # of the output
    folder: str  # in the output folder; the files have the names of the inputs
    suffix: str  # of the files
    make: Callable[[str, Prediction, Photo, Style], np.ndarray | bytes]
    """(name, prediction, image, style) to the content: an array, or encoded bytes."""

    @property
    def is_picture(self) -> bool:
        """Whether the files are pictures with a legend, which can be frames of a video."""
        return self.make is paint_explained

    def encode(self, prediction: Prediction, image: Photo, style: Style) -> bytes:
        """The content of the file."""
        content = self.make(self.name, prediction, image, style)
        if isinstance(content, bytes):
            return content
        if self.suffix == ".npy":
            file = io.BytesIO()
            np.save(file, content, allow_pickle=False)
            return file.getvalue()
        if content.ndim == 3:
            content = cv2.cvtColor(content, cv2.COLOR_RGB2BGR)
        return cv2.imencode(".png", content)[1].tobytes()


def folder_names(outputs: Mapping[str, OutputSpec]) -> dict[str, str]:
    """By dense output, the folder of its files."""
    usual = {"depth": "depth", "logits": "labels"}
    return {name: usual.pop(spec.kind, name) for name, spec in outputs.items() if spec.dense}


def classes_of(outputs: Mapping[str, OutputSpec]) -> dict[str, list[str]]:
    """By the folder of its files, the class names of each dense output with classes."""
    folders = folder_names(outputs)
    named = (name for name in folders if outputs[name].kind in ("logits", "masks"))
    return {folders[name]: list(outputs[name].class_names) for name in named}


def class_lines(products: Iterable[Product], outputs: Mapping[str, OutputSpec]) -> list[str]:
    """A line for each folder of class ids that says which class each id is."""
    lines = []
    for product in products:
        spec = outputs[product.name]
        if spec.kind == "logits" and not product.is_picture and spec.class_names:
            ids = [f"{k} {name}" for k, name in enumerate(spec.class_names)]
            lines.append(f"{product.folder}: ids of the classes: {few(ids, 5)}")
    return lines


def all_products(outputs: Mapping[str, OutputSpec]) -> dict[str, list[Product]]:
    """By format, the files that can be made of these outputs."""
    found: dict[str, list[Product]] = {name: [] for name in FORMATS}
    encoders = {"depth": encode_depth, "logits": encode_labels, "masks": encode_segments}
    for name, folder in folder_names(outputs).items():
        kind = outputs[name].kind
        found["npy"].append(Product(name, f"{folder}_npy", ".npy", _array))
        found["png"].append(Product(name, folder, ".png", encoders.get(kind, paint_explained)))
        if kind == "depth":
            found["color"].append(Product(name, f"{folder}_color", ".png", paint_explained))
        if kind in ("logits", "masks"):
            place = "overlay" if folder == "labels" else f"{folder}_overlay"
            found["overlay"].append(Product(name, place, ".png", paint_explained))
        if kind == "masks":
            found["json"].append(Product(name, f"{folder}_json", ".json", encode_objects))
    return found


def products_of(formats: Sequence[str], outputs: Mapping[str, OutputSpec]) -> list[Product]:
    """The files for each image: by default of all formats but ``npy``, and the arrays of maps."""
    possible = all_products(outputs)
    for name in formats:
        if name not in possible:
            raise ValueError(f"--format {name}: choose from {', '.join(possible)}")
        if not possible[name]:
            kinds = ", ".join(f"{n} ({s.kind})" for n, s in outputs.items())
            raise ValueError(f"--format {name} fits none of this model's outputs: {kinds}")
    usual = ("png", "color", "overlay", "json")
    chosen = [p for name in formats or usual for p in possible[name]]
    if not formats:
        chosen += [p for p in possible["npy"] if outputs[p.name].kind == "map"]
    return list(dict.fromkeys(chosen))


def videos_of(products: Sequence[Product]) -> list[Product]:
    """The files for each video: those of the chosen products that are pictures."""
    return [replace(p, suffix=".mp4") for p in products if p.is_picture]


def facts(prediction: Prediction) -> dict[str, Any]:
    """How to read an image's depth files, by folder, and the outputs for the whole image."""
    found: dict[str, Any] = {}
    for name, folder in folder_names(prediction.outputs).items():
        if prediction.outputs[name].kind == "depth":
            scale, offset = depth_coding(prediction, name)
            unit = depth_unit(prediction.outputs[name])
            found[folder] = {"scale": scale, "offset": offset, "unit": unit}
    return found | image_facts(prediction)


def image_facts(prediction: Prediction) -> dict[str, Any]:
    """The outputs for the whole image as plain data: class and probability, or values."""
    found: dict[str, Any] = {}
    for name, spec in prediction.outputs.items():
        values = prediction.arrays[name]
        if not spec.dense and spec.kind == "logits":
            k = int(values.argmax())
            label = spec.class_name(k)
            found[name] = {"class_id": k, "class": label, "probability": round(float(values[k]), 6)}
        elif not spec.dense:
            found[name] = values.tolist()
    return found


def image_lines(prediction: Prediction) -> list[str]:
    """A line for each of :func:`image_facts`, with the first values of a vector."""
    return [
        f"{name}: {few([f'{v:.4g}' for v in value], 4) if np.ndim(value) else value}"
        for name, value in image_facts(prediction).items()
    ]


# ------------------------------------------------------------------------------ encoding


def _array(name: str, prediction: Prediction, *_: object) -> np.ndarray:
    return prediction.arrays[name]


def depth_coding(prediction: Prediction, name: str) -> tuple[float, float]:
    """(scale, offset) of a 16-bit PNG: depth = value × scale + offset.

    Metres have one scale for all images: millimetres if the model's depth is at most 65.5 m, 1/256
    m (KITTI's) if it is larger or unbounded, a coarser one beyond 256 m. Relative depth is
    stretched from the smallest to the largest value.
    """
    depth, spec = prediction.arrays[name], prediction.outputs[name]
    if not spec.is_inverse_depth:
        largest = spec.value_range[1] if spec.value_range else _LARGEST * KITTI_SCALE
        if largest <= _LARGEST * MILLIMETRE:
            return MILLIMETRE, 0.0
        return max(KITTI_SCALE, largest / _LARGEST), 0.0
    known = depth[np.isfinite(depth)]
    if not known.size:
        return 1.0, 0.0
    low, high = float(known.min()), float(known.max())
    return (high - low) / _LARGEST or 1.0, low


def encode_depth(name: str, prediction: Prediction, *_: object) -> np.ndarray:
    """Depth as uint16 (H, W), see :func:`depth_coding`.

    Values that are not finite are 0, and so are metres that do not fit into 16 bits: clipped, they
    would be wrong depths. Metres that would be rounded to 0 are 1.
    """
    scale, offset = depth_coding(prediction, name)
    with np.errstate(invalid="ignore"):
        value = np.rint((prediction.arrays[name] - np.float32(offset)) / np.float32(scale))
        if prediction.outputs[name].is_inverse_depth:  # the largest may be rounded up
            np.minimum(value, _LARGEST, out=value)
        else:
            value[value == 0] = 1
        value[~((value >= 0) & (value <= _LARGEST))] = 0  # NaN too
    return value.astype(np.uint16)


def encode_labels(name: str, prediction: Prediction, *_: object) -> np.ndarray | bytes:
    """Class ids as a PNG that holds the ids and shows their colours; 16-bit above 256 classes."""
    labels = prediction.arrays[name]
    if labels.dtype != np.uint8:
        return labels
    picture = PIL.Image.fromarray(labels)
    picture.putpalette(palette_of(prediction.outputs[name]).tobytes())  # mode L becomes mode P
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def encode_segments(name: str, prediction: Prediction, *_: object) -> np.ndarray:
    """Numbers of the segments as in COCO's panoptic files: uint8 (H, W, 3), R + 256 G + 65536 B."""
    codes = prediction.arrays[name]
    ids = np.where(codes < 0, 0, codes % OBJECT_IDS)
    return np.stack([ids % 256, ids // 256, np.zeros_like(ids)], axis=2).astype(np.uint8)


def encode_objects(name: str, prediction: Prediction, *_: object) -> bytes:
    """The segments as a JSON list of entries like those of COCO's results, masks as RLE."""
    segments = prediction.segments_of(name)
    codes = [coco.encode(np.asfortranarray(s.mask.astype(np.uint8))) for s in segments]
    found = [
        {
            "id": segment.id,
            "category_id": segment.class_id,
            "category": segment.class_name,
            "isthing": segment.is_thing,
            "score": round(segment.score, 6),
            "bbox": segment.box,
            "area": int(segment.mask.sum()),
            "segmentation": {**code, "counts": code["counts"].decode()},
        }
        for segment, code in zip(segments, codes, strict=True)
    ]
    return json.dumps(found).encode()


# ------------------------------------------------------------------------------ painting


def explain(name: str, prediction: Prediction, style: Style, *, width: int) -> np.ndarray:
    """The legend of an output's picture, see :func:`dpt.viz.legend`."""
    values, spec = prediction.arrays[name], prediction.outputs[name]
    limits = style.span(name, prediction)
    return legend(values, spec, width=width, limits=limits, colormap=style.colormap)


def paint_explained(name: str, prediction: Prediction, image: Photo, style: Style) -> np.ndarray:
    """The picture of a dense output with its legend below: uint8 (H + h, max(W, 240), 3)."""
    style = replace(style, spans={name: style.span(name, prediction)})
    picture = paint(name, prediction, image, style)
    return stack([picture, explain(name, prediction, style, width=picture.shape[1])])


def paint(name: str, prediction: Prediction, image: Photo, style: Style) -> np.ndarray:
    """The picture of a dense output, uint8 (H, W, 3): classes over the image, other outputs as
    :func:`dpt.viz.colorize_output` draws them."""
    values, spec = prediction.arrays[name], prediction.outputs[name]
    limits = style.span(name, prediction)

    def draw(rows: slice) -> np.ndarray:
        band = values[rows]
        if spec.kind == "logits":
            color = colorize_labels(band, palette_of(spec), ignore_index=-1)
        elif spec.kind == "masks":
            color = colorize_segments(band, palette_of(spec), spec.things)
        else:
            maps = band.transpose(2, 0, 1) if band.ndim == 3 else band
            return colorize_output(maps, spec, limits=limits, colormap=style.colormap)
        assert image is not None
        return overlay(image[rows], color)

    step = max(1, PIXELS_AT_ONCE // values.shape[1])
    return np.concatenate([draw(slice(k, k + step)) for k in range(0, len(values), step)])
