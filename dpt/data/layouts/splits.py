"""The splits of samples: by names, by lists of names, or with a part of the images held out."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpt.data.formats.pictures import read_size, read_thumbnail
from dpt.data.layouts.base import Folder, Row, by_folder, in_threads, shown
from dpt.data.splits import (
    SPLITS,
    folds,
    group_names,
    groups_shown,
    natural_key,
    original_name,
    split_word,
)
from dpt.files import DataError, few, open_file, plural, read_list
from dpt.validation import Plain

_MAX_HELD_OUT = 0.4  # largest fraction of the images that is used for validation
_MAX_ALIKE = (
    0.1  # largest fraction of the images with near copies in the other split that are moved
)
_MANY_IMAGES = 50  # of which a tenth is held out
_PART_NAMES = {3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}
_MAX_PIXELS = 500_000_000  # of all images that are compared: some seconds
_MAX_IMAGES = 20_000
_MAX_BITS = 3  # of 64 in which the hashes of near copies differ
_MAX_LEVELS = 6.0  # by which their thumbnails differ on average, of 255


class _Part(NamedTuple):
    """A part of the images that may be held out."""

    text: str
    train: list[int]  # without the gap
    val: list[int]


def divide(
    folder: Folder, rows: list[Row], lists: Sequence[str], bare: Sequence[Row] = ()
) -> tuple[list[Row], Plain]:
    """Returns the rows with their splits, in which images are held out if there is no val, and the
    settings of the user's folds.

    Args:
        lists: the text files that define the splits.
        bare: images without labels.

    Raises:
        DataError: train has no labels, and val has some: a question to the user.
    """
    _require_labels_of_train(folder, rows, bare)
    settings: Plain = {}
    sizes = Counter(row.split for row in rows)
    if sizes["val"] and sizes["train"]:
        listed = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        folder.note(f"splits: {listed}" + (f", by {few(lists)}" if lists else ""))
    elif folder.holds_out:
        others = {"test"} if len(sizes) > 1 else set()  # a folder named test may hold all of them
        rows = [row if row.split in others else row._replace(split="train") for row in rows]
        rows, settings = _hold_out(folder, rows)
    else:
        rows = [row._replace(split=row.split or "train") for row in rows]
        folder.note(f"splits: {few([*{row.split: None for row in rows}])}; no image is held out")
    _note_unused_splits(folder, rows)
    return rows, settings


def _note_unused_splits(folder: Folder, rows: Sequence[Row]) -> None:
    """Notes the images that neither train nor validate."""
    if folder.holds_out:
        of_test = [row.image for row in rows if row.split == "test"]
        folder.leave_out(of_test, " of the split test", "image")
    folder.leave_out([row.image for row in rows if not row.split], " in no split", "image")


def _require_labels_of_train(folder: Folder, rows: Sequence[Row], bare: Sequence[Row]) -> None:
    """Raises DataError if pictures of train have no labels, so that val or test would be trained
    on."""
    split_of = {row.image: row.split or split_word(row.image)[0] for row in rows}
    present = {*split_of.values()}
    is_chosen = {"images", "annotation_files", "unlabelled"} & folder.given.keys()
    lacking = _pictures_of_train(folder, rows, bare)
    if is_chosen or not lacking or not present <= {"val", "test"}:
        return
    split = "val" if "val" in present else "test"
    place = os.path.commonpath(
        [os.path.dirname(k) for k, name in split_of.items() if name == split]
    )
    is_beside = any(os.path.dirname(row.labels or row.depth) == place for row in rows)
    answer = f"give the folder {folder.root / place}" if is_beside else f"set data.images={place}"
    remedy = f"add them, or {answer} to train on a part of {split}" if place else "add them"
    fault = f"train has no labels, as {split} has, for {plural(len(lacking), 'picture')}"
    raise DataError(f"{folder.root}: {fault} ({shown(lacking)}): {remedy}")


def _pictures_of_train(folder: Folder, rows: Sequence[Row], bare: Sequence[Row]) -> list[str]:
    """Returns the pictures of train, by the words in their paths, that no row names."""
    named = {path for row in rows for path in (row.image, row.labels, row.depth, row.objects)}
    split_of = {path: split_word(path)[0] for path in folder.pictures if path not in named}
    split_of |= {row.image: row.split for row in bare if row.split}
    return [path for path, split in split_of.items() if split == "train"]


def _hold_out(folder: Folder, rows: Sequence[Row]) -> tuple[list[Row], Plain]:
    """Returns the rows without copies of images, which may come to lie in both splits, some of
    train as val; or none as val, and the settings of the user's folds."""
    copies = _copies_of(folder.root, [row.image for row in rows])
    if copies:
        pairs = [f"{copy} = {original}" for copy, original in copies.items()]
        folder.note(f"not used: {plural(len(copies), 'image')}, copied from others ({few(pairs)})")
    rows = [row for row in rows if row.image not in copies]
    images = [row.image for row in rows if row.split == "train"]
    if len({*map(original_name, images)}) < 2:
        fault = f"{plural(len(images), 'image')} with labels"
        raise DataError(f"{folder.root}: {fault}: add some, for training and for validation")
    start, given = "splits: no val on disk; validation on", folder.given
    if not {"folds", "fold", "group_by"} & given.keys():
        splits, text = _splits_of(folder, images)
        folder.note(f"{start} {text}")
        return [row._replace(split=splits.get(row.image, row.split)) for row in rows], {}
    groups = group_names(images, given.get("group_by"))
    count = given.get("folds") or min(10, len({*groups}))
    fold = given.get("fold", count - 1)
    keys = "data.folds, data.fold and data.group_by"
    folder.note(f"{start} part {fold} of {count}, as {keys} say")
    return rows, {"folds": count, "fold": fold}


