"""Which files are images, labels or depth maps: as the user, names, or their values tell."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import numpy as np

from dpt.data.formats import io
from dpt.data.layouts.base import Folder, spaced
from dpt.files import DataError, missing_path

Kind = Literal["objects", "depth", "labels", "images"]
KINDS: tuple[Kind, ...] = ("objects", "depth", "labels", "images")
"""Also keys of ``data``; a word that may mean several kinds means the first."""

_WORDS: dict[Kind, str] = {
    "objects": "(?:segmentation_)?objects?",
    "depth": "depths?|depthmaps?|disps?|disparit(?:y|ies)",
    "labels": "masks?|msks?|lbls?|labels?(?:tr|ts)?|labell?ed|annot(?:ation)?s?|anns?|segs?|"
    "segment(?:ed|ations?)|semantics?|trimaps?|targets?|gts?|gtfine|ground[-_. ]?truths?|ids|"
    "class|classes|alphas?|mattes?|manual",
    "images": "rgb|colou?rs?|(?:jpe?g)?images?(?:tr|ts)?|jpe?gs?|imgs?|im|leftimg8bit|photos?|"
    "pictures?|frames?|inputs?",
}
WORDS: dict[Kind, re.Pattern[str]] = {
    kind: re.compile(rf"(?i)(?<![^\W\d_])(?:{words})(?![^\W\d_])") for kind, words in _WORDS.items()
}
_FEW_VALUES = 64  # of a mask that are classes; other pictures have more
_MAX_GROUPS = 200  # of files, of which some are read


def chosen_kinds(folder: Folder, pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds of files that keys of ``data`` name; the longest folder decides.

    Such keys are ``images``, ``labels`` and ``depth`` with a folder, in whose path ``%split``
    stands for any folders, and ``labels_name`` etc. with a name that holds ``%stem``.
    """
    kinds: dict[str, Kind] = {}
    length_of: dict[str, int] = {}  # of the folders that name them
    for kind in reversed(KINDS):
        keys = [key for key in (kind, f"{kind}_name") if folder.given.get(key)]
        if not keys:
            continue
        pattern = _pattern(folder, kind)
        matches = {path: match for path in pictures if (match := pattern.fullmatch(path))}
        if not matches:
            given = " ".join(f"data.{key}={folder.given[key]}" for key in keys)
            raise DataError(f"{given}: no such file below {folder.root}: correct it")
        for path, match in matches.items():
            if len(match["folder"]) > length_of.get(path, -1):
                kinds[path], length_of[path] = kind, len(match["folder"])
    return kinds


def _pattern(folder: Folder, kind: Kind) -> re.Pattern[str]:
    """Returns what the paths of the files match that the user has chosen."""
    name = str(folder.given.get(kind) or ".")
    start, _, end = str(folder.given.get(f"{kind}_name") or "%stem").partition("%stem")
    if "%split" in name:
        place = re.escape(name.strip("/")).replace("%split", ".+") + "/"
    else:
        path = folder.root / name
        if not path.is_dir():
            raise missing_path(path, what="folder", remedy=f"check data.{kind}")
        place = os.path.relpath(path, folder.root)
        if place.startswith(".."):
            remedy = "give the folder that holds images and labels"
            raise DataError(f"data.{kind}={name} is not below {folder.root}: {remedy}")
        place = "" if place == "." else re.escape(place) + "/"
    stem = f"{re.escape(start)}[^/]*{re.escape(end)}"
    return re.compile(rf"(?P<folder>{place})(.*/)?{stem}\.[^./]*", re.DOTALL)


