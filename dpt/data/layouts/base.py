"""What layouts receive and return."""

import csv
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from dpt.data.formats import io
from dpt.files import few, plural
from dpt.validation import Plain, PlainMapping

SUFFIXES = {*io.IMAGE_SUFFIXES, *io.LABEL_SUFFIXES, *io.DEPTH_SUFFIXES}


@dataclass
class Folder:
    """A folder whose layout is to be found."""

    root: Path
    paths: list[str]  # of its files, below root
    given: PlainMapping  # keys of data that the user has set
    say: Callable[[str], None] = lambda text: None  # prints a note at once
    holds_out: bool = True  # whether images are held out if there is no val on disk
    notes: list[str] = field(default_factory=list)  # what was assumed and what is not used
    used: set[str] = field(default_factory=set)  # paths that are read or were named
    taken: set[str] = field(default_factory=set)  # label files that an earlier layout explains

    def note(self, *texts: str) -> None:
        """Keeps and prints what was assumed, or is not used."""
        for text in texts:
            self.notes.append(text)
            self.say(text)

    def leave_out(self, names: Sequence[str], reason: str, noun: str = "image") -> None:
        """Notes files that are not used, if there are any."""
        self.used.update(names)
        if names:
            self.note(f"not used: {plural(len(names), noun)}{reason} ({few(names)})")

    @property
    def free(self) -> list[str]:
        """The files that are not taken."""
        return [path for path in self.paths if path not in self.taken]

    @property
    def pictures(self) -> list[str]:
        """Those that may be images, labels or depth maps."""
        return [path for path in self.free if os.path.splitext(path)[1].lower() in SUFFIXES]


class Row(NamedTuple):
    """The files of a sample, below the root, as ``pairs.csv`` lists them; "" for one it lacks."""

    image: str
    labels: str = ""
    depth: str = ""
    split: str = ""
    objects: str = ""

    @property
    def maps(self) -> list[str]:
        """The label file and the depth file, those that there are."""
        return [path for path in (self.labels, self.depth) if path]


@dataclass
class Detected:
    """What a folder holds."""

    task: str
    rows: list[Row]
    settings: Plain  # keys of data=folder
    notes: list[str]  # what was recognised or assumed
    other_tasks: tuple[str, ...] = ()  # that the labels allow

    @property
    def image(self) -> str:
        """The path of an image, whose size the training images follow."""
        return min(self.rows, key=lambda row: row.split != "train").image

    def table(self) -> str:
        """Returns the rows as a CSV table that ``data.split_files`` reads."""
        target = StringIO()
        table = [(row.split, row.image, row.labels, row.depth, row.objects) for row in self.rows]
        csv.writer(target).writerows([("split", "image", "mask", "depth", "objects"), *table])
        return target.getvalue()

    def choose_task(self, task: str) -> None:
        """Changes the task; ValueError if the labels do not allow it."""
        tasks = (self.task, *self.other_tasks)
        if task not in tasks:
            raise ValueError(f"task={task}: the labels of DIR allow {', '.join(tasks)}")
        self.task = task


@dataclass(kw_only=True)
class Match(ABC):
    """How a layout reads a folder. Its label files are known, their values are not read yet."""

    sentence: str  # what was recognised
    key: str  # the setting that chooses this reading
    rows: list[Row]  # the images with labels
    bare: list[Row]  # those without
    files: set[str]  # of labels, and their lists

    @abstractmethod
    def read(self, folder: Folder) -> Detected:
        """Returns the settings, which follow from the values of the label files.

        Raises:
            DataError: the values have no meaning, or several.
        """


Layout = Callable[[Folder], Match | None]
"""Returns how a way to lay out images and labels reads the folder; None if it finds no labels.
DataError if labels fit in several ways: a question that names the keys to give."""


def by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """Returns the files in each folder."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        groups[os.path.dirname(path)].append(path)
    return groups
