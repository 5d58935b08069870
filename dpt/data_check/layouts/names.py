"""Photos and labels that belong together by the names of files and folders."""

import os
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.findings import plural
from dpt.data_check.layouts.records import SPLITS, Folder, Row
from dpt.files import few, missing_path, plain_name

_MANY_VALUES = 64  # in one map: more than classes have
_SUFFIXES = {*io.IMAGE_SUFFIXES, *io.LABEL_SUFFIXES, *io.DEPTH_SUFFIXES}
_KINDS = {
    "depth": "depths?|depthmaps?|disps?|disparit(?:y|ies)",
    "labels": "masks?|msks?|labels?(?:tr)?|ann(?:ot|otation)?s?|seg|segmentations?|"
    "segmentationclass|semantics?|trimaps?|targets?|gts?|gtfine|groundtruth|ids|classes",
    "image": "rgb|colou?rs?|(?:jpe?g)?images?(?:tr|ts)?|imgs?|leftimg8bit|photos?|pictures?|"
    "frames?|inputs?",
}
_OPTIONS = {"image": "images", "labels": "labels", "depth": "depth"}  # keys of data, by kind
_Key = tuple[str, ...]  # of a sample: the split, then words of the path
_Files = dict[str, dict[_Key, str]]  # paths by kind and key
_SEPARATORS = r"[-_. ]+"  # of words in names


class _Name(NamedTuple):
    """What the path of a file says."""

    kind: str  # "" if no word names one
    split: str  # "" if no folder names one
    whole: _Key  # the split and the words of the path, without those for kinds of folders
    key: _Key  # also without the words of the file's name for its kind


def kind_of_words(words: Sequence[str]) -> str:
    """Returns image, labels or depth if a word stands for it; else an empty string."""
    for kind, pattern in _KINDS.items():
        if any(re.fullmatch(pattern, word, re.IGNORECASE) for word in words):
            return kind
    return ""


def _parse_name(path: str, folder_kinds: Container[str]) -> _Name:
    """Returns what a path says of a file.

    The kind in the file's name takes precedence over that in its folders' names, unless other
    folders are of that kind.
    """
    *folders, stem = os.path.splitext(plain_name(path))[0].split("/")
    kind = split = ""
    folder_words: list[str] = []
    for folder in folders:
        words = re.split(_SEPARATORS, folder)
        splits = [SPLITS[word.lower()] for word in words if word.lower() in SPLITS]
        split = splits[0] if splits else split
        kind = kind_of_words(words) or kind
        folder_words += [word for word in words if word.lower() not in SPLITS]
    stem = re.sub(r"(?<![^-_. ])IMG[-_. ](?=[0-9])", "IMG", stem)  # of cameras: no word for a kind
    words = re.split(_SEPARATORS, stem)
    last = [word for word in words if not word.isdecimal()][-1:]  # a number may follow
    name_kind = kind_of_words([words[0], *last])
    if name_kind in ("labels", "depth") and not (kind and name_kind in folder_kinds):
        kind = name_kind
    kind = kind or name_kind
    folder_words = [word for word in folder_words if kind_of_words([word]) != (kind or "image")]
    name_words = [word for word in words if kind_of_words([word]) != (kind or "image")]
    return _Name(kind, split, (split, *folder_words, *words), (split, *folder_words, *name_words))


def has_masks(folder: Folder) -> bool:
    """Returns whether photos pair with masks by their names."""
    try:
        rows = rows_of_names(Folder(folder.root, folder.paths, given={}), folder.paths)
    except DataError:
        return False
    return any(row.labels for row in rows)


def rows_of_names(folder: Folder, paths: Sequence[str]) -> list[Row]:
    """Returns photos and the labels that have their name, without words for kinds.

    Raises:
        DataError: there are no pairs, or two labels of a photo.
    """
    pictures = [path for path in paths if os.path.splitext(path)[1].lower() in _SUFFIXES]
    suffixes = Counter(os.path.splitext(path)[1].lower() for path in {*paths} - {*pictures})
    files, splits = _files_by_key(folder, pictures)
    files = _with_pairs(folder, files)
    images, labels, depth = files["image"], files["labels"], files["depth"]
    if not _has_pairs(files):
        raise _no_pairs(folder, files, suffixes)
    stray = [path for maps in (labels, depth) for key, path in maps.items() if key not in images]
    if stray:
        count = plural(len(stray), "label file")
        folder.notes.append(f"not used: {count} without a photo ({few(stray)})")
    unread = [f"{suffixes[end]} of {end}" for end in suffixes if end in io.UNREAD_SUFFIXES]
    if unread:
        folder.notes.append(f"not used: {few(unread)}: convert photos to JPEG or PNG")
    rows = []
    for key, image in images.items():
        row = Row(image, labels.get(key, ""), depth.get(key, ""))
        named = [splits[path] for path in row if path and splits[path]]
        rows.append(row._replace(split=named[0] if named else ""))
    return rows


def _no_pairs(folder: Folder, files: _Files, suffixes: Counter[str]) -> DataError:
    """Returns the error of a folder without a photo that has labels."""
    maps = sorted([*files["labels"].values(), *files["depth"].values()], reverse=True)
    shown = few(sorted({os.path.dirname(path): path for path in maps}.values()))
    if not files["image"]:
        fault = f"holds labels ({shown}) but no photo" if maps else "holds no photo"
    else:
        fault = f"no photo pairs with {shown}" if maps else "photos, but no masks and no depth"
    left = few([f"{count} of {suffix or 'no suffix'}" for suffix, count in suffixes.items()])
    notes = [*folder.notes, f"not used: {left}"] if left else folder.notes
    remedy = (
        "give a photo and its labels one name in folders such as images, masks and depth, or set "
        "data.images, data.labels and data.depth to theirs; if its folders are classes, use python "
        "train.py task=classification data=imagefolder data.root=DIR"
    )
    return DataError("; ".join([f"{folder.root}: {fault}: {remedy}", *notes]))