def _splits_of(folder: Folder, images: Sequence[str]) -> tuple[dict[str, str], str]:
    """Returns the split of each image, and a text: val for about a tenth of them, of few images for
    up to a third, in whole groups that their names show, if there are any. Few near copies of these
    images, which would be trained on, are val, too. Those of a gap have no split."""
    thumbnails = _thumbnails_of(folder, images)
    parts = _parts(images)
    for part in parts:
        alike = _near_copies(images, thumbnails, part.val)
        if part is parts[-1] or len(alike) <= _MAX_ALIKE * len(part.val):
            break
        folder.note(f"{part.text}: not held out, since others look alike")
    is_moved = len(alike) <= _MAX_ALIKE * len(images)
    val = [*part.val, *alike] if is_moved else part.val
    text = f"{len(val)} of {plural(len(images), 'image')}: {part.text}"
    if alike:
        names = f"{len(alike)} that look like them ({shown([images[k] for k in alike])})"
        text += f", and {names}" if is_moved else f"; {names} are in train"
    splits = dict.fromkeys(images, "")
    splits |= {images[k]: "train" for k in part.train} | {images[k]: "val" for k in val}
    return splits, text


def number_of_parts(images: int) -> int:
    """Returns the number of parts of which one is held out: five images of few, if that is no more
    than a third."""
    return 10 if images >= _MANY_IMAGES else min(5, max(3, images // 5))


def _parts(images: Sequence[str]) -> list[_Part]:
    """Returns what may be held out, in the order of preference."""
    choices = []
    wanted = number_of_parts(len(images))
    for groups in groups_shown(images).values():
        count = len(set(groups))
        if count > len(images) // 3:
            continue
        parts = min(10, count)
        divisions = [folds(groups, parts, k) for k in range(parts)]
        size = len(images) / wanted
        train, val = min(divisions, key=lambda division: abs(len(division[1]) - size))
        if len(val) <= _MAX_HELD_OUT * len(images):  # larger groups may be classes
            names = shown(sorted({groups[i] for i in val}))
            choices.append(_Part(f"{names} of the {count} groups that the names show", train, val))
    groups = [original_name(path) for path in images]
    count = len(set(groups))
    gap = ", with a gap before it" if len(images) >= _MANY_IMAGES else ""
    parts = min(wanted, count)
    train, val = folds(groups, parts, parts - 1, count // 50)
    return [*choices, _Part(f"the last {_PART_NAMES[wanted]} by name{gap}", train, val)]


# ------------------------------------------------------------------- copies, and near copies


def _copies_of(root: Path, images: Sequence[str]) -> dict[str, str]:
    """Returns the original of each image file whose bytes are those of an earlier one."""
    sizes = {path: os.path.getsize(root / path) for path in images}
    counts = Counter(sizes.values())
    originals: dict[bytes, str] = {}
    copies = {}
    for path in sorted(images, key=natural_key):
        if counts[sizes[path]] > 1:
            with open_file(root / path) as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            original = originals.setdefault(digest, path)
            if original != path:
                copies[path] = original
    return copies


def _thumbnails_of(folder: Folder, images: Sequence[str]) -> np.ndarray | None:
    """Returns grey thumbnails, float32 (N, 8, 9), NaN where an image cannot be read; None for large
    sets, which is noted."""
    paths = [folder.root / name for name in images]
    pixels = 0
    with suppress(DataError):
        height, width = read_size(paths[0])
        is_fast = paths[0].suffix.lower() in (".jpg", ".jpeg")  # decoded at an eighth
        pixels = height * width * len(paths) // (16 if is_fast else 1)
    if pixels > _MAX_PIXELS or len(paths) > _MAX_IMAGES:
        folder.note(f"near copies: not searched for, as the {len(paths)} images are many")
        return None
    return np.stack([*in_threads(_thumbnail, paths)])


def _thumbnail(path: Path) -> np.ndarray:
    try:
        return read_thumbnail(path, (8, 9)).astype(np.float32)
    except DataError:
        return np.full((8, 9), np.nan, np.float32)


def _near_copies(
    images: Sequence[str], thumbnails: np.ndarray | None, indices: Sequence[int]
) -> list[int]:
    """Returns the other images that look like one of ``indices``: with the same original, or nearly
    the same difference hash and thumbnail."""
    names = {original_name(images[k]) for k in indices}
    others = {*range(len(images))}.difference(indices)
    alike = {k for k in others if original_name(images[k]) in names}
    if thumbnails is None:
        return sorted(alike)
    bits = thumbnails[:, :, 1:] > thumbnails[:, :, :-1]
    codes = np.packbits(bits.reshape(len(bits), -1), axis=1).view(np.uint64)[:, 0]
    chosen = np.array(indices)
    chosen = chosen[codes[chosen] != 0]  # 0: of one colour, or not read
    for k in others - alike:
        near = chosen[np.bitwise_count(codes[chosen] ^ codes[k]) <= _MAX_BITS]
        levels = np.abs(thumbnails[near] - thumbnails[k]).mean(axis=(1, 2))
        if len(near) and levels.min() <= _MAX_LEVELS:
            alike.add(k)
    return sorted(alike)


# ------------------------------------------------------------------------------------- lists


class _Lists(NamedTuple):
    """The text files of a folder that list the images of splits."""

    paths: list[str]
    rows: list[Row]  # that they name, with their splits
    unmatched: int  # number of lines without a row

    @property
    def splits(self) -> set[str]:
        return {row.split for row in self.rows}


def rows_by_lists(folder: Folder, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """Returns the text files that list images of train, and of val or test, and the rows of these.

    All rows and no lists are returned if folders, tables or the images' names define the splits, or
    if there are no such files.

    Raises:
        DataError: several groups of files list images, or train has no labels, as val has.
    """
    if any(row.split for row in rows):
        return [], rows
    by_name = [row._replace(split=split_word(row.image)[0]) for row in rows]
    if len({row.split for row in by_name}) > 1 and all(row.split for row in by_name):
        return [], by_name
    readings = []
    for paths in _paths_of_lists(folder.paths):
        lists = _read_lists(folder, paths, rows)
        if lists.splits > {"train"}:
            readings.append(lists)
        else:
            _require_train(folder, lists)
            folder.leave_out(paths, ", which do not name images of train and of val or test")
    for lists in _only_one(folder, readings):
        if lists.unmatched > 0:
            fault = "without an image that has labels, or named twice"
            count = plural(lists.unmatched, "line")
            folder.note(f"not used: {count} of {few(lists.paths)}, {fault}")
        return lists.paths, lists.rows
    return [], rows


def _only_one(folder: Folder, readings: list[_Lists]) -> list[_Lists]:
    """Returns the lists that count, if there are any: those with val before others."""
    readings = [lists for lists in readings if "val" in lists.splits] or readings
    if len(readings) > 1:
        names = " and ".join(few(lists.paths) for lists in readings)
        raise DataError(f"{folder.root}: {names} divide the images: remove those that do not count")
    return readings


def _require_train(folder: Folder, lists: _Lists) -> None:
    """Raises DataError if a list of train names no image with labels, and another one does."""
    of_train = [path for path in lists.paths if _split_of(path) == "train"]
    if lists.splits and of_train and "train" not in lists.splits:
        named = " and ".join(sorted(lists.splits))
        fault = f"none of its images has labels, as those of {named} have"
        remedy = f"add them, or remove {few(lists.paths)} to train on a part of the others"
        raise DataError(f"{folder.root / of_train[0]}: {fault}: {remedy}")


def _paths_of_lists(paths: Sequence[str]) -> list[list[str]]:
    """Returns the text files named after splits, by their folder; of VOC those of segmentation."""
    texts = [path for path in paths if path.endswith(".txt") and _split_of(path)]
    # trainval.txt repeats the images of a train.txt beside it
    texts = [path for path in texts if path.replace("trainval", "train") not in {*texts} - {path}]
    of_voc = [path for path in texts if "/ImageSets/Segmentation/" in f"/{path}"]
    return [*by_folder(of_voc or texts).values()]


def _split_of(path: str) -> str:
    return SPLITS.get(Path(path).stem.lower(), "")


def _read_lists(folder: Folder, paths: list[str], rows: Sequence[Row]) -> _Lists:
    """Returns the rows that text files name, by the image's name or path and perhaps its labels in
    each line."""
    stems = {os.path.splitext(row.image)[0]: row for row in rows}
    counts = Counter(os.path.basename(stem) for stem in stems)
    splits: dict[str, str] = {}
    lines = [(path, line) for path in paths for line in read_list(folder.root / path)]
    for path, line in lines:
        for name in map(os.path.normpath, {line, re.split(r"[,\s]", line)[0].lstrip("/")}):
            stem = os.path.splitext(name)[0]
            names = {name, stem}
            if counts[os.path.basename(stem)] == 1:  # in whatever folder
                names.add(os.path.basename(stem))
            splits |= dict.fromkeys(names, _split_of(path))
    named = [
        row._replace(split=splits.get(stem) or splits.get(os.path.basename(stem), ""))
        for stem, row in stems.items()
    ]
    named = [row for row in named if row.split]
    return _Lists(paths, named, len(lines) - len(named))
