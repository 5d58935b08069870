"""Images with the files of a label tool."""

from collections import Counter

from dpt.data.annotations import FORMATS
from dpt.data.datasets.annotated import read_annotations
from dpt.data.layouts.base import Detected, Folder, Row
from dpt.data.layouts.pictures import refuse_masks
from dpt.data.layouts.splits import divide
from dpt.files import DataError, few, plural


def match_annotations(folder: Folder) -> Detected | None:
    """Recognises the files of a label tool other than those in COCO's format, which have a layout
    of their own.

    Raises:
        DataError: files of several tools, or masks beside objects: a question to the user.
    """
    given = folder.given.get("annotations")
    if {"labels", "depth"} & folder.given.keys() or (given and given not in FORMATS):
        return None
    names = [str(given)] if given else [*FORMATS]
    sources = {name: FORMATS[name].find(folder.root, folder.paths) for name in names}
    sources = {name: paths for name, paths in sources.items() if paths}
    if not sources or (not given and [*sources] == ["coco"]):
        return None
    if len(sources) > 1:
        choices = [f"data.annotations={name} ({paths[0]})" for name, paths in sources.items()]
        raise DataError(f"{folder.root}: files of several label tools: set {' or '.join(choices)}")
    ((name, paths),) = sources.items()
    if not given:
        others = sorted({*folder.paths}.difference(paths))
        refuse_masks(folder, others, few(paths), f"data.annotations={name}")
    return samples_of_tool(folder, name, paths)


def samples_of_tool(folder: Folder, name: str, sources: list[str]) -> Detected:
    """Returns the settings of images with objects."""
    files, images = folder.given.get("annotation_files"), folder.given.get("images")
    annotations, bare = read_annotations(
        folder.root,
        name,
        chosen=folder.root / files if files else None,
        images=folder.root / images if images else folder.root,
    )
    rows = [
        Row(item.image.relative_to(folder.root).as_posix(), split=item.split)
        for item in annotations.images
    ]
    present = {*folder.paths}
    absent = [row.image for row in rows if row.image not in present]
    rows = [row for row in rows if row.image in present]
    if not rows:
        fault = f"no image of {FORMATS[name].title} is there ({few(absent)})"
        raise DataError(f"{folder.root}: {fault}: copy the images into the folder")
    objects = Counter(item.class_name for image in annotations.images for item in image.objects)
    folder.note(
        f"layout: {FORMATS[name].title}: {plural(len(sources), 'file')} ({few(sources)}) with "
        f"{plural(objects.total(), 'object')} in {plural(len(rows), 'image')}"
    )
    folder.note("objects: " + few([f"{name} ({n})" for name, n in objects.most_common()], 40))
    for note in annotations.notes:
        folder.note(f"labels: {note}")
    if absent:
        folder.note(f"not used: {plural(len(absent), 'image')} not there ({few(absent)})")
    unlabelled = [path.relative_to(folder.root).as_posix() for path in bare]
    folder.used.update(sources, annotations.lists, *rows)
    folder.leave_out(unlabelled, ", images without a label file")
    tasks = ["instance", "segmentation", "panoptic"]
    if annotations.classes and not any(row.is_thing for row in annotations.classes):
        tasks = ["segmentation"]
    detected = Detected(tasks[0], "folder", rows[0].image, {}, folder.notes)
    detected.other_tasks = (*tasks[1:],)
    detected.settings["annotations"] = name
    detected.rows, held_out = divide(folder, rows, [])
    detected.settings |= held_out
    return detected
