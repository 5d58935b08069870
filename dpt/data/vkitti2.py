"""Virtual KITTI 2 (Cabon et al. 2020): five rendered drives in ten variations, with exact depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, data_root
from dpt.data.metres import DepthRule
from dpt.data.paired import PairedDataset, check_files
from dpt.data.pairing import Files
from dpt.data.splits import DEFAULT_FRACTIONS, share_out_sequences

SKY = 65535
"""What depth files hold where nothing is: 655.35 m."""


class VirtualKitti2Dataset(PairedDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth}/Camera_N/`` as the archives unpack.

    Args:
        root: the folder of the scenes.
        split: ``train``, ``val``, ...
        scenes: the scenes of each split. Where a split names none, those that no split names are
            dealt out whole by ``fractions``.
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
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
                    files += _frames(self.root / name / variation / "frames", camera)
        check_files(files, source=self.root, remedy="unpack both the rgb and the depth archive")
        rule = DepthRule(scale=0.01, invalid=(0, SKY), min_depth=min_depth, max_depth=max_depth)
        super().__init__(files, split=split, depth=rule, cache=cache, cache_size=cache_size)


def _frames(folder: Path, camera: str) -> list[Files]:
    photos = sorted((folder / "rgb" / camera).glob("rgb_*.jpg"))
    maps = folder / "depth" / camera
    return [Files(p, None, maps / f"depth_{p.stem.removeprefix('rgb_')}.png") for p in photos]
