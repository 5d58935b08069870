"""What layouts receive and return: ``Folder``, ``Row`` and ``Detected``."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from dpt.validation import Plain, PlainMapping

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""The split that a word in a name or a table means."""


@dataclass
class Folder:
    """A folder whose layout is to be found."""

    root: Path
    paths: list[str]  # of its files, below root
    given: PlainMapping  # keys of data that the user has set
    notes: list[str] = field(default_factory=list)  # what was assumed and what is not used


class Row(NamedTuple):
    """The files of a sample, below the root, as ``pairs.csv`` lists them; "" for one it lacks."""

    image: str
    labels: str = ""
    depth: str = ""
    split: str = ""


@dataclass
class Detected:
    """What a folder holds."""

    task: str
    data: str  # folder or coco
    image: str  # path of one photo, whose size the training images follow
    settings: Plain  # keys of data
    notes: list[str]  # what was recognised or assumed
    rows: list[Row] = field(default_factory=list)  # the samples of data=folder
    class_weights: list[float] | None = None  # for the loss


class Layout(Protocol):
    """One way in which a folder holds a data set."""

    def __call__(self, folder: Folder) -> Detected | None:
        """Returns the settings, with a note of what was recognised; None for other folders."""


def split_word(path: str) -> tuple[str, str]:
    """Returns the split that the last matching word of a path names, and that word, such as
    ``train2017``; two empty strings if no word matches."""
    for word in reversed(re.split(r"[-_. /]+", path)):
        split = SPLITS.get(word.rstrip("0123456789").lower())
        if split:
            return split, word
    return "", ""
