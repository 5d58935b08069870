"""The geometry of images: cameras, crops as affine maps between pixels, and points of depth maps.

Everything is NumPy, as samples and predictions are: no gradient passes through it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpt.files import DataError

_ASPECTS = 0.005  # relative difference of aspect ratios, as of ScanNet's images and depth
_TOLERANCE = 1e-6  # pixels, far above the error of float64 and far below what can be seen


def aspects_agree(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two sizes (H, W) have one aspect ratio, within 0.5 % or a pixel of the smaller."""
    product, other_product = size[0] * other[1], size[1] * other[0]
    tolerance = max(*size[:2], *other[:2], _ASPECTS * max(product, other_product))
    return abs(product - other_product) <= tolerance


class Window(NamedTuple):
    """A rectangle of whole source pixels, which may reach beyond the image."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, eq=False)
class View:
    """The geometry of one crop: an affine map from a source image to a result of a fixed size.

    Pixel centres are at whole numbers, x points right and y down. The edge of an image is therefore
    at -0.5, and shrinking by s maps x to (x + 0.5) / s - 0.5.

    Attributes:
        matrix: float64 (2, 3), maps a point (x, y, 1) of the source to (x, y) in the result.
        size: (H, W) of the result in pixels.
    """

    matrix: np.ndarray
    size: tuple[int, int]

    @classmethod
    def of_window(cls, window: Window, size: tuple[int, int]) -> View:
        """Returns the view that resizes a window of the source to ``size`` (H, W)."""
        scale_x, scale_y = size[1] / window.width, size[0] / window.height
        shift_x = scale_x * (0.5 - window.left) - 0.5
        shift_y = scale_y * (0.5 - window.top) - 0.5
        return cls(np.array([[scale_x, 0, shift_x], [0, scale_y, shift_y]]), size)

    def then(self, other: View) -> View:
        """Returns the view that takes ``other`` of this view's result."""
        matrix = other.matrix[:, :2] @ self.matrix
        matrix[:, 2] += other.matrix[:, 2]
        return View(matrix, other.size)

    def inverse(self, size: tuple[int, int]) -> View:
        """Returns the view that maps the result back to a source of ``size`` (H, W)."""
        linear = np.linalg.inv(self.matrix[:, :2])
        return View(np.column_stack([linear, -linear @ self.matrix[:, 2]]), size)

    def flipped(self) -> View:
        """Returns this view, mirrored left to right."""
        mirror = np.array([[-1.0, 0, self.size[1] - 1], [0, 1, 0]])
        return self.then(View(mirror, self.size))

    def turned(self, quarters: int) -> View:
        """Returns this view, turned counterclockwise by quarters; odd ones exchange its sides."""
        view = self
        for _ in range(quarters % 4):
            height, width = view.size
            turn = np.array([[0.0, 1, 0], [-1, 0, width - 1]])
            view = view.then(View(turn, (width, height)))
        return view

    def rotated(self, degrees: float) -> View:
        """Returns this view, turned counterclockwise about the centre of the result."""
        angle, centre = np.radians(degrees), (np.array(self.size[::-1]) - 1) / 2
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        shift = centre - turn @ centre
        return self.then(View(np.column_stack([turn, shift]), self.size))

    def map_camera(self, K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps the camera matrix of the source to that of the result.

        A mirrored or turned image is that of a camera whose x and y axes are mirrored or turned:
        a point (x, y, z) of the source's camera has the coordinates (turn @ (x, y), z) in the
        result's. Depth stays as it is.

        Args:
            K: float64 (3, 3), see :class:`Camera`.

        Returns:
            K of the result, with positive focal lengths, and ``turn``, orthogonal (2, 2).
        """
        product = self.matrix[:, :2] @ K[:2, :2]  # = upper triangle @ turn (an RQ decomposition)
        y_axis = product[1] / np.linalg.norm(product[1])
        x_axis = np.array([y_axis[1], -y_axis[0]])
        x_axis *= np.sign(product[0] @ x_axis)
        turn = np.stack([x_axis, y_axis]) + 0.0  # no -0
        result = np.eye(3)
        result[:2, :2] = product @ turn.T
        result[1, 0] = 0.0
        result[:2, 2] = self.map_points(K[None, :2, 2])[0]
        return result, turn

    def map_points(self, points: np.ndarray) -> np.ndarray:
        """Maps points (N, 2), x and y in source pixels, to result pixels."""
        return points @ self.matrix[:, :2].T + self.matrix[:, 2]

    @property
    def shrinks_by(self) -> float:
        """The number of source pixels along the side of a result pixel."""
        return float(abs(np.linalg.det(self.matrix[:, :2])) ** -0.5)

    def corners(self) -> np.ndarray:
        """Returns the result's four corners in source pixels, (4, 2) of x and y."""
        height, width = self.size
        edges = [[x, y] for x in (-0.5, width - 0.5) for y in (-0.5, height - 0.5)]
        return self.inverse(self.size).map_points(np.array(edges))

    @cached_property
    def window(self) -> Window | None:
        """The source pixels that the view shows if it only cuts a window, resizes it and mirrors it
        left to right; None if it rotates or cuts pixels apart."""
        (scale_x, skew_x, _), (skew_y, scale_y, _) = self.matrix.tolist()
        if abs(skew_x) + abs(skew_y) > 1e-12 or scale_y <= 0 or scale_x == 0:
            return None
        corners = self.corners() + 0.5
        edges = np.stack([corners.min(axis=0), corners.max(axis=0)])
        if np.abs(edges - edges.round()).max() > _TOLERANCE:
            return None
        (left, top), (right, bottom) = edges.round().astype(int).tolist()
        return Window(top, left, bottom - top, right - left)


@dataclass(frozen=True, eq=False)
class Camera:
    """A pinhole camera without distortion (Hartley and Zisserman 2004, section 6.1).

    A point (x, y, z) in metres, x to the right, y down and z along the optical axis, is seen at
    the pixel (u, v) with (u, v, 1) = K @ (x, y, z) / z. Pixel centres are at whole numbers.

    Attributes:
        K: float64 (3, 3), [[fx, skew, cx], [0, fy, cy], [0, 0, 1]] in pixels.
        size: (H, W) of the image to which K belongs.
    """

    K: np.ndarray
    size: tuple[int, int]

    @classmethod
    def from_focal(cls, focal: float, size: tuple[int, int]) -> Camera:
        """Returns the camera of a focal length in pixels that looks at the image's centre."""
        height, width = size
        centre_x, centre_y = (width - 1) / 2, (height - 1) / 2
        return cls(np.array([[focal, 0, centre_x], [0, focal, centre_y], [0, 0, 1.0]]), size)

    @classmethod
    def from_fov(cls, fov: float, size: tuple[int, int]) -> Camera:
        """Returns the camera of a horizontal field of view in degrees, above 0 and below 180."""
        return cls.from_focal(size[1] / (2 * math.tan(math.radians(fov) / 2)), size)

    @property
    def focal(self) -> float:
        """The focal length in pixels, the mean of fx and fy."""
        return float(self.K[0, 0] + self.K[1, 1]) / 2

    @property
    def fov(self) -> float:
        """The horizontal field of view in degrees, of a camera that looks at the centre."""
        return math.degrees(2 * math.atan(self.size[1] / (2 * float(self.K[0, 0]))))

    def resized(self, size: tuple[int, int]) -> Camera:
        """Returns the camera of the image at another size (H, W)."""
        view = View.of_window(Window(0, 0, *self.size), size)
        return Camera(view.map_camera(self.K)[0], size)

    def require_plausible(self, source: str | Path) -> None:
        """Raises DataError, which names ``source``, if K is not the matrix of such a camera, or its
        principal point is farther outside the image than the image is large."""
        (height, width), K = self.size, self.K
        is_camera = K.shape == (3, 3) and K[1:].ravel()[[0, 3, 4, 5]].tolist() == [0, 0, 0, 1]
        is_camera = is_camera and np.isfinite(K).all() and 0 < K[0, 0] < 1e9 and 0 < K[1, 1] < 1e9
        if not is_camera or not (-width < K[0, 2] < 2 * width and -height < K[1, 2] < 2 * height):
            expected = f"[fx s cx, 0 fy cy, 0 0 1] of an image of {width}x{height} pixels"
            raise DataError(f"{source}: K = {str(K.tolist())[:120]}: must be {expected}")


# --- points and surfaces -------------------------------------------------------------------------


def unproject(depth: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Returns the point that each pixel of a depth map sees (Hartley and Zisserman 2004, eq. 6.14).

    Args:
        depth: float (H, W), distance along the optical axis, in any unit. NaN gives NaN.
        K: float64 (3, 3) of the depth map, see :class:`Camera`.

    Returns:
        (H, W, 3), x to the right, y down and z forward, in the unit and type of ``depth``.
    """
    height, width = depth.shape
    y = (np.arange(height)[:, None] - K[1, 2]) / K[1, 1]
    x = (np.arange(width) - K[0, 2] - K[0, 1] * y) / K[0, 0]
    rays = (x, np.broadcast_to(y, depth.shape), np.ones(depth.shape, depth.dtype))
    return np.stack([depth * ray.astype(depth.dtype) for ray in rays], axis=2)


def project(points: np.ndarray, K: np.ndarray) -> np.ndarray:
    """Returns the pixels (..., 2) of x and y at which a camera sees points (..., 3), z not 0."""
    pixels = points @ K.T
    return pixels[..., :2] / pixels[..., 2:]


GRAZING = 3.0
"""Degrees. Neighbouring pixels whose points would lie on a surface that is seen at a smaller angle
are taken for two surfaces, one behind the other."""


def depth_edges(
    depth: np.ndarray, K: np.ndarray, valid: np.ndarray, *, angle: float = GRAZING
) -> tuple[np.ndarray, np.ndarray]:
    """Returns between which neighbouring pixels depth is discontinuous.

    A surface seen at ``angle`` degrees gets farther by z / (focal · tan(angle)) from one pixel to
    the next; a larger step is a discontinuity. The rule therefore does not depend on the resolution
    of the map, and it also finds the steep ramps by which networks blur discontinuities.

    Args:
        depth: float (H, W), positive where valid.
        K: float64 (3, 3) of the depth map.
        valid: bool (H, W); there is no edge to or between invalid pixels.

    Returns:
        bool (H, W - 1) between columns, and bool (H - 1, W) between rows.
    """
    slope = math.tan(math.radians(angle))

    def steps(before: tuple[slice, ...], after: tuple[slice, ...], focal: float) -> np.ndarray:
        first, second = depth[before], depth[after]
        with np.errstate(invalid="ignore"):  # NaN where invalid
            is_step = np.abs(second - first) * (slope * focal) > (first + second) / 2
        return is_step & valid[before] & valid[after]

    return steps(np.s_[:, :-1], np.s_[:, 1:], K[0, 0]), steps(np.s_[:-1, :], np.s_[1:, :], K[1, 1])


_ROUGHNESS = 0.02  # largest residual of a plane's fit, relative to the inverse depth
_PIXELS_AT_ONCE = 2**19  # of which the sums of a fit are in memory


def normals_of_depth(
    depth: np.ndarray, K: np.ndarray, valid: np.ndarray, *, radius: int = 2
) -> np.ndarray:
    """Returns the unit normals of the surfaces that a depth map sees.

    The inverse depth of a plane is an affine function of the pixel, whose coefficients give the
    normal: 1 / z = (a, b, c) · (x, y, 1), and the normal is parallel to Kᵀ (a, b, c). It is fitted
    by least squares to each window, exactly for planes. So that no fit crosses a discontinuity or a
    crease, a pixel takes the window around it or one of the eight windows that reach it with their
    edge or corner, if that fits at least twice as well (Nagao and Matsuyama 1979).

    Args:
        depth: float (H, W), positive where valid; exact values, not resized ones.
        K: float64 (3, 3) of the depth map, see :class:`Camera`.
        valid: bool (H, W).
        radius: of the windows in pixels, which have 2 · radius + 1 pixels on a side. At least half
            of a window must be valid, so that sparse depth has no normals.

    Returns:
        float32 (H, W, 3), in the camera's frame and facing the camera: (0, 0, -1) for a
        wall ahead; zeros where unknown.
    """
    normals = np.zeros((*depth.shape, 3), np.float32)
    count = max(4 * radius, _PIXELS_AT_ONCE // depth.shape[1])
    for start in range(0, len(depth), count):
        top = max(0, start - 2 * radius)
        rows = slice(top, start + count + 2 * radius)
        shifted = K - [[0, 0, 0], [0, 0, top], [0, 0, 0]]
        part = _normals(depth[rows], shifted, valid[rows], radius)
        normals[start : start + count] = part[start - top :][:count]
    return normals


def _normals(depth: np.ndarray, K: np.ndarray, valid: np.ndarray, radius: int) -> np.ndarray:
    planes, misfit = _fitted_planes(depth, K, valid, radius)
    height, width = depth.shape
    padding = ((0, 0), (radius, radius), (radius, radius))
    planes = np.pad(planes, padding)
    misfit = np.pad(misfit, padding[1:], constant_values=np.inf)
    best = planes[:, radius : radius + height, radius : radius + width]
    best_misfit = misfit[radius : radius + height, radius : radius + width]
    for top, left in product((0, radius, 2 * radius), repeat=2):
        here = np.s_[top : top + height, left : left + width]
        is_better = 2 * misfit[here] < best_misfit
        best_misfit = np.where(is_better, 2 * misfit[here], best_misfit)
        best = np.where(is_better, planes[:, *here], best)
    a, b, c = best
    facing = -np.stack([K[0, 0] * a, K[0, 1] * a + K[1, 1] * b, c], axis=2)
    length = np.linalg.norm(facing, axis=2, keepdims=True)
    is_known = valid & (best_misfit < _ROUGHNESS) & (length[..., 0] > 0)
    return np.where(is_known[..., None], facing / np.where(length > 0, length, 1), 0)


def _fitted_planes(
    depth: np.ndarray, K: np.ndarray, valid: np.ndarray, radius: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fits a x + b y + c to the inverse depth of each window, x and y from the principal point.

    Returns:
        (a, b, c), float64 (3, H, W); and the standard deviation of the inverse depth from the fit,
        relative to its mean, (H, W), inf where fewer than half of a window's pixels are valid.
    """
    height, width = depth.shape
    one = valid.astype(np.float64)
    w = np.divide(1.0, depth, out=np.zeros(depth.shape), where=valid)
    x = np.broadcast_to(np.arange(width) - K[0, 2], depth.shape) * one
    y = np.broadcast_to((np.arange(height) - K[1, 2])[:, None], depth.shape) * one
    count, sum_x, sum_y, sum_w = (_window_sums(term, radius) for term in (one, x, y, w))
    divisor = np.maximum(count, 1)
    mean_x, mean_y, mean_w = sum_x / divisor, sum_y / divisor, sum_w / divisor

    def covariance(term: np.ndarray, total: np.ndarray, mean: np.ndarray) -> np.ndarray:
        return _window_sums(term, radius) - total * mean

    xx, yy = covariance(x * x, sum_x, mean_x), covariance(y * y, sum_y, mean_y)
    xy = covariance(x * y, sum_x, mean_y)
    xw, yw = covariance(x * w, sum_x, mean_w), covariance(y * w, sum_y, mean_w)
    ww = covariance(w * w, sum_w, mean_w)
    determinant = xx * yy - xy**2
    is_fitted = (2 * count >= (2 * radius + 1) ** 2) & (determinant > 1e-6)
    determinant = np.where(is_fitted, determinant, 1)
    a = (xw * yy - yw * xy) / determinant
    b = (yw * xx - xw * xy) / determinant
    deviation = np.sqrt(np.maximum(ww - a * xw - b * yw, 0) / np.maximum(count - 3, 1))
    misfit = np.where(is_fitted, deviation / np.where(is_fitted, mean_w, 1), np.inf)
    return np.stack([a, b, mean_w - a * mean_x - b * mean_y]), misfit


def _window_sums(values: np.ndarray, radius: int) -> np.ndarray:
    """Returns the sums over windows of 2 · radius + 1 pixels on a side, without values outside."""
    height, width = values.shape
    offsets = range(2 * radius + 1)
    padded = np.pad(values, radius)
    rows = sum((padded[k : k + height] for k in offsets), np.zeros(()))
    return sum((rows[:, k : k + width] for k in offsets), np.zeros(()))


# ------------------------------------------------------------------------------- mirror images

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W_A-Za-z]+")
_SIDE = re.compile(r"left|right|(?<![^_])[lr]h?(?![^_])")
_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l", "lh": "rh", "rh": "lh"}


def mirrored_classes(names: Sequence[str]) -> list[int]:
    """Returns the class that each becomes in a mirror image, by the sides in their names.

    ``left_arm`` becomes ``right_arm``, and so do the forms ``LeftArm``, ``l_arm`` and ``arm (L)``.
    A left or right side is -1 if no class is the other one.
    """
    keys = ["_".join(_WORD.findall(name)).lower() for name in names]
    ids: list[int] = []
    for k, key in enumerate(keys):
        other = _SIDE.sub(lambda match: _OTHER_SIDE[match[0]], key)
        unchanged = -1 if {"left", "right"} & {*key.split("_")} else k
        ids.append(keys.index(other) if other in keys else unchanged)
    return ids
