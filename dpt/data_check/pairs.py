"""Photos and the labels that belong to them, and their splits: by names, tables and lists."""

import csv
import io as text_io
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.checks import plural
from dpt.data_check.masks import CLASS_FILE
from dpt.files import few, missing_path, path_below, plain_name, read_text

_MANY_VALUES = 64  # in one map: more than classes have
_SUFFIXES = {*io.IMAGE_SUFFIXES, *io.LABEL_SUFFIXES, *io.DEPTH_SUFFIXES}
_SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val",
           "validation": "val", "dev": "val", "test": "test", "testing": "test"}  # fmt: skip
_KINDS = {
    "depth": "depths?|depthmaps?|disps?|disparit(?:y|ies)",
    "labels": "masks?|msks?|labels?(?:tr)?|ann(?:ot|otation)?s?|seg|segmentations?|"
    "segmentationclass|semantics?|trimaps?|targets?|gts?|gtfine|groundtruth|ids|classes",
    "image": "rgb|colou?rs?|(?:jpe?g)?images?(?:tr|ts)?|imgs?|leftimg8bit|photos?|pictures?|"
    "frames?|inputs?",
}
_Key = tuple[str, ...]  # of a sample: the split, then words of the path
_Files = dict[str, dict[_Key, str]]  # paths by kind and key
_OPTIONS = {"image": "images", "labels": "labels", "depth": "depth"}  # keys of data, by kind


def _kind(words: Sequence[str]) -> str:
    return next((kind for kind, pattern in _KINDS.items()
                 if any(re.fullmatch(pattern, w, re.IGNORECASE) for w in words)), "")  # fmt: skip


def split_word(path: str) -> tuple[str, str]:
    """The split that the last matching word of a path names, and that word, such as ``train2017``;
    two empty strings if no word matches."""
    for word in reversed(re.split(r"[-_. /]+", path)):
        if split := _SPLITS.get(word.rstrip("0123456789").lower()):
            return split, word
    return "", ""


def _describe(path: str, folder_kinds: Container[str]) -> tuple[str, str, list[_Key]]:
    """The kind and the split of a file ("" if no name contains them), and two keys of its sample:
    the split and the words of the path, without those of folders for its kind and for splits; the
    second key also without the words of the file's name for its kind.

    The kind in the file's name takes precedence over that in its folders' names, unless other
    folders are of that kind.
    """
    *folders, stem = os.path.splitext(plain_name(path))[0].split("/")
    kind = split = ""
    words: list[str] = []
    for part in folders:
        tokens = re.split(r"[-_. ]+", part)
        split = next((_SPLITS[t.lower()] for t in tokens if t.lower() in _SPLITS), split)
        kind = _kind(tokens) or kind
        words += [t for t in tokens if t.lower() not in _SPLITS]
    stem = re.sub(r"(?<![^-_. ])IMG[-_. ](?=[0-9])", "IMG", stem)  # of cameras: no word for a kind
    tokens = re.split(r"[-_. ]+", stem)
    last = next((t for t in reversed(tokens) if not t.isdecimal()), "")  # a number may follow
    own = _kind([tokens[0], last])
    own_first = own in ("labels", "depth") and not (kind and own in folder_kinds)
    kind = own if own_first else kind or own
    words, name = ([w for w in part if _kind([w]) != (kind or "image")] for part in (words, tokens))
    return kind, split, [(split, *words, *tokens), (split, *words, *name)]


