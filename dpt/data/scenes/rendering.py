"""Renders a scene: exact ray casting of simple solids, textures, light, sky, lens and sensor.

World axes: x and y on the ground, z up, metres. Every solid is an affine image of a unit solid
(box, ball, cylinder or cone in [-1, 1]³), in whose frame rays are intersected; the ray parameter
does not change. Camera rays advance one metre along the optical axis per unit of that parameter, so
it is the z-depth. Callers silence floating-point warnings. Colours are linear RGB in 0..1 until the
last step. Legend: N rays or pixels, arrays are (3, N) or (N,), float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

import cv2
import numpy as np

from dpt.types.samples import Sample

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
        level = np.cos(pitch)
        forward = np.array([level * np.cos(yaw), level * np.sin(yaw), np.sin(pitch)])
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
        to_low = (self.low[:, None] - origins) * inverse
        x, y, z = np.maximum(to_low, (self.high[:, None] - origins) * inverse)
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


GROUND, WALL, CEILING, SKY, BOX, BALL, CYLINDER, CONE, TREE, WINDOW = range(10)
THINGS = (BOX, BALL, CYLINDER, CONE, TREE)
_FAR = np.float32(1e3)  # depth at which sky pixels are shaded; metres


@dataclass(frozen=True)
class Light:
    """A point light (the sun is a distant one) and ambient light; colours are (3,)."""

    position: np.ndarray  # (3,) metres
    color: np.ndarray  # at a surface that faces the light, ``reach`` metres away
    reach: float  # metres; half as bright there as at distance 0; inf for the sun
    above: np.ndarray  # ambient light on surfaces that face up
    below: np.ndarray  # ambient light on surfaces that face down


@dataclass(frozen=True)
class Sky:
    """The sky and the haze in front of distant surfaces; colours are (3,)."""

    horizon: np.ndarray
    zenith: np.ndarray
    cloud: np.ndarray
    cover: float  # amount of cloud, 0..1
    haze: float  # density per metre


@dataclass(frozen=True)
class Material:
    """A two-colour pattern."""

    pattern: str  # a key of PATTERNS
    colors: np.ndarray  # (2, 3)
    scale: float  # period of the pattern, metres
    gloss: float = 0.0  # strength of the highlight
    turn: float = 0.0  # rotation of the pattern, radians


@dataclass(frozen=True)
class Windows:
    """A grid of windows on upright faces; lengths in metres, as (width, height)."""

    period: tuple[float, float]
    size: tuple[float, float]  # of a window, below ``period``
    sill: float  # height of the lowest of ``rows``
    rows: int
    glass: np.ndarray  # (3,) colour
    glow: float  # emitted light, relative to the colour


Surface = tuple[int, Material, Windows | None]  # label, pattern, windows if any


@dataclass(frozen=True)
class Scene:
    camera: Camera
    shell: Shell
    solids: Sequence[Solid]
    surfaces: Sequence[Surface]  # of the solids, then of the shell's faces
    objects: Sequence[int]  # the object that each solid is a part of, from 1
    light: Light
    sky: Sky | None  # None indoors
    exposure: float  # factor of the automatic exposure
    noise: float  # standard deviation, in 0..1 of the image's range
    blur: float  # sigma of a Gaussian, pixels


@np.errstate(all="ignore")  # misses are NaN, the sky is inf
def render(scene: Scene, size: tuple[int, int], rng: np.random.Generator) -> Sample:
    """Returns an image of ``size`` (H, W) of a scene, and its maps; depth is inf in the sky."""
    rays, depth, surface = first_hits(scene.camera, scene.shell, scene.solids, size)
    count = len(scene.solids)
    shaded_depth = np.minimum(depth, _FAR)
    points = scene.camera.position[:, None] + rays * shaded_depth
    normals, albedo = np.zeros_like(rays), np.zeros_like(rays)
    gloss, glow = np.zeros_like(depth), np.zeros_like(depth)
    labels = np.full(depth.shape, SKY, np.uint8)
    objects = np.zeros(depth.shape, np.uint16)
    pixel = shaded_depth / np.float32(scene.camera.focal * size[1])  # side in metres, head-on
    for k in np.flatnonzero(np.bincount(surface)[: count + SKY_FACE]).tolist():
        here = np.flatnonzero(surface == k)
        where = points.take(here, axis=1)
        label, material, windows = scene.surfaces[k]
        if k < count:
            local = scene.solids[k].localize(where)
            normal, uv = scene.solids[k].normals(local), _unwrap(scene.solids[k], local)
        else:
            axis, high = divmod(k - count, 2)
            normal, uv = np.zeros_like(where), np.delete(where, axis, axis=0)
            normal[axis] = 1 - 2 * high
        normals[:, here], labels[here], gloss[here] = normal, label, material.gloss
        if label in THINGS:
            objects[here] = scene.objects[k]
        slant = np.abs(dot(normal, rays.take(here, axis=1))) + np.float32(0.02)
        albedo[:, here], pane = surface_color(material, windows, uv, pixel[here] / slant)
        if windows is not None:
            panes = here[pane]
            labels[panes], gloss[panes], glow[panes] = WINDOW, 0.8, windows.glow

    color = _reflected_light(scene, size, surface, rays, points, normals, albedo, gloss)
    color += albedo * glow
    if scene.sky is not None:
        horizon = scene.sky.horizon[:, None]
        color -= horizon
        color *= np.exp(shaded_depth * np.float32(-scene.sky.haze))
        color += horizon
        above = np.flatnonzero(surface == count + SKY_FACE)
        color[:, above] = _sky_color(scene.sky, scene.light, rays.take(above, axis=1))
    image = np.ascontiguousarray(color.T).reshape(*size, 3)
    in_camera = np.ascontiguousarray((scene.camera.rotation @ normals).T)
    return Sample(
        image=_photograph(image, scene, rng),
        depth=depth.reshape(size),
        labels=labels.reshape(size),
        objects=objects.reshape(size),
        normals=in_camera.reshape(*size, 3),
    )


def _unwrap(solid: Solid, local: np.ndarray) -> np.ndarray:
    """Returns texture coordinates (2, N), in metres, of surface points (3, N) in the unit frame."""
    x, y, z = local * solid.half[:, None]
    if solid.kind == "box":
        size = np.abs(local)
        flat = size[2] >= np.maximum(size[0], size[1])
        u = np.where(size[0] >= size[1], np.where(flat, x, y), x)
        return np.stack([u, np.where(flat, y, z + solid.half[2])])  # height above its foot
    around = np.arctan2(local[1], local[0]) * solid.half[0]
    if solid.kind == "ball":
        return np.stack([around, np.arcsin(np.clip(local[2], -1, 1)) * solid.half[2]])
    cap = np.abs(local[2]) > 0.999
    return np.stack([np.where(cap, x, around), np.where(cap, y, z)])


def _reflected_light(
    scene: Scene,
    size: tuple[int, int],
    surface: np.ndarray,
    rays: np.ndarray,
    points: np.ndarray,
    normals: np.ndarray,
    albedo: np.ndarray,
    gloss: np.ndarray,
) -> np.ndarray:
    """Returns the diffuse and specular (Blinn-Phong) light from surfaces to the camera, (3, N)."""
    light = scene.light
    is_sun = np.isinf(light.reach)
    toward = light.position[:, None] - points
    distance = np.sqrt(dot(toward, toward))
    toward /= distance
    facing = dot(normals, toward)
    bright = np.flatnonzero(facing > 0)
    lit = points.take(bright, axis=1)
    dark = in_shadow(lit, surface[bright], light.position, scene.solids)
    if is_sun and np.isfinite(scene.shell.high).all():  # a courtyard: sunlight enters from above
        _, face = scene.shell.span(lit, toward.take(bright, axis=1))
        dark |= (face != SKY_FACE) & (lit[2] < scene.shell.high[2])
    sharp = np.zeros(facing.shape, np.float32)
    sharp[bright[~dark]] = 1
    visible = cv2.GaussianBlur(sharp.reshape(size), (0, 0), 0.7).ravel()  # soft shadows
    strength = np.maximum(facing, 0) * visible
    if not is_sun:
        strength *= 2 / (1 + (distance / np.float32(light.reach)) ** 2)

    up = 0.5 + 0.5 * normals[2]
    ambient = light.below[:, None] + (light.above - light.below)[:, None] * up
    ambient *= _openness(scene.shell, points, surface < len(scene.solids))
    color = albedo * (ambient + light.color[:, None] * strength)

    shiny = np.flatnonzero((gloss > 0) & (strength > 0))
    view = rays.take(shiny, axis=1)
    half = toward.take(shiny, axis=1) - view / np.sqrt(dot(view, view))
    highlight = dot(half, normals.take(shiny, axis=1)) / np.sqrt(dot(half, half))
    highlight = _power32(np.maximum(highlight, 0)) * gloss[shiny] * visible[shiny]
    color[:, shiny] += light.color[:, None] * highlight
    return color


def _power32(base: np.ndarray) -> np.ndarray:
    for _ in range(5):  # several times faster than NumPy's power
        base = base * base
    return base


def _openness(shell: Shell, points: np.ndarray, on_solid: np.ndarray) -> np.ndarray:
    """Returns the fraction of the ambient light at points, less near the floor and corners."""
    above = np.float32(0.45) / (1 + points[2] * np.float32(5))
    openness = np.where(on_solid | (points[2] > 1e-3), 1 - above, np.float32(1))
    if np.isfinite(shell.high[:2]).all():
        gap = np.minimum(points[:2] - shell.low[:2, None], shell.high[:2, None] - points[:2])
        near = np.minimum(gap[0], gap[1])
        # A point on a wall is at distance 0 from it: take the other distance, to the corner.
        near = np.where(near < 1e-3, np.maximum(gap[0], gap[1]), near)
        openness *= 1 - np.float32(0.35) / (1 + np.maximum(near, 0) * np.float32(4))
    return openness


def _sky_color(sky: Sky, sun: Light, rays: np.ndarray) -> np.ndarray:
    rays = rays / np.sqrt(dot(rays, rays))
    rise = np.clip(rays[2], 0, 1)
    color = sky.horizon[:, None] + (sky.zenith - sky.horizon)[:, None] * np.sqrt(rise)
    plane = rays[:2] / (rise + 0.12)
    cloud = noise(plane[0], plane[1], 4.0) + 0.35 * noise(plane[0], plane[1], 1.1)
    cloud = np.clip((cloud - (1.25 - 0.8 * np.float32(sky.cover))) * 3, 0, 1)
    color += (sky.cloud[:, None] - color) * (cloud * np.minimum(rise * 6, 1))
    direction = sun.position / np.sqrt(sun.position @ sun.position)
    color += sun.color[:, None] * (0.3 * _power32(np.maximum(direction @ rays, 0)))
    return color


def _photograph(color: np.ndarray, scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Applies exposure, lens and sensor: linear light to uint8, both (H, W, 3)."""
    height, width, _ = color.shape
    meter = np.sort(color.ravel()[::61])  # automatic exposure, on a sample of the values
    white = float(meter[int(0.92 * len(meter))])
    x = (np.arange(width, dtype=np.float32) + 0.5) / width - 0.5
    y = (np.arange(height, dtype=np.float32) + 0.5) / height - 0.5
    vignette = 1 - 0.5 * (x * x + (y * y)[:, None])
    image = color * (vignette * np.float32(0.66 * scene.exposure / max(white, 0.05)))[..., None]
    image /= 1 + 0.3 * image  # tone mapping
    np.sqrt(np.maximum(image, 0, out=image), out=image)  # gamma 2
    image += (0.35 * image) * (image * (1.5 - image) - 0.5)  # contrast
    image = cv2.GaussianBlur(image, (0, 0), scene.blur)
    image += (rng.random(image.shape, np.float32) - 0.5) * np.float32(12**0.5 * scene.noise)
    image *= 255
    image += 0.5
    return np.clip(image, 0, 255, out=image).astype(np.uint8)


