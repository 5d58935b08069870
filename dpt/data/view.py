"""Resizes images and maps, and applies the geometry of a crop (:class:`dpt.geometry.View`) to them.

OpenCV's (width, height) order stays in this file.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import cv2
import numpy as np
import PIL.Image

from dpt.geometry import View, Window
from dpt.types.samples import IGNORE_INDEX, Sample

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
        small = image.shape[0] // factor, image.shape[1] // factor
        image = _resize_by_opencv(image, small, cv2.INTER_AREA)
        factor = 1
    if image.shape[:2] == tuple(size):
        return image
    if rule in ANTIALIAS:
        return _resize_by_pillow(image, size, ANTIALIAS[rule])
    method = cv2.INTER_CUBIC if rule == "cubic" else cv2.INTER_LINEAR
    if factor > 1 or (rule == "area" and np.less(size, image.shape[:2]).any()):
        method = cv2.INTER_AREA
    return _resize_by_opencv(image, size, method)


def _resize_by_opencv(image: np.ndarray, size: tuple[int, int], method: int) -> np.ndarray:
    resize = partial(cv2.resize, dsize=(size[1], size[0]), interpolation=method)
    return by_four_bands(image, resize)


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


# --- views --------------------------------------------------------------------------------------

GREY = 128
"""The value of RGB pixels of a view that lie outside the image; there, bands have no data (NaN)."""
MapName = Literal["labels", "objects", "depth", "valid", "normals"]
MAP_FILLS: dict[MapName, np.generic] = {
    "labels": np.uint8(IGNORE_INDEX),
    "objects": np.uint16(0),
    "depth": np.float32(0),
    "valid": np.bool_(False),
    "normals": np.float32(0),
}
"""The values of the maps outside the image, in the types of the maps."""
Resize = Callable[[np.ndarray, tuple[int, int]], np.ndarray]
_MAX_SIDE = 2**15 - 2
"""Longest side of an array that OpenCV warps, in pixels."""


def view_sample(sample: Sample, view: View) -> Sample:
    """Returns a copy of a sample with a view of its image, its camera and every map that it has.

    A map of another size is first resized to that of the image, by nearest neighbour.
    """
    out = sample.copy()
    out["image"] = view_image(sample["image"], view)
    height, width = sample["image"].shape[:2]
    for name, fill in MAP_FILLS.items():
        if name in sample:
            out[name] = view_map(resize_map(sample[name], (height, width)), view, fill.item())
    if "prompt" in sample:
        whole = View.of_window(Window(0, 0, *sample["prompt"].shape), (height, width))
        out["prompt"] = view_points(sample["prompt"], whole.then(view))
    camera, turn = view.map_camera(sample.get("K", np.eye(3)))
    if "K" in sample:
        out["K"] = camera
    if "normals" in out:
        out["normals"][..., :2] = out["normals"][..., :2] @ turn.T
    return out


def view_image(image: np.ndarray, view: View) -> np.ndarray:
    """Returns a view of an image, uint8 RGB (H, W, 3) or float32 (H, W, C), without aliasing.

    Outside the image RGB is grey, and bands are NaN.
    """
    fill = GREY if image.dtype == np.uint8 else np.nan
    window = _inner_window(view, image)
    if window is not None:
        return _resized_window(image, view, window, resize_image)
    if view.shrinks_by >= 2 or max(image.shape) > _MAX_SIDE:
        image, view = _reduced(image, view, factor=max(1, int(view.shrinks_by)))
    return by_four_bands(image, lambda bands: _warp(bands, view, fill, cv2.INTER_LINEAR))


def view_map(values: np.ndarray, view: View, fill: float) -> np.ndarray:
    """Returns a view of labels, objects, depth or a mask (H, W), or of normals (H, W, 3) whose
    vectors stay as they are, by nearest neighbour.

    Args:
        fill: the value outside the map.
    """
    plain = values.view(np.uint8) if values.dtype == bool else values
    window = _inner_window(view, plain)
    if window is not None:
        out = _resized_window(plain, view, window, resize_map)
    else:
        if max(plain.shape) > _MAX_SIDE:
            plain, view = _reduced(plain, view, factor=1)
        out = _warp(plain, view, fill, cv2.INTER_NEAREST)
    return out.view(values.dtype)


def view_points(prompt: np.ndarray, view: View) -> np.ndarray:
    """Returns a view of sparse depth (H, W), 0 where unknown, that keeps every point.

    A point moves to the nearest pixel. Of several at one pixel the nearest to the camera stays.
    """
    rows, columns = np.nonzero(prompt)
    x, y = view.map_points(np.column_stack([columns, rows])).round().astype(int).T
    is_inside = (x >= 0) & (x < view.size[1]) & (y >= 0) & (y < view.size[0])
    depth = np.where(is_inside, prompt[rows, columns], 0)
    order = np.argsort(-depth, kind="stable")[: is_inside.sum()]  # a later one replaces
    out = np.zeros(view.size, np.float32)
    out[y[order], x[order]] = depth[order]
    return out


def _warp(array: np.ndarray, view: View, fill: float, interpolation: int) -> np.ndarray:
    return cv2.warpAffine(
        array,
        view.matrix,
        view.size[::-1],
        flags=interpolation,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(fill, fill, fill, fill),
    )


def _reduced(image: np.ndarray, view: View, factor: int) -> tuple[np.ndarray, View]:
    """Cuts the part that a view shows, and averages squares of ``factor`` pixels of it.

    Returns:
        The smaller image, and the view of it that shows the same as ``view`` of ``image``.
    """
    corners, size = view.corners(), np.array(image.shape[1::-1])
    start = np.clip(corners.min(axis=0) - factor, 0, size - 1).astype(int) // factor * factor
    stop = np.clip(corners.max(axis=0) + factor, start + 1, size).astype(int)
    stop = np.minimum(-(-stop // factor) * factor, size)  # whole squares, but at the image's edge
    (left, top), (right, bottom) = start.tolist(), stop.tolist()
    window = Window(top, left, bottom - top, right - left)
    size_reduced = (-(-window.height // factor), -(-window.width // factor))
    reducing = View.of_window(window, size_reduced)
    part = image[top:bottom, left:right]

    def shrink(array: np.ndarray) -> np.ndarray:
        return cv2.resize(array, size_reduced[::-1], interpolation=cv2.INTER_AREA)

    small = shrink(part) if part.ndim == 2 else by_four_bands(part, shrink)
    return small, reducing.inverse(image.shape[:2]).then(view)


def _inner_window(view: View, array: np.ndarray) -> Window | None:
    """Returns the window that a view shows, if it lies inside an array (H, W, ...)."""
    window = view.window
    if window is None or min(window.top, window.left) < 0:
        return None
    bottom, right = window.top + window.height, window.left + window.width
    return window if bottom <= array.shape[0] and right <= array.shape[1] else None


def _resized_window(array: np.ndarray, view: View, window: Window, resize: Resize) -> np.ndarray:
    """Cuts the window of a view, resizes it and mirrors it: the same as a warp, but faster."""
    rows = slice(window.top, window.top + window.height)
    out = resize(array[rows, window.left : window.left + window.width], view.size)
    if view.matrix[0, 0] < 0:
        return cv2.flip(out, 1).reshape(out.shape)
    return out.copy() if np.may_share_memory(out, array) else out
