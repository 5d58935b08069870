"""The settings of ``data`` for a folder of unknown layout, from its names and its files."""

import csv
import io as text_io
import os
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.checks import UNITS, likely_scale, plural
from dpt.data_check.propose import Values, class_settings, class_weights
from dpt.files import few, files_below, parse_json, printable, read_bytes, read_text
from dpt.types import IGNORE_INDEX

MAX_FILES = 500_000
_VALUES = 256  # largest number of ids or colours in masks
_MAPS = 48  # number of depth maps from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_MOST_HELD = 0.4  # largest share of the photos that is used for validation
_SPARSE = 0.3  # share of measured pixels: laser scanners measure fewer
_SUFFIXES = {*io.IMAGE_SUFFIXES, *io.DEPTH_SUFFIXES}
_SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val",
           "validation": "val", "test": "test", "testing": "test"}  # fmt: skip
_KINDS = {
    "depth": "depths?|depthmaps?",
    "labels": "masks?|msks?|labels?|annots?|annotations?|seg|segmentations?|segmentationclass|"
    "trimaps?|gt|groundtruth|ids|classes",
    "image": "rgb|colou?rs?|(?:jpe?g)?images?|imgs?|photos?|pictures?|frames?",
}
_OPTIONS = {"image": "images", "labels": "labels", "depth": "depth"}  # keys of data, by kind
_Rows = list[tuple[Any, str, Any]]  # id or None, name, and colour or None of each class
_Names = tuple[str, _Rows, Any]  # the file of class names, its rows, and the ids to ignore
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
    jsons = [p for p in paths if p.endswith(".json") and _split_word(p)[0] in ("train", "")]
    unread: list[str] = []
    for path in sorted(jsons, key=lambda p: _split_word(p)[0] != "train"):
        try:
            content = parse_json(read_bytes(root / path, limit=1 << 29), root / path)
        except DataError as error:
            unread.append(f"not used: {error}")
            continue
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            return _coco(root, path, content, paths)
    every = _from_table(root, paths, unread) or _by_names(root, paths, given, unread)
    rows = [row for row in every if row.get("labels") or row.get("depth")]
    lists, rows = _listed(root, paths, rows)
    kinds = [kind for kind in ("labels", "depth") if any(row.get(kind) for row in rows)]
    files = {kind: [root / row[kind] for row in rows if row.get(kind)] for kind in kinds}
    task = "joint" if len(kinds) == 2 else "segmentation" if "labels" in kinds else "depth"
    photo = rows[0]["image"] if rows else ""
    found = Detected(task, "folder", photo, {kind: kind for kind in kinds}, unread, rows=rows)
    if bare := sum(not (row.get("labels") or row.get("depth")) for row in every):
        found.notes.append(f"not used: {plural(bare, 'photo')} without labels "
                           "(data.unlabelled=DIR trains on those of a folder)")  # fmt: skip
    if lists and (unlisted := len(every) - bare - len(rows)):
        found.notes.append(f"not used: {plural(unlisted, 'photo')} that {few(lists)} do not name")
    if "labels" in kinds:
        counts = _masks(files["labels"], _names(root, paths), given, found)
        found.weights = class_weights(counts) if counts else None
    if "depth" in kinds:
        _depth(files["depth"], given, found)
    sizes = Counter(row["split"] for row in rows)
    if sizes["val"] and sizes["train"]:
        each = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        found.notes.append(f"splits: {each}" + (f", by {few(lists)}" if lists else ""))
        return found
    for row in rows:  # a folder named test may hold all of them
        is_test = row["split"] == "test" and len(sizes) > 1
        row["split"] = "test" if is_test else "train"
    _hold_out(root, [row["image"] for row in rows if row["split"] == "train"], found)
    return found


def _files(root: Path) -> list[str]:
    """The paths of the files, those of upper folders first, without those of runs."""
    every = files_below(root)
    if len(every) > MAX_FILES:
        raise DataError(f"{root}: more than {MAX_FILES} files: give the folder of one data set")
    configured = [path.parent for path in every if path.name == "config.yaml"]
    runs = {folder for folder in configured if (folder / "checkpoints").is_dir()}
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


