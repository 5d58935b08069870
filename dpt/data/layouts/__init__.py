"""What a folder of unknown contents holds, for ``dpt fit``, ``dpt data check`` and ``convert``.

``LAYOUTS`` lists the ways to read a folder. The one that explains most of the images wins. Two that
would train different models are a question to the user: a DataError that names the keys to give.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from dpt.data.annotations import FORMATS, unread_files
from dpt.data.annotations.base import NoMasksError
from dpt.data.formats import io
from dpt.data.layouts.base import Detected, Folder, Layout, Match, Row
from dpt.data.layouts.listed import match_label_tool, match_stamps, match_tables
from dpt.data.layouts.pictures import match_pictures, names_like_labels
from dpt.data.layouts.values import band_settings
from dpt.files import DataError, few, files_below, plural, printable
from dpt.validation import PlainMapping

__all__ = ["LAYOUTS", "Detected", "Folder", "Layout", "Row", "detect"]

LAYOUTS: list[Layout] = [partial(match_label_tool, tool) for tool in FORMATS.values()]
LAYOUTS += [match_stamps, match_tables, match_pictures]
"""In the order in which they take label files: each sees those that the ones before it leave."""
_MAX_FILES = 500_000
_MAX_PLACES = 6  # of files that are not used, which are noted
_RIVAL = 0.5  # a reading with this fraction of the best one's images makes a question


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
    folder = Folder(root, _paths_of_data(root), given, say, holds_out)
    matches: list[Match] = []
    without_masks: list[str] = []
    for layout in LAYOUTS:
        match = None
        try:
            match = layout(folder)
        except NoMasksError as error:
            without_masks.append(str(error))
        if match is not None:
            folder.taken |= match.files
            matches.append(match)
    if not matches:
        raise DataError(without_masks[0]) if without_masks else _refusal(folder)
    folder.note(*(f"not used: {fault}" for fault in without_masks))
    best = _best(folder, matches)
    images = len(best.rows) + len(best.bare)
    folder.note(f"layout: {best.sentence}; labels of {len(best.rows) / images:.0%} of the images")
    detected = best.read(folder)
    detected.settings |= band_settings(folder, detected.image)
    places = _places(path for path in folder.paths if path not in folder.used)
    if places:
        folder.note(f"not used: {few(places, _MAX_PLACES)}")
    return detected


def _best(folder: Folder, matches: list[Match]) -> Match:
    """Returns the match with most labelled images; DataError if another has nearly as many."""
    best = max(matches, key=lambda match: len(match.rows))
    rivals = [match for match in matches if len(match.rows) >= _RIVAL * len(best.rows)]
    if len(rivals) > 1:
        readings = ", and ".join(match.sentence for match in rivals)
        keys = " or ".join(match.key for match in rivals)
        raise DataError(f"{folder.root}: holds {readings}: set {keys}")
    for match in matches:
        if match is not best:
            folder.note(f"not used: {match.sentence}; to train on these few images set {match.key}")
    return best


def _refusal(folder: Folder) -> DataError:
    """Returns the error of a folder that no layout matches: what was seen, and the remedy."""
    suffixes = {os.path.splitext(path)[1].lower() for path in folder.paths}
    unread = few(sorted(suffixes.intersection(io.UNREAD_SUFFIXES)))
    hint = f"; convert images of {unread}, which are not read, to JPEG or PNG" if unread else ""
    names = [f"set {setting}, or " for setting in names_like_labels(folder.pictures)]
    remedy = unread_files(folder.root, folder.paths) or (
        f"{''.join(names)}give each image and its label file the same name, in folders such as "
        "images and masks (or depth), or set data.images=FOLDER data.labels=FOLDER (or "
        "data.depth=FOLDER); if its folders are classes, use python train.py task=classification "
        "data=imagefolder"
    )
    seen = few(_places(folder.paths), 6) or "no files"
    message = f"{folder.root}: no image with labels was found ({seen}){hint}: {remedy}"
    return DataError("; ".join([message, *folder.notes]))


def _places(paths: Iterable[str]) -> list[str]:
    """Returns the numbers of files of one folder and suffix, the most frequent ones first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in paths:
        groups[os.path.dirname(path), os.path.splitext(path)[1].lower()].append(path)
    ranked = sorted(groups.values(), key=lambda members: -len(members))
    return [f"{members[0]} ({plural(len(members), 'such file')})" for members in ranked]


def _paths_of_data(root: Path) -> list[str]:
    """Returns the paths below a folder, those of upper folders first, without those of runs."""
    files = files_below(root, limit=_MAX_FILES)
    # of a run, and of one of dpt fit that ended before training
    marks = {"config.yaml": "checkpoints", "pairs.csv": "data_check"}
    runs = {p.parent for p in files if p.name in marks and (p.parent / marks[p.name]).is_dir()}
    paths = [p.relative_to(root).as_posix() for p in files if runs.isdisjoint(p.parents)]
    for path in paths:
        if printable(path) != path:
            raise DataError(f"{root}: {printable(path)}: the name is not UTF-8: rename the file")
    return sorted(paths, key=lambda path: (path.count("/"), path))
