"""From ray hits to a photograph: light, shadows, sky, haze, lens and sensor.

Colours are linear RGB in 0..1 until the last step. Legend: N pixels, arrays are (3, N) or (N,).
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from dpt.data.scenes.raycast import Camera, Shell, Solid, dot, first_hits, in_shadow
from dpt.data.scenes.textures import Material, Windows, noise, surface_color

GROUND, WALL, CEILING, SKY, BOX, BALL, CYLINDER, CONE, TREE, WINDOW = range(10)

_FAR = np.float32(1e3)
"""Where sky pixels pretend to be while they are shaded; metres."""


@dataclass(frozen=True)
class Light:
    """A point light (the sun is one far away) and the light from all round.

    Attributes:
        position: (3,) metres.
        color: (3,) arriving at a facing surface ``reach`` metres away.
        reach: metres over which it halves; inf for the sun.
        above, below: (3,) ambient light on surfaces that face up and down.
    """

    position: np.ndarray
    color: np.ndarray
    reach: float
    above: np.ndarray
    below: np.ndarray


@dataclass(frozen=True)
class Sky:
    """Colours (3,) at the horizon, at the zenith and of the clouds; how much cloud; haze per m."""

    horizon: np.ndarray
    zenith: np.ndarray
    cloud: np.ndarray
    cover: float
    haze: float


@dataclass(frozen=True)
class Scene:
    """Everything that is to be seen. ``faces`` are the shell's six materials, floor at 4.

    ``windows`` belong to the shell's walls, ``walls_with_windows`` to which of them; a solid's
    ``surface`` is a pair of its material and its windows (or None).
    """

    camera: Camera
    shell: Shell
    solids: tuple[Solid, ...]
    faces: tuple[Material, ...]
    light: Light
    sky: Sky
    windows: Windows | None = None
    walls_with_windows: tuple[int, ...] = ()
    exposure: float = 1.0
    noise: float = 0.01
    blur: float = 0.5


def render(
    *, scene: Scene, size: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws a scene.

    Returns:
        image: uint8 (H, W, 3) RGB.
        depth: float32 (H, W), z-depth in metres at the pixel centres, inf in the sky.
        labels: uint8 (H, W).
    """
    with np.errstate(all="ignore"):  # misses and the sky are NaN or inf by design
        return _render(scene, size, rng)


