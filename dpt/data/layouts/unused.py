"""Pictures that are no data: copies, predictions, and pictures for people, made of images."""

import os
import re
from collections import defaultdict

from dpt.data.layouts.base import SUFFIXES, Folder, spaced

_WORDS = {
    "augmented copies": "aug(ment(ed|ations?)?)?",
    "predictions": "pred(s|ict(ed|ions?)?)?|results?|outputs?",
    "pictures for people": "overlays?|viz|visuali[sz](ed|ations?)|colou?rmaps?",
    "thumbnails": "thumb(nail)?s?",
    "copies of masks": "segmentation(class|object)(png|raw)",  # labelme2voc's
    "copies by the system": "@eadir|__macosx",
}
_REASONS = {
    reason: re.compile(rf"(?i)(^|[-_. ])({words})([-_. \d]*$)|^({words})([-_. \d]|$)")
    for reason, words in _WORDS.items()
}
"""A word at the beginning or the end of a name."""
_AUGUST = re.compile(r"(?i)aug[-_. ]*(\d\d?[-_. ]+)?(19|20)\d\d(?!\d)")
"""The month with its year, in the name of a folder; files may be numbered copies."""


def split_unused(folder: Folder, chosen: set[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the paths that may be data, and the others by the reason.

    Args:
        chosen: paths that the user has chosen as data.
    """
    kept: list[str] = []
    unused: dict[str, list[str]] = defaultdict(list)
    for path in folder.paths:
        reason = "" if path in chosen else _reason(path)
        (unused[reason] if reason else kept).append(path)
    return kept, unused


def _reason(path: str) -> str:
    """Returns why a file is no data: by its folders' names, or a picture's own name."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    folders = _AUGUST.sub("", folder).split("/")
    for part in [*folders, *([stem] if suffix.lower() in SUFFIXES else ())]:
        for reason, pattern in _REASONS.items():
            if pattern.search(part) or pattern.search(spaced(part)):
                return reason
    return ""


def may_be_data(unused: dict[str, list[str]]) -> list[str]:
    """Returns the copies and results in folders of their own, which may be all that there is."""
    reasons = ("augmented copies", "predictions", "copies of masks")
    paths = [path for reason in reasons for path in unused.get(reason, ())]
    return [path for path in paths if _reason(f"{os.path.dirname(path)}/")]


def note_unused(folder: Folder, unused: dict[str, list[str]], used: set[str]) -> None:
    """Notes how many files lie in which folder, by reason, without those in ``used``."""
    for reason, every_path in unused.items():
        paths = [path for path in every_path if path not in used]
        places = sorted({os.path.dirname(path) for path in paths})
        where = f" in {places[0]}" if len(places) == 1 and places[0] else ""
        folder.leave_out(paths, f"{where}, {reason}")
