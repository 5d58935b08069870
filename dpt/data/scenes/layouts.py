"""Random scenes of six kinds, each with its own layout, camera and light."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpt.data.scenes.parts import (
    CEILINGS,
    FLOORS,
    WALL_PATTERNS,
    WALLS,
    Site,
    add_building,
    add_solid,
    add_tree,
    furnish,
    linear_rgb,
    random_material,
    random_shades,
    random_windows,
    turned,
)
from dpt.data.scenes.raycast import Camera, Kind, Shell
from dpt.data.scenes.shading import Light, Scene, Sky
from dpt.data.scenes.textures import Material, Windows

_FLOOR_PATTERNS = ("plain", "planks", "planks", "tiles", "checker", "marble", "grass")
_GROUND_PATTERNS = ("grass", "grass", "tiles", "plain", "marble", "bricks")


def build_scene(kind: int, rng: np.random.Generator) -> Scene:
    """A random scene of the given kind, an index of ``SCENE_NAMES``."""
    return _BUILDERS[kind](rng)


def _room(rng: np.random.Generator) -> Scene:
    width, depth, height = rng.uniform(2.8, 8), rng.uniform(2.8, 8), rng.uniform(2.2, 3.6)
    site = _enclosed(rng, width, depth, height, aim=0.45)
    furnish(site, int(rng.integers(4, 10)), size=1.0, farthest=7)
    return _indoors(site)


def _corridor(rng: np.random.Generator) -> Scene:
    width, length, height = rng.uniform(1.6, 3.0), rng.uniform(8, 26), rng.uniform(2.2, 3.4)
    site = _enclosed(rng, length, width, height, aim=0.12, along=True)
    furnish(site, int(rng.integers(3, 8)), size=0.75, farthest=12)
    return _indoors(site)


def _pillared_hall(rng: np.random.Generator) -> Scene:
    width, depth, height = rng.uniform(9, 18), rng.uniform(9, 18), rng.uniform(3, 6)
    site = _enclosed(rng, width, depth, height, aim=0.6)
    material = random_material(rng, WALL_PATTERNS, 0.7, WALLS)
    radius, gap = rng.uniform(0.15, 0.45), rng.uniform(2.2, 4.2)
    kind: Kind = "cylinder" if rng.random() < 0.7 else "box"
    half = np.array([radius, radius, height / 2])
    for x in np.arange(site.shell.low[0] + gap * 0.7, site.shell.high[0] - radius, gap):
        for y in np.arange(site.shell.low[1] + gap * 0.7, site.shell.high[1] - radius, gap):
            if len(site.solids) < 24 and site.is_free(x, y, radius * 1.45):
                center = np.array([x, y, height / 2])
                add_solid(site, kind, center, half, material=material)
                site.taken.append((x, y, radius * 1.45))
    furnish(site, int(rng.integers(2, 7)), size=1.2, farthest=10)
    return _indoors(site)


def _street(rng: np.random.Generator) -> Scene:
    site = _open(rng, tilt=0.35)
    for side in (-1, 1):
        front = side * rng.uniform(2.5, 7)
        along = rng.uniform(-12, -4)
        while along < 32:
            length, deep, tall = rng.uniform(5, 11), rng.uniform(4, 8), rng.uniform(3, 12)
            inset = front + side * rng.uniform(0, 1.2)
            center = np.array([along + length / 2, inset + side * deep / 2, tall / 2])
            half = np.array([length, deep, tall]) / 2
            add_building(site, center, half)
            along += length + (rng.uniform(0, 4) if rng.random() < 0.4 else 0.0)
    for x, y in zip(
        rng.uniform(2, 22, 3), rng.choice([-1, 1], 3) * rng.uniform(1.5, 3, 3), strict=True
    ):
        if rng.random() < 0.5:
            add_tree(site, float(x), float(y), size=0.8)
    furnish(site, int(rng.integers(3, 8)), size=1.5, farthest=15)
    return _outdoors(site, _GROUND_PATTERNS[2:])


def _court(rng: np.random.Generator) -> Scene:
    width, depth, height = rng.uniform(6, 18), rng.uniform(6, 18), rng.uniform(1.6, 4.5)
    site = _enclosed(rng, width, depth, height, aim=0.6, roof=False)
    for _ in range(int(rng.integers(0, 4))):
        bearing, far = site.yaw + rng.uniform(-0.8, 0.8), rng.uniform(14, 30)
        half = np.array([rng.uniform(2, 5), rng.uniform(2, 5), rng.uniform(3, 7)])
        add_building(site, np.array([far * np.cos(bearing), far * np.sin(bearing), half[2]]), half)
    for _ in range(int(rng.integers(0, 3))):
        place = site.find_place(0.8, 2.5, 12)
        if place:
            add_tree(site, *place, size=0.7)
    furnish(site, int(rng.integers(3, 9)), size=1.3, farthest=12)
    return _outdoors(site, _GROUND_PATTERNS)


def _park(rng: np.random.Generator) -> Scene:
    site = _open(rng, tilt=np.pi)
    for _ in range(int(rng.integers(3, 12))):
        place = site.find_place(0.9, 2.5, 28)
        if place:
            add_tree(site, *place, size=float(rng.uniform(0.6, 1.5)))
    if rng.random() < 0.4:
        bearing, far = site.yaw + rng.uniform(-0.5, 0.5), rng.uniform(15, 26)
        half = np.array([rng.uniform(2, 5), rng.uniform(2, 6), rng.uniform(1.5, 4)])
        add_building(site, np.array([far * np.cos(bearing), far * np.sin(bearing), half[2]]), half)
    furnish(site, int(rng.integers(3, 9)), size=1.5, farthest=16)
    return _outdoors(site, _GROUND_PATTERNS)


_BUILDERS: dict[int, Callable[[np.random.Generator], Scene]] = dict(
    enumerate((_room, _corridor, _pillared_hall, _street, _court, _park))
)
SCENE_NAMES = ("room", "corridor", "pillared hall", "street", "courtyard", "park")


# --- where the camera stands -------------------------------------------------------------------


def _camera(rng: np.random.Generator, yaw: float, low: float, high: float) -> Camera:
    return Camera.looking(
        height=rng.uniform(low, high),
        yaw=yaw,
        pitch=float(np.clip(rng.normal(-0.13, 0.12), -0.6, 0.35)),
        roll=rng.normal(0, 0.04),
        fov=np.radians(rng.uniform(58, 68)),
    )


def _enclosed(
    rng: np.random.Generator,
    width: float,
    depth: float,
    height: float,
    *,
    aim: float,
    along: bool = False,
    roof: bool = True,
) -> Site:
    """A box round a camera that looks roughly across it; ``aim`` is how far it may turn aside."""
    size = np.array([width, depth])
    if along:
        stand = np.array([rng.uniform(0.4, 0.6 * width), depth * rng.uniform(0.25, 0.75)])
    else:
        # Anywhere, more often in the half behind: the far corners are then in view.
        stand = size * rng.beta(1.4, 2.2, 2)
        stand = np.clip(stand, 0.35, size - 0.35)
    target = size * (np.array([1.0, 0.5]) if along else rng.uniform(0.45, 1.0, 2))
    yaw = float(np.arctan2(*(target - stand)[::-1])) + rng.normal(0, aim)
    low, high = np.append(-stand, 0.0), np.append(size - stand, height)
    shell = Shell(low.astype(np.float32), high.astype(np.float32), roof)
    camera = _camera(rng, yaw, 0.7, min(2.1, height - 0.3))
    return Site(rng, camera, yaw, shell)


def _open(rng: np.random.Generator, tilt: float) -> Site:
    yaw = float(rng.uniform(-tilt, tilt))
    endless = np.full(3, np.inf, np.float32)
    shell = Shell(np.array([-np.inf, -np.inf, 0], np.float32), endless, False)
    return Site(rng, _camera(rng, yaw, 0.9, 3.0), yaw, shell)


# --- light and the surroundings -----------------------------------------------------------------


def _finish(
    site: Site,
    light: Light,
    sky: Sky,
    faces: tuple[Material, ...],
    windows: Windows | None = None,
    walls: tuple[int, ...] = (),
) -> Scene:
    rng = site.rng
    return Scene(
        camera=site.camera,
        shell=site.shell,
        solids=tuple(site.solids),
        faces=faces,
        light=light,
        sky=sky,
        windows=windows,
        walls_with_windows=walls,
        exposure=float(rng.uniform(0.85, 1.4)),
        noise=float(rng.uniform(0.004, 0.02)),
        blur=float(rng.uniform(0.35, 0.75)),
    )


def _faces(rng: np.random.Generator, floor: Material) -> tuple[Material, ...]:
    wall = random_material(rng, WALL_PATTERNS, 0.7, WALLS)
    accent = random_material(rng, WALL_PATTERNS, 0.7, WALLS) if rng.random() < 0.4 else wall
    ceiling = random_material(rng, ("plain", "plain", "tiles", "planks"), 0.8, CEILINGS)
    return (wall, accent, wall, wall, floor, ceiling)


def _indoors(site: Site) -> Scene:
    rng, low, high = site.rng, site.shell.low, site.shell.high
    place = low + (high - low) * rng.uniform(0.2, 0.8, 3)
    place[2] = high[2] * rng.uniform(0.75, 0.97)
    warm = linear_rgb(0.09 if rng.random() < 0.75 else 0.58, rng.uniform(0, 0.25), 1.0)
    ambient = warm * rng.uniform(0.25, 0.6)
    light = Light(
        position=place.astype(np.float32),
        color=warm * np.float32(rng.uniform(0.55, 1.1)),
        reach=float(rng.uniform(2.5, 5)),
        above=ambient,
        below=ambient * np.float32(rng.uniform(0.6, 1.0)),
    )
    black = np.zeros(3, np.float32)
    windows: Windows | None = None
    walls: tuple[int, ...] = ()
    if rng.random() < 0.55:
        windows = random_windows(rng, rows=1, glow=1.3)
        walls = tuple(int(w) for w in rng.choice(4, int(rng.integers(1, 3)), replace=False))
    floor = turned(rng, random_material(rng, _FLOOR_PATTERNS, 0.7, FLOORS, gloss=0.2))
    sky = Sky(black, black, black, 0.0, 0.0)
    return _finish(site, light, sky, _faces(rng, floor), windows, walls)


def _outdoors(site: Site, patterns: tuple[str, ...]) -> Scene:
    rng = site.rng
    overcast = rng.beta(0.7, 1.5)
    bearing, rise = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1.2)
    aim = np.array([np.cos(rise) * np.cos(bearing), np.cos(rise) * np.sin(bearing), np.sin(rise)])
    sun = linear_rgb(0.09, rng.uniform(0.05, 0.45) * (1.3 - rise), 1.0)
    hue = rng.uniform(0.54, 0.64)
    blue = rng.uniform(0.3, 0.85) * (1 - 0.8 * overcast)
    zenith = linear_rgb(hue, blue, rng.uniform(0.6, 0.9))
    horizon = linear_rgb(hue if rng.random() < 0.75 else 0.08, 0.3 * blue + 0.05, 0.95)
    light = Light(
        position=(aim * 150).astype(np.float32),
        color=sun * np.float32(2.0 * (1.1 - overcast)),
        reach=float("inf"),
        above=(0.35 * zenith + 0.25 * horizon + 0.25 * overcast).astype(np.float32),
        below=horizon * np.float32(0.3),
    )
    gray = np.float32(rng.uniform(0.55, 1.0))
    sky = Sky(horizon, zenith, horizon * gray, overcast, float(rng.uniform(0.008, 0.03)))
    ground = turned(rng, random_material(rng, patterns, 1.0, FLOORS))
    if ground.pattern == "grass" and rng.random() < 0.95:
        colors = random_shades(rng, rng.uniform(0.2, 0.33), rng.uniform(0.3, 0.7), 0.7)
        ground = Material("grass", colors, 1.0, 0.0, ground.turn)
    windows: Windows | None = None
    walls: tuple[int, ...] = ()
    if np.isfinite(site.shell.high[2]) and site.shell.high[2] > 2.6 and rng.random() < 0.4:
        windows, walls = random_windows(rng, rows=1, glow=0.1), (0, 2)
    return _finish(site, light, sky, _faces(rng, ground), windows, walls)
