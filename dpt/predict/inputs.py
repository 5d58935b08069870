"""Inputs: files and folders to a list of named sources, and images of any kind to RGB."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor

from dpt.data.formats.io import IMAGE_SUFFIXES, UNREAD_SUFFIXES, over_white, read_image
from dpt.data.formats.video import VIDEO_SUFFIXES
from dpt.files import DataError, missing_path, parse_json, read_bytes, reason
from dpt.nn import HEADS

log = logging.getLogger("dpt")

Image = str | Path | np.ndarray | Tensor | PIL.Image.Image
SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
_MAX_SETTINGS = 1 << 20  # bytes; class names take the most


@dataclass(frozen=True)
class Source:
    """An image or video to predict."""

    path: Path  # absolute
    name: str  # of the output files: a relative path with ``/``, without suffix and ``..``

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_sources(inputs: Sequence[str | Path], *, out: Path) -> list[Source]:
    """The images and videos that the inputs name, sorted within each folder, without repetition.

    Folders are searched recursively, without hidden files, ``out``, and what ``dpt predict`` wrote
    earlier. Names are paths relative to the deepest folder that contains all input folders, so that
    sub-folders are kept; an input file elsewhere has its own name. If two files then have one name,
    all are relative to the deepest folder that contains all inputs. Files that differ only in their
    suffix keep it.
    """
    sources: dict[Path, None] = {}
    unread: set[Path] = set()  # pictures that are left out
    paths, out = list(map(_absolute, inputs)), _absolute(out)
    for path in paths:
        files = [path]
        if path == out and path.is_dir():
            raise DataError(f"{path}: is an input and --out: choose another --out")
        if path.is_dir():
            inside = list(_walk(path, out))
            files = [file for file in inside if file.suffix.lower() in SUFFIXES]
            unread.update(set(inside).difference(files))
        elif not os.path.lexists(path):
            raise missing_path(path, what="input", remedy="check the path")
        if not files:
            but = ", except what dpt predict wrote" if read_settings(path) else ""
            raise DataError(
                f"{path}: no image or video in this folder or below ({', '.join(SUFFIXES)}){but}"
                f"{f'; {_left_out(unread)}' if unread else ''}"
            )
        sources.update(dict.fromkeys(files))
    if unread:
        log.warning(_left_out(unread))
    folders = [path for path in paths if path.is_dir()]
    root = Path(os.path.commonpath(folders) if folders else "")
    relative = {p: p.relative_to(root) if p.is_relative_to(root) else Path(p.name) for p in sources}
    if len(set(relative.values())) < len(relative):
        root = Path(os.path.commonpath(sources))
        relative = {path: path.relative_to(root) for path in sources}
    bare = {path: name.with_suffix("") for path, name in relative.items()}
    times = Counter(bare.values())
    names = {p: bare[p] if times[bare[p]] == 1 else name for p, name in relative.items()}
    if len(set(names.values())) < len(names):
        twice = Counter(names.values()).most_common(1)[0][0]
        raise DataError(f"two inputs have the same output name, {twice}: predict them separately")
    return [Source(path, name.as_posix()) for path, name in names.items()]


def read_settings(folder: Path) -> dict[str, Any]:
    """What ``dpt predict`` wrote into ``predictions.json``; empty for other folders."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return {}
    try:
        settings = dict(parse_json(read_bytes(path, limit=_MAX_SETTINGS), path))
        written = {str(name) for name in settings["written"]}
    except (ValueError, TypeError, KeyError):
        return {}
    if not written <= {*product_folders(), RECORDS_FILE}:
        return {}
    return settings | {"written": sorted(written)}


def product_folders() -> set[str]:
    """The names of all sub-folders that ``dpt predict`` writes for any model, see
    :func:`dpt.predict.outputs.all_products`."""
    names, formats = ("depth", "labels", *HEADS), ("", "_npy", "_color", "_overlay", "_json")
    return {"overlay", *(f"{name}{ending}" for name in names for ending in formats)}


def _absolute(path: str | Path) -> Path:
    """Without ``..``; links are not followed."""
    return Path(os.path.abspath(Path(path).expanduser()))


def _left_out(files: Iterable[Path]) -> str:
    """Says which pictures are left out, and the remedy."""
    kinds = Counter(file.suffix.lower() for file in files)
    return (
        f"left out, because such formats are not read: "
        f"{', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}: convert to JPEG or PNG"
    )


def _walk(folder: Path, out: Path) -> Iterator[Path]:
    """Images and videos, and pictures in formats that are not read."""
    suffixes = (*SUFFIXES, *UNREAD_SUFFIXES)
    for parent, folders, files in os.walk(folder):
        written = read_settings(Path(parent)).get("written", ())
        searched = {name for name in folders if name[0] != "." and Path(parent, name) != out}
        folders[:] = sorted(searched.difference(written))
        for path in (Path(parent, name) for name in sorted(files) if name[0] != "."):
            if path.suffix.lower() in suffixes:
                yield path


def as_rgb(image: Image) -> np.ndarray:
    """Any image as uint8 (H, W, 3) RGB, turned upright by its EXIF orientation if it has one.

    ``image`` is a file's path; uint8 (H, W, 3) RGB; a PIL image; a tensor, uint8 (3, H, W), or
    float (3, H, W) in 0..1, which is rounded to 256 levels.

    Raises:
        ValueError: it is none of these; the message says what was found.
    """
    if isinstance(image, str | Path):
        return read_image(image, exif=True)
    array: object = image
    if isinstance(image, PIL.Image.Image):
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"a PIL image of mode {image.mode} is not a photo: give one of 8 bits per channel"
            )
        try:
            upright = PIL.ImageOps.exif_transpose(image)
            is_opaque = "A" not in upright.mode and "transparency" not in upright.info
            array = np.asarray(upright.convert("RGB" if is_opaque else "RGBA"))
            array = array if is_opaque else over_white(array)
        except OSError as error:  # of the file, which is read only now
            raise ValueError(f"a PIL image cannot be read ({reason(error)})") from error
    elif isinstance(image, Tensor):
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
        array = image.cpu().permute(1, 2, 0).numpy()
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
