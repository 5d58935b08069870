"""Lossless conversion of a sample to the files that a shard stores of it, and back.

The image keeps the bytes of its own file. Class ids become an 8-bit PNG. Depth becomes a 16-bit PNG
if integers divided by 1000, 256, 5000 or 100 give every value exactly (millimetres, KITTI, TUM,
centimetres), else a compressed float32 array. Scalars are stored as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np

from dpt.data.base import check_sample
from dpt.data.errors import DataError
from dpt.data.formats import io
from dpt.types import Sample

_DIVISORS = (1000, 256, 5000, 100)
_MAPS = ("labels.png", "depth.png", "depth.npz", "valid.png")
_SCALARS = ("name", "class_id", "value")


def encode_sample(sample: Sample) -> dict[str, bytes]:
    """The files of a sample, by the part of their names after the key (``jpg``, ``labels.png``).

    If the sample's name is that of an image file with exactly these pixels, the bytes of that file
    are taken; otherwise (a video frame, a crop) the pixels are saved as PNG.
    """
    suffix, data = _original_file(sample) or ("png", _png(sample["image"][..., ::-1]))
    parts = {suffix: data}
    values = cast(dict[str, Any], sample)
    scalars = {key: values[key] for key in _SCALARS if key in values}
    if "labels" in sample:
        parts["labels.png"] = _png(sample["labels"])
    if "depth" in sample:
        depth, valid = sample["depth"], sample["valid"]
        divisor = _exact_divisor(depth)
        if divisor is None:
            file = BytesIO()
            np.savez_compressed(file, depth=depth)
            parts["depth.npz"] = file.getvalue()
        else:
            parts["depth.png"] = _png(np.rint(depth * divisor).astype(np.uint16))
            scalars["depth_divisor"] = divisor
        if not np.array_equal(valid, depth > 0):
            parts["valid.png"] = _png(valid.astype(np.uint8) * 255)
    text = json.dumps(scalars, default=lambda number: number.item(), ensure_ascii=False)
    parts["json"] = text.encode()
    return parts


def decode_sample(parts: Mapping[str, bytes], *, source: str) -> Sample:
    """The inverse of :func:`encode_sample`, without ``index``.

    Raises:
        DataError: naming ``source``, if a part is missing or damaged.
    """
    images = [name for name in parts if name not in (*_MAPS, "json")]
    if len(images) != 1:
        raise DataError(f"{source}: has {len(images)} images, expected one: pack the data again")
    image = io.decode_image(parts[images[0]], source=f"{source}.{images[0]}")
    try:
        values = dict(json.loads(parts["json"]))
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{source}.json: missing or damaged: pack the data again") from None
    scalars = {key: values[key] for key in _SCALARS if key in values}
    sample = cast(Sample, {"image": image, **scalars})
    maps = {n: io.decode_map(parts[n], source=f"{source}.{n}") for n in _MAPS if n in parts}
    if "labels.png" in maps:
        sample["labels"] = maps["labels.png"]
    if "depth.npz" in maps:
        sample["depth"] = maps["depth.npz"]
    elif "depth.png" in maps:
        raw, divisor = maps["depth.png"], values.get("depth_divisor")
        if divisor not in _DIVISORS or raw.dtype != np.uint16:
            raise DataError(
                f"{source}.depth.png: {raw.dtype} in units of 1/{divisor} m, expected uint16 and "
                f"one of {_DIVISORS}: pack the data again"
            )
        sample["depth"] = _divide(raw, divisor)
    if "depth" in sample:
        valid = maps.get("valid.png")
        sample["valid"] = sample["depth"] > 0 if valid is None else valid > 0
    check_sample(sample)
    return sample


def _original_file(sample: Sample) -> tuple[str, bytes] | None:
    """Suffix and bytes of the image's own file, if it holds exactly the pixels of the sample."""
    path = Path(sample.get("name", ""))
    if path.suffix.lower() not in io.IMAGE_SUFFIXES or not path.is_file():
        return None
    data = io.read_bytes(path)
    if not np.array_equal(io.decode_image(data, source=path), sample["image"]):
        return None  # the data set has cropped or otherwise changed it
    suffix = path.suffix.lower().removeprefix(".")
    return {"jpeg": "jpg", "tiff": "tif"}.get(suffix, suffix), data


def _exact_divisor(depth: np.ndarray) -> int | None:
    """The divisor of 16-bit integers that reproduces this depth bit by bit."""
    for divisor in _DIVISORS:
        raw = np.rint(depth * divisor)
        fits = (raw >= 0).all() and raw.max(initial=0) <= 65535
        if fits and np.array_equal(_divide(raw.astype(np.uint16), divisor), depth):
            return divisor
    return None


def _divide(raw: np.ndarray, divisor: int) -> np.ndarray:
    """Correctly rounded division, as when depth files are read."""
    return np.divide(raw, np.float32(divisor), dtype=np.float32, casting="unsafe")


def _png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()
