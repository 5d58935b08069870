"""The settings of ``data`` for a folder of unknown layout, from its names and its files."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dpt.config.objects import check_arguments
from dpt.data import DataError, FolderDataset
from dpt.data.datasets.coco import local_name
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.splits import original_name
from dpt.data_check.checks import UNITS, are_normalised, likely_scale, plural
from dpt.data_check.masks import ClassFile, class_weights, mask_settings, read_class_file
from dpt.data_check.measure import top_of
from dpt.data_check.pairs import by_names, from_tables, listed, split_word
from dpt.files import few, files_below, open_file, parse_json, plain_name, printable, read_bytes

MAX_FILES = 500_000
_WHOLE = 4 << 20  # bytes of a JSON file that is read whatever it holds
_BLOCK = 1 << 20
_MOST_PARTS = 10_000_000  # lists and objects of a JSON file: some gigabytes in memory
_MAPS = 48  # number of depth maps from which the unit is derived
_RANGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0, 200.0, 500.0)  # metres
_ROOM = 10.0  # metres: the range of depth cameras
_NEAR_ROOM = 2.5  # metres: rooms mostly reach farther, so that the unit may be another
_MISSING = (65.535, 65535.0, 65504.0, 1e10)
"""What means "not measured" in floats: the end of 16 bits, also of halves, and Blender's sky."""
_MOST_HELD = 0.4  # largest share of the photos that is used for validation
_FEW_COPIES = 0.1  # of the photos
_SPARSE = 0.3  # share of measured pixels: laser scanners measure fewer
_PRODUCTS = (
    r"(?i)(^|/)(aug(mented|mentations?)?|pred(iction)?s?|results?|visuali[sz]ations?|overlays?)/"
)
"""Folders of copies, predictions and pictures for people, which are made of photos and labels."""
_NO_PHOTOS = (
    r"(?i)(^|/)(@eadir|__macosx|segmentationobject|thumb(nail)?s?)/|"
    r"[-_. ]pred(ict(ed|ion)?)?[.]\w+$"
)
_TASKS = {"labels": "segmentation", "depth": "depth"}  # by kind of map
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
    keys = {f.name for f in fields(FolderDataset)} & given.keys()
    check_arguments(FolderDataset, {key: given[key] for key in keys}, "data", is_partial=True)
    paths = _files(root)
    unread: list[str] = []
    if not {"labels", "depth"} & given.keys() and (objects := _coco_file(root, paths, unread)):
        path, content = objects
        detected = _coco(root, path, content, paths, given)
        is_named = "annotations" in given
        if detected.task == "instance" and not is_named and _has_masks(root, paths):
            fault = f"holds masks and objects ({path})"
            remedy = f"set data.labels to the folder of the masks, or data.annotations={path}"
            raise DataError(f"{root}: {fault}: {remedy}")
        detected.notes += unread
        return detected
    pairs = _pairs(root, paths, given, unread)
    rows = [row for row in pairs if row.get("labels") or row.get("depth")]
    bare = [row["image"] for row in pairs if not (row.get("labels") or row.get("depth"))]
    lists, rows = listed(root, paths, rows, unread)
    if not rows:
        raise DataError(f"{root}: no photo has labels: add some, for training and for validation")
    if bare:
        without = f"{plural(len(bare), 'photo')} without labels ({few(bare)})"
        unread.append(f"not used: {without}; data.unlabelled=DIR trains on those of a folder")
    if lists and (unlisted := len(pairs) - len(bare) - len(rows)):
        unread.append(f"not used: {plural(unlisted, 'photo')} that {few(lists)} do not name")
    files = {kind: [root / row[kind] for row in rows if row.get(kind)] for kind in _TASKS}
    kinds = [kind for kind in _TASKS if files[kind]]
    task = "joint" if len(kinds) == 2 else _TASKS[kinds[0]]
    settings: dict[str, Any] = {kind: kind for kind in kinds}
    detected = Detected(task, "folder", rows[0]["image"], settings, unread, rows)
    if files["labels"]:
        _masks(files["labels"], read_class_file(root, paths), given, detected)
    if files["depth"]:
        _depth(files["depth"], given, detected)
    _divide(root, detected, lists, given)
    return detected


