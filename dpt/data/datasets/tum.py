"""TUM RGB-D sequences (Sturm et al. 2012): photos and depth maps paired by their time stamps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing, share_out
from dpt.data.errors import DataError, few
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule

MAX_DIFFERENCE = 0.02
"""Seconds by which a photo and its depth map may differ, as in the benchmark's ``associate.py``."""


@dataclass(kw_only=True, eq=False)
class TumDataset(FileDataset):
    """Every folder below ``root`` with ``rgb.txt`` and ``depth.txt`` is a sequence.

    Args:
        sequences: the sequences of each split. A split without any gets its share, by
            ``fractions``, of the sequences that no split names.
        fractions: each split's share of the sequences.
    """

    sequences: Mapping[str, Sequence[str] | None] | None = None
    max_depth: float | None = 10.0
    fractions: Mapping[str, float] | None = None

    depth_format = DepthRule(scale=1 / 5000)

    def list_files(self) -> list[Files]:
        found = sorted(path.parent.name for path in self.folder.glob("*/rgb.txt"))
        names = (self.sequences or {}).get(self.split)
        if names is None:
            taken = {name for others in (self.sequences or {}).values() for name in others or ()}
            left = [name for name in found if name not in taken]
            names = share_out(left, split=self.split, fractions=self.fractions)
        elif not names or not set(names) <= set(found):
            raise DataError(
                f"{self.folder} holds the sequences {few(found, 8) or '(none)'}: check data.root "
                f"and data.sequences.{self.split}"
            )
        files: list[Files] = []
        for folder in (self.folder / name for name in names):
            photos, maps = (_read_stamps(folder / name) for name in ("rgb.txt", "depth.txt"))
            pairs = associate([time for time, _ in photos], [time for time, _ in maps])
            if not pairs:
                fault = f"no photo lies within {MAX_DIFFERENCE} s of a depth map"
                raise DataError(f"{folder}: {fault}: check rgb.txt and depth.txt")
            files += [Files(folder / photos[i][1], depth=folder / maps[j][1]) for i, j in pairs]
        return existing(files, source=self.folder, remedy="unpack the sequences again")


def associate(photos: Sequence[float], maps: Sequence[float]) -> list[tuple[int, int]]:
    """Index pairs of times (seconds, ``maps`` ascending) less than ``MAX_DIFFERENCE`` apart.

    The closest pair comes first; each time is used once.
    """
    near: list[tuple[float, int, int]] = []
    for i, time in enumerate(photos):
        j = bisect_left(maps, time - MAX_DIFFERENCE)
        while j < len(maps) and maps[j] < time + MAX_DIFFERENCE:
            near.append((abs(maps[j] - time), i, j))
            j += 1
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for difference, i, j in sorted(near):
        if difference < MAX_DIFFERENCE and i not in partner and j not in taken:
            partner[i] = j
            taken.add(j)
    return sorted(partner.items())


def _read_stamps(path: Path) -> list[tuple[float, str]]:
    """The lines ``time name`` of a list, ascending."""
    stamps: list[tuple[float, str]] = []
    for number, line in enumerate(io.read_text(path).splitlines(), start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            time, name = float(words[0]), words[1]
        except (ValueError, IndexError):
            name = ".."
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise DataError(
                f"{path}: line {number} is {line!r}: must be a time in seconds and a file name"
            )
        stamps.append((time, name))
    return sorted(stamps)
