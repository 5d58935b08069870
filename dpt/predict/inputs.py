"""What is predicted: the pixels of an image of any kind, its camera, and sparse depth."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageOps
from pydantic import Field
from torch import Tensor

from dpt.data.formats import bands, cameras, io, pictures, rules
from dpt.files import DataError, parse_number, read_table
from dpt.geometry import Camera
from dpt.types.preprocessing import Preprocessing
from dpt.validation import MAX_METRES, Plain, Positive, validate

Image = str | Path | np.ndarray | Tensor | PIL.Image.Image
Prompt = str | Path | np.ndarray
_Degrees = Annotated[float, Field(gt=0, lt=180)]


# --- pixels -------------------------------------------------------------------------------------


def as_pixels(image: Image, preprocessing: Preprocessing) -> np.ndarray:
    """Returns any image as a model takes it: uint8 RGB (H, W, 3), or float32 bands (H, W, C).

    Files are read as in training. Bands are given as an array (H, W, C), or (H, W) of one band, or
    as a tensor (C, H, W), in the unit of the training files.
    """
    if isinstance(image, str | Path):
        pixels, name = io.read_image(image, exif=True, part=part_of(preprocessing)), str(image)
    elif preprocessing.is_rgb:
        return as_rgb(image)
    else:
        pixels, name = _as_bands(image, preprocessing.nodata), "an image"
    if preprocessing.is_rgb and pixels.dtype == np.uint8:
        return pixels
    count = len(preprocessing.mean)
    if pixels.ndim != 3 or pixels.shape[2] != count or pixels.dtype.kind not in "uif":
        fault = f"found {pixels.dtype} {pixels.shape}"
        raise DataError(f"{name}: {fault}, must be (H, W, {count}), the bands that the model takes")
    return np.ascontiguousarray(pixels, np.float32)


def _as_bands(image: np.ndarray | Tensor | PIL.Image.Image, nodata: float | None) -> np.ndarray:
    array = image.cpu().movedim(0, -1).numpy() if isinstance(image, Tensor) else image
    values = np.array(array)
    values = values[..., None] if values.ndim == 2 else values
    if nodata is None or values.dtype.kind not in "uif":
        return values
    return np.where(values == nodata, np.float32(np.nan), values.astype(np.float32))


def part_of(preprocessing: Preprocessing) -> bands.FilePart:
    """Returns what a model reads of an image's file, as in training."""
    chosen: bands.BandChoice | None = preprocessing.bands
    if chosen is None and not preprocessing.is_rgb:
        chosen = "all"
    image_max, nodata = preprocessing.image_max, preprocessing.nodata
    return bands.FilePart(bands=chosen, image_max=image_max, nodata=nodata)


def as_rgb(image: np.ndarray | Tensor | PIL.Image.Image) -> np.ndarray:
    """Returns an image as uint8 (H, W, 3) RGB, turned upright by its EXIF orientation if it has
    one.

    ``image`` is uint8 (H, W, 3) RGB; a PIL image; a tensor, uint8 (3, H, W), or float (3, H, W) in
    0..1, which is rounded to 256 levels.

    Raises:
        ValueError: the image is none of these; the message says what was found.
    """
    if isinstance(image, PIL.Image.Image):
        array = _from_pil(image)
    else:
        array = _from_tensor(image) if isinstance(image, Tensor) else np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        expected = "a path, uint8 (H, W, 3) RGB, PIL's, or a tensor (3, H, W) of uint8 or 0..1"
        raise ValueError(f"an image must be {expected}, found {array.dtype} {array.shape}")
    return np.ascontiguousarray(array)


def _from_pil(image: PIL.Image.Image) -> np.ndarray:
    if image.mode.startswith(("I", "F")):  # PIL would clip its values
        raise ValueError(f"a PIL image of mode {image.mode}: convert it to 8 bits per channel")
    upright = PIL.ImageOps.exif_transpose(image)
    if "A" in upright.mode or "transparency" in upright.info:
        return pictures.over_white(np.asarray(upright.convert("RGBA")))
    return np.asarray(upright.convert("RGB"))


def _from_tensor(image: Tensor) -> np.ndarray:
    if image.is_floating_point():
        image = image.float()
        if not ((image >= 0) & (image <= 1)).all():  # NaN neither
            raise ValueError("a float tensor must be in 0..1: divide by 255, and do not normalise")
        image = (image * 255).round().byte()
    return image.cpu().movedim(0, -1).numpy()