def _masks(
    paths: Sequence[Path], file: ClassFile, given: Mapping[str, Any], detected: Detected
) -> None:
    """Adds the settings of masks: the values of classes, and their names."""
    try:
        masks = mask_settings(paths, file, given)
    except DataError as error:  # the masks may be those of valid depth
        if detected.task != "joint":
            raise
        raise DataError(f"{error}; data.labels=null leaves all masks out") from None
    detected.settings |= masks.settings
    detected.notes += masks.notes
    detected.weights = class_weights(masks.counts)


def _divide(root: Path, detected: Detected, lists: Sequence[str], given: Mapping[str, Any]) -> None:
    """The splits: those on disk if train and val are there; else photos are held out."""
    rows, notes = detected.rows, detected.notes
    sizes = Counter(row["split"] for row in rows)
    if sizes["val"] and sizes["train"]:
        shown = ", ".join(f"{split} {size}" for split, size in sizes.items() if split)
        notes.append(f"splits: {shown}" + (f", by {few(lists)}" if lists else ""))
    else:
        for row in rows:  # a folder named test may hold all of them
            is_test = row["split"] == "test" and len(sizes) > 1
            row["split"] = "test" if is_test else "train"
        rows = detected.rows = _without_copies(root, rows, notes)
        photos = [row["image"] for row in rows if row["split"] == "train"]
        _hold_out(root, photos, detected, given)
    for split, what in {"test": "of the split test", "": "of no split"}.items():
        if unused := [row["image"] for row in rows if row["split"] == split]:
            notes.append(f"not used: {plural(len(unused), 'photo')} {what} ({few(unused)})")


def _pairs(
    root: Path, paths: Sequence[str], given: Mapping[str, Any], unread: list[str]
) -> list[dict[str, str]]:
    """Rows of photos and their labels, without files made of others if there are pairs besides."""
    paths = [path for path in paths if not re.search(_NO_PHOTOS, path)]
    products = [path for path in paths if re.search(_PRODUCTS, path)]
    chosen = [f"{given[key]}/" for key in ("images", "labels", "depth") if key in given]
    if products and not any(re.search(_PRODUCTS, folder) for folder in chosen):
        used = [path for path in paths if not re.search(_PRODUCTS, path)]
        notes: list[str] = []
        with suppress(DataError):
            rows = from_tables(root, used, notes) or by_names(root, used, given, notes)
            count = plural(len(products), "file")
            unread += [*notes, f"not used: {count} made of others, such as {products[0]}"]
            return rows
    return from_tables(root, paths, unread) or by_names(root, paths, given, unread)


def _coco_file(root: Path, paths: Sequence[str], unread: list[str]) -> tuple[str, Any] | None:
    """The file in COCO's format, of train if there are several, and its content."""
    jsons = [p for p in paths if p.lower().endswith(".json") and split_word(p)[0] in ("train", "")]
    found: dict[str, Any] = {}
    for path in sorted(jsons, key=lambda p: split_word(p)[0] != "train"):
        try:
            if not _may_be_coco(root / path):
                continue
            content = parse_json(read_bytes(root / path), root / path)
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


