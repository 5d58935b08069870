"""Images and a JSON file of objects in COCO's format."""

import re
from collections import defaultdict
from collections.abc import Sequence

from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import local_name
from dpt.data.annotations.coco import CocoFile
from dpt.data.layouts.annotated import samples_of_tool
from dpt.data.layouts.base import Detected, Folder, pictures_of
from dpt.data.layouts.pictures import refuse_masks
from dpt.data.layouts.splits import hold_out
from dpt.data.splits import split_word
from dpt.files import DataError, few, parse_json, plain_name, plural, read_bytes
from dpt.validation import Plain

_MAX_BYTES = 1 << 29
_MAX_PARTS = 10_000_000  # lists and objects of a JSON file: some gigabytes in memory
_KEYS = ("images", "annotations", "categories")


def match_coco(folder: Folder) -> Detected | None:
    """Returns the settings of a folder with a file of objects, of train if there are several.

    Raises:
        DataError: several files, or masks beside objects: a question to the user.
    """
    if {"labels", "depth"} & folder.given.keys():
        return None
    path, content = _annotations(folder)
    if content is None:
        for cut_off in FORMATS["coco"].find(folder.root, folder.paths):
            CocoFile(folder.root / cut_off)  # says what is wrong with a file that is cut off
        return None
    source = folder.root / path
    try:
        image_names = [local_name(str(entry["file_name"])) for entry in content["images"]]
        is_panoptic = "segments_info" in content["annotations"][0]
        has_outlines = any(entry.get("segmentation") for entry in content["annotations"])
    except (LookupError, TypeError, AttributeError):
        raise DataError(f"{source}: no images or annotations in COCO's format") from None
    name, files = _first_image(folder, image_names)
    if not files:  # the label tool names them as they were uploaded
        sources = FORMATS["coco"].find(folder.root, folder.paths)
        return samples_of_tool(folder, "coco", sources)
    if not is_panoptic and not has_outlines:
        raise DataError(f"{source}: boxes, but no masks: add polygons or RLE to the objects")
    if not is_panoptic and "annotations" not in folder.given:
        refuse_masks(folder, folder.paths, path, f"data.annotations={path}")
    has_things = any(_is_thing(row) for row in content["categories"])
    kind = "panoptic" if is_panoptic else "instance" if has_things else "segmentation"
    split_tag = split_word(path)[1]
    image = min(files, key=lambda file: split_tag not in file)
    images = "/".join(image.split("/")[: -1 - name.count("/")]) or "."
    settings: Plain = {"images": images, "annotations": path}
    folder.note(f"objects: {path}, in COCO's {'panoptic' if is_panoptic else 'instance'} format")
    whole_tag = rf"(?<![^-_. /]){split_tag}(?![^-_. /])"
    val_tag = _val_tag(folder.paths, path, whole_tag) if split_tag else ""
    if val_tag:
        settings = {key: re.sub(whole_tag, "%split", value) for key, value in settings.items()}
        settings |= {"split_names.train": split_tag, "split_names.val": val_tag}
    else:
        settings |= hold_out(folder, [f"{images}/{name}" for name in image_names])[0]
    absent = _without(folder.paths, [f"{images}/{name}".removeprefix("./") for name in image_names])
    if absent:
        settings["missing"] = "skip"
        folder.note(f"not used: {plural(len(absent), 'image')} of {path} not there ({few(absent)})")
    _note_used(folder, settings, {split_tag, val_tag})
    detected = Detected(kind, "coco", image, settings, folder.notes)
    detected.other_tasks = ("segmentation",) if is_panoptic else ("segmentation", "panoptic")
    return detected


def _without(paths: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the names that are not among the paths."""
    present = {plain_name(path) for path in paths}
    return [name for name in names if plain_name(name) not in present]


def _note_used(folder: Folder, settings: Plain, split_tags: set[str]) -> None:
    """Notes which files the settings name."""
    images, annotations = settings["images"], settings["annotations"]
    for split_tag in split_tags:
        places = [str(place).replace("%split", split_tag) for place in (images, annotations)]
        start = "" if places[0] == "." else f"{places[0]}/"
        folder.used.update(path for path in pictures_of(folder.paths) if path.startswith(start))
        folder.used.add(places[1])


def _is_thing(category: object) -> bool:
    """Whether objects of a category are told apart, as in files that do not say it."""
    return not isinstance(category, dict) or category.get("isthing") not in (0, False)


def _annotations(folder: Folder) -> tuple[str, Plain | None]:
    """Returns the path of the file of objects and its content; None if there is no such file."""
    candidates = [path for path in folder.paths if path.lower().endswith(".json")]
    candidates = [path for path in candidates if split_word(path)[0] in ("train", "")]
    chosen, content = "", None
    for path in sorted(candidates, key=lambda path: split_word(path)[0] != "train"):
        try:
            objects = _read(folder, path)
        except DataError as error:
            folder.note(f"not used: {error}")
            continue
        if objects is None:
            continue
        if content is None:
            chosen, content = path, objects
        elif split_word(path)[0] or split_word(chosen)[0]:
            folder.note(f"not used: {path}")
        else:
            remedy = "merge them, or name their splits, such as train.json"
            raise DataError(f"{folder.root}: {chosen} and {path} both list objects: {remedy}")
    return chosen, content


def _read(folder: Folder, path: str) -> Plain | None:
    """Returns the content of a file in COCO's format; None for others, which are not parsed."""
    source = folder.root / path
    text = read_bytes(source, limit=_MAX_BYTES)
    if not all(f'"{key}"'.encode() in text for key in _KEYS):
        return None
    if text.count(b"[") + text.count(b"{") > _MAX_PARTS:
        raise DataError(f"{source}: more than {_MAX_PARTS} lists and objects")
    content = parse_json(text, source)
    is_coco = isinstance(content, dict) and content.keys() >= {*_KEYS}
    return content if is_coco else None


def _first_image(folder: Folder, image_names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the first listed name that files have, and these files; some may be missing."""
    files_of_name = defaultdict(list)
    for path in folder.paths:
        files_of_name[plain_name(path.rpartition("/")[2])].append(path)
    for name in map(plain_name, image_names):
        files = files_of_name[name.rpartition("/")[2]]
        files = [path for path in files if plain_name(f"/{path}").endswith(f"/{name}")]
        if files:
            return name, files
    return "", []


def _val_tag(paths: Sequence[str], path: str, whole_tag: str) -> str:
    """Returns the word that names val in the path of its objects; "" if there is no such file."""
    words = {word for split, word in map(split_word, paths) if split == "val"}
    tags = [word for word in sorted(words) if re.sub(whole_tag, word, path) in paths]
    return tags[0] if tags else ""
