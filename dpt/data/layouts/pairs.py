"""Images with masks or depth maps, paired by a CSV table or by the names of files and folders."""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from dpt.data.formats import io
from dpt.data.layouts.class_file import CLASS_FILE, read_class_file
from dpt.data.layouts.depth import depth_settings
from dpt.data.layouts.folder import (
    Detected,
    Folder,
    Row,
    divide,
    rows_by_lists,
)
from dpt.data.layouts.masks import class_weights, mask_settings
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, few, missing_path, path_below, plain_name, plural, read_text

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
_Line = dict[str, str]  # cells by column
_PRODUCTS = (
    r"(?i)(^|/)(aug(mented|mentations?)?|pred(iction)?s?|results?|visuali[sz]ations?|overlays?)/"
)
"""Folders of copies, predictions and pictures for people, which are made of images and labels."""
_NO_IMAGES = (
    r"(?i)(^|/)(@eadir|__macosx|segmentationobject|thumb(nail)?s?)/|"
    r"[-_. ]pred(ict(ed|ion)?)?[.]\w+$"
)


class _Name(NamedTuple):
    """What the path of a file says."""

    kind: str  # "" if no word names one
    split: str  # "" if no folder names one
    whole: _Key  # the split and the words of the path, without those for kinds of folders
    key: _Key  # also without the words of the file's name for its kind


def match_pairs(folder: Folder) -> Detected:
    """Returns the settings of a folder of images with masks, depth maps or both.

    Raises:
        DataError: there are no pairs, or two readings of them.
    """
    rows = _rows(folder)
    labelled = [row for row in rows if row.labels or row.depth]
    bare = [row.image for row in rows if not (row.labels or row.depth)]
    lists, used = rows_by_lists(folder, labelled)
    if not used:
        remedy = "add some, for training and for validation"
        raise DataError(f"{folder.root}: no image has labels: {remedy}")
    if bare:
        without = f"{plural(len(bare), 'image')} without labels ({few(bare)})"
        remedy = "data.unlabelled=DIR trains on those of a folder"
        folder.notes.append(f"not used: {without}; {remedy}")
    unlisted = len(labelled) - len(used)
    if lists and unlisted:
        folder.notes.append(f"not used: {plural(unlisted, 'image')} that {few(lists)} do not name")
    masks = [folder.root / row.labels for row in used if row.labels]
    maps = [folder.root / row.depth for row in used if row.depth]
    task = "joint" if masks and maps else "segmentation" if masks else "depth"
    detected = Detected(task, "folder", used[0].image, {}, folder.notes)
    if masks:
        try:
            settings = mask_settings(masks, read_class_file(folder), folder.given)
        except DataError as error:  # the masks may be those of valid depth
            remedy = "; data.labels=null leaves all masks out" if maps else ""
            raise DataError(f"{error}{remedy}") from None
        detected.settings |= {"labels": "labels", **settings.settings}
        detected.class_weights = class_weights(settings.counts)
        folder.notes += settings.notes
    if maps:
        settings_of_depth, notes = depth_settings(maps, folder.given)
        detected.settings |= {"depth": "depth", **settings_of_depth}
        folder.notes += notes
    detected.rows, held_out = divide(folder, used, lists)
    detected.settings |= held_out
    return detected


def _rows(folder: Folder) -> list[Row]:
    """Returns images and labels, without files made of others if there are pairs besides."""
    paths = [path for path in folder.paths if not re.search(_NO_IMAGES, path)]
    products = [path for path in paths if re.search(_PRODUCTS, path)]
    chosen = [f"{folder.given.get(key, '')}/" for key in ("images", "labels", "depth")]
    if products and not any(re.search(_PRODUCTS, path) for path in chosen):
        originals = [path for path in paths if not re.search(_PRODUCTS, path)]
        trial = replace(folder, paths=originals, notes=[])
        with suppress(DataError):  # the products are all that there is
            rows = _rows_of_tables(trial) or _rows_of_names(trial)
            note = f"{plural(len(products), 'file')} made of others, such as {products[0]}"
            folder.notes += [*trial.notes, f"not used: {note}"]
            return rows
    folder = replace(folder, paths=paths)
    return _rows_of_tables(folder) or _rows_of_names(folder)


