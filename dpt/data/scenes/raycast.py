"""Exact ray casting of simple solids with NumPy: visible surfaces and shadows.

World axes: x and y on the ground, z up, metres. Every solid is an affine image of a unit solid
(box, ball, cylinder or cone in [-1, 1]³), in whose frame rays are intersected; the ray parameter
does not change. Camera rays advance one metre along the optical axis per unit of that parameter, so
it is the z-depth. Callers silence floating-point warnings. Arrays of N rays are (3, N) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

Kind = Literal["box", "ball", "cylinder", "cone"]
Span = tuple[np.ndarray, np.ndarray]
"""Ray parameters (N,) of entry and exit; NaN, or entry > exit, where a ray misses."""

NEAR = 0.05  # smallest visible depth in metres
SKY_FACE = 6
_TINY = np.float32(1e-12)


@dataclass(frozen=True)
class Camera:
    position: np.ndarray  # (3,) metres
    rotation: np.ndarray  # (3, 3), rows: right, down and forward in world axes
    focal: float  # focal length / image width

    @classmethod
    def looking(cls, *, height: float, yaw: float, pitch: float, roll: float, fov: float) -> Camera:
        """Returns a camera above the origin; radians, ``fov`` across the image's width."""
        forward = np.array(
            [np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)]
        )
        right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
        rolled = np.cos(roll) * right + np.sin(roll) * np.cross(forward, right)
        rows = np.stack([rolled, np.cross(forward, rolled), forward])
        position = np.array([0.0, 0.0, height], np.float32)
        return cls(position, rows.astype(np.float32), float(0.5 / np.tan(fov / 2)))

    def rays(self, size: tuple[int, int]) -> np.ndarray:
        """Returns the world directions (3, H·W) through the pixel centres, of z-depth 1."""
        height, width = size
        focal = self.focal * width
        x = (np.arange(width, dtype=np.float32) + 0.5 - width / 2) / focal
        y = (np.arange(height, dtype=np.float32) + 0.5 - height / 2) / focal
        right, down, forward = self.rotation[:, :, None, None]
        return (forward + right * x + down * y[:, None]).reshape(3, -1)


@dataclass(frozen=True)
class Solid:
    """A unit solid, scaled by ``half``, rotated and moved to ``center``."""

    kind: Kind
    center: np.ndarray  # (3,) metres
    half: np.ndarray  # (3,) half sizes along its own axes, metres
    rotation: np.ndarray  # (3, 3), columns: its own axes in the world

    @cached_property
    def to_unit(self) -> np.ndarray:
        """(3, 3) map of offsets from the centre to the unit frame."""
        return self.rotation.T / self.half[:, None]

    def localize(self, points: np.ndarray) -> np.ndarray:
        """Returns world points (3, N) in the unit frame."""
        return self.to_unit @ (points - self.center[:, None])

    def span(self, origins: np.ndarray, directions: np.ndarray) -> Span:
        """Returns where rays pass through; origins (3, N) or (3, 1), directions of any length."""
        o = self.localize(origins)
        d = self.to_unit @ directions
        # Start at the point nearest to the centre: distant small solids exceed float32 otherwise.
        shift = -dot(o, d) / dot(d, d)
        entry, leave = _SOLIDS[self.kind][0](o + shift * d, d)
        return entry + shift, leave + shift

    def normals(self, local: np.ndarray) -> np.ndarray:
        """Returns outward unit normals in the world at surface points in the unit frame."""
        normal = self.to_unit.T @ _SOLIDS[self.kind][1](local)
        return normal / np.sqrt(dot(normal, normal))


