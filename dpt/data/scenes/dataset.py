"""``data=scenes``: procedural rooms, halls, streets and parks, rendered on demand.

Every image is a function of (seed, split, index): layout, objects, camera and light are random.
Neither colour nor position alone gives a label: colours hint at what a surface is (pale walls,
white ceilings, bright objects) without deciding it.
"""

import math
from collections.abc import Callable
from colorsys import hsv_to_rgb
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from pydantic import Field

from dpt import geometry
from dpt.data.base import Dataset
from dpt.data.scenes import rendering
from dpt.data.scenes.rendering import Camera, Kind, Light, Material, Scene, Shell, Sky, Windows
from dpt.files import MAX_PIXELS
from dpt.plugins import register
from dpt.types.samples import DatasetInfo, Sample

_KINDS: tuple[Kind, ...] = ("box", "ball", "cylinder", "cone")  # labels in this order
Size = tuple[float, float, float]


class Look(NamedTuple):
    """How random surfaces of one sort are coloured."""

    saturation: tuple[float, float]  # range, of 0..1
    value: tuple[float, float]  # range, of 0..1
    any_hue: float  # probability of any hue; otherwise that of wood, brick or sand
    patterns: str  # keys of ``PATTERNS``; a pattern named twice is twice as frequent


WALLS = Look((0.0, 0.35), (0.65, 0.97), 0.4, "plain plain bricks planks stripes tiles marble")
CEILINGS = Look((0.0, 0.1), (0.85, 0.98), 0.5, "plain plain tiles planks")
FLOORS = Look((0.1, 0.55), (0.35, 0.7), 0.15, "plain planks planks tiles checker marble grass")
OBJECTS = Look(
    (0.45, 0.95), (0.5, 0.97), 1.0, "plain plain checker stripes dots bricks planks marble"
)
PAVED = FLOORS._replace(patterns="tiles plain marble bricks")
OPEN_GROUND = FLOORS._replace(patterns="grass grass tiles plain marble bricks")


@dataclass
class Site:
    """A scene under construction. The camera stands above (0, 0)."""

    rng: Generator
    camera: Camera
    yaw: float
    shell: Shell
    solids: list[rendering.Solid] = field(default_factory=list)
    surfaces: list[rendering.Surface] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)  # of each solid, from 1
    taken: list[Size] = field(default_factory=lambda: [(0.0, 0.0, 0.55)])
    """Circles (x, y, radius) on the ground; the first one is room for the camera."""

    def is_free(self, x: float, y: float, radius: float) -> bool:
        """Tells whether a circle on the ground lies inside and touches nothing."""
        (left, front, _), (right, back, _) = self.shell.low, self.shell.high
        if not (left < x - radius < x + radius < right and front < y - radius < y + radius < back):
            return False
        return all((x - a) ** 2 + (y - b) ** 2 > (radius + r) ** 2 for a, b, r in self.taken)

    def find_location(
        self, radius: float, nearest: float, farthest: float
    ) -> tuple[float, float] | None:
        """Draws a free location in view, log-uniform in distance; None after a few attempts."""
        half_view = np.arctan(0.5 / self.camera.focal)
        for _ in range(8):
            distance = nearest * (farthest / nearest) ** self.rng.random()
            bearing = self.yaw + self.rng.uniform(-1.0, 1.0) * half_view
            x, y = distance * np.cos(bearing), distance * np.sin(bearing)
            if self.is_free(x, y, radius):
                return float(x), float(y)
        return None

    def add(
        self,
        kind: Kind,
        center: ArrayLike,
        half: ArrayLike,
        *,
        label: int | None = None,
        material: Material | None = None,
        windows: Windows | None = None,
        turn: float = 0.0,
        lying: bool = False,
        joined: bool = False,
    ) -> None:
        """Adds a solid, by default a colourful object of its own class; ``joined`` makes it a part
        of the object before."""
        cos, sin = np.cos(turn), np.sin(turn)
        rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1.0]])
        if lying:  # its z axis becomes horizontal
            rotation = rotation @ np.array([[0, 0, 1.0], [0, 1, 0], [-1, 0, 0]])
        arrays = (np.asarray(array, np.float32) for array in (center, half, rotation))
        self.solids.append(rendering.Solid(kind, *arrays))
        label = rendering.BOX + _KINDS.index(kind) if label is None else label
        material = material or _random_material(self.rng, OBJECTS, 0.45, gloss=0.35)
        self.surfaces.append((label, material, windows))
        self.objects.append(max(self.objects, default=0) + (not joined))


