"""Inputs: files and folders to a list of named sources, and images of any kind to RGB."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor

from dpt.data.formats.bands import BandChoice, FilePart
from dpt.data.formats.io import IMAGE_SUFFIXES, UNREAD_SUFFIXES, read_image
from dpt.data.formats.pictures import over_white
from dpt.data.formats.video import VIDEO_SUFFIXES
from dpt.files import DataError, missing_path, reason
from dpt.predict.records import PredictionSettings
from dpt.types.preprocessing import Preprocessing

log = logging.getLogger("dpt")

Image = str | Path | np.ndarray | Tensor | PIL.Image.Image
SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)


@dataclass(frozen=True)
class InputFile:
    """An image or video to predict."""

    path: Path  # absolute
    name: str  # of the output files: a relative path with ``/``, without suffix and ``..``

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES

    @property
    def source(self) -> str:
        """The path or address in records and messages."""
        return str(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether :meth:`fetch` copies the file."""
        return False

    def modified(self) -> list[object]:
        """Returns time in nanoseconds and size in bytes, which tell a replaced file from the file
        before it; empty if the file is gone."""
        with suppress(OSError):  # reading it names the fault
            status = self.path.stat()
            return [status.st_mtime_ns, status.st_size]
        return []

    def fetch(self) -> Path:
        """Returns the path of the file on this machine; copies a remote file there."""
        return self.path

    def release(self) -> None:
        """Removes the local copy of a remote file."""


def find_inputs(inputs: Sequence[str | Path], *, out: Path) -> list[InputFile]:
    """Returns the images and videos that the inputs name, sorted within each folder, each once.

    Folders are searched recursively, without hidden files, ``out``, and what ``dpt predict`` wrote
    earlier. Names are paths relative to the deepest folder that contains all input folders, so that
    sub-folders are kept; an input file elsewhere has its own name. If two files then have one name,
    all are relative to the deepest folder that contains all inputs. Files that differ only in their
    suffix keep it. Arrays (``.npy``) are images of bands in folders without pictures.
    """
    files: dict[Path, None] = {}
    unread: set[Path] = set()
    paths, out = [_absolute(path) for path in inputs], _absolute(out)
    for path in paths:
        if path == out and path.is_dir():
            raise DataError(f"{path}: is an input and --out: choose another --out")
        if not os.path.lexists(path):
            raise missing_path(path, what="input", remedy="check the path")
        if not path.is_dir():
            files[path] = None
            continue
        walked = list(_walk(path, out))
        arrays = [file for file in walked if file.suffix.lower() == ".npy"]
        pictures = [file for file in walked if file.suffix.lower() != ".npy"]
        readable = [file for file in pictures if file.suffix.lower() in SUFFIXES]
        unread.update(set(pictures).difference(readable))
        readable = readable or arrays
        if not readable:
            fault = f"{path}: no image or video in this folder or below ({', '.join(SUFFIXES)})"
            exception = ", except what dpt predict wrote" if PredictionSettings.read(path) else ""
            raise DataError(f"{fault}{exception}{f'; {_left_out(unread)}' if unread else ''}")
        files.update(dict.fromkeys(readable))
    if unread:
        log.warning(_left_out(unread))
    folders = [path for path in paths if path.is_dir()]
    return [
        InputFile(path, name.as_posix()) for path, name in names_of(list(files), folders).items()
    ]


def names_of(files: Sequence[Path], folders: Sequence[Path]) -> dict[Path, Path]:
    """Returns the name of each file, see :func:`find_inputs`; ``folders`` are those that are
    inputs."""
    root = Path(os.path.commonpath(folders) if folders else "")
    relative = {p: p.relative_to(root) if p.is_relative_to(root) else Path(p.name) for p in files}
    if len(set(relative.values())) < len(relative):
        root = Path(os.path.commonpath(files))
        relative = {path: path.relative_to(root) for path in files}
    count = Counter(name.with_suffix("") for name in relative.values())
    names = {
        path: name if count[name.with_suffix("")] > 1 else name.with_suffix("")
        for path, name in relative.items()
    }
    name, repetitions = Counter(names.values()).most_common(1)[0]
    if repetitions > 1:
        raise DataError(f"two inputs have the same output name, {name}: predict them separately")
    return names


def _absolute(path: str | Path) -> Path:
    """Returns the path without ``..``; links are not followed."""
    return Path(os.path.abspath(Path(path).expanduser()))


def _left_out(files: Iterable[Path]) -> str:
    """Returns which pictures are left out, and the remedy."""
    counts = Counter(file.suffix.lower() for file in files)
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    return f"left out, because such formats are not read: {kinds}: convert to JPEG or PNG"


