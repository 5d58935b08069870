"""``data=scenes``: procedural rooms, halls, streets and parks, rendered on demand.

Every image is a function of (seed, split, index). Neither colour nor position alone gives a label.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dpt.data.base import Dataset
from dpt.data.scenes.random_scenes import LAYOUTS
from dpt.data.scenes.rendering import THINGS, render
from dpt.files import MAX_PIXELS
from dpt.geometry import Camera
from dpt.plugins import register
from dpt.types.samples import DatasetInfo, Sample

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
        things=tuple(k in THINGS for k in range(len(CLASSES))),
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
            fault = f"data.fov={self.fov}, data.size={self.size}"
            raise ValueError(f"{fault}: must be within 5 to 150 degrees, and at least 16 pixels")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(f"scenes: index {index} is not in 0..{self.length - 1}")
        image_seed = (self.seed, SPLITS[self.split], int(index))
        rng = np.random.default_rng(image_seed)
        class_id = int(rng.integers(len(LAYOUTS)))
        scene = LAYOUTS[self.class_id_names[class_id]](rng)
        camera = Camera.from_focal(scene.camera.focal * self.size[1], self.size)
        if self.fov is not None:
            fov = np.random.default_rng((*image_seed, 1)).uniform(*self.fov)
            camera = Camera.from_fov(fov, self.size)
            lens = replace(scene.camera, focal=camera.focal / self.size[1])
            scene = replace(scene, camera=lens)
        image, depth, labels, objects, normals = render(scene, self.size, rng)
        valid = depth <= MAX_DEPTH
        height, width = self.size[0] // 3, self.size[1] // 3
        return Sample(
            image=image,
            depth=np.where(valid, depth, np.float32(0)),
            valid=valid,
            normals=normals,
            labels=labels,
            objects=objects,
            class_id=class_id,
            value=min(float(depth[height:-height, width:-width].min()), MAX_DEPTH),
            caption=caption_of(self.class_id_names[class_id], labels, objects),
            K=camera.K,
            index=int(index),
            name=self.name(index),
        )

    def name(self, index: int) -> str:
        return f"scenes/{self.split}/{index:06d}"


def caption_of(kind: str, labels: np.ndarray, objects: np.ndarray) -> str:
    """Returns the kind of scene and its objects of at least 16 pixels, as "a park with balls".

    Sides and colours are left out, as augmentation mirrors and tints images.

    Args:
        labels, objects: (H, W), of one scene.
    """
    seen = []
    for class_id in THINGS:
        pixels = np.bincount(objects[labels == class_id])[1:]
        count = np.count_nonzero(pixels >= MIN_PIXELS)
        name = tuple(CLASSES)[class_id]
        if count:
            plural = f"{name}es" if name == "box" else f"{name}s"
            seen.append(f"a {name}" if count == 1 else plural)
    listed = " and ".join([", ".join(seen[:-1]), seen[-1]] if len(seen) > 1 else seen)
    return f"a {kind} with {listed}" if seen else f"a {kind}"