def _may_be_coco(path: Path) -> bool:
    """Whether a JSON file is small, or has COCO's keys; DataError if it would fill the memory."""
    keys, parts, end = {b'"images"', b'"annotations"', b'"categories"'}, 0, b""
    with open_file(path, limit=1 << 29) as file:
        while block := file.read(_BLOCK):
            keys -= {key for key in keys if key in end + block}
            parts += block.count(b"[") + block.count(b"{")
            end = block[-16:]
    if parts > _MOST_PARTS:
        raise DataError(f"{path}: more than {_MOST_PARTS} lists and objects")
    return not keys or path.stat().st_size < _WHOLE


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
        names = [local_name(str(row["file_name"])).replace("\\", "/") for row in content["images"]]
        kind = "panoptic" if "segments_info" in content["annotations"][0] else "instance"
        has_masks = any(row.get("segmentation") for row in content["annotations"])
    except (LookupError, TypeError, AttributeError):
        raise DataError(f"{root / path}: no images or annotations in COCO's format") from None
    named: dict[str, list[str]] = {}
    for file in paths:
        named.setdefault(plain_name(file.rpartition("/")[2]), []).append(file)
    there = [
        (file, name)
        for name in map(plain_name, names)
        for file in named.get(name.rpartition("/")[2], ())
        if plain_name(f"/{file}").endswith(f"/{name}")
    ]
    if not there:
        raise DataError(f"{root / path}: {names[0]} is not below {root}: add the photos")
    name = there[0][1]  # the first images may be missing
    near = [file for file, listed_name in there if listed_name == name]
    if kind == "instance" and not has_masks:
        raise DataError(f"{root / path}: boxes, but no masks: add polygons or RLE to the objects")
    tag = split_word(path)[1]
    near.sort(key=lambda p: tag not in p)
    images = "/".join(near[0].split("/")[: -1 - name.count("/")]) or "."
    others = {word for split, word in map(split_word, paths) if split == "val" and tag}
    whole_word = rf"(?<![^-_. /]){tag}(?![^-_. /])"
    val = next((word for word in sorted(others) if re.sub(whole_word, word, path) in paths), "")
    detected = Detected(kind, "coco", near[0], {"images": images, "annotations": path})
    detected.notes.append(f"objects: {path}, in COCO's {kind} format")
    if val:
        detected.settings = {
            k: re.sub(whole_word, "%split", v) for k, v in detected.settings.items()
        }
        detected.settings |= {"split_names.train": tag, "split_names.val": val}
    else:
        _hold_out(root, [f"{images}/{name}" for name in names], detected, given)
    return detected


def _without_copies(
    root: Path, rows: Sequence[dict[str, str]], notes: list[str]
) -> list[dict[str, str]]:
    """The rows without copies of photos, which may be in both splits, if they are few."""
    sizes = [os.path.getsize(root / row["image"]) for row in rows]
    counts, kept, copies = Counter(sizes), dict[Any, dict[str, str]](), list[str]()
    for number, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        key: Any = number
        if counts[size] > 1:
            with open_file(root / row["image"]) as file:
                key = hashlib.file_digest(file, "sha256").digest()
        if key in kept:
            copies.append(f"{row['image']} = {kept[key]['image']}")
        kept.setdefault(key, row)
    if len(copies) > _FEW_COPIES * len(rows):  # a fault of the data set, which its check names
        return [*rows]
    if copies:
        notes.append(f"not used: {plural(len(copies), 'copy of a photo')} ({few(copies)})")
    return [*kept.values()]


