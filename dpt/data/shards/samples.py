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
from typing import Annotated, Literal, cast

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
_MapName = Literal["labels", "objects", "depth", "normals", "prompt"]
_MAP_FILES: dict[_MapName, str] = {
    "labels": "labels.png",
    "objects": "objects.png",
    "depth": "depth.npz",
    "normals": "normals.npz",
    "prompt": "prompt.npz",
}


def encode_sample(sample: Sample) -> dict[str, bytes]:
    """Returns the files of a sample by the part of their names after the key, as ``labels.png``.

    If the sample's name is that of an image file with exactly these pixels, the bytes of that file
    are taken; otherwise (a video frame, a crop) the pixels are saved as PNG.
    """
    files = _encode_image(sample["image"], Path(sample.get("name", "")))
    maps = {key: sample[key] for key in _MAP_FILES if key in sample}
    if "depth" in sample:
        maps["depth"] = np.where(sample["valid"], sample["depth"], np.float32(0))
    for key, array in maps.items():
        is_png = _MAP_FILES[key].endswith(".png")
        files[_MAP_FILES[key]] = _png(array) if is_png else _npz(**{key: array})
    scalars = {k: value for k, value in sample.items() if k in _Scalars.__annotations__}
    text = json.dumps(scalars, default=_plain)
    return {**files, "json": text.encode()}


def _encode_image(image: np.ndarray, path: Path) -> dict[str, bytes]:
    """Returns the file of an image; ``path`` is that of its own file, if it has one."""
    if image.dtype != np.uint8:
        return {_BANDS: _npz(image=image)}
    suffix = path.suffix.lower()
    if suffix in io.IMAGE_SUFFIXES and path.is_file():
        data = read_bytes(path)
        with suppress(DataError):  # of files that are read with settings, such as data.bands
            if np.array_equal(io.read_image(path, data=data), image):
                usual = {".tiff": ".tif", **dict.fromkeys(io.JPEG_SUFFIXES, ".jpg")}
                return {usual.get(suffix, suffix).removeprefix("."): data}
    return {"png": _png(image[..., ::-1])}


def _plain(value: bytes | np.ndarray) -> object:
    """Returns run lengths and arrays as JSON has them."""
    return value.decode() if isinstance(value, bytes) else value.tolist()


def _npz(**values: np.ndarray) -> bytes:
    file = BytesIO()
    np.savez_compressed(file, allow_pickle=False, **values)
    return file.getvalue()


def decode_sample(files: Mapping[str, bytes], *, source: str) -> Sample:
    """Returns the sample of such files, without ``index``; errors name ``source``."""
    images = [name for name in files if name not in (*_MAP_FILES.values(), "json")]
    if len(images) != 1:
        raise DataError(f"{source}: has {len(images)} images, expected one: pack the data again")
    path, data = f"{source}.{images[0]}", files[images[0]]
    has_bands = images[0] == _BANDS
    image = arrays.read_numpy(path, data=data) if has_bands else io.read_image(path, data=data)
    sample = Sample(image=image)
    for key, name in _MAP_FILES.items():
        if name in files:
            read = _read_png if name.endswith(".png") else arrays.read_numpy
            sample[key] = read(f"{source}.{name}", data=files[name])
            if name.endswith(".npz") and sample[key].dtype != np.float32:
                raise DataError(f"{source}.{name}: not float32: pack the data again")
    if "depth" in sample:
        sample["valid"] = (sample["depth"] > 0) & (sample["depth"] < np.inf)
    height, width = sample.get("labels", sample["image"]).shape[:2]
    scalars = _read_scalars(files, source, (height, width))
    sample.update(cast(Sample, {k: v for k, v in vars(scalars).items() if v is not None}))
    if "K" in sample:
        sample["K"] = np.array(sample["K"], np.float64)
    return sample


def decode_name(files: Mapping[str, bytes], *, source: str) -> str | None:
    """Returns the name of a sample, if it has one; of its files only ``json`` is needed."""
    return _read_scalars(files, source).name


def _read_scalars(
    files: Mapping[str, bytes], source: str, size: tuple[int, int] | None = None
) -> _Scalars:
    """Returns what a sample's JSON holds; masks are checked if the ``size`` of labels is given."""
    try:
        scalars = _SCALARS.validate_json(files["json"])
        if size is not None:
            for mask in scalars.masks or ():
                encode_mask(mask.mask, size)
        return scalars
    except (KeyError, ValueError):
        raise DataError(f"{source}.json: missing or damaged: pack the data again") from None


def _png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def _read_png(path: str, *, data: bytes) -> np.ndarray:
    return pictures.decode_picture(path, data).pixels
