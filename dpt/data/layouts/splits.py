"""The splits of samples: by names, by lists of names, or with a part of the images held out."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpt.data import splits
from dpt.data.formats.pictures import read_thumbnail
from dpt.data.layouts.base import Folder, Row, by_folder
from dpt.files import DataError, few, plural, read_list

_MAX_HELD_OUT = 0.4  # largest fraction of the images that is used for validation
_MAX_ALIKE = 0.1  # largest fraction of the images that are moved to val, as they look like it
_MANY_IMAGES = 50  # of which a tenth is held out
_MAX_BYTES = 500_000_000  # of all images that are compared: some seconds
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
) -> list[Row]:
    """Returns the rows with their splits, in which images are held out if there is no val.

    Args:
        lists: the text files that define the splits.
        bare: images without labels.

    Raises:
        DataError: train has no labels, and val has some: a question to the user.
    """
    _require_labels_of_train(folder, rows, bare)
    sizes = Counter(row.split for row in rows)
    if sizes["val"] and sizes["train"]:
        listed = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        folder.note(f"splits: {listed}" + (f", by {few(lists)}" if lists else ""))
        _note_shared(folder, rows)
    elif folder.holds_out:
        others = {"test"} if len(sizes) > 1 else set()  # a folder named test may hold all of them
        rows = [row if row.split in others else row._replace(split="train") for row in rows]
        rows = _hold_out(folder, rows)
    else:
        rows = [row._replace(split=row.split or "train") for row in rows]
        folder.note(f"splits: {few([*{row.split: None for row in rows}])}; no image is held out")
    _note_unused_splits(folder, rows)
    return rows


def _note_unused_splits(folder: Folder, rows: Sequence[Row]) -> None:
    """Notes the images that neither train nor validate."""
    of_test = [row.image for row in rows if row.split == "test"]
    folder.leave_out(of_test if folder.holds_out else [], " of the split test")
    folder.leave_out([row.image for row in rows if not row.split], " in no split")


def _require_labels_of_train(folder: Folder, rows: Sequence[Row], bare: Sequence[Row]) -> None:
    """Raises DataError if pictures of train have no labels, so that val or test would be trained
    on."""
    if {"images", "annotation_files", "unlabelled"} & folder.given.keys():
        return
    present = {row.split or splits.split_word(row.image)[0] for row in rows}
    named = {path for row in rows for path in row}
    of_train = [path for path in folder.pictures if splits.split_word(path)[0] == "train"]
    of_train += [row.image for row in bare if row.split == "train"]
    lacking = [path for path in dict.fromkeys(of_train) if path not in named]
    if lacking and present <= {"val", "test"}:
        place = os.path.commonpath([os.path.dirname(row.image) for row in rows])
        remedy = f"add them, or set data.images={place} or give the folder {folder.root / place}"
        count = plural(len(lacking), "picture")
        fault = f"train has no labels, as val or test has, for {count} ({few(lacking)})"
        raise DataError(f"{folder.root}: {fault}: {remedy} to train on a part of them")


def _hold_out(folder: Folder, rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with some of train as val."""
    images = [row.image for row in rows if row.split == "train"]
    if len({*map(splits.original_name, images)}) < 2:
        raise DataError(f"{folder.root}: {plural(len(images), 'image')} with labels: add some")
    split_of, text = _splits_of(folder, images)
    folder.note(f"splits: no val on disk; validation on {text}")
    return [row._replace(split=split_of.get(row.image, row.split)) for row in rows]


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
        text += f"; {len(alike)} that look like them ({few([images[k] for k in alike])}) are "
        text += "among them" if is_moved else "in train"
    split_of = dict.fromkeys(images, "")
    split_of |= {images[k]: "train" for k in part.train} | {images[k]: "val" for k in val}
    return split_of, text


