"""The settings of ``data`` for a folder of unknown layout, from its names and its files."""

import csv
import io as text_io
import os
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.checks import UNITS, likely_scale, plural
from dpt.data_check.masks import CLASS_FILE, class_weights, mask_settings, read_class_file
from dpt.files import few, files_below, parse_json, printable, read_bytes, read_text

MAX_FILES = 500_000
_MAPS = 48  # number of depth maps from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_MOST_HELD = 0.4  # largest share of the photos that is used for validation
_MANY_VALUES = 64  # in one map: more than classes have
_SPARSE = 0.3  # share of measured pixels: laser scanners measure fewer
_NOT_READ = {".heic", ".heif", ".avif", ".gif", ".jp2", ".dng", ".cr2", ".nef", ".arw"}
_SUFFIXES = {*io.IMAGE_SUFFIXES, *io.DEPTH_SUFFIXES}
_SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val",
           "validation": "val", "dev": "val", "test": "test", "testing": "test"}  # fmt: skip
_KINDS = {
    "depth": "depths?|depthmaps?",
    "labels": "masks?|msks?|labels?(?:tr)?|ann(?:ot|otation)?s?|seg|segmentations?|"
    "segmentationclass|semantics?|trimaps?|targets?|gt|gtfine|groundtruth|ids|classes",
    "image": "rgb|colou?rs?|(?:jpe?g)?images?(?:tr|ts)?|imgs?|leftimg8bit|photos?|pictures?|"
    "frames?|inputs?",
}
_Files = dict[str, dict[tuple[str, ...], str]]
"""Paths by kind and by the key of their sample: the split, then words of the path."""
_OPTIONS = {"image": "images", "labels": "labels", "depth": "depth"}  # keys of data, by kind
_GROUPS = (r"^(.*)/", r"([^/]*?)[-_.]?[0-9]+[^/0-9]*$")  # folder; what precedes the last number


@dataclass
class Detected:
    """What a folder holds.

    ``rows`` holds the split, image, labels and depth of each sample of ``data=folder``; ``photo``
    is the path of one photo, whose size the training images follow.
    """

    task: str
    data: str
    photo: str
    settings: dict[str, Any]  # keys of data
    notes: list[str] = field(default_factory=list)  # what was found out or assumed
    rows: list[dict[str, str]] = field(default_factory=list)
    weights: list[float] | None = None  # of the classes, for the loss


def detect(root: Path, given: Mapping[str, Any]) -> Detected:
    """Finds out what the folder holds.

    ``given`` are keys of ``data`` that are set already.

    Raises:
        DataError: no photo, labels without photos, a file that cannot be read, or two readings that
            would give different results; the message names the settings that decide.
    """
    if not root.is_dir():
        fault = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root}: {fault}: give the folder that holds the photos")
    paths = _files(root)
    unread: list[str] = []
    if not {"labels", "depth"} & given.keys() and (objects := _coco_file(root, paths, unread)):
        path, content = objects
        found = _coco(root, path, content, paths, given)
        if found.task == "instance" and "annotations" not in given and _has_masks(root, paths):
            raise DataError(f"{root}: holds masks and objects ({path}): set data.labels to the "
                            f"folder of the masks, or data.annotations={path}")  # fmt: skip
        found.notes += unread
        return found
    every = _from_tables(root, paths, unread) or _by_names(root, paths, given, unread)
    rows = [row for row in every if row.get("labels") or row.get("depth")]
    lists, rows = _listed(root, paths, rows, unread)
    kinds = [kind for kind in ("labels", "depth") if any(row.get(kind) for row in rows)]
    files = {kind: [root / row[kind] for row in rows if row.get(kind)] for kind in kinds}
    task = "joint" if len(kinds) == 2 else "segmentation" if "labels" in kinds else "depth"
    photo = rows[0]["image"] if rows else ""
    found = Detected(task, "folder", photo, {kind: kind for kind in kinds}, unread, rows=rows)
    bare = [row["image"] for row in every if not (row.get("labels") or row.get("depth"))]
    if bare:
        found.notes.append(f"not used: {plural(len(bare), 'photo')} without labels ({few(bare)}); "
                           "data.unlabelled=DIR trains on those of a folder")  # fmt: skip
    if lists and (unlisted := len(every) - len(bare) - len(rows)):
        found.notes.append(f"not used: {plural(unlisted, 'photo')} that {few(lists)} do not name")
    if "labels" in kinds:
        try:
            masks = mask_settings(files["labels"], read_class_file(root, paths), given)
        except DataError as error:  # the masks may be those of valid depth
            if "depth" not in kinds:
                raise
            raise DataError(f"{error}; data.labels=null leaves all masks out") from None
        found.settings |= masks.settings
        found.notes += masks.notes
        found.weights = class_weights(masks.counts) if masks.counts else None
    if "depth" in kinds:
        _depth(files["depth"], given, found)
    sizes = Counter(row["split"] for row in rows)
    if not (sizes["val"] and sizes["train"]):
        for row in rows:  # a folder named test may hold all of them
            is_test = row["split"] == "test" and len(sizes) > 1
            row["split"] = "test" if is_test else "train"
        photos = [row["image"] for row in rows if row["split"] == "train"]
        _hold_out(root, photos, found, given)
    else:
        each = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        found.notes.append(f"splits: {each}" + (f", by {few(lists)}" if lists else ""))
    for split, what in {"test": "of the split test", "": "of no split"}.items():
        if others := [row["image"] for row in rows if row["split"] == split]:
            found.notes.append(f"not used: {plural(len(others), 'photo')} {what} ({few(others)})")
    return found


