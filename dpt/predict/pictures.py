"""What a user may hand over as a picture, brought to one form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dpt.data.formats.io import read_image

Picture = str | Path | np.ndarray | Tensor | Image.Image


def as_rgb(picture: Picture) -> np.ndarray:
    """Any picture as uint8 (H, W, 3) RGB, upright by its EXIF orientation where it has one.

    Args:
        picture: a file's path; uint8 (H, W, 3) RGB; a PIL image; a tensor, uint8 (3, H, W), or
            float (3, H, W) in 0..1, which is rounded to 256 levels, as photos have.

    Raises:
        ValueError: it is none of these; the message says what was found.
    """
    if isinstance(picture, str | Path):
        return read_image(picture, exif=True)
    if isinstance(picture, Image.Image):
        if picture.mode.startswith(("I", "F")):
            raise ValueError(
                f"a PIL image of mode {picture.mode} is no photo: give one of 8 bits a channel"
            )
        upright = ImageOps.exif_transpose(picture)
        array = np.asarray(upright.convert("RGB"))
    elif isinstance(picture, Tensor):
        array = _of_tensor(picture)
    elif isinstance(picture, np.ndarray):
        array = picture
    else:
        raise ValueError(
            f"a picture must be a path, a NumPy array, a PIL image or a tensor, not a "
            f"{type(picture).__name__}"
        )
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise ValueError(
            f"a picture must be uint8 (H, W, 3) RGB, got {array.dtype} {array.shape}: a float one "
            "goes in as a tensor (3, H, W) in 0..1"
        )
    return np.ascontiguousarray(array)


def _of_tensor(picture: Tensor) -> np.ndarray:
    if picture.ndim != 3 or picture.shape[0] != 3:
        raise ValueError(
            f"a tensor must be (3, H, W), got {tuple(picture.shape)}: several pictures go in as a "
            "list"
        )
    picture = picture.detach().cpu()
    if picture.is_floating_point():
        low, high = (float(v) for v in picture.aminmax()) if picture.numel() else (0.0, 0.0)
        if not (low >= 0 and high <= 1):  # NaN neither
            raise ValueError(
                f"a float tensor must hold 0..1, got {low:g}..{high:g}: divide by 255, and do not "
                "normalise: that is done here"
            )
        picture = (picture.float() * 255).round().to(torch.uint8)
    return picture.permute(1, 2, 0).numpy()