def by_names(
    root: Path, paths: Sequence[str], given: Mapping[str, Any], unread: list[str]
) -> list[dict[str, str]]:
    """Rows of photos and of the labels that have their name, without words for kinds."""
    pictures = [p for p in paths if os.path.splitext(p)[1].lower() in _SUFFIXES]
    files, splits = _by_key(root, pictures, given)
    if not _has_pairs(files):
        own_words = _own_words(files)
        files = _shortened(
            files,
            lambda kind, key, path: (key[0], *(w for w in key[1:] if w not in own_words[kind])),
        )
        if _has_pairs(files):
            words = sorted({*chain(*own_words.values())})
            unread.append(f"pairs: by names without {few(words)}")
    if not _has_pairs(files):  # perhaps only photos, or only labels, are in folders of splits
        files = _shortened(files, lambda kind, key, path: key[1:])
    if not _has_pairs(files):
        files = _shortened(files, lambda kind, key, path: _describe(Path(path).name, ())[2][1])
        if _has_pairs(files):
            unread.append("pairs: by file names alone")
    photos, maps = files["image"], {k: v for k, v in files.items() if v and k != "image"}
    every = sorted((path for own in maps.values() for path in own.values()), reverse=True)
    held = sorted({os.path.dirname(path): path for path in every}.values())  # one of each folder
    others = Counter(os.path.splitext(path)[1].lower() for path in {*paths} - {*pictures})
    left = few([f"{count} of {suffix or 'no suffix'}" for suffix, count in others.items()])
    details = "".join(f"; {line}" for line in (*unread, *([f"not used: {left}"] if left else [])))
    if not photos:
        what = f"labels ({few(held)}) but no photo" if held else "no photo"
        raise DataError(f"{root}: holds {what}: give the folder that holds photos and labels, or "
                        f"set data.images and data.labels to their folders{details}")  # fmt: skip
    if not any(key in m for key in photos for m in maps.values()):
        fault = f"no photo pairs with {few(held)}" if held else "photos, but no masks and no depth"
        raise DataError(f"{root}: {fault}: give a photo and its labels one name in folders such as "
                        "images, masks and depth, or set data.images, data.labels and data.depth "
                        "to theirs; if its folders are classes, use python train.py "
                        f"task=classification data=imagefolder data.root=DIR{details}")  # fmt: skip
    if stray := [path for own in maps.values() for key, path in own.items() if key not in photos]:
        count = plural(len(stray), "label file")
        unread.append(f"not used: {count} without a photo ({few(stray)})")
    if unknown := [f"{others[k]} of {k}" for k in others if k in io.UNREAD_SUFFIXES]:
        unread.append(f"not used: {few(unknown)}: convert photos to JPEG or PNG")
    rows = []
    for key, photo in photos.items():
        own = {kind: m[key] for kind, m in maps.items() if key in m}
        split = next((found for p in (photo, *own.values()) if (found := splits[p])), "")
        rows.append({"split": split, "image": photo, **own})
    return rows


def _by_key(
    root: Path, pictures: Sequence[str], given: Mapping[str, Any]
) -> tuple[_Files, dict[str, str]]:
    """The files by kind and key, and the split of each path; DataError if two of a kind have one
    key. The user's folders of ``given`` decide before names."""
    files: _Files = {"image": {}, "labels": {}, "depth": {}}
    splits: dict[str, str] = {}
    folders = {part for path in pictures for part in path.split("/")[:-1]}
    folder_kinds = {_kind(re.split(r"[-_. ]+", part)) for part in folders}
    chosen: dict[str, str] = {}
    for kind, option in _OPTIONS.items():
        if name := given.get(option):
            if not (folder := root / str(name)).is_dir():
                raise missing_path(folder, what="folder", remedy=f"check data.{option}")
            below = os.path.relpath(folder, root)
            if below.startswith(".."):
                raise DataError(f"data.{option}={name} is not below {root}: give the folder that "
                                "holds photos and labels")  # fmt: skip
            chosen["" if below == "." else f"{below}/"] = kind
    kinds = _kinds_beside_jpegs(root, pictures)
    described: list[tuple[str, str, list[_Key]]] = []
    for path in pictures:
        inside = max((f for f in chosen if path.startswith(f)), key=len, default=None)
        kind, splits[path], keys = _describe(path.removeprefix(inside or ""), folder_kinds)
        kind = (kind if inside is None else chosen[inside]) or kinds.get(path, "image")
        if inside is not None or _OPTIONS[kind] not in given:  # else switched off by null
            described.append((path, kind, keys))
    names = {whole: key for _, kind, (whole, key) in described if kind == "image"}
    for path, kind, (whole, key) in described:
        key, option = names.get(whole, key), _OPTIONS[kind]
        if other := files[kind].get(key):
            pair = zip(Path(other).parts, Path(path).parts, strict=False)
            place = next(k for k, (a, b) in enumerate(pair, 1) if a != b)  # the folders that differ
            both = [Path(*Path(p).parts[:place]).as_posix() for p in (other, path)]
            remedy = " or ".join(f"data.{option}={folder}" for folder in both)
            remedy = f"set {remedy}, or remove one"
            if path in both:
                remedy = "give photos and labels folders of their own, or remove one"
            fault = f"{other} and {path} are both {option} of one sample"
            raise DataError(f"{root}: {fault}: {remedy}")
        files[kind][key] = path
    return files, splits