def _render(
    scene: Scene, size: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    height, width = size
    rays, depth_map, owner, face = first_hits(
        camera=scene.camera, shell=scene.shell, solids=scene.solids, size=size
    )
    # Pixels are sorted by surface, so that each surface is one slice: solids, shell faces, sky.
    count = len(scene.solids)
    surface = np.where(owner >= 0, owner, face.astype(np.int16) + np.int16(count))
    surface[np.isinf(depth_map)] = count + 6
    order = surface.argsort(kind="stable")
    ends = np.bincount(surface, minlength=count + 7).cumsum().tolist()
    rays, owner = rays.take(order, axis=1), owner[order]  # take is much faster than [:, order]
    depth = np.minimum(depth_map[order], _FAR)

    points = scene.camera.position[:, None] + rays * depth
    pixel = depth / np.float32(scene.camera.focal * width)  # metres across, if facing us
    normals = np.zeros_like(rays)
    albedo = np.zeros_like(rays)
    gloss = np.zeros_like(depth)
    glow = np.zeros_like(depth)
    labels = np.full(depth.shape, SKY, np.uint8)
    for k, (start, end) in enumerate(zip([0, *ends], ends[:-1], strict=False)):
        if start == end:
            continue
        part = slice(start, end)
        where = points[:, part]
        if k < count:
            solid = scene.solids[k]
            local = solid.localize(where)
            normals[:, part] = solid.normals(local)
            label, uv, (material, windows) = solid.label, _unwrap(solid, local), solid.surface
        else:
            axis, high = divmod(k - count, 2)
            normals[axis, part] = 1 - 2 * high
            label = WALL if axis < 2 else CEILING if high else GROUND
            uv = where[1:] if axis == 0 else where[::2] if axis == 1 else where[:2]
            material = scene.faces[k - count]
            windows = scene.windows if k - count in scene.walls_with_windows else None
        labels[part] = label
        gloss[part] = material.gloss
        slant = np.abs(dot(normals[:, part], rays[:, part])) + np.float32(0.02)
        albedo[:, part], pane = surface_color(material, windows, uv, pixel[part] / slant)
        if windows is not None and pane is not None:
            labels[part][pane] = WINDOW
            gloss[part][pane] = 0.8
            glow[part][pane] = windows.glow

    color = _lit(scene, rays, points, normals, albedo, gloss, owner, order, size)
    color += albedo * glow
    _hide_in_haze(color, scene.sky, depth)
    if ends[-2] < ends[-1]:
        color[:, ends[-2] :] = _sky_color(scene, rays[:, ends[-2] :])

    image = np.empty((height * width, 3), np.float32)
    image[order] = color.T
    label_map = np.empty_like(labels)
    label_map[order] = labels
    developed = _develop(image.reshape(height, width, 3), scene, rng)
    return developed, depth_map.reshape(size), label_map.reshape(size)


def _unwrap(solid: Solid, local: np.ndarray) -> np.ndarray:
    """Surface coordinates (2, N) in metres of points given in the unit frame."""
    x, y, z = local * solid.half[:, None].astype(np.float32)
    if solid.kind == "box":
        # Height above the solid's own foot, so that windows count from there.
        size = np.abs(local)
        flat = size[2] >= np.maximum(size[0], size[1])
        u = np.where(size[0] >= size[1], np.where(flat, x, y), x)
        return np.stack([u, np.where(flat, y, z + solid.half[2])])
    around = np.arctan2(local[1], local[0]) * np.float32(solid.half[0])
    if solid.kind == "ball":
        return np.stack([around, np.arcsin(np.clip(local[2], -1, 1)) * np.float32(solid.half[2])])
    cap = np.abs(local[2]) > 0.999
    return np.stack([np.where(cap, x, around), np.where(cap, y, z)])


def _lit(
    scene: Scene,
    rays: np.ndarray,
    points: np.ndarray,
    normals: np.ndarray,
    albedo: np.ndarray,
    gloss: np.ndarray,
    owner: np.ndarray,
    order: np.ndarray,
    size: tuple[int, int],
) -> np.ndarray:
    """Light that leaves the surfaces towards the camera, (3, N); ``order`` are pixel numbers."""
    light = scene.light
    toward = light.position[:, None] - points
    distance = np.sqrt(dot(toward, toward))
    toward /= distance
    facing = dot(normals, toward)
    bright = np.flatnonzero(facing > 0)
    lit_points = points.take(bright, axis=1)
    dark = in_shadow(
        points=lit_points, owner=owner[bright], light=light.position, solids=scene.solids
    )
    if np.isinf(light.reach) and np.isfinite(scene.shell.high).all():
        # Sunlight enters an open court only from above.
        _, out = scene.shell.span(lit_points, toward.take(bright, axis=1))
        dark |= (out != 5) & (lit_points[2] < scene.shell.high[2])
    visible = np.zeros(facing.shape, np.float32)
    visible[order[bright[~dark]]] = 1
    visible = cv2.GaussianBlur(visible.reshape(size), (0, 0), 0.7).reshape(-1)[order]  # soft rim
    strength = np.maximum(facing, 0) * visible
    if np.isfinite(light.reach):
        strength *= 2 / (1 + (distance / np.float32(light.reach)) ** 2)

    up = 0.5 + 0.5 * normals[2]
    ambient = light.below[:, None] + (light.above - light.below)[:, None] * up
    ambient *= _openness(scene.shell, points, owner)
    color = albedo * (ambient + light.color[:, None] * strength)

    shiny = np.flatnonzero((gloss > 0) & (strength > 0))
    if shiny.size:
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


def _openness(shell: Shell, points: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Share of the ambient light that reaches a point: less near the floor and in corners."""
    above = np.float32(0.45) / (1 + points[2] * np.float32(5))
    share = np.where((owner >= 0) | (points[2] > 1e-3), 1 - above, np.float32(1))
    if np.isfinite(shell.high[:2]).all():
        gap = np.minimum(points[:2] - shell.low[:2, None], shell.high[:2, None] - points[:2])
        near = np.minimum(gap[0], gap[1])
        # On a wall that is 0, and the other one leads to the corner.
        near = np.where(near < 1e-3, np.maximum(gap[0], gap[1]), near)
        share *= 1 - np.float32(0.35) / (1 + np.maximum(near, 0) * np.float32(4))
    return share


def _hide_in_haze(color: np.ndarray, sky: Sky, depth: np.ndarray) -> None:
    if sky.haze > 0:
        kept = np.exp(depth * np.float32(-sky.haze))
        color -= sky.horizon[:, None]
        color *= kept
        color += sky.horizon[:, None]


def _sky_color(scene: Scene, rays: np.ndarray) -> np.ndarray:
    sky, light = scene.sky, scene.light
    rays = rays / np.sqrt(dot(rays, rays))
    rise = np.clip(rays[2], 0, 1)
    color = sky.horizon[:, None] + (sky.zenith - sky.horizon)[:, None] * np.sqrt(rise)
    plane = rays[:2] / (rise + 0.12)
    cloud = noise(plane[0], plane[1], 4.0) + 0.35 * noise(plane[0], plane[1], 1.1)
    cloud = np.clip((cloud - (1.25 - 0.8 * np.float32(sky.cover))) * 3, 0, 1)
    color += (sky.cloud[:, None] - color) * (cloud * np.minimum(rise * 6, 1))
    if np.isinf(light.reach):
        sun = light.position / np.sqrt(light.position @ light.position)
        color += light.color[:, None] * (0.3 * _power32(np.maximum(sun @ rays, 0)))
    return color


def _develop(color: np.ndarray, scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Exposure, lens and sensor: linear light to a uint8 picture, both (H, W, 3)."""
    height, width, _ = color.shape
    meter = np.sort(color.ravel()[::61])
    white = float(meter[int(0.92 * len(meter))])
    x = (np.arange(width, dtype=np.float32) + 0.5) / width - 0.5
    y = (np.arange(height, dtype=np.float32) + 0.5) / height - 0.5
    vignette = 1 - 0.5 * (x * x + (y * y)[:, None])
    image = color * (vignette * np.float32(0.66 * scene.exposure / max(white, 0.05)))[..., None]
    image /= 1 + 0.3 * image  # bright tones saturate slowly
    np.sqrt(np.maximum(image, 0, out=image), out=image)
    image += (0.35 * image) * (image * (1.5 - image) - 0.5)  # darker darks, brighter brights
    image = cv2.GaussianBlur(image, (0, 0), scene.blur)
    image += (rng.random(image.shape, np.float32) - 0.5) * np.float32(12**0.5 * scene.noise)
    image *= 255
    image += 0.5
    return np.clip(image, 0, 255, out=image).astype(np.uint8)
