"""Inputs: files, globs and folders to a list of named sources, and images of any kind to RGB."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor

from dpt.data.errors import DataError, missing_path
from dpt.data.formats.io import IMAGE_SUFFIXES, read_image
from dpt.data.formats.video import VIDEO_SUFFIXES

Image = str | Path | np.ndarray | Tensor | PIL.Image.Image
SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)


@dataclass(frozen=True)
class Source:
    """An image or video to predict.

    Attributes:
        path: absolute.
        name: name of the output files: a relative path with ``/``, without suffix and ``..``.
    """

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_sources(inputs: Sequence[str | Path], *, skip: Collection[Path] = ()) -> list[Source]:
    """The images and videos that the inputs name, sorted within each input, without repetition.

    Names are paths relative to the deepest folder that contains all inputs (for a glob, the part
    before the first wildcard), so that sub-folders are kept and files of equal name do not collide.
    Files that differ only in their suffix keep it.

    Args:
        inputs: files, folders (searched recursively, without hidden files), globs with ``*``,
            ``**``, ``?`` and ``[]``.
        skip: folders that are not searched, since they contain outputs.

    Raises:
        DataError: an input does not exist, or a folder or glob contains no image.
    """
    found: dict[Path, None] = {}
    roots, missing = [], []
    skipped = [_absolute(folder) for folder in skip]
    for given in map(str, inputs):
        path = _absolute(given)
        if path.is_dir():
            files = list(_walk(path, skipped))
            roots.append(path)
            if not files:
                raise DataError(
                    f"{given}: no image or video in this folder or below ({', '.join(SUFFIXES)})"
                )
        elif os.path.lexists(path) or not glob.has_magic(given):
            files = [path]
            roots.append(path.parent)
            missing += [] if os.path.lexists(path) else [path]
        else:
            hits = map(_absolute, sorted(glob.glob(given, recursive=True)))
            files = [f for f in hits if f.suffix.lower() in SUFFIXES and not f.is_dir()]
            files = [f for f in files if not any(f.is_relative_to(folder) for folder in skipped)]
            roots.append(_before_wildcards(given))
            if not files:
                raise DataError(f"{given}: matches no image or video ({', '.join(SUFFIXES)})")
        found.update(dict.fromkeys(files))
    if not found:
        raise DataError("no input: give images, videos, folders or globs")
    if len(missing) == len(found):
        raise missing_path(missing[0], what="input", remedy="check the path")
    root = Path(os.path.commonpath(roots))
    relative = {path: path.relative_to(root) for path in found}
    stems = Counter(name.with_suffix("") for name in relative.values())
    names = {
        p: n.with_suffix("") if stems[n.with_suffix("")] == 1 else n for p, n in relative.items()
    }
    if len(set(names.values())) < len(names):
        twice = Counter(names.values()).most_common(1)[0][0]
        raise DataError(f"two inputs have the same output name, {twice}: predict them separately")
    return [Source(path, name.as_posix()) for path, name in names.items()]


def _absolute(path: str | Path) -> Path:
    """Without ``..``; links are not followed."""
    return Path(os.path.abspath(Path(path).expanduser()))


def _walk(folder: Path, skipped: Collection[Path]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        entered = (n for n in folders if not n.startswith(".") and Path(parent, n) not in skipped)
        folders[:] = sorted(entered)
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(parent) / name


def _before_wildcards(pattern: str) -> Path:
    parts = Path(pattern).expanduser().parts
    plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return _absolute(Path(*parts[:plain]))


def as_rgb(image: Image) -> np.ndarray:
    """Any image as uint8 (H, W, 3) RGB, turned upright by its EXIF orientation if it has one.

    Args:
        image: a file's path; uint8 (H, W, 3) RGB; a PIL image; a tensor, uint8 (3, H, W), or float
            (3, H, W) in 0..1, which is rounded to 256 levels.

    Raises:
        ValueError: it is none of these; the message says what was found.
    """
    if isinstance(image, str | Path):
        return read_image(image, exif=True)
    if isinstance(image, PIL.Image.Image):
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"a PIL image of mode {image.mode} is not a photo: give one of 8 bits per channel"
            )
        array = np.asarray(PIL.ImageOps.exif_transpose(image).convert("RGB"))
    elif isinstance(image, Tensor):
        array = _of_tensor(image)
    elif isinstance(image, np.ndarray):
        array = image
    else:
        raise ValueError(
            "an image must be a path, a NumPy array, a PIL image or a tensor, not a "
            f"{type(image).__name__}"
        )
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ValueError(
            f"an image must be uint8 (H, W, 3) RGB, found {array.dtype} {array.shape}: give float "
            "values as a tensor (3, H, W) in 0..1"
        )
    return np.ascontiguousarray(array)


def _of_tensor(image: Tensor) -> np.ndarray:
    if image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(
            f"a tensor must be (3, H, W), found {tuple(image.shape)}: give several images as a list"
        )
    image = image.detach().cpu()
    if image.is_floating_point():
        low, high = (float(v) for v in image.aminmax()) if image.numel() else (0.0, 0.0)
        if not (low >= 0 and high <= 1):  # NaN neither
            raise ValueError(
                f"a float tensor must be in 0..1, found {low:g}..{high:g}: divide by 255, and do "
                "not normalise: the predictor does that"
            )
        image = (image.float() * 255).round().to(torch.uint8)
    return image.permute(1, 2, 0).numpy()
