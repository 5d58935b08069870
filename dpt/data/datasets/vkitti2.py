"""Virtual KITTI 2 (Cabon et al. 2020): five rendered drives in ten variations, with classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing, share_out_sequences
from dpt.data.errors import DataError
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelRule

SKY = 65535
"""The value of the sky in depth files: 655.35 m."""

CLASSES = {
    "Terrain": (210, 0, 200), "Sky": (90, 200, 255), "Tree": (0, 199, 0),
    "Vegetation": (90, 240, 0), "Building": (140, 140, 140), "Road": (100, 60, 100),
    "GuardRail": (250, 100, 255), "TrafficSign": (255, 255, 0), "TrafficLight": (200, 200, 0),
    "Pole": (255, 130, 0), "Misc": (80, 80, 80), "Truck": (160, 60, 60), "Car": (255, 127, 80),
    "Van": (0, 139, 139),
}  # fmt: skip
"""Their colours in the class files, from ``colors.txt`` of every scene; black is undefined."""
_MASKS = "classSegmentation"


@dataclass(kw_only=True, eq=False)
class VirtualKitti2Dataset(FileDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth,classSegmentation}/Camera_N/`` as in the archives.

    Args:
        root, split, cache, cache_size: see :class:`FileDataset`.
        scenes: the scenes of each split. A split without any gets its share, by ``fractions``, of
            the scenes that no split names.
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
        labels: also read the 14 classes. None: if their archive was unpacked.
        min_depth, max_depth: limits of valid depth in metres.
        fractions: each split's share of the scenes.
    """

    scenes: Mapping[str, Sequence[str] | None] | None = None
    variations: Sequence[str] | None = None
    cameras: Sequence[str] = ("Camera_0",)
    labels: bool | None = None
    max_depth: float = 80.0
    min_depth: float = 1e-3
    fractions: Mapping[str, float] | None = None

    def make_depth_rule(self) -> DepthRule:
        return DepthRule(
            scale=0.01, invalid=(0, SKY), min_depth=self.min_depth, max_depth=self.max_depth
        )

    def make_label_rule(self) -> LabelRule | None:
        self.remedies = {"labels": f"unpack the {_MASKS} archive into {self.folder}"}
        if self.labels is None:
            self.labels = any(self.folder.glob(f"Scene*/*/frames/{_MASKS}"))
        colors = [*CLASSES.values(), (0, 0, 0)]
        rule = LabelRule(class_names=tuple(CLASSES), colors=colors, ignore_index=len(CLASSES))
        return rule if self.labels else None

    def list_files(self) -> list[Files]:
        scenes = share_out_sequences(
            sorted(path.name for path in self.folder.glob("Scene*") if path.is_dir()),
            split=self.split,
            chosen=self.scenes,
            fractions=self.fractions,
            source=self.folder,
            option="data.scenes",
        )
        files: list[Files] = []
        for scene in scenes:
            found = sorted(path.parent.name for path in self.folder.glob(f"{scene}/*/frames"))
            absent = sorted(set(self.variations or ()) - set(found))
            if absent:
                raise DataError(
                    f"{self.folder / scene} holds no {', '.join(absent)}, but {', '.join(found)}: "
                    "check data.variations"
                )
            for variation in found if self.variations is None else self.variations:
                for camera in self.cameras:
                    files += self._frames(f"{scene}/{variation}", camera)
        archives = f"depth and {_MASKS} archives" if self.labels else "depth archives"
        hint = ", or set data.labels=false" if self.labels else ""
        return existing(files, source=self.folder, remedy=f"unpack the rgb, {archives}{hint}")

    def _frames(self, drive: str, camera: str) -> list[Files]:
        frames = self.folder / drive / "frames"
        files = []
        for photo in sorted((frames / "rgb" / camera).glob("rgb_*.jpg")):
            number = photo.stem.removeprefix("rgb_")
            mask = frames / _MASKS / camera / f"classgt_{number}.png" if self.labels else None
            files.append(Files(photo, mask, frames / "depth" / camera / f"depth_{number}.png"))
        return files
