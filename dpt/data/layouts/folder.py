"""What layouts receive and return, and the splits of the samples.

Splits follow from names or lists of names, or a part of the images is held out.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dpt.data.splits import SPLITS, folds, group_names, original_name, split_word
from dpt.files import DataError, few, open_file, plural, read_text
from dpt.validation import Plain, PlainMapping


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
    image: str  # path of one image, whose size the training images follow
    settings: Plain  # keys of data
    notes: list[str]  # what was recognised or assumed
    rows: list[Row] = field(default_factory=list)  # the samples of data=folder
    class_weights: list[float] | None = None  # for the loss


Layout = Callable[[Folder], Detected | None]
"""Returns the settings of a folder, with a note of what was recognised; None for other folders."""


_MAX_HELD_OUT = 0.4  # largest fraction of the images that is used for validation
_FEW_COPIES = 0.1  # of the images
_GROUPS = (r"^(.*)/", r"([^/]*?)[-_.]?[0-9]+[^/0-9]*$")  # folder; what precedes the last number


def divide(folder: Folder, rows: list[Row], lists: Sequence[str]) -> tuple[list[Row], Plain]:
    """Returns the rows with their splits, and the settings that hold images out if there is no val.

    Args:
        lists: the text files that define the splits.
    """
    settings: Plain = {}
    sizes = Counter(row.split for row in rows)
    if sizes["val"] and sizes["train"]:
        shown = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        folder.notes.append(f"splits: {shown}" + (f", by {few(lists)}" if lists else ""))
    else:
        kept = {"test"} if len(sizes) > 1 else set()  # a folder named test may hold all of them
        rows = [row._replace(split=row.split if row.split in kept else "train") for row in rows]
        rows = _without_copies(folder, rows)
        settings, note = hold_out(folder, [row.image for row in rows if row.split == "train"])
        folder.notes.append(note)
    for split, name in (("test", "of the split test"), ("", "of no split")):
        unused = [row.image for row in rows if row.split == split]
        if unused:
            folder.notes.append(f"not used: {plural(len(unused), 'image')} {name} ({few(unused)})")
    return rows, settings


def _without_copies(folder: Folder, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows without copies of images, which may be in both splits, if they are few."""
    sizes = [os.path.getsize(folder.root / row.image) for row in rows]
    counts = Counter(sizes)
    originals: dict[bytes, Row] = {}
    kept, copies = [], []
    for row, size in zip(rows, sizes, strict=True):
        first = row
        if counts[size] > 1:
            with open_file(folder.root / row.image) as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            first = originals.setdefault(digest, row)
        if first is row:
            kept.append(row)
        else:
            copies.append(f"{row.image} = {first.image}")
    if len(copies) > _FEW_COPIES * len(rows):  # a fault of the data set, which its check names
        return list(rows)
    if copies:
        shown = f"{plural(len(copies), 'copy of an image')} ({few(copies)})"
        folder.notes.append(f"not used: {shown}")
    return kept


def hold_out(folder: Folder, images: Sequence[str]) -> tuple[Plain, str]:
    """Returns the settings, as far as the user has not set them, that hold out a tenth of the
    images or about a tenth of the groups that their names show, and a note about them."""
    if len(images) < 2:
        fault = f"{plural(len(images), 'image')} with labels"
        raise DataError(f"{folder.root}: {fault}: add some, for training and for validation")
    given = folder.given
    note = "splits: no val on disk; validation on"
    if {"folds", "fold", "group_by"} & given.keys():
        groups = group_names(images, given.get("group_by"))
        count = given.get("folds") or min(10, len(set(groups)))
        fold = given.get("fold", count - 1)
        keys = "data.folds, data.fold and data.group_by"
        return {"folds": count, "fold": fold}, f"{note} part {fold} of {count}, as {keys} say"
    for rule in _GROUPS:
        matches = [re.search(rule, path) for path in images]
        groups = [match[1] for match in matches if match]
        count = len(set(groups))
        if len(groups) < len(images) or not 1 < count <= len(images) // 3:
            continue
        val_parts = [folds(groups, min(10, count), k)[1] for k in range(min(10, count))]
        fold = min(range(len(val_parts)), key=lambda k: abs(len(val_parts[k]) - len(images) / 10))
        if len(val_parts[fold]) <= _MAX_HELD_OUT * len(images):  # larger groups may be classes
            shown = few(sorted({groups[i] for i in val_parts[fold]}))
            note = f"{note} {shown} of the {count} groups that the names show"
            return {"folds": len(val_parts), "fold": fold, "gap": 0, "group_by": rule}, note
    count = len({original_name(path) for path in images})
    gap = ", with a gap before it" if len(images) >= 50 else ""
    settings = {"folds": min(10, count), "fold": min(10, count) - 1, "gap": count // 50}
    return settings, f"{note} the last tenth by name{gap}"


def rows_by_lists(folder: Folder, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """Returns the text files that list images of train and val, and the rows that they list.

    All rows and no lists are returned if folders, tables or the images' names define the splits, or
    if there are no such files.
    """
    if any(row.split for row in rows):
        return [], rows
    by_name = [row._replace(split=split_word(row.image)[0]) for row in rows]
    if len({row.split for row in by_name}) > 1 and all(row.split for row in by_name):
        return [], by_name
    texts = [path for path in folder.paths if path.endswith(".txt")]
    texts = [path for path in texts if Path(path).stem.lower() in SPLITS]
    readings = []
    for parent in sorted({os.path.dirname(path) for path in texts}):
        lists = [path for path in texts if os.path.dirname(path) == parent]
        named, unmatched = _read_lists(folder, lists, rows)
        if {"train", "val"} <= {row.split for row in named}:
            readings.append((lists, named, unmatched))
        else:
            fault = "which do not name images of train and of val"
            folder.notes.append(f"not used: {few(lists)}, {fault}")
    if len(readings) > 1:
        shown = " and ".join(few(lists) for lists, *_ in readings)
        remedy = "remove the lists that do not count"
        raise DataError(f"{folder.root}: {shown} divide the images: {remedy}")
    if not readings:
        return [], rows
    lists, named, unmatched = readings[0]
    if unmatched > 0:
        fault = "without an image that has labels, or named twice"
        folder.notes.append(f"not used: {plural(unmatched, 'line')} of {few(lists)}, {fault}")
    return lists, named


def _read_lists(folder: Folder, lists: list[str], rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Returns the rows that text files name, by the image's name or path and perhaps its labels in
    each line, and the number of lines without a row."""
    stems = {os.path.splitext(row.image)[0]: row for row in rows}
    counts = Counter(os.path.basename(stem) for stem in stems)
    splits: dict[str, str] = {}
    count = 0
    for path in lists:
        split = SPLITS[Path(path).stem.lower()]
        for line in read_text(folder.root / path).splitlines():
            line = line.strip()
            count += bool(line)
            for name in {line, re.split(r"[,\s]", line)[0]} - {""}:
                name = os.path.normpath(name)
                stem = os.path.splitext(name)[0]
                splits[stem] = splits[name] = split
                if counts[os.path.basename(stem)] == 1:  # in whatever folder
                    splits[os.path.basename(stem)] = split
    named = []
    for stem, row in stems.items():
        split = splits.get(stem) or splits.get(os.path.basename(stem), "")
        if split:
            named.append(row._replace(split=split))
    return named, count - len(named)
