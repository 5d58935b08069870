"""What a folder of unknown contents holds, for ``dpt fit``.

A layout is a function from a :class:`Folder` to the settings of ``data`` that read it. ``LAYOUTS``
lists them and the first match wins. Two readings that would train different models are a question
to the user: a DataError that names the settings that decide.
"""

import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from dpt.data.formats import io
from dpt.data.layouts.annotated import match_annotations
from dpt.data.layouts.base import Detected, Folder, Layout, Row, pictures_of
from dpt.data.layouts.kinds import chosen_kinds
from dpt.data.layouts.pictures import match_pictures, what_is_seen
from dpt.data.layouts.sizes import band_settings
from dpt.data.layouts.tables import match_tables
from dpt.data.layouts.unused import may_be_data, note_unused, split_unused
from dpt.files import DataError, few, files_below, printable
from dpt.validation import PlainMapping

__all__ = ["LAYOUTS", "Detected", "Folder", "Layout", "Row", "detect"]

LAYOUTS: tuple[Layout, ...] = (match_annotations, match_tables, match_pictures)
_MAX_FILES = 500_000


def detect(
    root: Path,
    given: PlainMapping,
    say: Callable[[str], None] = lambda text: None,
    *,
    holds_out: bool = True,
) -> Detected:
    """Finds out what the folder holds.

    Args:
        given: keys of ``data`` that are set already.
        say: prints a note, at once.
        holds_out: whether images are held out, and copies left out, if there is no val on disk.

    Raises:
        DataError: no image, labels without images, a file that cannot be read, or two readings that
            would give different results.
    """
    if not root.is_dir():
        fault = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root}: {fault}: give the folder that holds the images")
    folder = Folder(root, _paths_of_data(root), given, say, holds_out)
    kept, unused = split_unused(folder, {*chosen_kinds(folder, pictures_of(folder.paths))})
    others = may_be_data(unused)
    for paths in [kept, sorted([*kept, *others])] if others else [kept]:
        folder.paths = paths
        for match in LAYOUTS:
            detected = match(folder)
            if detected is not None:
                detected.settings |= band_settings(folder, detected.image)
                note_unused(folder, unused, {*paths})
                _note_others(folder)
                return detected
    note_unused(folder, unused, {*folder.paths})
    raise _refusal(folder)


def _refusal(folder: Folder) -> DataError:
    """Returns the error of a folder that no layout matches: what was seen, and the remedy."""
    suffixes = {os.path.splitext(path)[1].lower() for path in folder.paths}
    unread = sorted(suffixes.intersection(io.UNREAD_SUFFIXES))
    hint = f"; images of {few(unread)} are not read: convert them to JPEG or PNG" if unread else ""
    remedy = (
        "give an image and its labels one name in folders such as images and masks (or depth), or "
        "set data.images and data.labels (or data.depth) to theirs; if its folders are classes, "
        "use python train.py task=classification data=imagefolder data.root=DIR"
    )
    seen = what_is_seen(folder) or "no files"
    message = f"{folder.root}: no image with labels was found ({seen}){hint}: {remedy}"
    return DataError("; ".join([message, *folder.notes]))


def _note_others(folder: Folder) -> None:
    """Notes the files of no picture that were not read, such as a list of splits in YAML."""
    by_suffix: dict[str, list[str]] = defaultdict(list)
    for path in folder.paths:
        if path not in folder.used:
            by_suffix[os.path.splitext(path)[1].lower() or "no suffix"].append(path)
    for suffix, paths in by_suffix.items():
        read = "; convert images to JPEG or PNG" if suffix in io.UNREAD_SUFFIXES else ""
        folder.leave_out(paths, f" of {suffix}{read}")


def _paths_of_data(root: Path) -> list[str]:
    """Returns the paths below a folder, those of upper folders first, without those of runs."""
    files = files_below(root, limit=_MAX_FILES)
    runs = set()
    for config in (path for path in files if path.name == "config.yaml"):
        if (config.parent / "checkpoints").is_dir():
            runs.add(config.parent)
        run = config.parent.parent  # of dpt fit that ended before training
        if config.parent.name == "data_check" and (run / "pairs.csv").is_file():
            runs.add(run)
    paths = [p.relative_to(root).as_posix() for p in files if runs.isdisjoint(p.parents)]
    for path in paths:
        if printable(path) != path:
            raise DataError(f"{root}: {printable(path)}: the name is not UTF-8: rename the file")
    return sorted(paths, key=lambda path: (path.count("/"), path))