def _room(rng: Generator) -> Scene:
    site = _enclosed(rng, rng.uniform((2.8, 2.8, 2.2), (8, 8, 3.6)), aim=0.45)
    return _indoors(_furnish(site, 4, 10, size=1.0, farthest=7))


def _corridor(rng: Generator) -> Scene:
    width, length, height = rng.uniform((1.6, 8, 2.2), (3.0, 26, 3.4))
    site = _enclosed(rng, np.array([length, width, height]), aim=0.12, along=True)
    return _indoors(_furnish(site, 3, 8, size=0.75, farthest=12))


def _pillared_hall(rng: Generator) -> Scene:
    space = rng.uniform((9, 9, 3), (18, 18, 6))
    site = _enclosed(rng, space, aim=0.6)
    material = _random_material(rng, WALLS, 0.7)
    radius, gap = rng.uniform(0.15, 0.45), rng.uniform(2.2, 4.2)
    kind: Kind = "cylinder" if rng.random() < 0.7 else "box"
    half = [radius, radius, space[2] / 2]
    for x in np.arange(site.shell.low[0] + gap * 0.7, site.shell.high[0] - radius, gap):
        for y in np.arange(site.shell.low[1] + gap * 0.7, site.shell.high[1] - radius, gap):
            if len(site.solids) < 24 and site.is_free(x, y, radius * 1.45):
                site.add(kind, [x, y, half[2]], half, material=material)
                site.taken.append((x, y, radius * 1.45))
    return _indoors(_furnish(site, 2, 7, size=1.2, farthest=10))


def _street(rng: Generator) -> Scene:
    site = _open(rng, tilt=0.35)
    for side in (-1, 1):
        front = side * rng.uniform(2.5, 7)
        along = rng.uniform(-12, -4)
        while along < 32:
            half = rng.uniform((5, 4, 3), (11, 8, 12)) / 2
            inset = front + side * rng.uniform(0, 1.2)
            _add_building(site, along + half[0], inset + side * half[1], half)
            along += 2 * half[0] + (rng.uniform(0, 4) if rng.random() < 0.4 else 0.0)
    trees = rng.uniform(2, 22, 3), rng.choice([-1, 1], 3) * rng.uniform(1.5, 3, 3)
    for x, y in zip(*trees, strict=True):
        if rng.random() < 0.5:
            _add_tree(site, float(x), float(y), size=0.8)
    return _outdoors(_furnish(site, 3, 8, size=1.5, farthest=15), PAVED)


def _court(rng: Generator) -> Scene:
    site = _enclosed(rng, rng.uniform((6, 6, 1.6), (18, 18, 4.5)), aim=0.6, roof=False)
    for _ in range(int(rng.integers(0, 4))):
        _add_distant_building(site, 0.8, (14, 30), (2, 2, 3), (5, 5, 7))
    for _ in range(int(rng.integers(0, 3))):
        if location := site.find_location(0.8, 2.5, 12):
            _add_tree(site, *location, size=0.7)
    return _outdoors(_furnish(site, 3, 9, size=1.3, farthest=12), OPEN_GROUND)


def _park(rng: Generator) -> Scene:
    site = _open(rng, tilt=np.pi)
    for _ in range(int(rng.integers(3, 12))):
        if location := site.find_location(0.9, 2.5, 28):
            _add_tree(site, *location, size=rng.uniform(0.6, 1.5))
    if rng.random() < 0.4:
        _add_distant_building(site, 0.5, (15, 26), (2, 2, 1.5), (5, 6, 4))
    return _outdoors(_furnish(site, 3, 9, size=1.5, farthest=16), OPEN_GROUND)


LAYOUTS: dict[str, Callable[[Generator], Scene]] = {
    "room": _room,
    "corridor": _corridor,
    "pillared hall": _pillared_hall,
    "street": _street,
    "courtyard": _court,
    "park": _park,
}
"""A function for each kind of scene, in the order of their ids, that draws a random one."""