def _kinds_beside_jpegs(root: Path, pictures: Sequence[str]) -> dict[str, str]:
    """The kind of the files with the name of a JPEG beside them, such as ``1.png`` of ``1.jpg``,
    by the values of the first one."""
    jpegs = {p for p in pictures if p.lower().endswith((".jpg", ".jpeg"))}
    stems = {os.path.splitext(p)[0] for p in jpegs}
    found = [p for p in pictures if p not in jpegs and os.path.splitext(p)[0] in stems]
    kind = "labels"
    with suppress(DataError):  # colours, or damaged
        if found and len(np.unique(io.read_raw_depth(root / found[0]))) > _MANY_VALUES:
            kind = "depth"
    return dict.fromkeys(found, kind)


def _has_pairs(files: _Files) -> bool:
    return any(key in files["image"] for kind in ("labels", "depth") for key in files[kind])


def _own_words(files: _Files) -> dict[str, set[str]]:
    """By kind, the words that all photos have and no label file, or the reverse, such as ``L`` if
    ``7_L.png`` belongs to ``7.png``; none if a name has no others."""
    words = {kind: [{*key[1:]} for key in own] for kind, own in files.items()}
    photos, maps = {*chain(*words["image"])}, {*chain(*words["labels"], *words["depth"])}
    found = {}
    for kind, own in words.items():
        common = set.intersection(*own) if own else set()
        common -= maps if kind == "image" else photos
        found[kind] = common if all(each - common for each in own) else set()
    return found


def _shortened(files: _Files, shorten: Callable[[str, _Key, str], _Key]) -> _Files:
    """The files by shorter keys, of kind, key and path; unchanged if two of a kind would have one
    key."""
    new = {k: {shorten(k, *item): item[1] for item in own.items()} for k, own in files.items()}
    return new if all(len(new[kind]) == len(own) for kind, own in files.items()) else files


def from_tables(root: Path, paths: Sequence[str], unread: list[str]) -> list[dict[str, str]]:
    """Rows of the CSV file with columns of photos and of labels, or of one for each split."""
    tables: dict[str, list[dict[str, str]]] = {}
    for path in (p for p in paths if p.lower().endswith(".csv")):
        try:
            text = read_text(root / path)
        except DataError as error:
            unread.append(f"not used: {error}")
            continue
        try:
            rows = _table(root, path, text)
        except csv.Error as error:
            unread.append(f"not used: {path}: not a CSV table ({error})")
            continue
        if rows:
            tables[path] = rows
        elif not re.fullmatch(CLASS_FILE, path):
            unread.append(f"not used: {path}, without paths of photos and labels")
    if len(tables) < 2:
        return next(iter(tables.values()), [])
    splits = {path: split_word(path)[0] for path in tables}
    if not all(splits.values()) or len({*splits.values()}) < len(splits):
        raise DataError(f"{root}: {few(list(tables))} list photos and labels: keep one, or name "
                        "them after their splits, such as train.csv and val.csv")  # fmt: skip
    return [{**row, "split": splits[path]} for path, rows in tables.items() for row in rows]


def _is_file(root: Path, name: Path) -> bool:
    try:
        return os.path.isfile(path_below(root, str(name), root))
    except DataError:  # the table's rows are refused later
        return os.path.isfile(root / name)


