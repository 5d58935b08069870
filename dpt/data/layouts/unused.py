"""Pictures that are no data: copies, predictions, and pictures for people, made of images."""

import os
import re
from collections import defaultdict

from dpt.data.layouts.base import Folder

_WORDS = {
    "augmented copies": "aug(ment(ed|ations?)?)?",
    "predictions": "pred(s|ict(ed|ions?)?)?|results?|outputs?",
    "pictures for people": "overlays?|vi[sz]|visuali[sz](ed|ations?)|colou?rmaps?",
    "thumbnails": "thumb(nail)?s?",
    "copies by the system": "@eadir|__macosx",
    "object ids": "segmentationobject(png|raw|aug)?",
}
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_REASONS = {
    reason: re.compile(rf"(?i)(^|[-_. ])({words})([-_. \d]*$)|^({words})([-_. \d]|$)")
    for reason, words in _WORDS.items()
}
"""A word at the beginning or the end of a name."""


def spaced(name: str) -> str:
    """Returns ``Ground_Truth`` for ``GroundTruth``."""
    return _CAMEL.sub("_", name)


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
    *folders, name = path.split("/")
    for part in (*folders, os.path.splitext(name)[0]):
        for reason, pattern in _REASONS.items():
            if pattern.search(part) or pattern.search(spaced(part)):
                return reason
    return ""


def note_unused(folder: Folder, unused: dict[str, list[str]]) -> None:
    """Notes how many files lie in which folder, by reason."""
    for reason, paths in unused.items():
        places = sorted({os.path.dirname(path) for path in paths})
        where = f" in {places[0]}" if len(places) == 1 and places[0] else ""
        folder.leave_out(paths, f"{where}, {reason}")
