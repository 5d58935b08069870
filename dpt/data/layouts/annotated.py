"""Images with the files of a label tool."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import UNLABELLED, AnnotationFormat, Annotations
from dpt.data.datasets.annotated import format_named, read_annotations
from dpt.data.layouts.base import Detected, Folder, Row
from dpt.data.layouts.pictures import refuse_masks
from dpt.data.layouts.splits import divide
from dpt.data.splits import split_word
from dpt.files import DataError, few, plural
from dpt.validation import Plain


def match_annotations(folder: Folder) -> Detected | None:
    """Recognises the files of a label tool.

    Raises:
        DataError: files of several tools, or masks beside objects: a question to the user.
    """
    if {"labels", "depth"} & folder.given.keys():
        return None
    given = folder.given.get("annotations")
    formats = [format_named(str(given))] if given else [*FORMATS.values()]
    found = [(item, item.find(folder.root, folder.paths)) for item in formats]
    found = [(item, sources) for item, sources in found if sources or given]
    if not found:
        return None
    if len(found) > 1:
        choices = [f"data.annotations={item.name} ({sources[0]})" for item, sources in found]
        raise DataError(f"{folder.root}: files of several label tools: set {' or '.join(choices)}")
    return _samples(folder, *found[0])


def _samples(folder: Folder, tool: AnnotationFormat, sources: list[str]) -> Detected:
    """Returns the settings of images with objects."""
    settings: Plain = {"annotations": tool.name}
    files, images = folder.given.get("annotation_files"), folder.given.get("images")
    chosen = [str(files)] if files else []
    template, words = _files_of_splits(sources, chosen) if tool.lists_classes else ("", {})
    unread: list[str] = []
    if words:
        settings |= {"annotation_files": template}
        settings |= {f"split_names.{split}": word for split, word in words.items()}
        chosen = [template.replace("%split", word) for word in words.values()]
        unread = [path for path in sources if path not in chosen]
        folder.leave_out(unread, f", as data.annotation_files={template}")
        sources = chosen
    annotations, bare = read_annotations(
        folder.root,
        tool.name,
        chosen=[folder.root / path for path in chosen],
        images=folder.root / images if images else folder.root,
    )
    maps = [image.map_file for image in annotations.images if image.map_file]
    used = {*sources, *annotations.lists, *(_below(folder, path) for path in maps)}
    if not folder.given.get("annotations"):
        of_unread = {os.path.splitext(path)[0] for path in unread}  # folders of their pictures
        others = [path for path in folder.paths if path not in used]
        others = [path for path in others if os.path.dirname(path) not in of_unread]
        refuse_masks(folder, others, few(sources), f"data.annotations={tool.name}")
    rows = _present_rows(folder, tool, annotations)
    names = (item.class_name for image in annotations.images for item in image.objects)
    objects = Counter("unlabelled" if name == UNLABELLED else name for name in names)
    folder.note(
        f"layout: {tool.title}: {plural(len(sources), 'file')} ({few(sources)}) with "
        f"{plural(objects.total(), 'object')} in {plural(len(rows), 'image')}",
        "objects: " + few([f"{name} ({n})" for name, n in objects.most_common()], 40),
        *(f"labels: {note}" for note in annotations.notes),
    )
    folder.used.update(used, *rows)
    folder.leave_out([_below(folder, path) for path in bare], ", images without a label file")
    tasks = ["instance", "segmentation", "panoptic"]
    if not annotations.background:
        tasks = ["panoptic", "segmentation"]
    if annotations.classes and not any(row.is_thing for row in annotations.classes):
        tasks = ["segmentation"]
    rows, held_out = divide(folder, rows, [])
    settings |= held_out
    return Detected(tasks[0], rows, settings, folder.notes, (*tasks[1:],))


def _present_rows(folder: Folder, tool: AnnotationFormat, annotations: Annotations) -> list[Row]:
    """Returns a row for each image that is there, and notes the others."""
    rows = [Row(_below(folder, item.image), split=item.split) for item in annotations.images]
    present = {*folder.paths}
    absent = [row.image for row in rows if row.image not in present]
    rows = [row for row in rows if row.image in present]
    if not rows:
        fault = f"no image of {tool.title} is there ({few(absent)})"
        raise DataError(f"{folder.root}: {fault}: copy the images into the folder")
    if absent:
        folder.note(f"not used: {plural(len(absent), 'image')} not there ({few(absent)})")
    return rows


def _below(folder: Folder, path: Path) -> str:
    return path.relative_to(folder.root).as_posix()


def _files_of_splits(sources: Sequence[str], chosen: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns the path of the files of train and val with ``%split`` in place of the words for the
    splits, and these words by split; none if there are no such files.

    Args:
        chosen: the path that the user has given, or none.
    """
    words_of: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sources:
        split, word = split_word(path)
        if split:
            template = re.sub(rf"(?<![^-_. /]){word}(?![^-_. /])", "%split", path)
            words_of[template].setdefault(split, word)
    for template, words in words_of.items():
        if template in (chosen or [template]) and {"train", "val"} <= words.keys():
            return template, words
    return "", {}
