"""The splits of samples: by names, by lists of names, or with a part of the images held out."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpt.data.layouts.base import Folder, Row, by_folder, pictures_of, shown
from dpt.data.layouts.kin import copies_of, kin_of, thumbnails_of
from dpt.data.splits import SPLITS, folds, group_names, groups_shown, original_name, split_word
from dpt.files import DataError, few, plural, read_list
from dpt.validation import Plain

_MAX_HELD_OUT = 0.4  # largest fraction of the images that is used for validation
_MAX_KIN = 0.1  # largest fraction of the images with near copies in the other split that are moved
_MANY_IMAGES = 50  # of which a tenth is held out
_PART_NAMES = {3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}


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
    else:
        kept = {"test"} if len(sizes) > 1 else set()  # a folder named test may hold all of them
        kept = kept if folder.holds_out else {"val", "test"}
        rows = [row._replace(split=row.split if row.split in kept else "train") for row in rows]
        if folder.holds_out:
            rows, settings = _hold_out(folder, rows)
        else:
            folder.note(
                f"splits: {few([*{row.split: None for row in rows}])}; no image is held out"
            )
    for split, name in (("test", " of the split test"), ("", " in no split")):
        if folder.holds_out or not split:
            folder.leave_out([row.image for row in rows if row.split == split], name, "image")
    return rows, settings


def _require_labels_of_train(folder: Folder, rows: Sequence[Row], bare: Sequence[Row]) -> None:
    """Raises DataError if pictures of train have no labels, so that val or test would be trained
    on."""
    labelled: dict[str, list[Row]] = {"val": [], "test": []}
    for row in rows:
        labelled.setdefault(row.split or split_word(row.image)[0], []).append(row)
    is_chosen = {"images", "annotation_files", "unlabelled"} & folder.given.keys()
    if len(labelled) > 2 or is_chosen:
        return
    paired = {path for row in rows for path in (row.image, row.labels, row.depth, row.objects)}
    split_of = {path: split_word(path)[0] for path in pictures_of(folder.paths)}
    split_of |= {row.image: row.split for row in bare if row.split}
    lacking = [path for path, split in split_of.items() if split == "train" and path not in paired]
    if not lacking:
        return
    split = "val" if labelled["val"] else "test"
    place = os.path.commonpath([os.path.dirname(row.image) for row in labelled[split]])
    is_beside = any(os.path.dirname(row.labels or row.depth) == place for row in rows)
    answer = f"give the folder {folder.root / place}" if is_beside else f"set data.images={place}"
    remedy = f"add them, or {answer} to train on a part of {split}" if place else "add them"
    fault = f"train has no labels, as {split} has, for {plural(len(lacking), 'picture')}"
    raise DataError(f"{folder.root}: {fault} ({shown(lacking)}): {remedy}")


def _hold_out(folder: Folder, rows: Sequence[Row]) -> tuple[list[Row], Plain]:
    """Returns the rows without copies of images, which may come to lie in both splits, some of
    train as val; or none as val, and the settings of the user's folds."""
    copies = copies_of(folder.root, [row.image for row in rows])
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
    thumbnails = thumbnails_of(folder, images)
    parts = _parts(images)
    for part in parts:
        kin = kin_of(images, thumbnails, part.val)
        if part is parts[-1] or len(kin) <= _MAX_KIN * len(part.val):
            break
        folder.note(f"{part.text}: not held out, since others look alike")
    is_moved = len(kin) <= _MAX_KIN * len(images)
    val = [*part.val, *kin] if is_moved else part.val
    text = f"{len(val)} of {plural(len(images), 'image')}: {part.text}"
    if kin:
        names = f"{len(kin)} that look like them ({shown([images[k] for k in kin])})"
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
    found = []
    wanted = number_of_parts(len(images))
    for groups in groups_shown(images).values():
        count = len(set(groups))
        if count > len(images) // 3:
            continue
        parts = min(10, count)
        divisions = [folds(groups, parts, k) for k in range(parts)]
        size = len(images) / wanted
        fold = min(range(parts), key=lambda k: abs(len(divisions[k][1]) - size))
        train, val = divisions[fold]
        if len(val) <= _MAX_HELD_OUT * len(images):  # larger groups may be classes
            names = shown(sorted({groups[i] for i in val}))
            found.append(_Part(f"{names} of the {count} groups that the names show", train, val))
    groups = [original_name(path) for path in images]
    count = len(set(groups))
    gap = ", with a gap before it" if len(images) >= _MANY_IMAGES else ""
    parts = min(wanted, count)
    train, val = folds(groups, parts, parts - 1, count // 50)
    return [*found, _Part(f"the last {_PART_NAMES[wanted]} by name{gap}", train, val)]


def rows_by_lists(folder: Folder, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """Returns the text files that list images of train, and of val or test, and the rows of these.

    All rows and no lists are returned if folders, tables or the images' names define the splits, or
    if there are no such files.
    """
    if any(row.split for row in rows):
        return [], rows
    by_name = [row._replace(split=split_word(row.image)[0]) for row in rows]
    if len({row.split for row in by_name}) > 1 and all(row.split for row in by_name):
        return [], by_name
    texts = [p for p in folder.paths if p.endswith(".txt") and Path(p).stem.lower() in SPLITS]
    # trainval.txt repeats the images of a train.txt beside it
    texts = [path for path in texts if path.replace("trainval", "train") not in {*texts} - {path}]
    of_voc = [path for path in texts if "/ImageSets/Segmentation/" in f"/{path}"]
    readings = []
    for lists in by_folder(of_voc or texts).values():
        named, unmatched = _read_lists(folder, lists, rows)
        found = {row.split for row in named}
        of_train = [path for path in lists if SPLITS[Path(path).stem.lower()] == "train"]
        if "train" in found and len(found) > 1:
            readings.append((lists, named, unmatched))
        elif found and of_train and "train" not in found:
            fault = f"none of its images has labels, as those of {' and '.join(sorted(found))} have"
            remedy = f"add them, or remove {few(lists)} to train on a part of the others"
            raise DataError(f"{folder.root / of_train[0]}: {fault}: {remedy}")
        else:
            folder.leave_out(lists, ", which do not name images of train and of val or test")
    readings = [item for item in readings if "val" in {row.split for row in item[1]}] or readings
    if len(readings) > 1:
        shown = " and ".join(few(lists) for lists, *_ in readings)
        remedy = "remove the lists that do not count"
        raise DataError(f"{folder.root}: {shown} divide the images: {remedy}")
    if not readings:
        return [], rows
    lists, named, unmatched = readings[0]
    if unmatched > 0:
        fault = "without an image that has labels, or named twice"
        folder.note(f"not used: {plural(unmatched, 'line')} of {few(lists)}, {fault}")
    return lists, named


def _read_lists(folder: Folder, lists: list[str], rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Returns the rows that text files name, by the image's name or path and perhaps its labels in
    each line, and the number of lines without a row."""
    stems = {os.path.splitext(row.image)[0]: row for row in rows}
    counts = Counter(os.path.basename(stem) for stem in stems)
    splits: dict[str, str] = {}
    lines = [(path, line) for path in lists for line in read_list(folder.root / path)]
    for path, line in lines:
        for name in map(os.path.normpath, {line, re.split(r"[,\s]", line)[0].lstrip("/")}):
            stem = os.path.splitext(name)[0]
            names = {name, stem}
            if counts[os.path.basename(stem)] == 1:  # in whatever folder
                names.add(os.path.basename(stem))
            splits |= dict.fromkeys(names, SPLITS[Path(path).stem.lower()])
    named = [
        row._replace(split=splits.get(stem) or splits.get(os.path.basename(stem), ""))
        for stem, row in stems.items()
    ]
    named = [row for row in named if row.split]
    return named, len(lines) - len(named)
