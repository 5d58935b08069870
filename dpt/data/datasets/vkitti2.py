"""Virtual KITTI 2 (Cabon et al. 2020): five rendered drives in ten variations, with classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, data_root
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.datasets.splits import DEFAULT_FRACTIONS, share_out_sequences
from dpt.data.formats.labels import LabelRule
from dpt.data.formats.metres import DepthRule

SKY = 65535
"""What depth files hold where nothing is: 655.35 m."""

CLASSES = {
    "Terrain": (210, 0, 200), "Sky": (90, 200, 255), "Tree": (0, 199, 0),
    "Vegetation": (90, 240, 0), "Building": (140, 140, 140), "Road": (100, 60, 100),
    "GuardRail": (250, 100, 255), "TrafficSign": (255, 255, 0), "TrafficLight": (200, 200, 0),
    "Pole": (255, 130, 0), "Misc": (80, 80, 80), "Truck": (160, 60, 60), "Car": (255, 127, 80),
    "Van": (0, 139, 139),
}  # fmt: skip
"""Their colours in the class files, as the data set's page lists them and ``colors.txt`` of every
scene repeats; black is undefined."""
_UNDEFINED = (0, 0, 0)
_MASKS = "classSegmentation"


class VirtualKitti2Dataset(PairedDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth,classSegmentation}/Camera_N/`` as the archives unpack.

    Args:
        root: the folder of the scenes.
        split: ``train``, ``val``, ...
        scenes: the scenes of each split. Where a split names none, those that no split names are
            dealt out whole by ``fractions``.
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
        labels: also read the 14 classes. None: if their archive was unpacked.
        max_depth: largest depth that counts as valid, in metres.
        min_depth: smallest depth that counts as valid, in metres.
        fractions: each split's share of the scenes.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        scenes: Mapping[str, Sequence[str] | None] | None = None,
        variations: Sequence[str] | None = None,
        cameras: Sequence[str] = ("Camera_0",),
        labels: bool | None = None,
        max_depth: float = 80.0,
        min_depth: float = 1e-3,
        fractions: Mapping[str, float] | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        names = share_out_sequences(
            sorted(path.name for path in self.root.glob("Scene*") if path.is_dir()),
            split=split,
            chosen=scenes or {},
            fractions=fractions or DEFAULT_FRACTIONS,
            root=self.root,
            option="data.scenes",
        )
        self.remedies = {"labels": f"unpack the {_MASKS} archive into {self.root}"}
        if labels is None:
            labels = any(self.root.glob(f"{names[0]}/*/frames/{_MASKS}"))
        files: list[Files] = []
        for name in names:
            found = sorted(path.parent.name for path in self.root.glob(f"{name}/*/frames"))
            absent = sorted(set(variations or ()) - set(found))
            if absent:
                raise DataError(
                    f"{self.root / name} holds no {', '.join(absent)}, but {', '.join(found)}: "
                    "check data.variations"
                )
            for variation in found if variations is None else variations:
                for camera in cameras:
                    files += _frames(self.root / name / variation / "frames", camera, labels)
        check_files(files, source=self.root, remedy=_remedy(labels))
        rule = DepthRule(scale=0.01, invalid=(0, SKY), min_depth=min_depth, max_depth=max_depth)
        super().__init__(
            files,
            split=split,
            depth=rule,
            labels=_class_rule() if labels else None,
            cache=cache,
            cache_size=cache_size,
        )


def _frames(folder: Path, camera: str, with_labels: bool) -> list[Files]:
    files = []
    for photo in sorted((folder / "rgb" / camera).glob("rgb_*.jpg")):
        number = photo.stem.removeprefix("rgb_")
        mask = folder / _MASKS / camera / f"classgt_{number}.png" if with_labels else None
        files.append(Files(photo, mask, folder / "depth" / camera / f"depth_{number}.png"))
    return files


def _class_rule() -> LabelRule:
    colors = [*CLASSES.values(), _UNDEFINED]
    return LabelRule(class_names=tuple(CLASSES), colors=colors, ignore_index=len(CLASSES))


def _remedy(with_labels: bool) -> str:
    if with_labels:
        return f"unpack the rgb, the depth and the {_MASKS} archive, or set data.labels=false"
    return "unpack both the rgb and the depth archive"
