"""The data set that needs no files: rooms, halls, streets and parks, drawn as they are asked for.

Every image is a pure function of (seed, split, index), with exact depth and labels. It is there to
try, test and time training with: small enough for a CPU, hard enough that a model must look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from dpt.data.base import Dataset
from dpt.data.scenes import layouts as scene_layouts
from dpt.data.scenes import shading as scene_shading
from dpt.data.scenes.layouts import SCENE_NAMES
from dpt.types import DatasetInfo, Sample, Target

CLASS_NAMES = (
    "ground",
    "wall",
    "ceiling",
    "sky",
    "box",
    "ball",
    "cylinder",
    "cone",
    "tree",
    "window",
)
PALETTE = (
    (128, 100, 80),
    (190, 178, 160),
    (235, 230, 215),
    (110, 175, 235),
    (225, 85, 60),
    (245, 190, 50),
    (70, 115, 200),
    (165, 80, 180),
    (65, 150, 75),
    (60, 205, 205),
)
SPLITS = {"train": 0, "val": 1, "test": 2}
MAX_DEPTH = 20.0


class ScenesDataset(Dataset):
    """Rendered scenes with depth, labels, a scene kind and a free distance.

    ``depth`` is exact z-depth in metres at the pixel centres, invalid in the sky and beyond 20 m.
    ``labels`` are ids of ``info.class_names``. ``class_id`` is the kind of scene, an index of
    ``class_id_names``. ``value`` is the free distance ahead: the smallest depth in the middle third
    of the image (both ways), 20 if all of that is farther.

    Args:
        split: ``train``, ``val`` or ``test``; they never share an image.
        length: number of images.
        size: (H, W) of the images in pixels.
        seed: another seed gives another set.
        targets: what the samples carry, of ``depth``, ``labels``, ``class_id`` and ``value``.
    """

    class_id_names = SCENE_NAMES
    reads_files = False

    def __init__(
        self,
        *,
        split: str = "train",
        length: int = 2000,
        size: Sequence[int] = (96, 128),
        seed: int = 0,
        targets: Sequence[Target] = ("depth", "labels", "class_id", "value"),
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"scenes: unknown split {split!r}; there are {', '.join(SPLITS)}")
        sides = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else ()
        if len(sides) != 2 or not all(isinstance(n, int) and n >= 16 for n in sides):
            raise ValueError(f"scenes: size must be [H, W] with both at least 16, got {size!r}")
        if length < 1:
            raise ValueError(f"scenes: length must be at least 1, got {length!r}")
        if seed < 0:
            raise ValueError(f"scenes: seed must not be negative, got {seed!r}")
        unknown = [t for t in targets if t not in get_args(Target)]
        if unknown or not targets:
            allowed = ", ".join(get_args(Target))
            raise ValueError(f"scenes: targets must be some of {allowed}; got {list(targets)!r}")
        self.split = split
        self.length = length
        self.size = (int(size[0]), int(size[1]))
        self.seed = seed
        self.info = DatasetInfo(
            targets=tuple(targets),
            class_names=CLASS_NAMES,
            palette=PALETTE,
            max_depth=MAX_DEPTH,
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < self.length:
            raise IndexError(f"scenes: index {index} is not in 0..{self.length - 1}")
        rng = np.random.default_rng((self.seed, SPLITS[self.split], int(index)))
        class_id = int(rng.integers(len(SCENE_NAMES)))
        scene = scene_layouts.build_scene(class_id, rng)
        image, depth, labels = scene_shading.render(scene, self.size, rng)
        valid = depth <= MAX_DEPTH

        sample = Sample(image=image, index=int(index), name=f"scenes/{self.split}/{index:06d}")
        if "depth" in self.info.targets:
            sample["depth"] = np.where(valid, depth, np.float32(0))
            sample["valid"] = valid
        if "labels" in self.info.targets:
            sample["labels"] = labels
        if "class_id" in self.info.targets:
            sample["class_id"] = class_id
        if "value" in self.info.targets:
            sample["value"] = _free_distance(depth)
        return sample


def _free_distance(depth: np.ndarray) -> float:
    height, width = depth.shape
    ahead = depth[height // 3 : height - height // 3, width // 3 : width - width // 3]
    return min(float(ahead.min()), MAX_DEPTH)