def _files_by_key(folder: Folder, pictures: Sequence[str]) -> tuple[_Files, dict[str, str]]:
    """Returns the files by kind and key, and the split of each path. The user's folders decide
    before names.

    Raises:
        DataError: two files of a kind have one key.
    """
    parents = {part for path in pictures for part in path.split("/")[:-1]}
    folder_kinds = {kind_of_words(re.split(_SEPARATORS, part)) for part in parents}
    chosen = _chosen_folders(folder)
    kinds = _kinds_beside_jpegs(folder, pictures)
    splits: dict[str, str] = {}
    named: list[tuple[str, str, _Name]] = []
    for path in pictures:
        inside = [prefix for prefix in chosen if path.startswith(prefix)]
        prefix = max(inside, key=len, default="")
        name = _parse_name(path.removeprefix(prefix), folder_kinds)
        kind = (chosen[prefix] if inside else name.kind) or kinds.get(path, "image")
        splits[path] = name.split
        if inside or _OPTIONS[kind] not in folder.given:  # data.labels=null leaves labels out
            named.append((path, kind, name))
    keys = {name.whole: name.key for _, kind, name in named if kind == "image"}
    files: _Files = {"image": {}, "labels": {}, "depth": {}}
    for path, kind, name in named:
        other = files[kind].setdefault(keys.get(name.whole, name.key), path)
        if other != path:
            option = _OPTIONS[kind]
            fault = f"{other} and {path} are both {option} of one sample"
            remedy = f"set data.{option} to the folder of one, or give photos and labels folders"
            raise DataError(f"{folder.root}: {fault}: {remedy} of their own")
    return files, splits


def _chosen_folders(folder: Folder) -> dict[str, str]:
    """Returns the kind of the files in each folder that the user has set, by its path's start."""
    chosen = {}
    for kind, option in _OPTIONS.items():
        name = folder.given.get(option)
        if not name:
            continue
        path = folder.root / str(name)
        if not path.is_dir():
            raise missing_path(path, what="folder", remedy=f"check data.{option}")
        below = os.path.relpath(path, folder.root)
        if below.startswith(".."):
            remedy = "give the folder that holds photos and labels"
            raise DataError(f"data.{option}={name} is not below {folder.root}: {remedy}")
        chosen["" if below == "." else f"{below}/"] = kind
    return chosen


def _kinds_beside_jpegs(folder: Folder, pictures: Sequence[str]) -> dict[str, str]:
    """Returns the kind of the files with the name of a JPEG beside them, such as ``1.png`` of
    ``1.jpg``, by the values of the first one."""
    jpegs = {path for path in pictures if path.lower().endswith((".jpg", ".jpeg"))}
    stems = {os.path.splitext(path)[0] for path in jpegs}
    maps = [path for path in pictures if path not in jpegs and os.path.splitext(path)[0] in stems]
    kind = "labels"
    with suppress(DataError):  # colours, or damaged
        if maps and len(np.unique(io.read_raw_depth(folder.root / maps[0]))) > _MANY_VALUES:
            kind = "depth"
    return dict.fromkeys(maps, kind)


def _has_pairs(files: _Files) -> bool:
    return any(key in files["image"] for kind in ("labels", "depth") for key in files[kind])


def _with_pairs(folder: Folder, files: _Files) -> _Files:
    """Returns the files by shorter and shorter keys, until a photo and a label file have one."""
    if _has_pairs(files):
        return files
    words = _words_of_one_kind(files)
    files = _with_keys(
        files, lambda kind, key, path: (key[0], *(w for w in key[1:] if w not in words[kind]))
    )
    if _has_pairs(files):
        folder.notes.append(f"pairs: by names without {few(sorted(set().union(*words.values())))}")
        return files
    # perhaps only photos, or only labels, are in folders of splits
    files = _with_keys(files, lambda kind, key, path: key[1:])
    if _has_pairs(files):
        return files
    files = _with_keys(files, lambda kind, key, path: _parse_name(PurePath(path).name, ()).key)
    if _has_pairs(files):
        folder.notes.append("pairs: by file names alone")
    return files


def _with_keys(files: _Files, new_key: Callable[[str, _Key, str], _Key]) -> _Files:
    """Returns the files by new keys, made of kind, key and path; unchanged if two files of a kind
    would have one key."""
    renamed = {
        kind: {new_key(kind, key, path): path for key, path in paths.items()}
        for kind, paths in files.items()
    }
    is_unique = all(len(renamed[kind]) == len(paths) for kind, paths in files.items())
    return renamed if is_unique else files


def _words_of_one_kind(files: _Files) -> dict[str, set[str]]:
    """Returns the words that all photos have and no label file, or the reverse, by kind, such as
    ``L`` if ``7_L.png`` belongs to ``7.png``; none if a name has no others."""
    words = {kind: [set(key[1:]) for key in paths] for kind, paths in files.items()}
    image_words = set().union(*words["image"])
    map_words = set().union(*words["labels"], *words["depth"])
    common_words = {}
    for kind, names in words.items():
        common = set.intersection(*names) if names else set()
        common -= map_words if kind == "image" else image_words
        common_words[kind] = common if all(name - common for name in names) else set()
    return common_words
