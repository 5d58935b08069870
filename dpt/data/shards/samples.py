"""Lossless conversion of a sample to the files that a shard stores of it, and back.

The image keeps the bytes of its own file. Class ids become an 8-bit PNG, depth a compressed float32
array with 0 where it is invalid. Scalars are stored as JSON.
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
from dpt.data.formats import io
from dpt.files import DataError, parse_json, read_bytes
from dpt.types import Sample

_SCALARS = ("name", "class_id", "value")


def encode_sample(sample: Sample) -> dict[str, bytes]:
    """The files of a sample, by the part of their names after the key (``jpg``, ``labels.png``).

    If the sample's name is that of an image file with exactly these pixels, the bytes of that file
    are taken; otherwise (a video frame, a crop) the pixels are saved as PNG.
    """
    values = cast(dict[str, Any], sample)
    path = Path(sample.get("name", ""))
    suffix, data = path.suffix.lower().removeprefix("."), b""
    if f".{suffix}" in io.IMAGE_SUFFIXES and path.is_file():
        data = read_bytes(path)
    if data and np.array_equal(io.read_image(path, data=data), sample["image"]):
        parts = {{"jpeg": "jpg", "tiff": "tif"}.get(suffix, suffix): data}
    else:
        parts = {"png": _png(sample["image"][..., ::-1])}
    if "labels" in sample:
        parts["labels.png"] = _png(sample["labels"])
    if "depth" in sample:
        file = BytesIO()
        depth = np.where(sample["valid"], sample["depth"], np.float32(0))
        np.savez_compressed(file, depth=depth)
        parts["depth.npz"] = file.getvalue()
    scalars = {key: values[key] for key in _SCALARS if key in values}
    text = json.dumps(scalars, default=lambda number: number.item())
    return {**parts, "json": text.encode()}


def decode_sample(parts: Mapping[str, bytes], *, source: str) -> Sample:
    """The inverse of :func:`encode_sample`, without ``index``.

    Raises:
        DataError: naming ``source``, if a part is missing or damaged.
    """
    images = [name for name in parts if name not in ("labels.png", "depth.npz", "json")]
    if len(images) != 1:
        raise DataError(f"{source}: has {len(images)} images, expected one: pack the data again")
    image = io.read_image(f"{source}.{images[0]}", data=parts[images[0]])
    try:
        values = dict(parse_json(parts["json"], source))
    except (KeyError, ValueError, TypeError):
        raise DataError(f"{source}.json: missing or damaged: pack the data again") from None
    scalars = {key: values[key] for key in _SCALARS if key in values}
    sample = cast(Sample, {"image": image, **scalars})
    if "labels.png" in parts:
        labels, path = parts["labels.png"], f"{source}.labels.png"
        sample["labels"] = io.decode_picture(path, labels, cv2.IMREAD_UNCHANGED)
    if "depth.npz" in parts:
        sample["depth"] = io.read_numpy(f"{source}.depth.npz", data=parts["depth.npz"])
        sample["valid"] = sample["depth"] > 0
    check_sample(sample)
    return sample


def _png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()
