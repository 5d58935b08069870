"""Renders a scene: light, shadows, sky, haze, lens and sensor.

Colours are linear RGB in 0..1 until the last step. Legend: N pixels, arrays are (3, N) or (N,).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.scenes.raycast import SKY_FACE, Camera, Shell, Solid, dot, first_hits, in_shadow
from dpt.data.scenes.textures import Material, Windows, noise, surface_color

GROUND, WALL, CEILING, SKY, BOX, BALL, CYLINDER, CONE, TREE, WINDOW = range(10)

_FAR = np.float32(1e3)
"""Depth at which sky pixels are shaded; metres."""


@dataclass(frozen=True)
class Light:
    """A point light (the sun is a distant one) and ambient light."""

    position: np.ndarray  # (3,) metres
    color: np.ndarray  # (3,) at a surface that faces the light, ``reach`` metres away
    reach: float  # metres over which it halves; inf for the sun
    above: np.ndarray  # (3,) ambient light on surfaces that face up
    below: np.ndarray  # (3,) ambient light on surfaces that face down


@dataclass(frozen=True)
class Sky:
    """The sky and the haze in front of distant surfaces."""

    horizon: np.ndarray  # (3,) colour
    zenith: np.ndarray  # (3,) colour
    cloud: np.ndarray  # (3,) colour
    cover: float  # amount of cloud, 0..1
    haze: float  # density per metre


@dataclass(frozen=True)
class Scene:
    """What :func:`render` draws."""

    camera: Camera
    shell: Shell
    solids: tuple[Solid, ...]
    faces: tuple[tuple[Material, Windows | None], ...]  # of the shell, numbered as by Shell.span
    light: Light
    sky: Sky | None  # None indoors
    exposure: float
    noise: float
    blur: float


@dataclass
class _Pixels:
    """All pixels, sorted by surface so that each surface is a slice."""

    order: np.ndarray  # number of each pixel in the image
    surface: np.ndarray  # as first_hits gives it
    rays: np.ndarray
    points: np.ndarray
    normals: np.ndarray
    albedo: np.ndarray
    gloss: np.ndarray


@np.errstate(all="ignore")  # misses and the sky are NaN or inf
def render(
    scene: Scene, size: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renders a scene.

    Returns:
        image: uint8 (H, W, 3) RGB.
        depth: float32 (H, W), z-depth in metres at the pixel centres, inf in the sky.
        labels: uint8 (H, W).
    """
    height, width = size
    rays, depth_map, surface = first_hits(scene.camera, scene.shell, scene.solids, size)
    count = len(scene.solids)
    order = surface.argsort(kind="stable")
    ends = np.bincount(surface, minlength=count + SKY_FACE + 1).cumsum().tolist()
    rays = rays.take(order, axis=1)  # much faster than [:, order]
    depth = np.minimum(depth_map[order], _FAR)
    points = scene.camera.position[:, None] + rays * depth
    normals, albedo = np.zeros_like(rays), np.zeros_like(rays)
    gloss, glow = np.zeros_like(depth), np.zeros_like(depth)
    labels = np.full(depth.shape, SKY, np.uint8)
    pixel = depth / np.float32(scene.camera.focal * width)  # metres on a surface that faces us
    for k, (start, end) in enumerate(zip([0, *ends], ends[:-1], strict=False)):
        if start == end:
            continue
        part = slice(start, end)
        where = points[:, part]
        if k < count:
            solid = scene.solids[k]
            local = solid.localize(where)
            normals[:, part] = solid.normals(local)
            label, material, windows = solid.label, solid.material, solid.windows
            uv = _unwrap(solid, local)
        else:
            axis, high = divmod(k - count, 2)
            normals[axis, part] = 1 - 2 * high
            label = WALL if axis < 2 else CEILING if high else GROUND
            material, windows = scene.faces[k - count]
            uv = where[1:] if axis == 0 else where[::2] if axis == 1 else where[:2]
        labels[part] = label
        gloss[part] = material.gloss
        slant = np.abs(dot(normals[:, part], rays[:, part])) + np.float32(0.02)
        albedo[:, part], pane = surface_color(material, windows, uv, pixel[part] / slant)
        if windows is not None:
            labels[part][pane] = WINDOW
            gloss[part][pane] = 0.8
            glow[part][pane] = windows.glow

    pixels = _Pixels(order, surface[order], rays, points, normals, albedo, gloss)
    color = _reflected_light(scene, pixels, size)
    color += albedo * glow
    if scene.sky is not None:
        horizon = scene.sky.horizon[:, None]
        color -= horizon
        color *= np.exp(depth * np.float32(-scene.sky.haze))
        color += horizon
        color[:, ends[-2] :] = _sky_color(scene.sky, scene.light, rays[:, ends[-2] :])

    image = np.empty((height * width, 3), np.float32)
    image[order] = color.T
    label_map = np.empty_like(labels)
    label_map[order] = labels
    photo = _photograph(image.reshape(height, width, 3), scene, rng)
    return photo, depth_map.reshape(size), label_map.reshape(size)