def _add_distant_building(
    site: Site, spread: float, distance: tuple[float, float], low: Size, high: Size
) -> None:
    """Adds a building in view, ``spread`` radians around the axis, of a half size in low..high."""
    bearing, far = site.yaw + site.rng.uniform(-spread, spread), site.rng.uniform(*distance)
    half = site.rng.uniform(low, high)
    _add_building(site, far * np.cos(bearing), far * np.sin(bearing), half)


# --- the camera and the space around it ---------------------------------------------------------


def _camera(rng: Generator, yaw: float, low: float, high: float) -> Camera:
    return Camera.looking(
        height=rng.uniform(low, high),
        yaw=yaw,
        pitch=float(np.clip(rng.normal(-0.13, 0.12), -0.6, 0.35)),
        roll=rng.normal(0, 0.04),
        fov=np.radians(rng.uniform(58, 68)),
    )


def _enclosed(
    rng: Generator, space: np.ndarray, *, aim: float, along: bool = False, roof: bool = True
) -> Site:
    """Returns a room of size ``space`` (3,), across which the camera looks.

    Args:
        aim: standard deviation of the camera's yaw, in radians.
        along: look along the first axis, from one end to the other.
    """
    size, height = space[:2], space[2]
    if along:
        stand = np.array([rng.uniform(0.4, 0.6 * size[0]), size[1] * rng.uniform(0.25, 0.75)])
        target = size * np.array([1.0, 0.5])
    else:  # more often in the half behind, so that the far corners are in view
        stand = np.clip(size * rng.beta(1.4, 2.2, 2), 0.35, size - 0.35)
        target = size * rng.uniform(0.45, 1.0, 2)
    yaw = np.arctan2(*(target - stand)[::-1]) + rng.normal(0, aim)
    low, high = np.append(-stand, 0.0), np.append(size - stand, height)
    shell = Shell(low.astype(np.float32), high.astype(np.float32), roof)
    return Site(rng, _camera(rng, yaw, 0.7, min(2.1, height - 0.3)), yaw, shell)


def _open(rng: Generator, tilt: float) -> Site:
    yaw = rng.uniform(-tilt, tilt)
    low, high = np.array([-np.inf, -np.inf, 0], np.float32), np.full(3, np.inf, np.float32)
    return Site(rng, _camera(rng, yaw, 0.9, 3.0), yaw, Shell(low, high, False))


# --- light and surroundings ---------------------------------------------------------------------


def _indoors(site: Site) -> Scene:
    rng, low, high = site.rng, site.shell.low, site.shell.high
    position = low + (high - low) * rng.uniform(0.2, 0.8, 3)
    position[2] = high[2] * rng.uniform(0.75, 0.97)
    warm = _linear_rgb(0.09 if rng.random() < 0.75 else 0.58, rng.uniform(0, 0.25), 1.0)
    ambient = warm * rng.uniform(0.25, 0.6)
    light = Light(
        position=position.astype(np.float32),
        color=warm * np.float32(rng.uniform(0.55, 1.1)),
        reach=rng.uniform(2.5, 5),
        above=ambient,
        below=ambient * np.float32(rng.uniform(0.6, 1.0)),
    )
    walls: dict[int, Windows] = {}
    if rng.random() < 0.55:
        windows = _random_windows(rng, rows=1, glow=1.3)
        walls = dict.fromkeys(rng.choice(4, rng.integers(1, 3), replace=False).tolist(), windows)
    floor = replace(_random_material(rng, FLOORS, 0.7, gloss=0.2), turn=rng.uniform(0, np.pi))
    return _finish(site, floor, walls, light, None)


