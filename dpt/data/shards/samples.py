"""Lossless conversion of a sample to the files that a shard stores of it, and back.

The image keeps the bytes of its own file; bands are a compressed float32 array. Class ids become an
8-bit PNG, object ids a 16-bit one, depth a compressed float32 array with 0 where it is invalid,
normals and sparse depth others. Scalars, run lengths of masks and the camera are stored as JSON.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, cast

import cv2
import numpy as np
from pydantic import Field, FiniteFloat, TypeAdapter

from dpt.data.formats import arrays, io, pictures
from dpt.data.formats.rle import encode_mask
from dpt.files import DataError, read_bytes
from dpt.types.samples import ObjectMask, Sample

_Row = tuple[FiniteFloat, FiniteFloat, FiniteFloat]


@dataclass(frozen=True)
class _Scalars:
    """What is stored of a sample as JSON, as far as it has it."""

    name: str | None = None
    class_id: Annotated[int, Field(ge=0)] | None = None
    value: FiniteFloat | None = None
    caption: Annotated[str, Field(min_length=1)] | None = None
    masks: list[ObjectMask] | None = None
    K: tuple[_Row, _Row, _Row] | None = None


_SCALARS = TypeAdapter(_Scalars)
_BANDS = "image.npz"
_NO_IMAGES = ("labels.png", "objects.png", "depth.npz", "normals.npz", "prompt.npz", "json")


def encode_sample(sample: Sample) -> dict[str, bytes]:
    """Returns the files of a sample by the part of their names after the key, as ``labels.png``.

    If the sample's name is that of an image file with exactly these pixels, the bytes of that file
    are taken; otherwise (a video frame, a crop) the pixels are saved as PNG.
    """
    path = Path(sample.get("name", ""))
    suffix = path.suffix.lower()
    files = {}
    if sample["image"].dtype != np.uint8:
        files[_BANDS] = _npz(image=sample["image"])
    elif suffix in io.IMAGE_SUFFIXES and path.is_file():
        data = read_bytes(path)
        with suppress(DataError):  # of files that are read with settings, such as data.bands
            if np.array_equal(io.read_image(path, data=data), sample["image"]):
                usual = {".tiff": ".tif", **dict.fromkeys(io.JPEG_SUFFIXES, ".jpg")}
                files[usual.get(suffix, suffix).removeprefix(".")] = data
    if not files:
        files["png"] = _png(sample["image"][..., ::-1])
    if "labels" in sample:
        files["labels.png"] = _png(sample["labels"])
    if "objects" in sample:
        files["objects.png"] = _png(sample["objects"])
    if "depth" in sample:
        depth = np.where(sample["valid"], sample["depth"], np.float32(0))
        files["depth.npz"] = _npz(depth=depth)
    if "normals" in sample:
        files["normals.npz"] = _npz(normals=sample["normals"])
    if "prompt" in sample:
        files["prompt.npz"] = _npz(prompt=sample["prompt"])
    scalars = {k: value for k, value in sample.items() if k in _Scalars.__annotations__}
    text = json.dumps(scalars, default=_plain)
    return {**files, "json": text.encode()}


def _plain(value: bytes | np.ndarray) -> object:
    """Returns run lengths and arrays as JSON has them."""
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _npz(**values: np.ndarray) -> bytes:
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **values)
    return file.getvalue()


def decode_sample(files: Mapping[str, bytes], *, source: str) -> Sample:
    """Returns the sample of such files, without ``index``; errors name ``source``."""
    images = [name for name in files if name not in _NO_IMAGES]
    if len(images) != 1:
        raise DataError(f"{source}: has {len(images)} images, expected one: pack the data again")
    path, data = f"{source}.{images[0]}", files[images[0]]
    has_bands = images[0] == _BANDS
    image = arrays.read_numpy(path, data=data) if has_bands else io.read_image(path, data=data)
    sample = Sample(image=image)
    if "labels.png" in files:
        sample["labels"] = _read_png(f"{source}.labels.png", files["labels.png"])
    height, width = sample.get("labels", sample["image"]).shape[:2]
    scalars = _read_scalars(files, source)
    try:
        for mask in scalars.masks or ():
            encode_mask(mask.mask, (height, width))
    except ValueError:
        raise DataError(f"{source}.json: damaged masks: pack the data again") from None
    sample.update(cast(Sample, {k: v for k, v in vars(scalars).items() if v is not None}))
    if "K" in sample:
        sample["K"] = np.array(sample["K"], np.float64)
    if "objects.png" in files:
        sample["objects"] = _read_png(f"{source}.objects.png", files["objects.png"])
    if "depth.npz" in files:
        path = f"{source}.depth.npz"
        depth = arrays.read_numpy(path, data=files["depth.npz"])
        if depth.dtype != np.float32:
            raise DataError(f"{path}: depth is {depth.dtype}, not float32: pack the data again")
        sample["depth"], sample["valid"] = depth, (depth > 0) & (depth < np.inf)
    if "normals.npz" in files:
        path = f"{source}.normals.npz"
        sample["normals"] = arrays.read_numpy(path, data=files["normals.npz"])
    if "prompt.npz" in files:
        path = f"{source}.prompt.npz"
        sample["prompt"] = arrays.read_numpy(path, data=files["prompt.npz"])
    return sample


def decode_name(files: Mapping[str, bytes], *, source: str) -> str | None:
    """Returns the name of a sample, if it has one; of its files only ``json`` is needed."""
    return _read_scalars(files, source).name


def _read_scalars(files: Mapping[str, bytes], source: str) -> _Scalars:
    try:
        return _SCALARS.validate_json(files["json"])
    except (KeyError, ValueError):
        raise DataError(f"{source}.json: missing or damaged: pack the data again") from None


def _png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def _read_png(path: str, data: bytes) -> np.ndarray:
    return pictures.decode_picture(path, data).pixels