def _unwrap(solid: Solid, local: np.ndarray) -> np.ndarray:
    """Surface coordinates (2, N) in metres of points given in the unit frame."""
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


def _reflected_light(scene: Scene, pixels: _Pixels, size: tuple[int, int]) -> np.ndarray:
    """Light from the surfaces to the camera, (3, N)."""
    light, points, normals = scene.light, pixels.points, pixels.normals
    is_sun = np.isinf(light.reach)
    toward = light.position[:, None] - points
    distance = np.sqrt(dot(toward, toward))
    toward /= distance
    facing = dot(normals, toward)
    bright = np.flatnonzero(facing > 0)
    lit = points.take(bright, axis=1)
    dark = in_shadow(lit, pixels.surface[bright], light.position, scene.solids)
    if is_sun and np.isfinite(scene.shell.high).all():  # a courtyard: sunlight enters from above
        _, face = scene.shell.span(lit, toward.take(bright, axis=1))
        dark |= (face != SKY_FACE) & (lit[2] < scene.shell.high[2])
    visible = np.zeros(facing.shape, np.float32)
    visible[pixels.order[bright[~dark]]] = 1
    blurred = cv2.GaussianBlur(visible.reshape(size), (0, 0), 0.7)  # soft edges of shadows
    visible = blurred.reshape(-1)[pixels.order]
    strength = np.maximum(facing, 0) * visible
    if not is_sun:
        strength *= 2 / (1 + (distance / np.float32(light.reach)) ** 2)

    up = 0.5 + 0.5 * normals[2]
    ambient = light.below[:, None] + (light.above - light.below)[:, None] * up
    ambient *= _openness(scene.shell, points, pixels.surface < len(scene.solids))
    color = pixels.albedo * (ambient + light.color[:, None] * strength)

    shiny = np.flatnonzero((pixels.gloss > 0) & (strength > 0))
    if shiny.size:
        view = pixels.rays.take(shiny, axis=1)
        half = toward.take(shiny, axis=1) - view / np.sqrt(dot(view, view))
        highlight = dot(half, normals.take(shiny, axis=1)) / np.sqrt(dot(half, half))
        highlight = _power32(np.maximum(highlight, 0)) * pixels.gloss[shiny] * visible[shiny]
        color[:, shiny] += light.color[:, None] * highlight
    return color


def _power32(base: np.ndarray) -> np.ndarray:
    for _ in range(5):  # several times faster than NumPy's power
        base = base * base
    return base


def _openness(shell: Shell, points: np.ndarray, on_solid: np.ndarray) -> np.ndarray:
    """Share of the ambient light that reaches a point: less near the floor and in corners."""
    above = np.float32(0.45) / (1 + points[2] * np.float32(5))
    share = np.where(on_solid | (points[2] > 1e-3), 1 - above, np.float32(1))
    if np.isfinite(shell.high[:2]).all():
        gap = np.minimum(points[:2] - shell.low[:2, None], shell.high[:2, None] - points[:2])
        near = np.minimum(gap[0], gap[1])
        # A point on a wall is at distance 0 from it; the other distance is that to the corner.
        near = np.where(near < 1e-3, np.maximum(gap[0], gap[1]), near)
        share *= 1 - np.float32(0.35) / (1 + np.maximum(near, 0) * np.float32(4))
    return share


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
    """Exposure, lens and sensor: linear light to uint8, both (H, W, 3)."""
    height, width, _ = color.shape
    meter = np.sort(color.ravel()[::61])
    white = float(meter[int(0.92 * len(meter))])
    x = (np.arange(width, dtype=np.float32) + 0.5) / width - 0.5
    y = (np.arange(height, dtype=np.float32) + 0.5) / height - 0.5
    vignette = 1 - 0.5 * (x * x + (y * y)[:, None])
    image = color * (vignette * np.float32(0.66 * scene.exposure / max(white, 0.05)))[..., None]
    image /= 1 + 0.3 * image  # bright tones saturate slowly
    np.sqrt(np.maximum(image, 0, out=image), out=image)
    image += (0.35 * image) * (image * (1.5 - image) - 0.5)  # contrast
    image = cv2.GaussianBlur(image, (0, 0), scene.blur)
    image += (rng.random(image.shape, np.float32) - 0.5) * np.float32(12**0.5 * scene.noise)
    image *= 255
    image += 0.5
    return np.clip(image, 0, 255, out=image).astype(np.uint8)
