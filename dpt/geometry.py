"""The geometry of images: cameras, and crops as affine maps between pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

_TOLERANCE = 1e-6  # pixels, far above the error of float64 and far below what can be seen


def aspects_agree(size: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two sizes (H, W) have one aspect ratio, within a pixel of the smaller one."""
    difference = abs(size[0] * other[1] - size[1] * other[0])
    return difference <= max(*size[:2], *other[:2])


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