def _outdoors(site: Site, ground_look: Look) -> Scene:
    rng, height = site.rng, site.shell.high[2]
    overcast = rng.beta(0.7, 1.5)
    bearing, rise = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1.2)
    aim = np.array([np.cos(rise) * np.cos(bearing), np.cos(rise) * np.sin(bearing), np.sin(rise)])
    sun = _linear_rgb(0.09, rng.uniform(0.05, 0.45) * (1.3 - rise), 1.0)
    hue = rng.uniform(0.54, 0.64)
    blue = rng.uniform(0.3, 0.85) * (1 - 0.8 * overcast)
    zenith = _linear_rgb(hue, blue, rng.uniform(0.6, 0.9))
    horizon = _linear_rgb(hue if rng.random() < 0.75 else 0.08, 0.3 * blue + 0.05, 0.95)
    light = Light(
        position=(aim * 150).astype(np.float32),
        color=sun * np.float32(2.0 * (1.1 - overcast)),
        reach=float("inf"),
        above=(0.35 * zenith + 0.25 * horizon + 0.25 * overcast).astype(np.float32),
        below=horizon * np.float32(0.3),
    )
    gray = np.float32(rng.uniform(0.55, 1.0))
    sky = Sky(horizon, zenith, horizon * gray, overcast, rng.uniform(0.008, 0.03))
    ground = replace(_random_material(rng, ground_look, 1.0), turn=rng.uniform(0, np.pi))
    if ground.pattern == "grass" and rng.random() < 0.95:
        colors = _random_shades(rng, rng.uniform(0.2, 0.33), rng.uniform(0.3, 0.7), 0.7)
        ground = Material("grass", colors, 1.0, 0.0, ground.turn)
    walls = {}
    if np.isfinite(height) and height > 2.6 and rng.random() < 0.4:
        walls = dict.fromkeys((0, 2), _random_windows(rng, rows=1, glow=0.1))
    return _finish(site, ground, walls, light, sky)


def _finish(
    site: Site, floor: Material, walls: dict[int, Windows], light: Light, sky: Sky | None
) -> Scene:
    """Adds the surfaces of the shell, with windows in ``walls``, and the camera's settings."""
    rng = site.rng
    wall = _random_material(rng, WALLS, 0.7)
    accent = _random_material(rng, WALLS, 0.7) if rng.random() < 0.4 else wall
    faces = [(rendering.WALL, face) for face in (wall, accent, wall, wall)]
    faces += [(rendering.GROUND, floor), (rendering.CEILING, _random_material(rng, CEILINGS, 0.8))]
    surfaces = [*site.surfaces, *((*face, walls.get(k)) for k, face in enumerate(faces))]
    looks = rng.uniform((0.85, 0.004, 0.35), (1.4, 0.02, 0.75)).tolist()  # exposure, noise, blur
    return Scene(site.camera, site.shell, site.solids, surfaces, site.objects, light, sky, *looks)


# --- objects and materials ----------------------------------------------------------------------


def _furnish(site: Site, least: int, below: int, *, size: float, farthest: float) -> Site:
    """Adds least..below - 1 objects, some of them on boxes."""
    rng = site.rng
    for _ in range(int(rng.integers(least, below))):
        kind = _KINDS[max(0, int(rng.integers(-1, 4)))]  # boxes twice as often
        half = _half_size(rng, kind) * size
        lying = kind == "cylinder" and rng.random() < 0.3
        radius = float(max(half[:2]))
        if kind == "box" or lying:
            radius = float(np.hypot(half[0], half[2 if lying else 1]))
        if half[2] * 2 > site.shell.high[2] * 0.95:
            continue
        location = site.find_location(radius, 1.1 + radius, farthest)
        if location is None:
            continue
        center = np.array([*location, half[0] if lying else half[2]])
        site.add(kind, center, half, turn=rng.uniform(0, 2 * np.pi), lying=lying)
        site.taken.append((*location, radius))
        if kind == "box" and rng.random() < 0.45 and 2 * half[2] < 1.3 * size:
            kind = _KINDS[int(rng.integers(4))]
            top_half = _half_size(rng, kind)
            top_half *= min(1.0, 0.75 * min(half[:2]) / max(top_half[:2]))
            if center[2] + half[2] + 2 * top_half[2] < site.shell.high[2]:
                center = center + np.array([0, 0, half[2] + top_half[2]])
                site.add(kind, center, top_half, turn=rng.uniform(0, 2 * np.pi))
    return site


def _half_size(rng: Generator, kind: Kind) -> np.ndarray:
    if kind == "ball":
        return np.full(3, 0.13 * 3.8 ** rng.random())
    if kind == "box":
        return np.array([*rng.uniform(0.13, 0.6, 2), 0.1 * 8.0 ** rng.random()])
    radius = rng.uniform(0.1, 0.38)
    return np.array([radius, radius, rng.uniform(0.16, 0.75)])


