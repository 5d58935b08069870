"""Exact ray casting of simple solids with NumPy: what a pixel sees, and what a light does not.

World axes: x and y lie in the ground plane, z points up, metres. Every solid is an affine image of
a unit solid (box, ball, cylinder, cone inside [-1, 1]³), so a ray is taken into the unit frame and
met there; the ray parameter survives the map. Camera rays advance one metre along the optical axis
per unit of that parameter, hence it *is* the z-depth.

A ray that misses has NaN ends: every later comparison with NaN is False, which is "no hit".
Callers silence NumPy's floating-point warnings with ``np.errstate``.

Legend: N rays or points, arrays are (3, N) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

Kind = Literal["box", "ball", "cylinder", "cone"]

NEAR = 0.05
"""Nothing closer than this (metres) is seen."""

_TINY = np.float32(1e-12)
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float32).T


@dataclass(frozen=True)
class Camera:
    """A pinhole camera.

    Attributes:
        position: (3,) metres.
        rotation: (3, 3), rows right, down and forward in world axes.
        focal: focal length divided by the image's width.
    """

    position: np.ndarray
    rotation: np.ndarray
    focal: float

    @classmethod
    def looking(cls, *, height: float, yaw: float, pitch: float, roll: float, fov: float) -> Camera:
        """Stands above the world's origin. Angles in radians, ``fov`` across the image's width."""
        forward = np.array(
            [np.cos(pitch) * np.cos(yaw), np.cos(pitch) * np.sin(yaw), np.sin(pitch)]
        )
        right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
        down = np.cross(forward, right)
        rolled = np.cos(roll) * right + np.sin(roll) * down
        rows = np.stack([rolled, np.cross(forward, rolled), forward])
        position = np.array([0.0, 0.0, height], np.float32)
        return cls(position, rows.astype(np.float32), float(0.5 / np.tan(fov / 2)))

    def rays(self, size: tuple[int, int]) -> np.ndarray:
        """(3, H, W) world directions through the pixel centres; t along them is z-depth."""
        height, width = size
        focal = self.focal * width
        x = (np.arange(width, dtype=np.float32) + 0.5 - width / 2) / focal
        y = (np.arange(height, dtype=np.float32) + 0.5 - height / 2) / focal
        right, down, forward = self.rotation[:, :, None, None].astype(np.float32)
        return forward + right * x.astype(np.float32) + down * y.astype(np.float32)[:, None]


@dataclass(frozen=True)
class Solid:
    """A unit solid, stretched by ``half``, turned by ``rotation`` and moved to ``center``.

    Attributes:
        kind: which unit solid.
        label: class id of its pixels.
        center: (3,) metres.
        half: (3,) half sizes along its own axes, metres.
        rotation: (3, 3), columns are its own axes in the world.
        surface: how it looks; not used here.
    """

    kind: Kind
    label: int
    center: np.ndarray
    half: np.ndarray
    rotation: np.ndarray = field(default_factory=lambda: np.eye(3, dtype=np.float32))
    surface: Any = None

    @cached_property
    def to_unit(self) -> np.ndarray:
        """(3, 3) map of world offsets from the centre into the unit frame."""
        return (self.rotation.T / self.half[:, None]).astype(np.float32)

    def localize(self, points: np.ndarray) -> np.ndarray:
        """World points (3, N) in the unit frame."""
        return self.to_unit @ (points - self.center[:, None])

    def span(self, origins: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ray parameters of entry and exit, each (N,); NaN or entry > exit where missed.

        Args:
            origins: (3, N) or (3, 1), metres.
            directions: (3, N), any length.
        """
        o = self.localize(origins)
        d = self.to_unit @ directions
        # Restart at the point nearest to the centre: float32 would lose distant small solids.
        shift = -dot(o, d) / dot(d, d)
        entry, leave = _SPANS[self.kind](o + shift * d, d)
        return entry + shift, leave + shift

    def normals(self, local: np.ndarray) -> np.ndarray:
        """Outward unit normals (3, N) in the world at surface points given in the unit frame."""
        normal = self.to_unit.T @ _NORMALS[self.kind](local)
        return normal / np.sqrt(dot(normal, normal))

    def window(self, camera: Camera, size: tuple[int, int]) -> tuple[slice, slice] | None:
        """Rows and columns of the image outside which the solid cannot be; None if unseen."""
        height, width = size
        corners = self.center[:, None] + self.rotation @ (_CORNERS * self.half[:, None])
        x, y, z = camera.rotation @ (corners - camera.position[:, None])
        if z.max() < NEAR:
            return None
        if z.min() < NEAR:  # reaches behind the camera: its outline is unbounded
            return slice(0, height), slice(0, width)
        scale = camera.focal * width / z
        u, v = x * scale + width / 2 - 0.5, y * scale + height / 2 - 0.5
        top, bottom = max(int(v.min()), 0), min(int(v.max()) + 2, height)
        left, right = max(int(u.min()), 0), min(int(u.max()) + 2, width)
        return (slice(top, bottom), slice(left, right)) if top < bottom and left < right else None


