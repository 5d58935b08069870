"""Which samples belong to a split where no folder or list of the data set says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, few

DEFAULT_FRACTIONS = {"train": 0.9, "val": 0.1}


def share_out(keys: Iterable[str], *, split: str, fractions: Mapping[str, float]) -> list[str]:
    """The keys of one split when no folder says which belong to it.

    Keys are ranked by a hash of their name and dealt out in the order of ``fractions``: the
    same on every machine, and files added later hardly move the others.
    """
    if split not in fractions:
        raise DataError(
            f"split {split} has no folder of its own and no share in data.fractions "
            f"({', '.join(fractions)}): make the folder or add the share"
        )
    if min(fractions.values()) <= 0 or sum(fractions.values()) > 1 + 1e-6:
        raise DataError(f"data.fractions={dict(fractions)} must be above 0 and sum to at most 1")
    ranked = sorted(keys, key=lambda key: hashlib.sha256(key.encode()).hexdigest())
    counts = {name: max(1, int(len(ranked) * f + 1e-6)) for name, f in fractions.items()}
    left = len(ranked) - sum(counts.values())
    if left < 0 or sum(fractions.values()) > 1 - 1e-6:
        counts[max(counts, key=lambda name: counts[name])] += left
    if min(counts.values()) < 1:
        raise DataError(
            f"{len(ranked)} files are too few for data.fractions={dict(fractions)}: "
            "add files, or make split folders"
        )
    names = list(counts)
    start = sum(counts[name] for name in names[: names.index(split)])
    return sorted(ranked[start : start + counts[split]])


def share_out_sequences(
    found: Sequence[str],
    *,
    split: str,
    chosen: Mapping[str, Sequence[str] | None],
    fractions: Mapping[str, float],
    root: Path,
    option: str,
) -> list[str]:
    """The videos or scenes of one split. They are never divided: their frames resemble each other.

    Args:
        found: the names of all that are on disk.
        split: whose share is wanted.
        chosen: names by split; where the split has none, ``fractions`` deal the others out.
        fractions: see ``share_out``.
        root: where they were looked for, for messages.
        option: which setting to name in messages.
    """
    names = chosen.get(split)
    if names is None:
        taken = {name for others in chosen.values() for name in others or ()}
        left = [name for name in found if name not in taken]
        if len(left) < len(fractions):
            raise DataError(
                f"{root} holds {len(left)} for {', '.join(fractions)} to share: add some, check "
                f"data.root, or name those of {split} in {option}.{split}"
            )
        return share_out(left, split=split, fractions=fractions)
    absent = [name for name in names if name not in found]
    if absent or not names:
        raise DataError(
            f"{root} holds no {few(absent) or 'sequence for ' + split}, but "
            f"{few(list(found), 8) or 'nothing'}: check data.root and {option}.{split}"
        )
    return list(names)
