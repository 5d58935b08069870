"""The content of the files that hold predictions: pictures with legends, PNG, NPY and JSON.

Functions that encode take the output's name and the prediction, and return the file's bytes.
:func:`encode_depth` makes 16-bit PNGs of depth.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import PIL.Image

from dpt.data.formats.rle import encode_pixels
from dpt.predict.prediction import Prediction
from dpt.segments import OBJECT_IDS
from dpt.viz import (
    COLORMAPS,
    Limits,
    color_limits,
    colorize_output,
    encode_png,
    legend,
    output_palette,
    overlay,
    stack,
)

PIXELS_AT_ONCE = 2**20  # larger images are painted in bands of rows of this many pixels
MILLIMETRE = 0.001
KITTI_SCALE = 1 / 256
_LARGEST = 65535


def encode_array(name: str, prediction: Prediction) -> bytes:
    """Returns an NPY file of the values as they are."""
    file = io.BytesIO()
    np.save(file, prediction.arrays[name], allow_pickle=False)
    return file.getvalue()


def encode_depth(name: str, prediction: Prediction) -> bytes:
    """Returns a 16-bit PNG of depth, see :func:`depth_to_uint16`."""
    return encode_png(depth_to_uint16(name, prediction))


def depth_coding(name: str, prediction: Prediction) -> tuple[float, float]:
    """Returns (scale, offset) of a 16-bit PNG: depth = value × scale + offset.

    Metres have one scale for all images: millimetres if the model's depth is at most 65.5 m, 1/256
    m (KITTI's) if it is larger or unbounded, a coarser one beyond 256 m. Relative inverse depth is
    stretched from the smallest to the largest value, depth up to scale from 0 to the largest.
    """
    depth, spec = prediction.arrays[name], prediction.outputs[name]
    if spec.depth_kind == "metric":
        largest = spec.value_range[1] if spec.value_range else _LARGEST * KITTI_SCALE
        if largest <= _LARGEST * MILLIMETRE:
            return MILLIMETRE, 0.0
        return max(KITTI_SCALE, largest / _LARGEST), 0.0
    finite = depth[np.isfinite(depth)]
    if not finite.size:
        return 1.0, 0.0
    low, high = float(finite.min()) if spec.is_inverse_depth else 0.0, float(finite.max())
    return (high - low) / _LARGEST or 1.0, low


def depth_to_uint16(name: str, prediction: Prediction) -> np.ndarray:
    """Returns depth as uint16 (H, W), coded as :func:`depth_coding` says.

    Values that are not finite are 0, and so are metres that do not fit into 16 bits: clipped, they
    would be wrong depths. Depth that would be rounded to 0 is 1.
    """
    scale, offset = depth_coding(name, prediction)
    with np.errstate(invalid="ignore"):
        value = np.rint((prediction.arrays[name] - np.float32(offset)) / np.float32(scale))
        if prediction.outputs[name].depth_kind != "metric":  # the largest may be rounded up
            np.minimum(value, _LARGEST, out=value)
        if not prediction.outputs[name].is_inverse_depth:
            value[value == 0] = 1
        value[~((value >= 0) & (value <= _LARGEST))] = 0  # NaN too
    return value.astype(np.uint16)


def encode_labels(name: str, prediction: Prediction) -> bytes:
    """Returns a PNG of class ids that shows their colours; 16-bit without colours above 256
    classes."""
    labels = prediction.arrays[name]
    if labels.dtype != np.uint8:
        return encode_png(labels)
    picture = PIL.Image.fromarray(labels)
    picture.putpalette(output_palette(prediction.outputs[name]).tobytes())  # mode L becomes mode P
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def encode_segments(name: str, prediction: Prediction) -> bytes:
    """Returns a PNG of the segments' numbers as in COCO's panoptic files, R + 256 G + 65536 B."""
    codes = prediction.arrays[name]
    ids = np.where(codes < 0, 0, codes % OBJECT_IDS)
    channels = [ids % 256, ids // 256, np.zeros_like(ids)]
    return encode_png(np.stack(channels, axis=2).astype(np.uint8))


def encode_objects(name: str, prediction: Prediction) -> bytes:
    """Returns a JSON list of the segments like COCO's results, with masks as RLE."""
    entries = []
    for segment in prediction.segments_of(name):
        rle = encode_pixels(segment.mask)
        entry = {
            "id": segment.id,
            "category_id": segment.class_id,
            "category": segment.class_name,
            "isthing": segment.is_thing,
            "score": round(segment.score, 6),
            "bbox": segment.box,
            "area": int(segment.mask.sum()),
            "segmentation": {**rle, "counts": rle["counts"].decode()},
        }
        entries.append(entry)
    return json.dumps(entries).encode()


@dataclass(frozen=True)
class Style:
    """The colormap of depth, and the limits of the colours by output; without limits those of each
    image, see :func:`dpt.viz.color_limits`."""

    colormap: str = "inferno"
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.colormap not in COLORMAPS:
            raise ValueError(f"colormap {self.colormap}: choose from {', '.join(COLORMAPS)}")

    def limits_of(self, name: str, prediction: Prediction) -> Limits:
        """Returns the limits of an output's colours."""
        if name in self.limits:
            return self.limits[name]
        return color_limits(prediction.arrays[name], prediction.outputs[name])


def paint(name: str, prediction: Prediction, image: np.ndarray | None, style: Style) -> np.ndarray:
    """Returns the picture of a dense output, uint8 (H, W, 3): classes and segments over the image,
    other outputs as :func:`dpt.viz.colorize_output` draws them.

    ``image`` is uint8 (H, W, 3), or None where the output has neither classes nor segments.
    """
    values, spec = prediction.arrays[name], prediction.outputs[name]
    limits = style.limits_of(name, prediction)
    count = max(1, PIXELS_AT_ONCE // values.shape[1])
    bands = []
    for start in range(0, len(values), count):
        rows = slice(start, start + count)
        maps = values[rows].transpose(2, 0, 1) if values.ndim == 3 else values[rows]
        picture = colorize_output(maps, spec, limits=limits, colormap=style.colormap)
        if spec.kind in ("logits", "masks"):
            assert image is not None
            picture = overlay(image[rows], picture)
        bands.append(picture)
    return np.concatenate(bands)


def paint_legend(name: str, prediction: Prediction, style: Style, *, width: int) -> np.ndarray:
    """Returns the legend of an output's picture, see :func:`dpt.viz.legend`."""
    limits = style.limits_of(name, prediction)
    values, spec = prediction.arrays[name], prediction.outputs[name]
    return legend(values, spec, width=width, limits=limits, colormap=style.colormap)


def paint_with_legend(
    name: str, prediction: Prediction, image: np.ndarray | None, style: Style
) -> np.ndarray:
    """Returns the picture of a dense output above its legend: uint8 (H + h, max(W, 240), 3)."""
    style = replace(style, limits={name: style.limits_of(name, prediction)})
    picture = paint(name, prediction, image, style)
    return stack([picture, paint_legend(name, prediction, style, width=picture.shape[1])])