@dataclass(frozen=True)
class Shell:
    """What surrounds the camera: an axis-aligned box seen from inside.

    Infinite sides are not there: open ground is a shell whose only finite side is the floor.

    Attributes:
        low, high: (3,) metres; ``low[2]`` is the floor, 0.
        roof: False leaves the top open to the sky.
    """

    low: np.ndarray
    high: np.ndarray
    roof: bool

    def span(self, origins: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where rays from inside leave.

        Returns:
            Ray parameters (N,), inf through the open; and the faces (N,): axis·2 + (1 if high).
        """
        inverse = 1 / _nonzero(directions)
        steps = np.maximum(
            (self.low[:, None] - origins) * inverse, (self.high[:, None] - origins) * inverse
        )
        # np.argmin over three long rows costs more than all of this.
        x, y, z = steps
        faces = (directions > 0).view(np.int8) + np.array([[0], [2], [4]], np.int8)
        aside = np.minimum(x, y)
        step = np.minimum(aside, z)
        face = np.where(z <= aside, faces[2], np.where(y <= x, faces[1], faces[0]))
        if not self.roof:
            step = np.where(face == 5, np.float32(np.inf), step)
        return step, face


def first_hits(
    *, camera: Camera, shell: Shell, solids: Sequence[Solid], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What each pixel centre sees.

    Returns:
        rays: (3, H·W) world directions.
        depth: (H·W,) z-depth in metres, inf in the sky.
        owner: (H·W,) index of the solid seen, or −1 for the shell and the sky.
        face: (H·W,) side of the shell behind, as ``Shell.span`` numbers it.
    """
    rays = camera.rays(size)
    origin = camera.position[:, None]
    depth, face = shell.span(origin, rays.reshape(3, -1))
    depth_map = depth.reshape(size)
    owner = np.full(size, -1, np.int16)
    for k, solid in enumerate(solids):
        window = solid.window(camera, size)
        if window is None:
            continue
        nearest = depth_map[window]
        part = rays[(slice(None), *window)]
        entry, leave = solid.span(origin, part.reshape(3, -1))
        seen = ((entry > NEAR) & (entry < leave)).reshape(nearest.shape)
        entry = entry.reshape(nearest.shape)
        seen &= entry < nearest
        nearest[seen] = entry[seen]
        owner[window][seen] = k
    return rays.reshape(3, -1), depth_map.reshape(-1), owner.reshape(-1), face


def in_shadow(
    *, points: np.ndarray, owner: np.ndarray, light: np.ndarray, solids: Sequence[Solid]
) -> np.ndarray:
    """Whether a solid stands between a point light and surface points that face it.

    Args:
        points: (3, N) metres.
        owner: (N,) solid on which each point lies: being convex, it cannot shadow itself there.
        light: (3,) metres.

    Returns:
        bool (N,).
    """
    away = points - light[:, None]
    reach = np.sqrt(dot(away, away))
    away /= reach
    dark = np.zeros(points.shape[1], bool)
    if not solids:
        return dark
    # A cone round each solid, as the light sees it, spares most points the exact test.
    axes = np.stack([solid.center for solid in solids]) - light
    distances = np.sqrt((axes * axes).sum(1, keepdims=True))
    radii = np.sqrt(np.stack([(solid.half * solid.half).sum(keepdims=True) for solid in solids]))
    sines = np.minimum(radii / distances, 1)
    cosines = np.where(sines < 1, np.sqrt(1 - sines * sines) - np.float32(5e-7), -2)
    candidates = (axes / distances) @ away > cosines
    for k, solid in enumerate(solids):
        chosen = np.flatnonzero(candidates[k])
        if chosen.size:
            chosen = chosen[(owner[chosen] != k) & (reach[chosen] > distances[k] - radii[k])]
        if chosen.size:
            start = points.take(chosen, axis=1)  # several times faster than points[:, chosen]
            entry, leave = solid.span(start, light[:, None] - start)
            hit = (entry < leave) & (leave > 1e-4) & (entry < 1)
            dark[chosen[hit]] = True
    return dark


def dot(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Scalar products (N,) of the columns of two (3, N) arrays."""
    return first[0] * second[0] + first[1] * second[1] + first[2] * second[2]


def _nonzero(values: np.ndarray) -> np.ndarray:
    return np.copysign(np.maximum(np.abs(values), _TINY), values)


def _slab(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where |coordinate| ≤ 1."""
    inverse = 1 / _nonzero(d)
    middle, half = -o * inverse, np.abs(inverse)
    return middle - half, middle + half


def _box(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    entry, leave = _slab(o, d)
    return entry.max(0), leave.min(0)


def _ball(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    half = np.sqrt((1 - dot(o, o)) / dot(d, d))  # o is the point nearest to the centre
    return -half, half


def _quadratic(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Roots of a·t² + 2·b·t + c, lower first where a > 0."""
    root = np.sqrt(b * b - a * c)
    return (-b - root) / a, (-b + root) / a


def _cylinder(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    flat_o, flat_d = o[:2], d[:2]
    a = np.maximum(flat_d[0] ** 2 + flat_d[1] ** 2, _TINY)
    entry, leave = _quadratic(
        a, flat_o[0] * flat_d[0] + flat_o[1] * flat_d[1], flat_o[0] ** 2 + flat_o[1] ** 2 - 1
    )
    bottom, top = _slab(o[2], d[2])
    return np.maximum(entry, bottom), np.minimum(leave, top)


def _cone(o: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Apex at z = 1, base of radius 1 at z = −1: x² + y² = ((1 − z) / 2)²."""
    rise = 1 - o[2]
    a = _nonzero(d[0] * d[0] + d[1] * d[1] - 0.25 * d[2] * d[2])
    b = o[0] * d[0] + o[1] * d[1] + 0.25 * rise * d[2]
    c = o[0] * o[0] + o[1] * o[1] - 0.25 * rise * rise
    first, second = _quadratic(a, b, c)
    # A ray steeper than the side (a < 0) is inside before one root or after the other, in turn in
    # the lower and in the mirrored upper cone; we want the lower, which is ahead if it descends.
    steep, falls = a < 0, d[2] < 0
    low, high = np.minimum(first, second), np.maximum(first, second)
    infinite = np.float32(np.inf)
    entry = np.where(steep, np.where(falls, high, -infinite), low)
    leave = np.where(steep, np.where(falls, infinite, low), high)
    bottom, top = _slab(o[2], d[2])
    return np.maximum(entry, bottom), np.minimum(leave, top)


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


_SPANS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "box": _box,
    "ball": _ball,
    "cylinder": _cylinder,
    "cone": _cone,
}
_NORMALS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "box": _box_normal,
    "ball": lambda p: p,
    "cylinder": _cylinder_normal,
    "cone": _cone_normal,
}