@dataclass(frozen=True)
class Shell:
    """The axis-aligned box around the camera, seen from inside; open sides are infinite."""

    low: np.ndarray  # (3,) metres; low[2] is the floor, 0
    high: np.ndarray  # (3,) metres
    roof: bool  # False leaves the top open to the sky

    def span(self, origins: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where rays leave and through which face.

        Returns:
            Ray parameters (N,), inf through an open side; faces (N,), axis·2 + (1 if high), or
            ``SKY_FACE``.
        """
        inverse = 1 / _nonzero(directions)
        x, y, z = np.maximum(
            (self.low[:, None] - origins) * inverse, (self.high[:, None] - origins) * inverse
        )
        faces = (directions > 0).view(np.int8) + np.array([[0], [2], [4]], np.int8)
        aside = np.minimum(x, y)  # much faster than np.argmin
        step = np.minimum(aside, z)
        face = np.where(z <= aside, faces[2], np.where(y <= x, faces[1], faces[0]))
        if not self.roof:
            step = np.where(face == 5, np.float32(np.inf), step)
            face = np.where(np.isinf(step), np.int8(SKY_FACE), face)
        return step, face


def first_hits(
    camera: Camera, shell: Shell, solids: Sequence[Solid], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what each pixel centre sees.

    Returns:
        Rays (3, H·W); z-depth (H·W,) in metres, inf in the sky; surface (H·W,), the number of the
        solid or ``len(solids)`` + face of the shell.
    """
    rays, origin = camera.rays(size), camera.position[:, None]
    depth, face = shell.span(origin, rays)
    surface = face + np.int16(len(solids))
    for k, solid in enumerate(solids):
        entry, leave = solid.span(origin, rays)
        seen = (entry > NEAR) & (entry < leave) & (entry < depth)
        depth[seen] = entry[seen]
        surface[seen] = k
    return rays, depth, surface


def in_shadow(
    points: np.ndarray, surface: np.ndarray, light: np.ndarray, solids: Sequence[Solid]
) -> np.ndarray:
    """Tells whether a solid lies between a light (3,) and surface points that face it, bool (N,).

    ``surface`` (N,) numbers each point's surface: a solid is convex and does not shadow itself.
    """
    dark = np.zeros(points.shape[1], bool)
    for k, solid in enumerate(solids):
        entry, leave = solid.span(points, light[:, None] - points)
        dark |= (entry < leave) & (leave > 1e-4) & (entry < 1) & (surface != k)
    return dark


def dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the scalar products (N,) of the columns of two (3, N) arrays."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def _nonzero(values: np.ndarray) -> np.ndarray:
    return np.copysign(np.maximum(np.abs(values), _TINY), values)


def _slab(o: np.ndarray, d: np.ndarray) -> Span:
    """Returns where |coordinate| ≤ 1."""
    inverse = 1 / _nonzero(d)
    middle, half = -o * inverse, np.abs(inverse)
    return middle - half, middle + half


def _box(o: np.ndarray, d: np.ndarray) -> Span:
    entry, leave = _slab(o, d)
    return entry.max(0), leave.min(0)


def _ball(o: np.ndarray, d: np.ndarray) -> Span:
    half = np.sqrt((1 - dot(o, o)) / dot(d, d))  # o is the point nearest to the centre
    return -half, half


def _quadratic(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Span:
    """Returns the roots of a·t² + 2·b·t + c, the smaller one first where a > 0."""
    root = np.sqrt(b * b - a * c)
    return (-b - root) / a, (-b + root) / a


def _cut(entry: np.ndarray, leave: np.ndarray, o: np.ndarray, d: np.ndarray) -> Span:
    """Returns the part of a span between the planes z = −1 and z = 1."""
    bottom, top = _slab(o[2], d[2])
    return np.maximum(entry, bottom), np.minimum(leave, top)


def _cylinder(o: np.ndarray, d: np.ndarray) -> Span:
    a = np.maximum(d[0] ** 2 + d[1] ** 2, _TINY)
    entry, leave = _quadratic(a, o[0] * d[0] + o[1] * d[1], o[0] ** 2 + o[1] ** 2 - 1)
    return _cut(entry, leave, o, d)


def _cone(o: np.ndarray, d: np.ndarray) -> Span:
    """Apex at z = 1, base of radius 1 at z = −1: x² + y² = ((1 − z) / 2)²."""
    rise = 1 - o[2]
    a = _nonzero(d[0] * d[0] + d[1] * d[1] - 0.25 * d[2] * d[2])
    b = o[0] * d[0] + o[1] * d[1] + 0.25 * rise * d[2]
    c = o[0] * o[0] + o[1] * o[1] - 0.25 * rise * rise
    first, second = _quadratic(a, b, c)
    low, high = np.minimum(first, second), np.maximum(first, second)
    # A ray steeper than the side (a < 0) is inside before one root and after the other; one of the
    # parts lies in the mirrored upper cone. The lower cone comes last if the ray descends.
    steep, falls, infinite = a < 0, d[2] < 0, np.float32(np.inf)
    entry = np.where(steep, np.where(falls, high, -infinite), low)
    leave = np.where(steep, np.where(falls, infinite, low), high)
    return _cut(entry, leave, o, d)


def _box_normal(p: np.ndarray) -> np.ndarray:
    size = np.abs(p)
    return (size == size.max(0)) * np.sign(p)


def _cylinder_normal(p: np.ndarray) -> np.ndarray:
    cap = p[2] * p[2] > p[0] * p[0] + p[1] * p[1]
    return np.stack([p[0] * ~cap, p[1] * ~cap, p[2] * cap])


def _cone_normal(p: np.ndarray) -> np.ndarray:
    base = p[2] < -0.999
    side = np.maximum(0.25 * (1 - p[2]), 1e-6)
    return np.stack([p[0] * ~base, p[1] * ~base, np.where(base, p[2], side)])


_Normal = Callable[[np.ndarray], np.ndarray]
_SOLIDS: dict[Kind, tuple[Callable[[np.ndarray, np.ndarray], Span], _Normal]] = {
    "box": (_box, _box_normal),
    "ball": (_ball, lambda p: p),
    "cylinder": (_cylinder, _cylinder_normal),
    "cone": (_cone, _cone_normal),
}