def _rows_of_tables(folder: Folder) -> list[Row]:
    """Returns the rows of the CSV file with columns of images and of labels, or of one such file
    for each split; none if there is no such file."""
    tables: dict[str, list[Row]] = {}
    for path in folder.paths:
        if not path.lower().endswith(".csv"):
            continue
        try:
            lines = _read_csv(folder.root / path)
        except DataError as error:
            folder.notes.append(f"not used: {error}")
            continue
        rows = _rows_of_table(folder.root, path, lines)
        if rows:
            tables[path] = rows
        elif not re.fullmatch(CLASS_FILE, path):
            folder.notes.append(f"not used: {path}, without paths of images and labels")
    if len(tables) < 2:
        return [row for rows in tables.values() for row in rows]
    splits = {path: split_word(path)[0] for path in tables}
    if not all(splits.values()) or len(set(splits.values())) < len(splits):
        remedy = "keep one, or name them after their splits, such as train.csv and val.csv"
        raise DataError(f"{folder.root}: {few(list(tables))} list images and labels: {remedy}")
    return [row._replace(split=splits[path]) for path, rows in tables.items() for row in rows]


def _read_csv(path: Path) -> list[_Line]:
    """Returns the lines of a table whose cells are separated by commas, semicolons or tabs."""
    text = read_text(path).replace("\\", "/")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    source = StringIO(text, newline="")
    reader = csv.DictReader(source, delimiter=separator, skipinitialspace=True, restval="")
    try:
        return [{name: cell.strip() for name, cell in line.items() if name} for line in reader]
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV table ({error})") from None


def _rows_of_table(root: Path, path: str, lines: Sequence[_Line]) -> list[Row]:
    """Returns the samples of a table; none if no column holds paths of images, or none of labels.

    Raises:
        DataError: the table names splits without images, an unknown split, or missing files.
    """
    base, source = Path(path).parent, root / path
    columns = _columns(root, base, lines)
    split_column = columns.pop("split", "")
    if "image" not in columns or not {"labels", "depth"} & columns.keys():
        if split_column:
            remedy = "add their paths from its folder, or move it elsewhere"
            raise DataError(f"{source}: names splits, but no images and labels: {remedy}")
        return []
    rows = []
    for line in lines:
        word = line.get(split_column, "").lower()
        if word and word not in SPLITS:
            raise DataError(f"{source}: {split_column} is {word}: write {', '.join(SPLITS)}")
        files = {
            kind: path_below(root, str(base / line[column]), source).relative_to(root).as_posix()
            for kind, column in columns.items()
            if line[column]
        }
        if "image" in files:
            rows.append(Row(**files, split=SPLITS.get(word, "")))
    files_of_rows = [file for row in rows for file in (row.image, row.labels, row.depth) if file]
    missing = [file for file in files_of_rows if not os.path.isfile(root / file)]
    if missing:
        fault = f"{len(missing)} of its files do not exist ({few(missing)})"
        raise DataError(f"{source}: {fault}: add them, or remove their rows")
    return rows


def _columns(root: Path, base: Path, lines: Sequence[_Line]) -> dict[str, str]:
    """Returns the columns that hold splits and files, by ``split``, ``image``, ``labels`` and
    ``depth``."""
    columns: dict[str, str] = {}
    for name in lines[0] if lines else ():
        cells = [line[name] for line in lines if line[name]]
        if 2 * sum(cell.lower() in SPLITS for cell in cells) > len(cells):
            columns["split"] = name
        elif any(_is_file(root, base / cell) for cell in cells):
            columns.setdefault(_kind_of_words(re.split(r"[-_. ]+", name)) or "image", name)
    return columns


def _is_file(root: Path, name: Path) -> bool:
    try:
        return os.path.isfile(path_below(root, str(name), root))
    except DataError:  # the table's rows are refused later
        return os.path.isfile(root / name)


def has_masks(folder: Folder) -> bool:
    """Returns whether images pair with masks by their names."""
    try:
        rows = _rows_of_names(replace(folder, given={}, notes=[]))
    except DataError:
        return False
    return any(row.labels for row in rows)