def _walk(folder: Path, out: Path) -> Iterator[Path]:
    """Yields images, videos and arrays, and pictures in formats that are not read."""
    for parent, folders, files in os.walk(folder):
        settings = PredictionSettings.read(Path(parent))
        skipped = settings.written if settings else ()
        folders[:] = sorted(
            name
            for name in folders
            if name[0] != "." and name not in skipped and Path(parent, name) != out
        )
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith((*SUFFIXES, *UNREAD_SUFFIXES, ".npy")):
                yield Path(parent, name)


def as_pixels(image: Image, preprocessing: Preprocessing) -> np.ndarray:
    """Returns any image as a model takes it: uint8 RGB (H, W, 3), or float32 bands (H, W, C).

    Files are read as in training. Bands are given as an array (H, W, C), or (H, W) of one band, or
    as a tensor (C, H, W), in the unit of the training files.
    """
    if preprocessing.is_rgb and not isinstance(image, str | Path):
        return as_rgb(image)
    if isinstance(image, str | Path):
        pixels, name = read_image(image, exif=True, part=part_of(preprocessing)), str(image)
        if preprocessing.is_rgb and pixels.dtype == np.uint8:
            return pixels
    else:
        array = image.cpu().movedim(0, -1).numpy() if isinstance(image, Tensor) else image
        pixels, name = np.array(array), "an image"
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        if preprocessing.nodata is not None and pixels.dtype.kind in "uif":
            missing = pixels == preprocessing.nodata
            pixels = np.where(missing, np.float32(np.nan), pixels.astype(np.float32))
    count = len(preprocessing.mean)
    if pixels.ndim != 3 or pixels.shape[2] != count or pixels.dtype.kind not in "uif":
        fault = f"found {pixels.dtype} {pixels.shape}"
        raise DataError(f"{name}: {fault}, must be (H, W, {count}), the bands that the model takes")
    return np.ascontiguousarray(pixels, np.float32)


def part_of(preprocessing: Preprocessing) -> FilePart:
    """Returns what a model reads of an image's file, as in training."""
    bands: BandChoice | None = preprocessing.bands
    if bands is None and not preprocessing.is_rgb:
        bands = "all"
    image_max, nodata = preprocessing.image_max, preprocessing.nodata
    return FilePart(bands=bands, image_max=image_max, nodata=nodata)


def as_rgb(image: Image) -> np.ndarray:
    """Returns any image as uint8 (H, W, 3) RGB, turned upright by its EXIF orientation if it has
    one.

    ``image`` is a file's path; uint8 (H, W, 3) RGB; a PIL image; a tensor, uint8 (3, H, W), or
    float (3, H, W) in 0..1, which is rounded to 256 levels.

    Raises:
        ValueError: the image is none of these; the message says what was found.
    """
    if isinstance(image, str | Path):
        return read_image(image, exif=True)
    array: object = image
    if isinstance(image, PIL.Image.Image):
        array = _from_pil(image)
    elif isinstance(image, Tensor):
        array = _from_tensor(image)
    if not isinstance(array, np.ndarray):
        raise ValueError(
            "an image must be a path, a NumPy array, a PIL image or a tensor, not a "
            f"{type(image).__name__}"
        )
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ValueError(
            f"an image must be uint8 (H, W, 3) RGB, found {array.dtype} {array.shape}: give grey "
            "and RGBA as a PIL image, float values as a tensor (3, H, W) in 0..1"
        )
    return np.ascontiguousarray(array)


def _from_pil(image: PIL.Image.Image) -> np.ndarray:
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"a PIL image of mode {image.mode} has more than 8 bits per channel: convert it to RGB"
        )
    try:
        upright = PIL.ImageOps.exif_transpose(image)
        if "A" in upright.mode or "transparency" in upright.info:
            return over_white(np.asarray(upright.convert("RGBA")))
        return np.asarray(upright.convert("RGB"))
    except OSError as error:  # of the file, which is read only now
        raise ValueError(f"a PIL image cannot be read ({reason(error)})") from error


def _from_tensor(image: Tensor) -> np.ndarray:
    is_float = image.is_floating_point()
    if image.ndim != 3 or image.shape[0] != 3 or not (is_float or image.dtype == torch.uint8):
        raise ValueError(
            f"a tensor must be uint8 or float (3, H, W), found {image.dtype} "
            f"{tuple(image.shape)}: give several images as a list"
        )
    if is_float:
        image = image.float()
        if not ((image >= 0) & (image <= 1)).all():  # NaN neither
            raise ValueError(
                "a float tensor must be in 0..1: divide by 255, and do not normalise: the "
                "predictor does that"
            )
        image = (image * 255).round().byte()
    return image.cpu().permute(1, 2, 0).numpy()