def number_of_parts(images: int) -> int:
    """Returns the number of parts of which one is held out: five images of few, if that is no more
    than a third."""
    return 10 if images >= _MANY_IMAGES else min(5, max(3, images // 5))


def _parts(images: Sequence[str]) -> list[_Part]:
    """Returns what may be held out, in the order of preference."""
    choices = []
    wanted = number_of_parts(len(images))
    for groups in splits.groups_shown(images).values():
        count = len(set(groups))
        if count > len(images) // 3:
            continue
        parts = min(10, count)
        divisions = [splits.folds(groups, parts, k) for k in range(parts)]
        size = len(images) / wanted
        train, val = min(divisions, key=lambda division: abs(len(division[1]) - size))
        if len(val) <= _MAX_HELD_OUT * len(images):  # larger groups may be classes
            names = few(sorted({groups[i] for i in val}))
            choices.append(_Part(f"{names} of the {count} groups that the names show", train, val))
    groups = [splits.original_name(path) for path in images]
    count = len(set(groups))
    gap = ", with a gap before it" if len(images) >= _MANY_IMAGES else ""
    parts = min(wanted, count)
    train, val = splits.folds(groups, parts, parts - 1, count // 50)
    return [*choices, _Part(f"the last of {wanted} parts by name{gap}", train, val)]


# ------------------------------------------------------------------------------- near copies


def _thumbnails_of(folder: Folder, images: Sequence[str]) -> np.ndarray | None:
    """Returns grey thumbnails, float32 (N, 8, 9), NaN where an image cannot be read; None for large
    sets, which is noted."""
    paths = [folder.root / name for name in images]
    if sum(map(os.path.getsize, paths)) > _MAX_BYTES or len(paths) > _MAX_IMAGES:
        folder.note(f"near copies: not searched for, as the {len(paths)} images are many")
        return None
    with ThreadPoolExecutor(4) as pool:
        return np.stack([*pool.map(_thumbnail, paths)])


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
    names = {splits.original_name(images[k]) for k in indices}
    others = {*range(len(images))}.difference(indices)
    alike = {k for k in others if splits.original_name(images[k]) in names}
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


def _note_shared(folder: Folder, rows: Sequence[Row]) -> None:
    """Notes the images of val that look like one of train, or are tiles beside those of train."""
    images = [row.image for row in rows if row.split == "train"]
    first = len(images)
    images += [row.image for row in rows if row.split == "val"]
    alike = _near_copies(images, _thumbnails_of(folder, images), range(first))
    if alike:
        what = f"{len(alike)} of {len(images) - first} images of val look like images of train"
        names = few([images[k] for k in alike])
        folder.note(f"splits: {what} ({names}): scores on them do not hold for other images")
    tiles = splits.tiles_beside(images[first:], images[:first])
    if tiles:
        what = f"{len(tiles)} of {len(images) - first} images of val are tiles of scenes of train"
        folder.note(f"splits: {what} ({few(tiles)}): scores on them do not hold for other scenes")


# ------------------------------------------------------------------------------------- lists


def rows_by_lists(folder: Folder, rows: list[Row]) -> tuple[list[str], list[Row]]:
    """Returns the text files that list images of train, and of val or test, and the rows of these.

    All rows and no lists are returned if folders, tables or the images' names define the splits, or
    if there are no such files.

    Raises:
        DataError: several groups of files list images, or train has no labels, as val has.
    """
    if any(row.split for row in rows):
        return [], rows
    by_name = [row._replace(split=splits.split_word(row.image)[0]) for row in rows]
    present = {row.split for row in by_name}
    if len(present) > 1 and "" not in present:
        return [], by_name
    readings = [_reading_of(folder, paths, rows) for paths in _paths_of_lists(folder.paths)]
    readings = [(paths, named) for paths, named in readings if named]
    if len(readings) > 1:
        names = " and ".join(few(paths) for paths, _ in readings)
        raise DataError(f"{folder.root}: {names} divide the images: remove those that do not count")
    return readings[0] if readings else ([], rows)


def _reading_of(
    folder: Folder, paths: list[str], rows: Sequence[Row]
) -> tuple[list[str], list[Row]]:
    """Returns text files and the rows that they name; no rows if these do not divide the images.

    Raises:
        DataError: no image of train has labels, and one of another split has.
    """
    named, unmatched = _read_lists(folder, paths, rows)
    present = {row.split for row in named}
    if present > {"train"}:
        if unmatched > 0:
            count = f"{plural(unmatched, 'line')} of {few(paths)}"
            folder.note(f"not used: {count}, without an image that has labels, or named twice")
        return paths, named
    if present and "train" not in present and "train" in map(_split_of, paths):
        fault = "no image of train has labels"
        raise DataError(f"{folder.root / paths[0]}: {fault}: add them, or remove {few(paths)}")
    folder.leave_out(paths, ", which do not name images of train and of val or test", "file")
    return paths, []


def _paths_of_lists(paths: Sequence[str]) -> list[list[str]]:
    """Returns the text files named after splits, by their folder; of VOC those of segmentation."""
    texts = [path for path in paths if path.endswith(".txt") and _split_of(path)]
    # trainval.txt repeats the images of a train.txt beside it
    texts = [path for path in texts if path.replace("trainval", "train") not in {*texts} - {path}]
    of_voc = [path for path in texts if "/ImageSets/Segmentation/" in f"/{path}"]
    return [*by_folder(of_voc or texts).values()]


def _split_of(path: str) -> str:
    return splits.SPLITS.get(Path(path).stem.lower(), "")


def _read_lists(folder: Folder, paths: Sequence[str], rows: Sequence[Row]) -> tuple[list[Row], int]:
    """Returns the rows that text files name, by the image's name or path and perhaps its labels in
    each line, with their splits; and the number of lines without a row."""
    row_of = {os.path.splitext(row.image)[0]: row for row in rows}
    counts = Counter(map(os.path.basename, row_of))
    names = {os.path.basename(stem): row for stem, row in row_of.items()}  # in whatever folder
    row_of |= {name: row for name, row in names.items() if counts[name] == 1}
    lines = [(path, line) for path in paths for line in read_list(folder.root / path)]
    split_of: dict[str, str] = {}
    for path, line in lines:
        for text in (re.split(r"[,\s]", line)[0].lstrip("/"), line):
            name = os.path.normpath(text)
            stem = os.path.splitext(name)[0]
            keys = row_of.keys() & {os.path.basename(stem), stem, name}
            split_of |= {row_of[key].image: _split_of(path) for key in keys}
    named = [row._replace(split=split_of[row.image]) for row in rows if row.image in split_of]
    return named, len(lines) - len(named)
