"""Files, globs and folders to a list of what is to be predicted, each with a name of its own."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.errors import DataError, missing_path
from dpt.data.formats.io import IMAGE_SUFFIXES
from dpt.data.formats.video import VIDEO_SUFFIXES

SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)


@dataclass(frozen=True)
class Source:
    """A picture or video to predict.

    Attributes:
        path: absolute.
        name: relative, with ``/``, without a suffix and never leading upwards; outputs have it.
    """

    path: Path
    name: str

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def find_sources(inputs: Sequence[str | Path], *, skip: Collection[Path] = ()) -> list[Source]:
    """What the inputs name, sorted within each and without repetition.

    Names are paths relative to the deepest folder that holds all inputs (of a file its folder, of
    a glob what stands before the first wildcard), so that sub-folders are kept and files of one
    name in two of them stay apart. Files that differ by their suffix alone keep it.

    Args:
        inputs: files, folders (searched with all below, but for what is hidden), globs with ``*``,
            ``**``, ``?`` and ``[]``.
        skip: folders that are not searched, for what was written to them is no input.

    Raises:
        DataError: nothing is there, or a folder or glob holds no picture.
    """
    found: dict[Path, None] = {}
    roots, missing = [], []
    skipped = [_absolute(folder) for folder in skip]
    for given in map(str, inputs):
        path = _absolute(given)
        if path.is_dir():
            files = list(_walk(path, skipped))
            roots.append(path)
            if not files:
                raise DataError(
                    f"{given}: no picture or video in this folder or below ({_kinds()})"
                )
        elif os.path.lexists(path) or not glob.has_magic(given):
            files = [path]
            roots.append(path.parent)
            missing += [] if os.path.lexists(path) else [path]
        else:
            hits = map(_absolute, sorted(glob.glob(given, recursive=True)))
            files = [f for f in hits if f.suffix.lower() in SUFFIXES and not f.is_dir()]
            files = [f for f in files if not any(f.is_relative_to(folder) for folder in skipped)]
            roots.append(_before_wildcards(given))
            if not files:
                raise DataError(f"{given}: matches no picture or video ({_kinds()})")
        found.update(dict.fromkeys(files))
    if not found:
        raise DataError("no input: name pictures, videos, folders or globs")
    if len(missing) == len(found):
        raise missing_path(missing[0], what="input", remedy="check the path")
    root = Path(os.path.commonpath(roots))
    relative = {path: path.relative_to(root) for path in found}
    stems = Counter(name.with_suffix("") for name in relative.values())
    names = {
        p: n.with_suffix("") if stems[n.with_suffix("")] == 1 else n for p, n in relative.items()
    }
    if len(set(names.values())) < len(names):
        twice = Counter(names.values()).most_common(1)[0][0]
        raise DataError(f"two inputs would be written to one name, {twice}: predict them apart")
    return [Source(path, name.as_posix()) for path, name in names.items()]


def _absolute(path: str | Path) -> Path:
    """Without ``..``, and with links as they are."""
    return Path(os.path.abspath(Path(path).expanduser()))


def _walk(folder: Path, skipped: Collection[Path]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        entered = (n for n in folders if not n.startswith(".") and Path(parent, n) not in skipped)
        folders[:] = sorted(entered)
        for name in sorted(files):
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                yield Path(parent) / name


def _before_wildcards(pattern: str) -> Path:
    parts = Path(pattern).expanduser().parts
    plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return _absolute(Path(*parts[:plain]))


def _kinds() -> str:
    return ", ".join(SUFFIXES)