def _describe(path: str, folder_kinds: Container[str]) -> tuple[str, str, str]:
    """The kind and the split of a file ("" if no name contains them), and the key of its sample:
    the path without words for kinds and splits.

    The kind in the file's name takes precedence over that in its folders' names, unless other
    folders are of that kind.
    """
    *folders, stem = os.path.splitext(path)[0].split("/")
    kind = split = ""
    kept = []
    for part in folders:
        tokens = re.split(r"[-_. ]+", part)
        split = next((_SPLITS[t.lower()] for t in tokens if t.lower() in _SPLITS), split)
        kind = _kind(tokens) or kind
        kept += [t for t in tokens if t.lower() not in _SPLITS and not _kind([t])]
    tokens = re.split(r"[-_. ]+", stem)
    own = _kind([tokens[0], tokens[-1]])
    kept += [t for t in tokens if not _kind([t])]
    own_first = own in ("labels", "depth") and not (kind and own in folder_kinds)
    return own if own_first else kind or own, split, "/".join([split, *kept])


def _by_names(
    root: Path, paths: Sequence[str], given: Mapping[str, Any], unread: Sequence[str]
) -> list[dict[str, str]]:
    """Rows of photos and the labels whose names differ in words for kinds alone."""
    files: dict[str, dict[str, str]] = {"image": {}, "labels": {}, "depth": {}}
    splits: dict[str, str] = {}
    pictures = [p for p in paths if os.path.splitext(p)[1].lower() in _SUFFIXES]
    folders = {part for path in pictures for part in path.split("/")[:-1]}
    folder_kinds = {_kind(re.split(r"[-_. ]+", part)) for part in folders}
    chosen = {f"{given[option]}/": kind for kind, option in _OPTIONS.items() if given.get(option)}
    for path in pictures:
        inside = max((f for f in chosen if path.startswith(f)), key=len, default="")
        kind, split, key = _describe(path.removeprefix(inside), folder_kinds)
        kind = chosen.get(inside) or kind or "image"
        option = _OPTIONS[kind]
        if not inside and (option in given):  # in another folder, or switched off by null
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
        files[kind][key], splits[key] = path, split
    photos, maps = files["image"], {k: v for k, v in files.items() if v and k != "image"}
    held = [path for own in maps.values() for path in own.values()]
    others = Counter(os.path.splitext(path)[1].lower() for path in {*paths} - {*pictures})
    left = few([f"{count} of {suffix or 'no suffix'}" for suffix, count in others.items()])
    details = "".join(f"; {line}" for line in (*unread, *([f"not used: {left}"] if left else [])))
    if not photos:
        what = f"labels ({few(held)}) but no photo" if held else "no photo"
        raise DataError(f"{root}: holds {what}: give the folder that holds photos and labels, or "
                        f"set data.images and data.labels to their folders{details}")  # fmt: skip
    rows = [{"split": splits[key], "image": photo,
             **{k: m[key] for k, m in maps.items() if key in m}}
            for key, photo in photos.items()]  # fmt: skip
    if not any(key in m for key in photos for m in maps.values()):
        fault = f"no photo pairs with {few(held)}" if held else "photos, but no masks and no depth"
        raise DataError(f"{root}: {fault}: give a photo and its labels one name in folders such as "
                        "images, masks and depth, or set data.images, data.labels and data.depth "
                        "to theirs; if its folders are classes, use python train.py "
                        f"task=classification data=imagefolder data.root=DIR{details}")  # fmt: skip
    return rows


def _from_table(root: Path, paths: Sequence[str], unread: list[str]) -> list[dict[str, str]]:
    """Rows of the first CSV file with columns of photos and of labels."""
    for path in (p for p in paths if p.lower().endswith(".csv")):
        try:
            lines = list(csv.DictReader(text_io.StringIO(read_text(root / path), newline="")))
        except DataError as error:
            unread.append(f"not used: {error}")
            continue
        columns, base = {}, Path(path).parent
        for name in lines[0] if lines else ():
            value = next((v for line in lines if (v := line.get(name))), "")
            if isinstance(value, str) and value.lower() in _SPLITS:
                columns["split"] = name
            elif isinstance(value, str) and value and (root / base / value).is_file():
                columns.setdefault(_kind(re.split(r"[-_. ]+", name)) or "image", name)
        if "image" in columns and {"labels", "depth"} & columns.keys():
            split = columns.pop("split", "")
            return [{"split": _SPLITS.get((line.get(split) or "").lower(), ""),
                     **{k: (base / line[n]).as_posix() for k, n in columns.items() if line[n]}}
                    for line in lines if line[columns["image"]]]  # fmt: skip
    return []


