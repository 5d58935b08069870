"""From pairs of files to what is trained: splits, classes, units, sizes."""

import re
from collections.abc import Sequence
from pathlib import Path

from dpt.data.layouts.base import Detected, Folder, Row
from dpt.data.layouts.class_file import read_class_file
from dpt.data.layouts.depth import depth_settings
from dpt.data.layouts.masks import mask_settings
from dpt.data.layouts.sizes import compare_sizes
from dpt.data.layouts.splits import divide, rows_by_lists
from dpt.files import DataError, few
from dpt.validation import Plain

_MANY = 100
_BACKGROUND = r"(?i)_*background_*|0|color_000000"


def samples_of(folder: Folder, rows: Sequence[Row]) -> Detected:
    """Returns the settings of images with masks, depth maps or both.

    Raises:
        DataError: no image has labels, sizes differ, or the values can be read in two ways.
    """
    lists, used = _labelled_rows(folder, rows)
    masks = [folder.root / row.labels for row in used if row.labels]
    maps = [folder.root / row.depth for row in used if row.depth]
    task = "joint" if masks and maps else "segmentation" if masks else "depth"
    detected = Detected(task, used, {}, folder.notes)
    if "resize_labels" not in folder.given and compare_sizes(folder, used):
        detected.settings["resize_labels"] = True
    if masks:
        detected.settings |= _mask_settings(folder, masks, has_depth=bool(maps))
        if all(row.objects for row in used):
            detected.settings |= _object_settings({**folder.given, **detected.settings})
            detected.other_tasks = ("panoptic", "instance")
    if maps:
        settings, notes = depth_settings(maps, folder.given)
        detected.settings |= {"depth": "depth", **settings}
        folder.note(*notes)
    bare = [row for row in rows if not (row.labels or row.depth)]
    detected.rows, held_out = divide(folder, used, lists, bare)
    detected.settings |= held_out
    return detected


def _labelled_rows(folder: Folder, rows: Sequence[Row]) -> tuple[list[str], list[Row]]:
    """Returns the lists that define the splits, and the rows with labels that they name."""
    labelled = [row for row in rows if row.labels or row.depth]
    bare = [row.image for row in rows if not (row.labels or row.depth)]
    lists, used = rows_by_lists(folder, labelled)
    if not used:
        remedy = "add some, for training and for validation"
        raise DataError(f"{folder.root}: no image has labels: {remedy}")
    folder.used.update(lists, *rows)
    folder.leave_out(bare, " without labels, which data.unlabelled=DIR trains on", "image")
    unlisted = {row.image for row in labelled}.difference(row.image for row in used)
    folder.leave_out(sorted(unlisted), f" that {few(lists)} do not name", "image")
    return lists, used


def _mask_settings(folder: Folder, masks: Sequence[Path], *, has_depth: bool) -> Plain:
    """Returns the settings of the classes of masks, and notes them."""
    if len(masks) > _MANY:
        folder.say(f"reading {len(masks)} masks, for the classes")
    try:
        class_file = read_class_file(folder)
        settings, notes = mask_settings(masks, class_file, folder.given)
    except DataError as error:  # the masks may be those of valid depth
        remedy = "; data.labels=null leaves all masks out" if has_depth else ""
        raise DataError(f"{error}{remedy}") from None
    folder.used.add(class_file.path)
    folder.note(*notes)
    return {"labels": "labels", **settings}


def _object_settings(settings: Plain) -> Plain:
    """Returns the settings of maps of objects; all classes but the background have objects."""
    label_map = settings.get("label_map", range(settings.get("num_classes", 0)))
    names = settings.get("class_names") or [str(label) for label in label_map]
    things = [k for k, name in enumerate(names) if not re.fullmatch(_BACKGROUND, name)]
    found: Plain = {"objects": "objects", "things": things}
    if not settings.get("class_names") and len(things) < len(names):
        found["class_names"] = [
            f"class_{k}" if k in things else "background" for k in range(len(names))
        ]
    return found
