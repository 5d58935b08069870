"""What scenes are furnished with: solids, trees and buildings, their places, colours and patterns.

Colours hint at what a surface is, as they do in the world (pale walls, white ceilings, bright
things), and never decide it: shapes and places must be looked at too.
"""

from __future__ import annotations

from colorsys import hsv_to_rgb
from dataclasses import dataclass, field

import numpy as np

from dpt.data.scenes import shading as look
from dpt.data.scenes.raycast import Camera, Kind, Shell, Solid
from dpt.data.scenes.textures import Material, Windows

_KINDS: tuple[Kind, ...] = ("box", "ball", "cylinder", "cone")
_LABELS = {"box": look.BOX, "ball": look.BALL, "cylinder": look.CYLINDER, "cone": look.CONE}
_OBJECT_PATTERNS = ("plain", "plain", "checker", "stripes", "dots", "bricks", "planks", "marble")
WALL_PATTERNS = ("plain", "plain", "bricks", "planks", "stripes", "tiles", "marble")


@dataclass(frozen=True)
class Tone:
    """How surfaces of one sort are coloured.

    Attributes:
        saturation, value: ranges, of 0..1.
        any_hue: chance of any hue at all; otherwise it is that of wood, brick and sand.
    """

    saturation: tuple[float, float]
    value: tuple[float, float]
    any_hue: float


WALLS = Tone((0.0, 0.35), (0.65, 0.97), 0.4)
CEILINGS = Tone((0.0, 0.1), (0.85, 0.98), 0.5)
FLOORS = Tone((0.1, 0.55), (0.35, 0.7), 0.15)
OBJECTS = Tone((0.45, 0.95), (0.5, 0.97), 1.0)


@dataclass
class Site:
    """A scene under construction: the camera stands above (0, 0)."""

    rng: np.random.Generator
    camera: Camera
    yaw: float
    shell: Shell
    solids: list[Solid] = field(default_factory=list)
    taken: list[tuple[float, float, float]] = field(default_factory=list)  # x, y, radius

    def is_free(self, x: float, y: float, radius: float) -> bool:
        low, high = self.shell.low, self.shell.high
        if not (low[0] < x - radius and x + radius < high[0]):
            return False
        if not (low[1] < y - radius and y + radius < high[1]):
            return False
        if x * x + y * y < (radius + 0.55) ** 2:  # room for the camera
            return False
        return all((x - a) ** 2 + (y - b) ** 2 > (radius + r) ** 2 for a, b, r in self.taken)

    def find_place(
        self, radius: float, nearest: float, farthest: float
    ) -> tuple[float, float] | None:
        """A free place in view, on average as likely near as far; None after a few tries."""
        half_view = np.arctan(0.5 / self.camera.focal)
        for _ in range(8):
            distance = nearest * (farthest / nearest) ** self.rng.random()
            bearing = self.yaw + self.rng.uniform(-1.0, 1.0) * half_view
            x, y = distance * np.cos(bearing), distance * np.sin(bearing)
            if self.is_free(x, y, radius):
                return float(x), float(y)
        return None


def furnish(site: Site, count: int, *, size: float, farthest: float) -> None:
    rng = site.rng
    for _ in range(count):
        kind = _KINDS[max(0, int(rng.integers(-1, 4)))]  # boxes twice as often
        half = _half_size(rng, kind) * size
        radius = float(np.hypot(half[0], half[1])) if kind == "box" else float(half[:2].max())
        lying = kind == "cylinder" and rng.random() < 0.3
        if lying:
            radius = float(np.hypot(half[0], half[2]))
        if half[2] * 2 > site.shell.high[2] * 0.95:
            continue
        place = site.find_place(radius, 1.1 + radius, farthest)
        if place is None:
            continue
        foot = half[0] if lying else half[2]
        center = np.array([*place, foot])
        turn = rng.uniform(0, 2 * np.pi)
        add_solid(site, kind, center, half, turn=turn, lying=lying)
        site.taken.append((*place, radius))
        if kind == "box" and rng.random() < 0.45 and 2 * half[2] < 1.3 * size:
            _put_on_top(site, center, half)


def _put_on_top(site: Site, below: np.ndarray, half_below: np.ndarray) -> None:
    rng = site.rng
    kind = _KINDS[int(rng.integers(4))]
    room = float(half_below[:2].min()) * 0.75
    half = _half_size(rng, kind)
    half = half * min(1.0, room / float(half[:2].max()))
    if below[2] + half_below[2] + 2 * half[2] < site.shell.high[2]:
        center = below + np.array([0, 0, half_below[2] + half[2]])
        add_solid(site, kind, center, half, turn=rng.uniform(0, 2 * np.pi))


def _half_size(rng: np.random.Generator, kind: Kind) -> np.ndarray:
    if kind == "ball":
        return np.full(3, 0.13 * 3.8 ** rng.random())
    if kind == "box":
        return np.array([*rng.uniform(0.13, 0.6, 2), 0.1 * 8.0 ** rng.random()])
    radius = rng.uniform(0.1, 0.38)
    return np.array([radius, radius, rng.uniform(0.16, 0.75)])