def _coco_file(root: Path, paths: Sequence[str], unread: list[str]) -> tuple[str, Any] | None:
    """The file in COCO's format, of train if there are several, and its content."""
    jsons = [p for p in paths if p.endswith(".json") and _split_word(p)[0] in ("train", "")]
    found: dict[str, Any] = {}
    for path in sorted(jsons, key=lambda p: _split_word(p)[0] != "train"):
        try:
            content = parse_json(read_bytes(root / path, limit=1 << 29), root / path)
        except DataError as error:
            unread.append(f"not used: {error}")
            continue
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            found = found or {path: content}
            if path in found:
                continue
            if not _split_word(path)[0] and not _split_word(next(iter(found)))[0]:
                raise DataError(f"{root}: {next(iter(found))} and {path} both list objects: merge "
                                "them, or name their splits, such as train.json")  # fmt: skip
            unread.append(f"not used: {path}")
    return next(iter(found.items()), None)


def _has_masks(root: Path, paths: Sequence[str]) -> bool:
    """Whether photos pair with masks by their names."""
    try:
        return any(row.get("labels") for row in _by_names(root, paths, {}, []))
    except DataError:
        return False


def _files(root: Path) -> list[str]:
    """The paths of the files, those of upper folders first, without those of runs."""
    every = files_below(root)
    if len(every) > MAX_FILES:
        raise DataError(f"{root}: more than {MAX_FILES} files: give the folder of one data set")
    configured = [path.parent for path in every if path.name == "config.yaml"]
    runs = {folder for folder in configured if (folder / "checkpoints").is_dir()}
    # a run of dpt fit that ended before training
    checked = [folder.parent for folder in configured if folder.name == "data_check"]
    runs |= {folder for folder in checked if (folder / "pairs.csv").is_file()}
    paths = [p.relative_to(root).as_posix() for p in every if runs.isdisjoint(p.parents)]
    if strange := [p for p in paths if printable(p) != p]:
        raise DataError(f"{root}: {printable(strange[0])}: the name is not UTF-8: rename the file")
    return sorted(paths, key=lambda p: (p.count("/"), p))


def _kind(words: Sequence[str]) -> str:
    return next((kind for kind, pattern in _KINDS.items()
                 if any(re.fullmatch(pattern, w, re.IGNORECASE) for w in words)), "")  # fmt: skip


def _split_word(path: str) -> tuple[str, str]:
    """The split that the last matching word of a path names, and that word, such as ``train2017``;
    two empty strings if no word matches."""
    for word in reversed(re.split(r"[-_. /]+", path)):
        if split := _SPLITS.get(word.rstrip("0123456789").lower()):
            return split, word
    return "", ""