def _hold_out(
    root: Path, photos: Sequence[str], detected: Detected, given: Mapping[str, Any]
) -> None:
    """Settings that hold out a tenth of the photos, or about a tenth of the groups of names, as far
    as the user has not set them."""
    if len(photos) < 2:
        count = plural(len(photos), "photo")
        raise DataError(f"{root}: {count} with labels: add some, for training and for validation")
    if {"folds", "fold", "group_by"} & given.keys():
        folds = given.get("folds", min(10, _number_of_groups(photos, given.get("group_by"))))
        fold = given.get("fold", folds - 1 if isinstance(folds, int) else 0)
        detected.settings |= {"folds": folds, "fold": fold}
        detected.notes.append(f"splits: no val on disk; part {fold} of {folds}, as data.folds, "
                           "data.fold and data.group_by say")  # fmt: skip
        return
    number = len({original_name(path) for path in photos})
    folds = min(10, number)
    detected.settings |= {"folds": folds, "fold": folds - 1, "gap": number // 50}
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
            detected.settings |= {"folds": folds, "fold": fold, "gap": 0, "group_by": rule}
            note = f"{few(parts[fold])} of the {len(groups)} groups that the names show"
            break
    detected.notes.append(f"splits: no val on disk; validation on {note}")


def _number_of_groups(photos: Sequence[str], rule: Any) -> int:
    """Of ``data.group_by``; each photo is a group without it, or if it cannot be used."""
    count = len({original_name(path) for path in photos})
    try:
        matches = [re.search(rule, path) for path in photos]
    except (re.error, TypeError):
        return count
    return len({match[min(1, match.re.groups)] for match in matches if match}) or count


def _depth(paths: Sequence[Path], given: Mapping[str, Any], detected: Detected) -> None:
    """Adds the settings of depth maps: unit, invalid values and range."""
    folder = paths[0].parent
    if re.search(r"(?i)(^|[-_. /])disp(s|arity|arities)?([-_. /]|$)", str(paths[0])):
        remedy = "convert it, metres = focal length x baseline / disparity, and rename the files"
        raise DataError(f"{folder}: disparity, not depth: {remedy}")
    places = np.linspace(0, len(paths) - 1, min(len(paths), _MAPS)).astype(int)
    key, page = given.get("depth_key", given.get("array_key")), given.get("page")
    raws = [io.read_raw_depth(paths[i], key=key, page=page) for i in places]
    whole, pixels = raws[0].dtype.kind != "f", sum(raw.size for raw in raws)
    last = np.iinfo(raws[0].dtype).max if whole else 0
    if "depth_scale" not in given and are_normalised([top_of(raw) for raw in raws]):
        fault = f"all depth maps end at {raws[0].max():g}, as if each was scaled to its own range"
        raise DataError(f"{folder}: {fault}: save metres, or set data.depth_scale if they share it")
    holds = [
        value for value in (last, *_MISSING) if value and any((r == value).any() for r in raws)
    ]
    invalid = given.get("invalid_depth", [0, *dict.fromkeys(holds)])
    rule = DepthRule(invalid=invalid)
    values = [raw[rule.is_measured(raw)] for raw in raws]
    share = sum(v.size for v in values) / pixels
    values = [v for v in values if v.size]
    if not values:
        raise DataError(f"{folder}: no depth map holds a measured depth: check the files")
    typical = float(np.median([np.median(v) for v in values]))
    high = float(np.median([np.quantile(v, 0.99) for v in values]))
    scale = given.get("depth_scale") or _unit(folder, raws[0].dtype, typical, high, share)
    far = scale * max(float(v.max()) for v in values)
    limit = next((r for r in _RANGES if r >= far), float(np.ceil(far)))
    detected.settings |= {"depth_scale": scale, "invalid_depth": invalid, "max_depth": limit}
    detected.notes.append(f"depth: {len(paths)} files of {raws[0].dtype} in "
                       f"{UNITS.get(scale, scale)}, {typical * scale:.2g} m typically; "
                       f"{few([str(v) for v in invalid])} and NaN: not measured")  # fmt: skip
    if below := sum(int(np.count_nonzero(raw < 0)) for raw in raws):
        remedy = "if they are heights, make distances of them"
        share = below / pixels
        detected.notes.append(
            f"depth: {share:.2%} of the pixels are below 0, not measured; {remedy}"
        )


def _unit(folder: Path, dtype: np.dtype, typical: float, high: float, share: float) -> float:
    """The metres of a unit; DataError if it cannot be known."""
    whole = dtype.kind != "f"
    likely = likely_scale(typical, high, max_depth=None, scale=np.inf)
    scale = 0.001 if whole and typical >= 250 else likely
    if scale is None or dtype.itemsize == 1:
        fault = "maps of 8 bits have no usual unit" if scale else "no usual unit is plausible"
        raise DataError(f"{folder}: {fault}, with a typical depth of {typical:.4g}: "
                        "set data.depth_scale to the metres of a unit")  # fmt: skip
    others = [0.001]
    if whole and (share < _SPARSE or high * scale > _ROOM):
        others = [1 / 256 if share < _SPARSE else 0.0002]
    elif whole and high * scale < _NEAR_ROOM:
        others = [0.01 if scale == 0.001 else 0.001, 1 / 256, 1 / 512]
    units = dict.fromkeys([scale, *others])
    if scale != 1.0 and len(units) > 1:
        names = {**UNITS, 1 / 512: "1/512 m"}
        shown = ", ".join(f"{typical * unit:.2g} m in {names[unit]}" for unit in units)
        choices = " or ".join(f"data.depth_scale={unit:.9g}" for unit in units)
        raise DataError(f"{folder}: the typical depth {typical:.4g} is {shown}: set {choices}")
    return scale