def _table(root: Path, path: str, text: str) -> list[dict[str, str]]:
    """Rows of a CSV file; none if no column holds paths of photos, or none those of labels."""
    head, base = text.partition("\n")[0], Path(path).parent
    reader = csv.DictReader(
        text_io.StringIO(text.replace("\\", "/"), newline=""),
        delimiter=max(",;\t", key=head.count),
        skipinitialspace=True,
    )
    lines = [{k: v.strip() for k, v in line.items() if k and isinstance(v, str)} for line in reader]
    columns: dict[str, str] = {}
    for name in filter(None, reader.fieldnames or ()):
        values = [value for line in lines if (value := line.get(name))]
        if 2 * sum(value.lower() in _SPLITS for value in values) > len(values):
            columns["split"] = name
        elif any(_is_file(root, base / value) for value in values):
            columns.setdefault(_kind(re.split(r"[-_. ]+", name)) or "image", name)
    split = columns.pop("split", "")
    if "image" not in columns or not {"labels", "depth"} & columns.keys():
        if split:
            raise DataError(f"{root / path}: names splits, but no photos and labels: add their "
                            "paths from its folder, or move it elsewhere")  # fmt: skip
        return []
    rows = []
    for line in lines:
        word = line.get(split, "").lower()
        if word and word not in _SPLITS:
            raise DataError(f"{root / path}: {split} is {word}: write {', '.join(_SPLITS)}")
        texts = {kind: line.get(column) for kind, column in columns.items()}
        below = {k: path_below(root, str(base / v), root / path) for k, v in texts.items() if v}
        files = {kind: place.relative_to(root).as_posix() for kind, place in below.items()}
        if "image" in files:
            rows.append({"split": _SPLITS.get(word, ""), **files})
    used = [row[kind] for row in rows for kind in columns if kind in row]
    if absent := [file for file in used if not os.path.isfile(root / file)]:
        raise DataError(f"{root / path}: {len(absent)} of its files do not exist ({few(absent)}): "
                        "add them, or remove their rows")  # fmt: skip
    return rows


def listed(
    root: Path, paths: Sequence[str], rows: list[dict[str, str]], unread: list[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Text files that list the photos of train and val, and the rows that they list, with splits.

    A line begins with a photo's path or its name, with or without suffix. Returns no lists if
    folders, a table or the names of all photos define the splits, or if there are no such files.
    """
    if any(row["split"] for row in rows):
        return [], rows
    by_name = [{**row, "split": split_word(row["image"])[0]} for row in rows]
    if len({row["split"] for row in by_name}) > 1 and all(row["split"] for row in by_name):
        return [], by_name
    stems = {p: Path(p).stem.lower() for p in paths if p.endswith(".txt")}
    split_of = {p: _SPLITS[stem] for p, stem in stems.items() if stem in _SPLITS}
    photos = {os.path.splitext(row["image"])[0]: row for row in rows}
    names = Counter(map(os.path.basename, photos))
    readings = []
    for folder in sorted(set(map(os.path.dirname, split_of))):
        used = [p for p in split_of if os.path.dirname(p) == folder]
        splits: dict[str, str] = {}
        lines = 0
        for path in used:
            for line in filter(None, map(str.strip, read_text(root / path).splitlines())):
                lines += 1
                for name in map(os.path.normpath, (line, re.split(r"[,\s]", line)[0])):
                    stem = os.path.splitext(name)[0]
                    own = [stem, name]
                    if names[os.path.basename(stem)] == 1:  # in whatever folder
                        own.append(os.path.basename(stem))
                    splits |= dict.fromkeys(own, split_of[path])
        named = []
        for stem, row in photos.items():
            if split := splits.get(stem) or splits.get(os.path.basename(stem)):
                named.append({**row, "split": split})
        if {"train", "val"} <= {row["split"] for row in named}:
            readings.append((used, named, lines - len(named)))
        else:
            unread.append(f"not used: {few(used)}, which do not name photos of train and of val")
    if len(readings) > 1:
        each = " and ".join(few(used) for used, *_ in readings)
        raise DataError(f"{root}: {each} divide the photos: remove the lists that do not count")
    for used, named, strange in readings:
        if strange > 0:
            unread.append(f"not used: {plural(strange, 'line')} of {few(used)}, without a photo "
                          "that has labels, or named twice")  # fmt: skip
        return used, named
    return [], rows