def _rows_of_names(folder: Folder) -> list[Row]:
    """Returns images and the labels that have their name, without words for kinds.

    Raises:
        DataError: there are no pairs, or two labels of an image.
    """
    suffix_of = {path: os.path.splitext(path)[1].lower() for path in folder.paths}
    pictures = [path for path in folder.paths if suffix_of[path] in _SUFFIXES]
    suffixes = Counter(suffix for suffix in suffix_of.values() if suffix not in _SUFFIXES)
    files, splits = _files_by_key(folder, pictures)
    files = _with_pairs(folder, files)
    images, labels, depth = files["image"], files["labels"], files["depth"]
    if not _has_pairs(files):
        raise _no_pairs(folder, files, suffixes)
    stray = [path for maps in (labels, depth) for key, path in maps.items() if key not in images]
    if stray:
        count = plural(len(stray), "label file")
        folder.notes.append(f"not used: {count} without an image ({few(stray)})")
    unread = [f"{suffixes[end]} of {end}" for end in suffixes if end in io.UNREAD_SUFFIXES]
    if unread:
        folder.notes.append(f"not used: {few(unread)}: convert images to JPEG or PNG")
    rows = []
    for key, image in images.items():
        row = Row(image, labels.get(key, ""), depth.get(key, ""))
        named = [splits[path] for path in row if path and splits[path]]
        rows.append(row._replace(split=named[0] if named else ""))
    return rows


def _no_pairs(folder: Folder, files: _Files, suffixes: Counter[str]) -> DataError:
    """Returns the error of a folder without an image that has labels."""
    maps = sorted([*files["labels"].values(), *files["depth"].values()], reverse=True)
    shown = few(sorted({os.path.dirname(path): path for path in maps}.values()))
    if not files["image"]:
        fault = f"holds labels ({shown}) but no image" if maps else "holds no image"
    else:
        fault = f"no image pairs with {shown}" if maps else "images, but no masks and no depth"
    left = few([f"{count} of {suffix or 'no suffix'}" for suffix, count in suffixes.items()])
    notes = [*folder.notes, f"not used: {left}"] if left else folder.notes
    remedy = (
        "give an image and its labels one name in folders such as images, masks and depth, or set "
        "data.images, data.labels and data.depth to theirs; if its folders are classes, use python "
        "train.py task=classification data=imagefolder data.root=DIR"
    )
    return DataError("; ".join([f"{folder.root}: {fault}: {remedy}", *notes]))


def _kind_of_words(words: Sequence[str]) -> str:
    """Returns image, labels or depth, for which a word stands, or an empty string."""
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
        kind = _kind_of_words(words) or kind
        folder_words += [word for word in words if word.lower() not in SPLITS]
    stem = re.sub(r"(?<![^-_. ])IMG[-_. ](?=[0-9])", "IMG", stem)  # of cameras: no word for a kind
    words = re.split(_SEPARATORS, stem)
    last = [word for word in words if not word.isdecimal()][-1:]  # a number may follow
    name_kind = _kind_of_words([words[0], *last])
    if name_kind in ("labels", "depth") and not (kind and name_kind in folder_kinds):
        kind = name_kind
    kind = kind or name_kind
    folder_words = [word for word in folder_words if _kind_of_words([word]) != (kind or "image")]
    name_words = [word for word in words if _kind_of_words([word]) != (kind or "image")]
    return _Name(kind, split, (split, *folder_words, *words), (split, *folder_words, *name_words))


def _files_by_key(folder: Folder, pictures: Sequence[str]) -> tuple[_Files, dict[str, str]]:
    """Returns the files by kind and key, and the split of each path. The user's folders decide
    before names.

    Raises:
        DataError: two files of a kind have one key.
    """
    parents = {part for path in pictures for part in path.split("/")[:-1]}
    folder_kinds = {_kind_of_words(re.split(_SEPARATORS, part)) for part in parents}
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
            remedy = f"set data.{option} to the folder of one, or give images and labels folders"
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
            remedy = "give the folder that holds images and labels"
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
    """Returns the files by shorter and shorter keys, until an image and a label file have one."""
    if _has_pairs(files):
        return files
    words = _words_of_one_kind(files)
    files = _with_keys(
        files, lambda kind, key, path: (key[0], *(w for w in key[1:] if w not in words[kind]))
    )
    if _has_pairs(files):
        folder.notes.append(f"pairs: by names without {few(sorted(set().union(*words.values())))}")
        return files
    # perhaps only images, or only labels, are in folders of splits
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
    """Returns the words that all images have and no label file, or the reverse, by kind, such as
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
