"""Resizing of images and of maps. OpenCV's (width, height) order stays in this file."""

from collections.abc import Callable

import cv2
import numpy as np
import PIL.Image

ANTIALIAS = {
    "bilinear_antialias": PIL.Image.Resampling.BILINEAR,
    "cubic_antialias": PIL.Image.Resampling.BICUBIC,
}


def resize_image(image: np.ndarray, size: tuple[int, int], rule: str = "train") -> np.ndarray:
    """Resizes an image, uint8 (H, W, 3) or float32 (H, W, C), to ``size`` [h, w].

    Pixels that are computed from one without data (NaN) have none.

    Args:
        image: returned unchanged if it has that size.
        rule: ``bilinear`` and ``cubic`` (2×2 and 4×4 neighbours, also when shrinking);
            ``cubic_float``, which is ``cubic`` in float32, neither rounded nor clipped to 0..255
            (official DPT, MiDaS, Depth Anything); ``cubic_area_twice``, which is ``cubic`` when a
            side grows and else averages, first to the longest side of ``size`` at the image's
            aspect ratio, then to ``size`` (Depth Anything 3); ``bilinear_antialias`` and
            ``cubic_antialias`` (when shrinking, of kernels that grow with the factor: Pillow, timm,
            transformers); ``area`` averages when shrinking and is bilinear otherwise; ``train`` is
            ``area`` for factors of 2 and more (by the whole factor and then bilinear, if it divides
            both sides) and bilinear otherwise.
    """
    if rule == "cubic_area_twice":
        return _cubic_or_area_twice(image, size)
    if rule == "cubic_float":
        return _cubic_in_float(image, size)
    factor = whole_factor(image.shape[:2], size) if rule == "train" else 1
    if factor > 1 and image.shape[0] % factor == image.shape[1] % factor == 0:
        small = (image.shape[1] // factor, image.shape[0] // factor)
        image = by_four_bands(
            image, lambda bands: cv2.resize(bands, small, interpolation=cv2.INTER_AREA)
        )
        factor = 1
    if image.shape[:2] == tuple(size):
        return image
    if rule in ANTIALIAS:
        return _resize_by_pillow(image, size, ANTIALIAS[rule])
    method = cv2.INTER_CUBIC if rule == "cubic" else cv2.INTER_LINEAR
    if factor > 1 or (rule == "area" and np.less(size, image.shape[:2]).any()):
        method = cv2.INTER_AREA
    return by_four_bands(
        image, lambda bands: cv2.resize(bands, (size[1], size[0]), interpolation=method)
    )


def _cubic_in_float(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes a channel at a time: all as floats take four times the memory."""
    planes = (cv2.extractChannel(image, k).astype(np.float32) for k in range(image.shape[2]))
    return np.dstack([cv2.resize(p, size[::-1], interpolation=cv2.INTER_CUBIC) for p in planes])


def _cubic_or_area_twice(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes as Depth Anything 3 does, see :func:`resize_image`."""
    height, width = image.shape[:2]
    scale = max(size) / max(height, width)
    for side in ((max(1, round(height * scale)), max(1, round(width * scale))), size):
        grows = side[0] > image.shape[0] or side[1] > image.shape[1]
        image = resize_image(image, side, rule="cubic" if grows else "area")
    return image


def _resize_by_pillow(
    image: np.ndarray, size: tuple[int, int], kernel: PIL.Image.Resampling
) -> np.ndarray:
    """Resizes RGB, or float bands one by one, as Pillow takes no others."""
    planes = [image] if image.dtype == np.uint8 else np.moveaxis(image, 2, 0)
    resized = [PIL.Image.fromarray(plane).resize(size[::-1], kernel) for plane in planes]
    return np.dstack([np.array(plane) for plane in resized])


def by_four_bands(image: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns an image (H, W, C) of which ``change`` gets up to four bands at a time.

    OpenCV's functions take no more, and leave out the axis of a single band.
    """
    groups = [change(image[..., k : k + 4]) for k in range(0, image.shape[2], 4)]
    return groups[0] if image.shape[2] in (3, 4) else np.dstack(groups)


def resize_map(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes labels, depth or bool (H, W), or normals (H, W, 3), to ``size`` [h, w] by nearest
    neighbour."""
    if values.shape[:2] == tuple(size):
        return values
    plain = values.view(np.uint8) if values.dtype == bool else values
    out = cv2.resize(plain, (size[1], size[0]), interpolation=cv2.INTER_NEAREST_EXACT)
    return out.view(bool) if values.dtype == bool else out


def whole_factor(size: tuple[int, int], target: tuple[int, int]) -> int:
    """Returns the largest whole factor by which both sides can shrink and cover ``target``."""
    return max(1, min(size[0] // target[0], size[1] // target[1]))