def _describe(path: str, folder_kinds: Container[str]) -> tuple[str, str, tuple[str, ...]]:
    """The kind and the split of a file ("" if no name contains them), and the key of its sample:
    the split and the words of the path, without those for its kind and for splits.

    The kind in the file's name takes precedence over that in its folders' names, unless other
    folders are of that kind.
    """
    *folders, stem = os.path.splitext(path)[0].split("/")
    kind = split = ""
    words: list[str] = []
    for part in folders:
        tokens = re.split(r"[-_. ]+", part)
        split = next((_SPLITS[t.lower()] for t in tokens if t.lower() in _SPLITS), split)
        kind = _kind(tokens) or kind
        words += [t for t in tokens if t.lower() not in _SPLITS]
    tokens = re.split(r"[-_. ]+", stem)
    last = next((t for t in reversed(tokens) if not t.isdecimal()), "")  # a number may follow
    own = _kind([tokens[0], last])
    own_first = own in ("labels", "depth") and not (kind and own in folder_kinds)
    kind = own if own_first else kind or own
    return kind, split, (split, *(w for w in (*words, *tokens) if _kind([w]) != (kind or "image")))


def _by_names(
    root: Path, paths: Sequence[str], given: Mapping[str, Any], unread: list[str]
) -> list[dict[str, str]]:
    """Rows of photos and the labels whose names differ in words for kinds alone."""
    files: _Files = {"image": {}, "labels": {}, "depth": {}}
    splits: dict[str, str] = {}
    pictures = [p for p in paths if os.path.splitext(p)[1].lower() in _SUFFIXES]
    folders = {part for path in pictures for part in path.split("/")[:-1]}
    folder_kinds = {_kind(re.split(r"[-_. ]+", part)) for part in folders}
    chosen = {os.path.normpath(str(given[option])): kind
              for kind, option in _OPTIONS.items() if given.get(option)}  # fmt: skip
    chosen = {"" if name == "." else f"{name}/": kind for name, kind in chosen.items()}
    kinds = _kinds_beside_jpegs(root, pictures)
    for path in pictures:
        inside = max((f for f in chosen if path.startswith(f)), key=len, default=None)
        kind, split, key = _describe(path.removeprefix(inside or ""), folder_kinds)
        kind = (kind if inside is None else chosen[inside]) or kinds.get(path, "image")
        option = _OPTIONS[kind]
        if inside is None and option in given:  # in another folder, or switched off by null
            continue
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
        files[kind][key], splits[path] = path, split
    if not _has_pairs(files):
        own_words = _own_words(files)
        files = _shortened(
            files, lambda kind, key: (key[0], *(w for w in key[1:] if w not in own_words[kind]))
        )
        if _has_pairs(files):
            words = sorted({*chain(*own_words.values())})
            unread.append(f"pairs: by names without {few(words)}")
    if not _has_pairs(files):  # perhaps only photos, or only labels, are in folders of splits
        files = _shortened(files, lambda kind, key: key[1:])
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
    if unknown := [f"{n} of {suffix}" for suffix, n in others.items() if suffix in _NOT_READ]:
        unread.append(f"not used: {few(unknown)}: convert photos to JPEG or PNG")
    rows = []
    for key, photo in photos.items():
        own = {kind: m[key] for kind, m in maps.items() if key in m}
        split = next((found for p in (photo, *own.values()) if (found := splits[p])), "")
        rows.append({"split": split, "image": photo, **own})
    return rows


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


def _shortened(files: _Files, shorten: Callable[[str, tuple[str, ...]], tuple[str, ...]]) -> _Files:
    """The files by shorter keys; unchanged if two of a kind would have one key."""
    new = {k: {shorten(k, key): path for key, path in own.items()} for k, own in files.items()}
    return new if all(len(new[kind]) == len(own) for kind, own in files.items()) else files


