"""TUM RGB-D sequences (Sturm et al. 2012): photos and depth maps paired by their time stamps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, data_root
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.datasets.splits import DEFAULT_FRACTIONS, share_out_sequences
from dpt.data.formats import io
from dpt.data.formats.metres import DepthRule

MAX_DIFFERENCE = 0.02
"""Seconds by which a photo and its depth map may differ, as in the benchmark's ``associate.py``."""


class TumDataset(PairedDataset):
    """Every folder below ``root`` with ``rgb.txt`` and ``depth.txt`` is a sequence.

    Args:
        root: the folder of the sequences.
        split: ``train``, ``val``, ...
        sequences: the sequences of each split. Where a split names none, those that no split names
            are dealt out whole by ``fractions``.
        max_depth: largest depth that counts as valid, in metres.
        min_depth: smallest depth that counts as valid, in metres.
        fractions: each split's share of the sequences.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        sequences: Mapping[str, Sequence[str] | None] | None = None,
        max_depth: float = 10.0,
        min_depth: float = 1e-3,
        fractions: Mapping[str, float] | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        names = share_out_sequences(
            sorted(path.parent.name for path in self.root.glob("*/rgb.txt")),
            split=split,
            chosen=sequences or {},
            fractions=fractions or DEFAULT_FRACTIONS,
            root=self.root,
            option="data.sequences",
        )
        files = [pair for name in names for pair in read_sequence(self.root / name)]
        check_files(files, source=self.root, remedy="unpack the sequences again")
        rule = DepthRule(scale=1 / 5000, min_depth=min_depth, max_depth=max_depth)
        super().__init__(files, split=split, depth=rule, cache=cache, cache_size=cache_size)


def read_sequence(folder: Path) -> list[Files]:
    """The pairs of a sequence in the order of its photos."""
    photos, maps = (_read_stamps(folder / name) for name in ("rgb.txt", "depth.txt"))
    pairs = associate([time for time, _ in photos], [time for time, _ in maps])
    if not pairs:
        raise DataError(
            f"{folder}: no photo lies within {MAX_DIFFERENCE} s of a depth map: check rgb.txt and "
            "depth.txt"
        )
    return [Files(folder / photos[i][1], None, folder / maps[j][1]) for i, j in pairs]


def associate(
    photos: Sequence[float], maps: Sequence[float], *, max_difference: float = MAX_DIFFERENCE
) -> list[tuple[int, int]]:
    """Index pairs of times that belong together: closest first, and each used once.

    Args:
        photos: times in seconds.
        maps: times in seconds, ascending.
        max_difference: pairs that differ by this much or more are none.
    """
    near: list[tuple[float, int, int]] = []
    for i, time in enumerate(photos):
        j = bisect_left(maps, time - max_difference)
        while j < len(maps) and maps[j] < time + max_difference:
            near.append((abs(maps[j] - time), i, j))
            j += 1
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for difference, i, j in sorted(near):
        if difference < max_difference and i not in partner and j not in taken:
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