def _add_tree(site: Site, x: float, y: float, *, size: float) -> None:
    """Adds a trunk and a round or pointed crown, with leaves of any season."""
    rng = site.rng
    radius, trunk = 0.09 * size, rng.uniform(0.7, 1.6) * size
    if not site.is_free(x, y, 0.3) or np.hypot(x, y) < 2.8 * size:
        return
    site.taken.append((x, y, 0.35))
    bark = Material("planks", _random_shades(rng, rng.uniform(0.04, 0.12), 0.25, 0.45), 0.3)
    half = [radius, radius, trunk / 2]
    site.add("cylinder", [x, y, trunk / 2], half, label=rendering.TREE, material=bark)
    hue = rng.uniform(0.2, 0.4) if rng.random() < 0.75 else rng.uniform(0.03, 0.16)
    shades = _random_shades(rng, hue, rng.uniform(0.35, 0.7), 0.75)
    leaves = Material("grass", shades, rng.uniform(0.3, 0.6))
    wide = rng.uniform(0.45, 0.95) * size
    if rng.random() < 0.4:
        tall = rng.uniform(0.8, 1.6) * size
        half = [wide * 0.8, wide * 0.8, tall]
        center = np.array([x, y, trunk + tall * 0.7])
        site.add("cone", center, half, label=rendering.TREE, material=leaves, joined=True)
        return
    for _ in range(int(rng.integers(1, 4))):
        shift = rng.uniform(-0.45, 0.45, 3) * wide
        crown = wide * rng.uniform(0.65, 1.0) * np.array([1, 1, rng.uniform(0.75, 1.25)])
        center = np.array([x, y, trunk + crown[2] * 0.7]) + shift * np.array([1, 1, 0.5])
        site.add("ball", center, crown, label=rendering.TREE, material=leaves, joined=True)


def _add_building(site: Site, x: float, y: float, half: np.ndarray) -> None:
    rng = site.rng
    windows = None
    if rng.random() < 0.85:
        windows = _random_windows(rng, rows=max(1, int((2 * half[2] - 1.2) / 2.6)), glow=0.15)
    material = _random_material(rng, WALLS, 0.8)
    site.add("box", [x, y, half[2]], half, label=rendering.WALL, material=material, windows=windows)


def _random_windows(rng: Generator, *, rows: int, glow: float) -> Windows:
    wide = rng.uniform(0.7, 1.5)
    return Windows(
        period=(wide + rng.uniform(0.5, 1.8), 2.6),
        size=(wide, rng.uniform(0.9, 1.6)),
        sill=rng.uniform(0.6, 1.0),
        rows=rows,
        glass=_linear_rgb(0.58 if rng.random() < 0.7 else 0.12, 0.35, rng.uniform(0.2, 0.9)),
        glow=glow * rng.random(),
    )


def _linear_rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    """Converts HSV in 0..1 to linear RGB, for a display gamma of 2."""
    return np.array([c * c for c in hsv_to_rgb(hue % 1.0, saturation, value)], np.float32)


def _random_shades(rng: Generator, hue: float, saturation: float, value: float) -> np.ndarray:
    """Draws two related colours (2, 3), the second one lighter."""
    dark = value * rng.uniform(0.45, 0.8)
    light_hue = hue + rng.normal(0, 0.04)
    light = _linear_rgb(light_hue, saturation * 0.8, value)
    return np.stack([_linear_rgb(hue, saturation, dark), light])


def _random_material(rng: Generator, look: Look, scale: float, gloss: float = 0.0) -> Material:
    hue = rng.random() if rng.random() < look.any_hue else rng.uniform(0.02, 0.14)
    colors = _random_shades(rng, hue, rng.uniform(*look.saturation), rng.uniform(*look.value))
    patterns = look.patterns.split()
    pattern = patterns[int(rng.integers(len(patterns)))]
    turn = np.pi / 2 * float(rng.random() < 0.5) if pattern in ("stripes", "planks") else 0.0
    shine = gloss * rng.random() if rng.random() < 0.5 else 0.0
    return Material(pattern, colors, scale * rng.uniform(0.75, 1.4), shine, turn)


# --- the data set -----------------------------------------------------------------------------