def add_solid(
    site: Site,
    kind: Kind,
    center: np.ndarray,
    half: np.ndarray,
    *,
    label: int | None = None,
    material: Material | None = None,
    windows: Windows | None = None,
    turn: float = 0.0,
    lying: bool = False,
) -> None:
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1.0]])
    if lying:  # its axis, z, goes level
        rotation = rotation @ np.array([[0, 0, 1.0], [0, 1, 0], [-1, 0, 0]])
    site.solids.append(
        Solid(
            kind=kind,
            label=_LABELS[kind] if label is None else label,
            center=center.astype(np.float32),
            half=half.astype(np.float32),
            rotation=rotation.astype(np.float32),
            surface=(
                material or random_material(site.rng, _OBJECT_PATTERNS, 0.45, OBJECTS, gloss=0.35),
                windows,
            ),
        )
    )


def add_tree(site: Site, x: float, y: float, *, size: float) -> None:
    """A trunk and a crown, round or pointed; leaves of any season."""
    rng = site.rng
    radius, trunk = 0.09 * size, rng.uniform(0.7, 1.6) * size
    if not site.is_free(x, y, 0.3) or np.hypot(x, y) < 2.8 * size:
        return
    site.taken.append((x, y, 0.35))
    bark = Material("planks", random_shades(rng, rng.uniform(0.04, 0.12), 0.25, 0.45), 0.3)
    add_solid(
        site,
        "cylinder",
        np.array([x, y, trunk / 2]),
        np.array([radius, radius, trunk / 2]),
        label=look.TREE,
        material=bark,
    )
    hue = rng.uniform(0.2, 0.4) if rng.random() < 0.75 else rng.uniform(0.03, 0.16)
    leaves = Material(
        "grass", random_shades(rng, hue, rng.uniform(0.35, 0.7), 0.75), rng.uniform(0.3, 0.6)
    )
    wide = rng.uniform(0.45, 0.95) * size
    if rng.random() < 0.4:
        tall = rng.uniform(0.8, 1.6) * size
        center, half = np.array([x, y, trunk + tall * 0.7]), np.array([wide * 0.8] * 2 + [tall])
        add_solid(site, "cone", center, half, label=look.TREE, material=leaves)
        return
    for _ in range(int(rng.integers(1, 4))):
        shift = rng.uniform(-0.45, 0.45, 3) * wide
        half = wide * rng.uniform(0.65, 1.0) * np.array([1, 1, rng.uniform(0.75, 1.25)])
        center = np.array([x, y, trunk + half[2] * 0.7]) + shift * np.array([1, 1, 0.5])
        add_solid(site, "ball", center, half, label=look.TREE, material=leaves)


def add_building(site: Site, center: np.ndarray, half: np.ndarray) -> None:
    rng = site.rng
    windows = None
    if rng.random() < 0.85:
        windows = random_windows(rng, rows=max(1, int((2 * half[2] - 1.2) / 2.6)), glow=0.15)
    material = random_material(rng, WALL_PATTERNS, 0.8, WALLS)
    add_solid(site, "box", center, half, label=look.WALL, material=material, windows=windows)


def random_windows(rng: np.random.Generator, *, rows: int, glow: float) -> Windows:
    wide = rng.uniform(0.7, 1.5)
    return Windows(
        period=(wide + rng.uniform(0.5, 1.8), 2.6),
        size=(wide, rng.uniform(0.9, 1.6)),
        sill=rng.uniform(0.6, 1.0),
        rows=rows,
        glass=linear_rgb(0.58 if rng.random() < 0.7 else 0.12, 0.35, rng.uniform(0.2, 0.9)),
        glow=glow * rng.random(),
    )


def linear_rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    """HSV in 0..1 to linear RGB, as the display's gamma of 2 has it."""
    return np.array(
        [channel * channel for channel in hsv_to_rgb(hue % 1.0, saturation, value)], np.float32
    )


def random_shades(
    rng: np.random.Generator, hue: float, saturation: float, value: float
) -> np.ndarray:
    """Two related colours (2, 3), the second one lighter."""
    dark = value * rng.uniform(0.45, 0.8)
    other = hue + rng.normal(0, 0.04)
    return np.stack([linear_rgb(hue, saturation, dark), linear_rgb(other, saturation * 0.8, value)])


def random_material(
    rng: np.random.Generator,
    patterns: tuple[str, ...],
    scale: float,
    tone: Tone,
    gloss: float = 0.0,
) -> Material:
    hue = rng.random() if rng.random() < tone.any_hue else rng.uniform(0.02, 0.14)
    colors = random_shades(rng, hue, rng.uniform(*tone.saturation), rng.uniform(*tone.value))
    pattern = patterns[int(rng.integers(len(patterns)))]
    turn = np.pi / 2 * float(rng.random() < 0.5) if pattern in ("stripes", "planks") else 0.0
    shine = gloss * rng.random() if rng.random() < 0.5 else 0.0
    return Material(pattern, colors, scale * rng.uniform(0.75, 1.4), shine, turn)


def turned(rng: np.random.Generator, material: Material) -> Material:
    turn = float(rng.uniform(0, np.pi))
    return Material(material.pattern, material.colors, material.scale, material.gloss, turn)