def _from_tables(root: Path, paths: Sequence[str], unread: list[str]) -> list[dict[str, str]]:
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
    splits = {path: _split_word(path)[0] for path in tables}
    if not all(splits.values()) or len({*splits.values()}) < len(splits):
        raise DataError(f"{root}: {few(list(tables))} list photos and labels: keep one, or name "
                        "them after their splits, such as train.csv and val.csv")  # fmt: skip
    return [{**row, "split": splits[path]} for path, rows in tables.items() for row in rows]


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
    for name in lines[0] if lines else ():
        values = [value for line in lines if (value := line.get(name))]
        if 2 * sum(value.lower() in _SPLITS for value in values) > len(values):
            columns["split"] = name
        elif any((root / base / value).is_file() for value in values):
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
        files = {k: (base / line[n]).as_posix() for k, n in columns.items() if line.get(n)}
        if "image" in files:
            rows.append({"split": _SPLITS.get(word, ""), **files})
    used = [row[kind] for row in rows for kind in columns if kind in row]
    if absent := [file for file in used if not (root / file).is_file()]:
        raise DataError(f"{root / path}: {len(absent)} of its files do not exist ({few(absent)}): "
                        "add them, or remove their rows")  # fmt: skip
    return rows


def _listed(
    root: Path, paths: Sequence[str], rows: list[dict[str, str]], unread: list[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Text files that list the photos of train and val, and the rows that they list, with splits.

    A line begins with a photo's path or its name, with or without suffix. Returns no lists if
    folders, a table or the names of all photos define the splits, or if there are no such files.
    """
    if any(row["split"] for row in rows):
        return [], rows
    by_name = [{**row, "split": _split_word(row["image"])[0]} for row in rows]
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


def _coco(
    root: Path, path: str, content: Any, paths: Sequence[str], given: Mapping[str, Any]
) -> Detected:
    try:
        names = [str(row["file_name"]) for row in content["images"]]
        kind = "panoptic" if "segments_info" in content["annotations"][0] else "instance"
        near = [p for p in paths if f"/{p}".endswith(f"/{names[0]}")]
    except (LookupError, TypeError):
        raise DataError(f"{root / path}: no images or annotations in COCO's format") from None
    if not near:
        raise DataError(f"{root / path}: {names[0]} is not below {root}: add the photos")
    if kind == "instance" and not any(row.get("segmentation") for row in content["annotations"]):
        raise DataError(f"{root / path}: boxes, but no masks: add polygons or RLE to the objects")
    tag = _split_word(path)[1]
    near.sort(key=lambda p: tag not in p)
    images = near[0].removesuffix(names[0]).rstrip("/") or "."
    others = {word for split, word in map(_split_word, paths) if split == "val" and tag}
    whole_word = rf"(?<![^-_. /]){tag}(?![^-_. /])"
    val = next((word for word in sorted(others) if re.sub(whole_word, word, path) in paths), "")
    found = Detected(kind, "coco", near[0], {"images": images, "annotations": path})
    found.notes.append(f"objects: {path}, in COCO's {kind} format")
    if val:
        found.settings = {k: re.sub(whole_word, "%split", v) for k, v in found.settings.items()}
        found.settings |= {"split_names.train": tag, "split_names.val": val}
    else:
        _hold_out(root, [f"{images}/{name}" for name in names], found, given)
    return found


def _hold_out(root: Path, photos: Sequence[str], found: Detected, given: Mapping[str, Any]) -> None:
    """Settings that hold out a tenth of the photos, or about a tenth of the groups of names, as far
    as the user has not set them."""
    if len(photos) < 2:
        count = plural(len(photos), "photo")
        raise DataError(f"{root}: {count} with labels: add some, for training and for validation")
    if {"folds", "fold", "group_by"} & given.keys():
        folds = given.get("folds", min(10, _number_of_groups(photos, given.get("group_by"))))
        fold = given.get("fold", folds - 1 if isinstance(folds, int) else 0)
        found.settings |= {"folds": folds, "fold": fold}
        found.notes.append(f"splits: no val on disk; part {fold} of {folds}, as data.folds, "
                           "data.fold and data.group_by say")  # fmt: skip
        return
    folds = min(10, len(photos))
    found.settings |= {"folds": folds, "fold": folds - 1, "gap": len(photos) // 50}
    note = "the last tenth by name"
    if len(photos) >= 50:
        note += ", with a gap before it"
    for rule in _GROUPS:
        sizes = Counter(match[1] for path in photos if (match := re.search(rule, path)))
        groups, tenth = sorted(sizes), len(photos) / 10
        if sizes.total() == len(photos) and 1 < len(groups) <= len(photos) // 3:
            folds = min(10, len(groups))
            ends = [len(groups) * k // folds for k in range(folds + 1)]
            parts = [groups[ends[k] : ends[k + 1]] for k in range(folds)]
            shares = [sum(sizes[group] for group in part) for part in parts]
            fold = min(range(folds), key=lambda k: abs(shares[k] - tenth))
            if shares[fold] > _MOST_HELD * len(photos):
                continue  # such groups may be classes
            found.settings |= {"folds": folds, "fold": fold, "gap": 0, "group_by": rule}
            note = f"{few(parts[fold])} of the {len(groups)} groups that the names show"
            break
    found.notes.append(f"splits: no val on disk; validation on {note}")


def _number_of_groups(photos: Sequence[str], rule: Any) -> int:
    """Of ``data.group_by``; each photo is a group without it, or if it cannot be used."""
    try:
        matches = [re.search(rule, path) for path in photos]
    except (re.error, TypeError):
        return len(photos)
    return len({match[min(1, match.re.groups)] for match in matches if match}) or len(photos)


def _depth(paths: Sequence[Path], given: Mapping[str, Any], found: Detected) -> None:
    """Adds the settings of depth maps: unit, invalid values and range."""
    places = np.linspace(0, len(paths) - 1, min(len(paths), _MAPS)).astype(int)
    raws = [io.read_raw_depth(paths[i], key=given.get("depth_key")) for i in places]
    whole, folder = raws[0].dtype.kind != "f", paths[0].parent
    last = int(np.iinfo(raws[0].dtype).max) if whole else 0
    invalid = [0, last] if last and any((raw == last).any() for raw in raws) else [0]
    invalid = given.get("invalid_depth", invalid)
    values = [raw[np.isfinite(raw) & (raw > 0) & ~np.isin(raw, invalid)] for raw in raws]
    share = sum(v.size for v in values) / sum(raw.size for raw in raws)
    values = [v for v in values if v.size]
    if not values:
        raise DataError(f"{folder}: no depth map holds a measured depth: check the files")
    typical = float(np.median([np.median(v) for v in values]))
    high = float(np.median([np.quantile(v, 0.99) for v in values]))
    likely = likely_scale(typical, high, max_depth=None, scale=np.inf)
    scale = given.get("depth_scale", 0.001 if whole and typical >= 250 else likely)
    if scale is None or ("depth_scale" not in given and raws[0].dtype.itemsize == 1):
        fault = "maps of 8 bits have no usual unit" if scale else "no usual unit is plausible"
        raise DataError(f"{folder}: {fault}, with a typical depth of {typical:.4g}: "
                        "set data.depth_scale to the metres of a unit")  # fmt: skip
    other = 0.001
    if whole and (share < _SPARSE or high * scale > _ROOM):
        other = 1 / 256 if share < _SPARSE else 0.0002
    if "depth_scale" not in given and scale not in (1.0, other):
        raise DataError(
            f"{folder}: the typical depth {typical:.4g} is {typical * scale:.2g} m in "
            f"{UNITS[scale]} and {typical * other:.2g} m in units of {UNITS[other]}: set "
            f"data.depth_scale={scale:.6g} or data.depth_scale={other:.6g}"
        )
    far = scale * max(float(v.max()) for v in values)
    limit = next((r for r in _RANGES if r >= far), float(np.ceil(far)))
    found.settings |= {"depth_scale": scale, "invalid_depth": invalid, "max_depth": limit}
    found.notes.append(f"depth: {len(paths)} files of {raws[0].dtype} in "
                       f"{UNITS.get(scale, scale)}, {typical * scale:.2g} m typically; "
                       f"{few([str(v) for v in invalid])} and NaN: not measured")  # fmt: skip
