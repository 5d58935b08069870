"""Virtual KITTI 2 (Cabon et al. 2020): five rendered drives in ten variations, with classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing, share_out_sequences
from dpt.data.errors import DataError
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelRule

_MASKS = "classSegmentation"


@dataclass(kw_only=True, eq=False)
class VirtualKitti2Dataset(FileDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth,classSegmentation}/Camera_N/`` as in the archives.

    Args:
        scenes: the scenes of each split. A split without any gets its share, by ``fractions``, of
            the scenes that no split names.
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
        labels: also read the 14 classes. None: if their archive was unpacked.
        fractions: each split's share of the scenes.
        class_names, label_colors: the 14 classes, and their colours and that of undefined pixels.
    """

    scenes: Mapping[str, Sequence[str] | None] | None = None
    variations: Sequence[str] | None = None
    cameras: Sequence[str] = ("Camera_0",)
    labels: bool | None = None
    max_depth: float | None = 80.0
    fractions: Mapping[str, float] | None = None
    class_names: Sequence[str] = ()
    label_colors: Sequence[Sequence[int]] = ()

    depth_format = DepthRule(scale=0.01, invalid=(0, 65535))  # the sky is stored as 655.35 m

    def make_label_rule(self) -> LabelRule | None:
        self.remedies = {"labels": f"unpack the {_MASKS} archive into {self.folder}"}
        if self.labels is None:
            self.labels = any(self.folder.glob(f"Scene*/*/frames/{_MASKS}"))
        if not self.labels:
            return None
        return LabelRule(
            class_names=self.class_names,
            colors=self.label_colors,
            ignore_index=len(self.class_names),
        )

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
        masks = f" and {_MASKS} archives, or set data.labels=false" if self.labels else " archives"
        return existing(files, source=self.folder, remedy=f"unpack the rgb, depth{masks}")

    def _frames(self, drive: str, camera: str) -> list[Files]:
        frames = self.folder / drive / "frames"
        files = []
        for photo in sorted((frames / "rgb" / camera).glob("rgb_*.jpg")):
            number = photo.stem.removeprefix("rgb_")
            mask = frames / _MASKS / camera / f"classgt_{number}.png" if self.labels else None
            files.append(Files(photo, mask, frames / "depth" / camera / f"depth_{number}.png"))
        return files