# --- cameras ------------------------------------------------------------------------------------


class KnownCamera(NamedTuple):
    """The camera of an image, at the image's own size, and how it is known."""

    camera: Camera
    source: Literal["given", "EXIF", "predicted"]

    @property
    def facts(self) -> Plain:
        """What records hold."""
        size = [*self.camera.size]
        return {"camera": {"K": self.camera.K.tolist(), "size": size, "source": self.source}}


def known_camera(
    image: Image,
    size: tuple[int, int],
    stated: cameras.CameraSource | None,
    *,
    name: str | Path = "an image",
    data: bytes | None = None,
) -> KnownCamera | None:
    """Returns the camera that ``stated`` gives to the image ``name`` of ``size`` (H, W), upright,
    or that of its file's EXIF tags; None without any. ``data`` is the content of the file, if it
    was read."""
    if stated is not None:
        return KnownCamera(stated.camera(name, size), "given")
    focal = pictures.exif_focal(image, data=data) if isinstance(image, str | Path) else None
    return None if focal is None else KnownCamera(Camera.from_focal(focal, size), "EXIF")


def chosen_camera(
    fov: float | None, focal: str | None, intrinsics: Path | None
) -> cameras.CameraSource | None:
    """Returns the camera that the options of ``dpt predict`` state; None if none does."""
    if fov is not None:
        return cameras.FieldOfView(validate(_Degrees, fov, "--fov"))
    if intrinsics is not None:
        file = cameras.CameraFile(intrinsics)
        file.read()  # faults are told before any image is read
        return file
    return None if focal is None else cameras.FocalLength(validate(Positive, focal, "--focal"))


# --- sparse depth -------------------------------------------------------------------------------


def as_prompt(prompt: Prompt, size: tuple[int, int]) -> np.ndarray:
    """Returns sparse depth as float32 (H, W) = ``size``, in metres, 0 where unknown.

    Args:
        prompt: an array (H, W), or a file: CSV with the columns x, y and depth_m, or a depth map of
            the image's size, whole numbers in millimetres, others in metres. Values that are not
            finite and above 0 are unknown.
        size: of the image.

    Raises:
        DataError: it cannot be read, has another size, a point outside the image, or no point.
    """
    name = "prompt" if isinstance(prompt, np.ndarray) else str(prompt)
    if isinstance(prompt, np.ndarray):
        values = prompt
    elif name.lower().endswith(".csv"):
        values = np.zeros(size, np.float32)
        for where, _, (x, y, metres) in read_points(name):
            require_inside(where, x, y, size)
            values[round(y), round(x)] = metres
    else:
        values = io.read_raw_depth(prompt)
    if values.shape != size or values.dtype.kind not in "uif":
        fault = f"{values.dtype} {values.shape}, and the image has (H, W) = {size}"
        raise DataError(f"{name}: is {fault}: give depth for each pixel, 0 where unknown")
    is_whole = values.dtype.kind != "f"
    depth, valid = rules.DepthRule(scale=0.001 if is_whole else 1.0, max_depth=MAX_METRES)(values)
    if not valid.any():
        raise DataError(f"{name}: holds no depth above 0: give at least one point")
    return depth


def read_points(
    path: str | Path, *names: str
) -> Iterator[tuple[str, list[str], tuple[float, float, float]]]:
    """Yields the lines of a CSV table of known depths: the position for messages, the cells of the
    columns ``names``, and x, y in pixels from the upper left, from 0, and metres."""
    columns = (*names, "x", "y", "depth_m")
    remedy = f"the columns are {','.join(columns)}: pixels, from 0,0 at the upper left, and metres"
    for where, cells in read_table(path, columns, remedy=remedy):
        try:
            x, y, metres = map(parse_number, cells[len(names) :])
        except ValueError:
            raise DataError(f"{where}: {cells} are not all numbers: {remedy}") from None
        if not 1e-6 < metres <= MAX_METRES:  # squares and reciprocals stay finite
            raise DataError(f"{where}: depth_m={metres} must be above 0, up to {MAX_METRES:g}")
        yield where, cells[: len(names)], (x, y, metres)


def require_inside(where: str, x: float, y: float, size: tuple[int, int]) -> None:
    """Raises DataError if a point is outside of its image of ``size`` (H, W)."""
    height, width = size
    if not (-0.5 <= x < width - 0.5 and -0.5 <= y < height - 0.5):
        raise DataError(f"{where}: x={x:g}, y={y:g} is outside of the {width}x{height} pixels")
