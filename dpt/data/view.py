"""Applies the geometry of a crop (:class:`dpt.geometry.View`) to images, maps and whole samples."""

from collections.abc import Callable
from typing import Literal

import cv2
import numpy as np

from dpt.data.resize import by_four_bands, resize_image, resize_map
from dpt.geometry import View, Window
from dpt.types.samples import IGNORE_INDEX, Sample

GREY = 128
"""The value of RGB pixels of a view that lie outside the image; there, bands have no data (NaN)."""
MapName = Literal["labels", "objects", "depth", "valid", "normals"]
MAP_FILLS: dict[MapName, float] = {
    "labels": IGNORE_INDEX,
    "objects": 0,
    "depth": 0,
    "valid": False,
    "normals": 0,
}
"""The values of the maps outside the image."""
Resize = Callable[[np.ndarray, tuple[int, int]], np.ndarray]
_MAX_SIDE = 2**15 - 2
"""Longest side of an array that OpenCV 4 warps, in pixels."""


def view_sample(sample: Sample, view: View) -> Sample:
    """Returns a copy of a sample with a view of its image, its camera and every map that it has.

    A map of another size is first resized to that of the image, by nearest neighbour.
    """
    out = sample.copy()
    out["image"] = view_image(sample["image"], view)
    height, width = sample["image"].shape[:2]
    for name, fill in MAP_FILLS.items():
        if name in sample:
            out[name] = view_map(resize_map(sample[name], (height, width)), view, fill)
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
    if view.window is not None:
        return _resized_window(image, view, view.window, fill, resize_image)
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
    if view.window is not None:
        out = _resized_window(plain, view, view.window, fill, resize_map)
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


def _resized_window(
    array: np.ndarray, view: View, window: Window, fill: float, resize: Resize
) -> np.ndarray:
    """Cuts the window of a view, resizes it and mirrors it: the same as a warp, but faster."""
    inside: list[slice] = []
    target: list[slice] = []
    for start, side, length, result in zip(
        window[:2], window[2:], array.shape[:2], view.size, strict=True
    ):
        first = min(max(start, 0), length)
        last = max(first, min(start + side, length))
        ratio = result / side
        low = min(round((first - start) * ratio), result - 1)
        inside.append(slice(first, last))
        target.append(slice(low, max(low + 1, round((last - start) * ratio))))
    part = array[*inside]
    shape = (target[0].stop - target[0].start, target[1].stop - target[1].start)
    if part.size and shape == view.size:
        out = resize(part, shape)
    else:
        out = np.full((*view.size, *array.shape[2:]), fill, array.dtype)
        if part.size:
            out[*target] = resize(part, shape)
    if view.matrix[0, 0] < 0:
        return cv2.flip(out, 1).reshape(out.shape)
    return out.copy() if np.may_share_memory(out, array) else out
