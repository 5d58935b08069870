"""A sample as the few files that a shard holds of it, and back: nothing is lost on the way.

The photo keeps the bytes of its own file. Class ids become an 8-bit PNG. Depth becomes a 16-bit PNG
where whole numbers divided by 1000, 256, 5000 or 100 give every metre exactly (most depth files
were made so), else a compressed float32 array. What is named beside them goes into a small JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np

from dpt.data.base import DataError, check_sample
from dpt.data.formats import io
from dpt.types import Sample

Parts = Mapping[str, bytes]
"""The files of one sample by what follows its number in their names: ``jpg``, ``labels.png``."""

_DIVISORS = (1000, 256, 5000, 100)
"""Units of a metre in millimetre files, KITTI, TUM, and centimetre files."""
_MAPS = ("labels.png", "depth.png", "depth.npz", "valid.png")
_FACTS = "json"
_SCALARS = ("name", "class_id", "value")
_DIVISOR = "depth_divisor"


def encode_sample(sample: Sample) -> dict[str, bytes]:
    """The files of a sample.

    Where its name is that of a photo's file which decodes to its very pixels, that file's bytes are
    taken; else (a frame of an archive, a crop) the pixels are saved as PNG.
    """
    kept = _original(Path(sample.get("name", "")), sample["image"])
    suffix, data = kept or ("png", _png(sample["image"][..., ::-1]))
    parts = {suffix: data}
    values = cast(dict[str, Any], sample)
    facts = {k: values[k] for k in _SCALARS if k in values}
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
            facts[_DIVISOR] = divisor
        if not np.array_equal(valid, depth > 0):
            parts["valid.png"] = _png(valid.astype(np.uint8) * 255)
    parts[_FACTS] = json.dumps(facts, default=_plain, ensure_ascii=False).encode()
    return parts


def decode_sample(parts: Parts, *, source: str) -> Sample:
    """The sample of which :func:`encode_sample` made ``parts``, without its index.

    Raises:
        DataError: naming ``source``, where a part is missing or damaged.
    """
    photos = [name for name in parts if name not in _MAPS and name != _FACTS]
    if len(photos) != 1:
        raise DataError(f"{source}: holds {len(photos)} photos, must be one: pack the data again")
    image = io.decode_image(parts[photos[0]], source=f"{source}.{photos[0]}")
    facts = _facts(parts.get(_FACTS, b""), source)
    scalars = {key: facts[key] for key in _SCALARS if key in facts}
    sample = cast(Sample, {"image": image, **scalars})
    maps = {n: io.decode_map(parts[n], source=f"{source}.{n}") for n in _MAPS if n in parts}
    if "labels.png" in maps:
        sample["labels"] = maps["labels.png"]
    if "depth.npz" in maps:
        sample["depth"] = maps["depth.npz"]
    elif "depth.png" in maps:
        sample["depth"] = _metres(maps["depth.png"], facts.get(_DIVISOR, 0), source)
    if "depth" in sample:
        valid = maps.get("valid.png")
        sample["valid"] = sample["depth"] > 0 if valid is None else valid > 0
    check_sample(sample)
    return sample


def _original(photo: Path, image: np.ndarray) -> tuple[str, bytes] | None:
    """Suffix and bytes of the photo's own file, if that is what the image was read from."""
    if photo.suffix.lower() not in io.IMAGE_SUFFIXES or not photo.is_file():
        return None
    data = io.read_bytes(photo)
    if not np.array_equal(io.decode_image(data, source=photo), image):
        return None  # cropped, scaled down or otherwise changed by the data set
    suffix = photo.suffix.lower().removeprefix(".")
    return {"jpeg": "jpg", "tiff": "tif"}.get(suffix, suffix), data


def _exact_divisor(depth: np.ndarray) -> int | None:
    """The divisor of whole numbers of 16 bits that gives this depth bit by bit."""
    for divisor in _DIVISORS:
        raw = np.rint(depth * divisor)
        if not (raw >= 0).all() or raw.max(initial=0) > 65535:
            continue
        if np.array_equal(_divided(raw.astype(np.uint16), divisor), depth):
            return divisor
    return None


def _metres(raw: np.ndarray, divisor: Any, source: str) -> np.ndarray:
    if divisor not in _DIVISORS or raw.dtype != np.uint16:
        raise DataError(f"{source}: depth of {raw.dtype} in units of 1/{divisor} m: pack it again")
    return _divided(raw, divisor)


def _divided(raw: np.ndarray, divisor: int) -> np.ndarray:
    """As ``metres.DepthRule`` divides: correctly rounded."""
    return np.divide(raw, np.float32(divisor), dtype=np.float32, casting="unsafe")


def _png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def _facts(data: bytes, source: str) -> dict[str, Any]:
    try:
        facts = json.loads(data)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise DataError(f"{source}.{_FACTS}: missing or damaged: pack the data again")
    return facts


def _plain(value: Any) -> Any:
    """Numbers of NumPy as Python's."""
    return value.item()
