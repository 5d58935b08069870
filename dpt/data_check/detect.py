"""The settings of ``data`` for a folder of unknown layout, from its names and its files."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dpt.config.objects import check_arguments
from dpt.data import DataError, FolderDataset
from dpt.data.datasets.coco import plain_name
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data_check.checks import UNITS, likely_scale, plural
from dpt.data_check.masks import class_weights, mask_settings, read_class_file
from dpt.data_check.pairs import by_names, from_tables, listed, split_word
from dpt.files import few, files_below, parse_json, printable, read_bytes

MAX_FILES = 500_000
_MAPS = 48  # number of depth maps from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_MOST_HELD = 0.4  # largest share of the photos that is used for validation
_SPARSE = 0.3  # share of measured pixels: laser scanners measure fewer
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
    known = {f.name for f in fields(FolderDataset)}
    check_arguments(FolderDataset, {k: v for k, v in given.items() if k in known}, "data",
                    is_partial=True)  # fmt: skip
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
    every = from_tables(root, paths, unread) or by_names(root, paths, given, unread)
    rows = [row for row in every if row.get("labels") or row.get("depth")]
    lists, rows = listed(root, paths, rows, unread)
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
    jsons = [p for p in paths if p.lower().endswith(".json") and split_word(p)[0] in ("train", "")]
    found: dict[str, Any] = {}
    for path in sorted(jsons, key=lambda p: split_word(p)[0] != "train"):
        try:
            content = parse_json(read_bytes(root / path, limit=1 << 29), root / path)
        except DataError as error:
            unread.append(f"not used: {error}")
            continue
        if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
            found = found or {path: content}
            if path in found:
                continue
            if not split_word(path)[0] and not split_word(next(iter(found)))[0]:
                raise DataError(f"{root}: {next(iter(found))} and {path} both list objects: merge "
                                "them, or name their splits, such as train.json")  # fmt: skip
            unread.append(f"not used: {path}")
    return next(iter(found.items()), None)


def _has_masks(root: Path, paths: Sequence[str]) -> bool:
    """Whether photos pair with masks by their names."""
    try:
        return any(row.get("labels") for row in by_names(root, paths, {}, []))
    except DataError:
        return False


def _files(root: Path) -> list[str]:
    """The paths of the files, those of upper folders first, without those of runs."""
    every = files_below(root, limit=MAX_FILES)
    configured = [path.parent for path in every if path.name == "config.yaml"]
    runs = {folder for folder in configured if (folder / "checkpoints").is_dir()}
    # a run of dpt fit that ended before training
    checked = [folder.parent for folder in configured if folder.name == "data_check"]
    runs |= {folder for folder in checked if (folder / "pairs.csv").is_file()}
    paths = [p.relative_to(root).as_posix() for p in every if runs.isdisjoint(p.parents)]
    if strange := [p for p in paths if printable(p) != p]:
        raise DataError(f"{root}: {printable(strange[0])}: the name is not UTF-8: rename the file")
    return sorted(paths, key=lambda p: (p.count("/"), p))


def _coco(
    root: Path, path: str, content: Any, paths: Sequence[str], given: Mapping[str, Any]
) -> Detected:
    try:
        names = [plain_name(str(row["file_name"])).replace("\\", "/") for row in content["images"]]
        kind = "panoptic" if "segments_info" in content["annotations"][0] else "instance"
    except (LookupError, TypeError):
        raise DataError(f"{root / path}: no images or annotations in COCO's format") from None
    named: dict[str, list[str]] = {}
    for file in paths:
        named.setdefault(file.rpartition("/")[2], []).append(file)
    there = [
        (file, name)
        for name in names
        for file in named.get(name.rpartition("/")[2], ())
        if f"/{file}".endswith(f"/{name}")
    ]
    if not there:
        raise DataError(f"{root / path}: {names[0]} is not below {root}: add the photos")
    name = there[0][1]  # the first images may be missing
    near = [file for file, own in there if own == name]
    if kind == "instance" and not any(row.get("segmentation") for row in content["annotations"]):
        raise DataError(f"{root / path}: boxes, but no masks: add polygons or RLE to the objects")
    tag = split_word(path)[1]
    near.sort(key=lambda p: tag not in p)
    images = near[0].removesuffix(name).rstrip("/") or "."
    others = {word for split, word in map(split_word, paths) if split == "val" and tag}
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
    rule = DepthRule(invalid=invalid)
    values = [raw[rule.is_measured(raw)] for raw in raws]
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