CLASSES = {
    "ground": (128, 100, 80),
    "wall": (190, 178, 160),
    "ceiling": (235, 230, 215),
    "sky": (110, 175, 235),
    "box": (225, 85, 60),
    "ball": (245, 190, 50),
    "cylinder": (70, 115, 200),
    "cone": (165, 80, 180),
    "tree": (65, 150, 75),
    "window": (60, 205, 205),
}
"""Class names in the order of their ids, and their colours."""
SPLITS = {"train": 0, "val": 1, "test": 2}
MAX_DEPTH = 20.0
MIN_PIXELS = 16
"""Pixels of the smallest object that a caption names."""


@register("scenes")
@dataclass(kw_only=True, eq=False)
class ScenesDataset(Dataset):
    """Rendered scenes. ``depth`` is exact at the pixel centres, invalid in the sky and beyond 20 m;
    ``normals`` are exact, unknown in the sky alone.

    ``class_id`` is the kind of scene; ``value`` is the smallest depth in the middle third of the
    image (in both directions), at most 20. ``caption`` names the kind and the visible objects.

    Args:
        split: ``train``, ``val`` or ``test``; they share no image.
        size: (H, W) of the images in pixels.
        seed: another seed gives other images.
        fov: range of the horizontal fields of view in degrees; None for 58 to 68. The scenes are
            the same for every range.
    """

    info = DatasetInfo(
        targets=("depth", "normals", "labels", "objects", "class_id", "value", "caption", "K"),
        class_names=tuple(CLASSES),
        palette=tuple(CLASSES.values()),
        max_depth=MAX_DEPTH,
        things=tuple(k in rendering.THINGS for k in range(len(CLASSES))),
    )
    class_id_names = tuple(LAYOUTS)
    reads_files = False

    split: Literal["train", "val", "test"] = "train"
    length: Annotated[int, Field(ge=1, le=10**8)] = 2000
    size: tuple[int, int] = (96, 128)
    seed: Annotated[int, Field(ge=0)] = 0
    fov: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        low, high = self.fov or (5, 150)
        if not 5 <= low <= high <= 150 or min(self.size) < 16 or math.prod(self.size) > MAX_PIXELS:
            raise ValueError("data.fov must be in 5..150 degrees, data.size at least 16 pixels")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(index)
        image_seed = (self.seed, SPLITS[self.split], int(index))
        rng = np.random.default_rng(image_seed)
        class_id = int(rng.integers(len(LAYOUTS)))
        scene = LAYOUTS[self.class_id_names[class_id]](rng)
        camera = geometry.Camera.from_focal(scene.camera.focal * self.size[1], self.size)
        if self.fov is not None:
            fov = np.random.default_rng((*image_seed, 1)).uniform(*self.fov)
            camera = geometry.Camera.from_fov(fov, self.size)
            lens = replace(scene.camera, focal=camera.focal / self.size[1])
            scene = replace(scene, camera=lens)
        sample = rendering.render(scene, self.size, rng)
        depth, (height, width) = sample["depth"], (self.size[0] // 3, self.size[1] // 3)
        nearest = float(depth[height:-height, width:-width].min())
        sample["valid"] = depth <= MAX_DEPTH
        sample["depth"] = np.where(sample["valid"], depth, np.float32(0))
        sample["class_id"], sample["value"] = class_id, min(nearest, MAX_DEPTH)
        kind = self.class_id_names[class_id]
        sample["caption"] = caption_of(kind, sample["labels"], sample["objects"])
        sample["K"], sample["index"], sample["name"] = camera.K, int(index), self.name(index)
        return sample

    def name(self, index: int) -> str:
        return f"scenes/{self.split}/{index:06d}"


def caption_of(kind: str, labels: np.ndarray, objects: np.ndarray) -> str:
    """Returns the kind of scene and its objects of at least 16 pixels, as "a park with balls".

    Sides and colours are left out, as augmentation mirrors and tints images.

    Args:
        labels, objects: (H, W), of one scene.
    """
    seen = []
    for class_id in rendering.THINGS:
        pixels = np.bincount(objects[labels == class_id])[1:]
        count = np.count_nonzero(pixels >= MIN_PIXELS)
        name = tuple(CLASSES)[class_id]
        if count:
            plural = f"{name}es" if name == "box" else f"{name}s"
            seen.append(f"a {name}" if count == 1 else plural)
    listed = " and ".join([", ".join(seen[:-1]), seen[-1]] if len(seen) > 1 else seen)
    return f"a {kind} with {listed}" if seen else f"a {kind}"
