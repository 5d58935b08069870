"""TUM RGB-D sequences (Sturm et al. 2012): images and depth maps paired by their time stamps."""

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, require_files
from dpt.data.formats.cameras import StatedCamera
from dpt.data.formats.rules import DepthRule
from dpt.data.splits import DEFAULT_FRACTIONS
from dpt.files import DataError, few, read_list
from dpt.plugins import register

MAX_DIFFERENCE = 0.02
"""Seconds by which an image and its map may differ, as in the benchmark's ``associate.py``."""
_CAMERAS = {
    f"freiburg{number}": StatedCamera.parse(intrinsics, "TUM RGB-D", (480, 640))
    for number, intrinsics in (
        (1, (517.3, 516.5, 318.6, 255.3)),
        (2, (520.9, 521.0, 325.1, 249.7)),
        (3, (535.4, 539.2, 320.1, 247.6)),
    )
}
"""The calibrated colour cameras of the benchmark's page. Images of the first two are distorted."""


@register("tum")
@dataclass(kw_only=True, eq=False)
class TumDataset(FileDataset):
    """Every folder below ``root`` with ``rgb.txt`` and ``depth.txt`` is a sequence.

    Cameras are known for folders with ``freiburg1``, ``freiburg2`` or ``freiburg3`` in their names.

    Args:
        sequences: the sequences of each split. Those that no split names are divided by
            ``fractions`` among the splits that name none.
    """

    sequences: Mapping[str, Sequence[str] | None] | None = None
    max_depth: float | None = 10.0

    depth_format = DepthRule(scale=1 / 5000)

    def list_files(self) -> list[Files]:
        files: list[Files] = []
        for folder in (self.folder / name for name in self._sequences_of_split()):
            times, images = _read_stamps(folder / "rgb.txt")
            map_times, maps = _read_stamps(folder / "depth.txt")
            pairs = associate(times, map_times)
            if not pairs:
                fault = f"no image lies within {MAX_DIFFERENCE} s of a depth map"
                raise DataError(f"{folder}: {fault}: check rgb.txt and depth.txt")
            files += [Files(folder / images[i], depth=folder / maps[j]) for i, j in pairs]
        return require_files(files, source=self.folder, remedy="unpack the sequences again")

    def camera_source(self, index: int) -> StatedCamera | None:
        sequence = self._files[index].image.relative_to(self.folder).parts[0]
        return next((camera for name, camera in _CAMERAS.items() if name in sequence), None)

    def _sequences_of_split(self) -> Sequence[str]:
        on_disk = sorted(path.parent.name for path in self.folder.glob("*/rgb.txt"))
        chosen = {split: names for split, names in (self.sequences or {}).items() if names}
        of_split = chosen.get(self.listed_split, ())
        if not {*of_split} <= {*on_disk}:
            fault = f"holds the sequences {few(on_disk, 8) or '(none)'}"
            raise DataError(f"{self.folder} {fault}: check data.sequences.{self.listed_split}")
        if of_split:
            return of_split
        rest = sorted({*on_disk}.difference(*chosen.values()))
        fractions = _without_splits(self.fractions or DEFAULT_FRACTIONS, chosen)
        indices = self.divide(rest, [self.folder / name for name in rest], fractions=fractions)
        return [rest[i] for i in indices]


def _without_splits(fractions: Mapping[str, float], splits: Collection[str]) -> dict[str, float]:
    """Returns the fractions of the other splits, with the same sum."""
    others = {split: value for split, value in fractions.items() if split not in splits}
    factor = sum(fractions.values()) / (sum(others.values()) or 1.0)
    return {split: value * factor for split, value in others.items()}


def associate(images: Sequence[float], maps: Sequence[float]) -> list[tuple[int, int]]:
    """Returns index pairs of times (seconds, ascending) less than ``MAX_DIFFERENCE`` apart.

    The closest pair comes first; each time is used once.
    """
    candidates: list[tuple[float, int, int]] = []
    for i, time in enumerate(images):
        first, last = (bisect_left(maps, time + side * MAX_DIFFERENCE) for side in (-2, 2))
        candidates += [(abs(time - maps[j]), i, j) for j in range(first, last)]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for difference, i, j in sorted(candidates):
        if difference < MAX_DIFFERENCE and i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    return sorted(partner.items())


def _read_stamps(path: Path) -> tuple[list[float], list[str]]:
    """Returns the times and the file names of a list, in ascending order of the times."""
    stamps: list[tuple[float, str]] = []
    for line in read_list(path):
        match = re.match(r"([0-9]+\.?[0-9]*)\s+(?!/|.*\.\.)(\S+)", line)
        if match is None:
            raise DataError(f"{path}: line {line!r} must be a time in seconds and a file name")
        stamps.append((float(match[1]), match[2]))
    stamps.sort()
    return [time for time, _ in stamps], [name for _, name in stamps]