def _listed(
    root: Path, paths: Sequence[str], rows: list[dict[str, str]]
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
    readings = []
    for folder in sorted(set(map(os.path.dirname, split_of))):
        used = [p for p in split_of if os.path.dirname(p) == folder]
        splits: dict[str, str] = {}
        for path in used:
            for line in filter(None, map(str.strip, read_text(root / path).splitlines())):
                for name in map(os.path.normpath, (line, re.split(r"[,\s]", line)[0])):
                    splits |= dict.fromkeys((name, os.path.splitext(name)[0]), split_of[path])
        named = []
        for row in rows:
            stem = os.path.splitext(row["image"])[0]
            if split := splits.get(stem) or splits.get(os.path.basename(stem)):
                named.append({**row, "split": split})
        if {"train", "val"} <= {row["split"] for row in named}:
            readings.append((used, named))
    if len(readings) > 1:
        each = " and ".join(few(used) for used, _ in readings)
        raise DataError(f"{root}: {each} divide the photos: remove the lists that do not count")
    return readings[0] if readings else ([], rows)


def _coco(root: Path, path: str, content: Any, paths: Sequence[str]) -> Detected:
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
        _hold_out(root, [f"{images}/{name}" for name in names], found)
    return found


def _hold_out(root: Path, photos: Sequence[str], found: Detected) -> None:
    """Settings that hold out a tenth of the photos, or about a tenth of the groups of names."""
    if len(photos) < 2:
        count = plural(len(photos), "photo")
        raise DataError(f"{root}: {count} with labels: add some, for training and for validation")
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
    found.notes.append(f"splits: none on disk; validation on {note}")


def _names(root: Path, paths: Sequence[str]) -> _Names:
    """The file of class names, its rows of id or None, name, colour or None, and ignored ids."""
    pattern = r"(?i)(?:.*/)?_?(?:class(?:es|_names|_dict)?|names|palette|labelmap)\.(txt|csv|json)"
    for path in (p for p in paths if re.fullmatch(pattern, p)):
        text, rows = read_text(root / path, limit=1 << 20), []
        if path.endswith(".json"):
            content = parse_json(text, root / path)
            is_table = isinstance(content, dict) and "classes" in content
            table = content if is_table else {"classes": content}
            classes = table["classes"]
            if isinstance(classes, dict):  # names by id
                classes = [{"id": int(k), "name": v} for k, v in classes.items() if k.isdecimal()]
            for row in classes:
                row = row if isinstance(row, dict) else {"name": row}
                rows.append((row.get("id"), str(row.get("name")), row.get("color")))
            return path, rows, table.get("ignore_index")
        is_csv = path.endswith(".csv")
        for line in (line for line in text.splitlines() if not line.startswith("#")):
            parts = re.split(r"[,;\t]" if is_csv else r"[,;:\s]", line)
            words = [word for word in map(str.strip, parts) if word]
            if not words or (is_csv and not any(map(str.isdecimal, words))):  # a header
                continue
            color = None
            if len(words) > 3 and all(map(str.isdecimal, words[-3:])):
                words, color = words[:-3], [int(word) for word in words[-3:]]
            first = words if is_csv else words[:1]  # names in texts may hold numbers
            ids = [word for word in first if word.isdecimal()] if len(words) > 1 else []
            kept = [w for w in words if w not in ids] if is_csv else words[len(ids) :]
            rows.append((int(ids[0]) if ids else None, " ".join(kept), color))
        return path, rows, None
    return "", [], None


def _masks(
    paths: Sequence[Path], names: _Names, given: Mapping[str, Any], found: Detected
) -> list[int]:
    """Adds the settings of masks, from all their values; returns the pixels of each class."""
    values, (file, rows, ignored) = Values(), names
    for path in paths:
        values.update(io.label_values(path))
        if len(values) > _VALUES or len({len(key) for key in values}) > 1:
            raise DataError(f"{path}: masks of more than {_VALUES} values, or of ids and of "
                            "colours: save class ids as PNG without interpolation")  # fmt: skip
    if len(values) < 2:
        raise DataError(f"{paths[0].parent}: all masks hold one value: there is nothing to learn")
    colored = len(next(iter(values))) == 3
    rows = [row for row in rows if row[2]] if colored else rows
    ignored = given.get("ignore_index", ignored)
    ignored = [] if ignored is None else [ignored] if isinstance(ignored, int) else list(ignored)
    kept = Values({k: n for k, n in values.items() if colored or k[0] not in ignored})
    own, counts = class_settings(kept)
    ids = [] if colored else sorted(i for (i,) in kept)
    kind = f"{len(values)} colours" if colored else f"ids {few([str(i) for i in ids], 12)}"
    found.notes.append(f"masks: {len(paths)} files of {kind}")
    if ignored or (IGNORE_INDEX in ids and len(ids) > 2):
        found.notes.append(f"unlabelled: {few([str(i) for i in (*ignored, IGNORE_INDEX)])}")
    if {"num_classes", "label_map"} & given.keys():
        found.settings |= {k: v for k, v in own.items() if k == "label_colors"}
        return []
    if rows:
        own, keys = _named_colors(rows, values) if colored else _named_ids(file, rows, ids)
        own["class_names"], counts = [row[1] for row in rows], [values[key] for key in keys]
        found.notes += [f"unlabelled: the colour {tuple(c)}, without a name"
                        for c in own.get("label_colors", [])[len(rows) :]]  # fmt: skip
        found.notes.append(f"class names: {file}, {few(own['class_names'], 8)}")
    else:
        _refuse_doubtful(paths[0].parent, ids, values)
        key = "data.label_map" if colored else "data.ignore_index"
        found.notes.append(f"classes: {len(counts)}, one for each value, as no file names them; "
                           f"if a value means unlabelled, set {key}")  # fmt: skip
    found.settings |= {"ignore_index": [*ignored, IGNORE_INDEX]} | own
    return counts


def _named_colors(rows: _Rows, values: Values) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Settings for colours with names, and the colours; others are unlabelled."""
    colors = [tuple(row[2]) for row in rows]
    every = [*colors, *(key for key in values if key not in colors)]
    unnamed = [*range(len(colors), len(every))]
    settings = {"num_classes": len(rows), "label_colors": [list(c) for c in every]}
    return settings | {"ignore_index": unnamed}, colors


def _named_ids(
    file: str, rows: _Rows, ids: Sequence[int]
) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Settings for ids with names, and the ids. Without ids in the file, names count from 0, or
    from 1 if the masks do."""
    last, classes = len(rows), [i for i in ids if i != IGNORE_INDEX]
    if len({row[1] for row in rows}) < last:
        raise DataError(f"{file}: two classes have one name: give each its own")
    if classes == [*range(last + 1)]:
        raise DataError(
            f"{file}: {last} names for the ids 0 to {last} of the masks: set "
            f"data.label_map=1-{last} if 0 means unlabelled, or data.num_classes={last} "
            f"data.ignore_index={last} if {last} does"
        )
    known = [k if row[0] is None else row[0] for k, row in enumerate(rows)]
    if rows[0][0] is None and classes[:1] == [1]:
        known = [k + 1 for k in known]
    if strange := [str(i) for i in classes if i not in known]:
        raise DataError(f"{file}: no name for the ids {few(strange)} of the masks: add them, "
                        "or set data.label_map")  # fmt: skip
    own = {"num_classes": last} if known == [*range(last)] else {"label_map": known}
    return own, [(i,) for i in known]


def _refuse_doubtful(folder: Path, ids: Sequence[int], values: Values) -> None:
    """Raises DataError for ids without names that can be read in two ways."""
    classes = [i for i in ids if i != IGNORE_INDEX]
    if len(ids) > 8:
        # two ids far apart have nearly all pixels
        (first, pixels), (second, others) = values.most_common(2)
        if abs(first[0] - second[0]) > 100 and pixels + others > 0.9 * values.total():
            raise DataError(f"{folder}: nearly all pixels of the masks have two values, few have "
                            "others, as after interpolation or JPEG: save two values as PNG, or "
                            "set data.label_map")  # fmt: skip
    if IGNORE_INDEX in ids and len(classes) > 1 and classes[-1] > 100:
        both = [f"data.label_map={each}".replace(" ", "") for each in (ids, classes)]
        raise DataError(f"{folder}: 255 may be a class or mean unlabelled: "
                        f"set {both[0]} or {both[1]}")  # fmt: skip


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