# --- textures: functions of metres along a surface ----------------------------------------------


def surface_color(
    material: Material, windows: Windows | None, uv: np.ndarray, pixel: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the albedo (3, N) of surface points, and which lie in windows, bool (N,) or None.

    Args:
        uv: (2, N) metres along the surface; v is the height on upright faces.
        pixel: (N,) size of a pixel on the surface in metres; finer detail fades to its mean.
    """
    cos, sin = np.float32(np.cos(material.turn)), np.float32(np.sin(material.turn))
    u = (cos * uv[0] - sin * uv[1]) / np.float32(material.scale)
    v = (sin * uv[0] + cos * uv[1]) / np.float32(material.scale)
    fade = np.clip(1.6 - 3.5 * pixel / np.float32(material.scale), 0, 1)
    mix = 0.5 + (PATTERNS[material.pattern](u, v) - 0.5) * fade
    first, second = material.colors[:, :, None]
    color = first + (second - first) * mix
    color *= 0.8 + 0.4 * noise(uv[0], uv[1], 18.0)  # stains
    if windows is None:
        return color, None
    across, up = uv[0] / np.float32(windows.period[0]), (uv[1] - windows.sill) / windows.period[1]
    column, row = np.floor(across), np.floor(up)
    across, up = (across - column) * windows.period[0], (up - row) * windows.period[1]
    wide, high = windows.size
    pane = (across < wide) & (up < high) & (row >= 0) & (row < windows.rows)
    frame = pane & (
        (across < 0.05) | (across > wide - 0.05) | (up < 0.05) | (np.abs(up - high / 2) < 0.025)
    )
    color[:, pane] = windows.glass[:, None] * (0.5 + 0.6 * up[pane] / np.float32(high))
    color[:, frame] = second * 0.4
    return color, pane


@cache
def _noise_tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns two periodic tables of 256²: smooth fractal noise and white noise."""
    rng = np.random.default_rng(20)
    smooth = np.zeros((256, 256), np.float32)
    for cells in (4, 8, 16, 32, 64):
        grid = np.pad(rng.random((cells, cells), np.float32), 2, mode="wrap")
        scale = 256 // cells
        large = cv2.resize(grid, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
        smooth += large[2 * scale : -2 * scale, 2 * scale : -2 * scale] * (4 / cells) ** 0.7
    low, high = np.quantile(smooth, [0.01, 0.99])
    return np.clip((smooth - low) / (high - low), 0, 1), rng.random((256, 256), np.float32)


def _look_up(table: int, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns the value, 0..1, that a noise table has for the unit cell around (u, v)."""
    column, row = (np.floor(x).astype(np.int32) & 255 for x in (u, v))
    return _noise_tables()[table].ravel()[row * 256 + column]


def noise(u: np.ndarray, v: np.ndarray, period: float) -> np.ndarray:
    """Returns smooth noise in 0..1 that repeats after ``period`` in u and v."""
    per = np.float32(256 / period)
    return _look_up(0, u * per, v * per)


def _is_odd(x: np.ndarray) -> np.ndarray:
    return np.floor(x).astype(np.int32) & 1


def _tiles(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    joint = (u % 1 < 0.07) | (v % 1 < 0.07)
    return np.where(joint, np.float32(0), 0.6 + 0.4 * _look_up(1, u, v))


def _planks(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    row = np.floor(4 * v)
    tone = _look_up(1, 0.6 * u + 0.37 * row, row)
    grain = noise(0.15 * u, v + tone, 1.5)
    return np.where(4 * v - row < 0.09, np.float32(0), 0.15 + 0.5 * tone + 0.35 * grain)


PATTERNS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "plain": lambda u, v: 0.35 + 0.3 * noise(u, v, 5.0),
    "checker": lambda u, v: _is_odd(np.floor(2 * u) + np.floor(2 * v)).astype(np.float32),
    "stripes": lambda u, v: (u % 1 < 0.5).astype(np.float32),
    "dots": lambda u, v: ((u % 1 - 0.5) ** 2 + (v % 1 - 0.5) ** 2 < 0.09).astype(np.float32),
    "tiles": _tiles,
    "bricks": lambda u, v: _tiles(u + 0.5 * _is_odd(2.5 * v), 2.5 * v),
    "planks": _planks,
    "marble": lambda u, v: np.minimum(np.abs(2 * noise(u, v, 6.0) - 1) * 2, 1),
    "grass": lambda u, v: np.clip(1.2 * (noise(u, v, 2.5) + noise(u, v, 12.0)) - 0.7, 0, 1),
}
"""Fraction of the second colour, 0..1, at points given in periods of the pattern."""