def kinds_by_names(folder: Folder, pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds that words in the names of folders and files tell, after the user's
    choice; files that the user's choice excludes are left out."""
    by_folder = _kinds_of_folders({os.path.dirname(path) for path in pictures})
    present = {*by_folder.values()}
    name_kinds = {path: _kind_of_name(path) for path in pictures}
    some_differ = {os.path.dirname(path) for path, kind in name_kinds.items() if not kind}
    kinds: dict[str, Kind] = {}
    for path in pictures:
        directory = os.path.dirname(path)
        kind, name_kind = by_folder[directory], name_kinds[path]
        counts = not kind or name_kind not in present
        if name_kind and counts and not (kind == "images" and directory not in some_differ):
            kind = name_kind
        kinds[path] = kind or "images"
    twins = _beside_jpegs([path for path, kind in kinds.items() if kind == "images"])
    kinds |= kinds_by_values(folder, twins) if twins else {}
    depth = {os.path.splitext(path)[0] for path, kind in kinds.items() if kind == "depth"}
    masks = [path for path, kind in kinds.items() if kind == "labels"]
    for path in masks if depth else ():  # 7_depth_mask beside 7_depth: where depth is valid
        if ending(os.path.splitext(path)[0], depth, by_word=False):
            del kinds[path]
    return with_choice(folder, kinds)


def with_choice(folder: Folder, kinds: dict[str, Kind]) -> dict[str, Kind]:
    """Returns the kinds after the user's choice, which excludes other files of a chosen kind."""
    chosen = chosen_kinds(folder, [*kinds])
    given = {kind for kind in KINDS if {kind, f"{kind}_name"} & folder.given.keys()}
    kept = (path for path, kind in kinds.items() if path in chosen or kind not in given)
    return {path: chosen.get(path, kinds[path]) for path in kept}  # data.labels=null: no labels


def _kinds_of_folders(directories: set[str]) -> dict[str, Kind | Literal[""]]:
    """Returns the kind of the files in each folder; "" if no word tells.

    The word of a folder that holds both images and labels in folders of their own does not count.
    """
    inner: dict[str, set[str]] = defaultdict(set)
    parts_of = {directory: directory.split("/") for directory in directories}
    for parts in parts_of.values():
        for i in range(len(parts)):
            inner["/".join(parts[: i + 1])].update(map(kind_of_word, parts[i + 1 :]))
    kinds: dict[str, Kind | Literal[""]] = {}
    for directory, parts in parts_of.items():
        kind: Kind | Literal[""] = ""
        for i, part in enumerate(parts):
            below = inner["/".join(parts[: i + 1])]
            is_container = "images" in below and not below.isdisjoint(("labels", "depth"))
            part_kind = kind_of_word(part)
            if part_kind and not is_container and not (kind and part_kind == "images"):
                kind = part_kind
        kinds[directory] = kind
    return kinds


def kind_of_word(name: str) -> Kind | Literal[""]:
    """Returns the kind for which a word in a folder's name stands."""
    return next((kind for kind in KINDS if WORDS[kind].search(spaced(name))), "")


def _kind_of_name(path: str) -> Kind | Literal[""]:
    """Returns labels or depth if the first or the last word of a file's name says so."""
    stem = spaced(os.path.splitext(os.path.basename(path))[0])
    for kind in ("labels", "depth"):
        for match in WORDS[kind].finditer(stem):
            if match.start() == 0 or re.fullmatch(r"[\W\d_]*", stem[match.end() :]):
                return kind
    return ""


def _beside_jpegs(images: Sequence[str]) -> list[str]:
    """Returns the files with the name of a JPEG beside them, such as ``1.png`` of ``1.jpg``."""
    jpegs = {path for path in images if path.lower().endswith(io.JPEG_SUFFIXES)}
    stems = {os.path.splitext(path)[0] for path in jpegs}
    return [path for path in images if path not in jpegs and os.path.splitext(path)[0] in stems]


def kinds_by_values(folder: Folder, paths: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds of files by the values in some of each folder, suffix and word at the end
    of the name: few values are labels, many of more than 8 bits are depth."""
    stems = {os.path.splitext(path)[0] for path in paths}
    for by_ending in (True, False):
        groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for path in paths:
            stem, suffix = os.path.splitext(path)
            end = ending(stem, stems) if by_ending else ""
            groups[os.path.dirname(path), suffix, end].append(path)
        if len(groups) <= _MAX_GROUPS:
            break
    kinds: dict[str, Kind] = {}
    for members in [*groups.values()][:_MAX_GROUPS]:
        some = dict.fromkeys([members[0], members[len(members) // 2], members[-1]])
        read = {_kind_of_values(folder, path) for path in some}
        kinds |= dict.fromkeys(members, next(iter(read)) if len(read) == 1 else "images")
    return kinds


def ending(stem: str, stems: set[str], *, by_word: bool = True) -> str:
    """Returns what follows the name of another file, or the last word."""
    for match in reversed([*re.finditer(r"[-_. ]", stem)]):
        if stem[: match.start()] in stems:
            return stem[match.start() :]
    last = re.search(r"[-_. ]([^\W\d_]+)$", stem) if by_word else None
    return last[0] if last else ""


def _kind_of_values(folder: Folder, path: str) -> Kind:
    with suppress(DataError):  # lossy, colours of a photo, or damaged
        if len(io.label_values(folder.root / path)) <= _FEW_VALUES:
            return "labels"
    with suppress(DataError):
        if io.read_raw_depth(folder.root / path).dtype != np.uint8:
            return "depth"
    return "images"
