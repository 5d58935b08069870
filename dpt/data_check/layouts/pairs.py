"""Photos with masks or depth maps, paired by a table or by names."""

import re
from collections.abc import Sequence

from dpt.data import DataError
from dpt.data_check.findings import plural
from dpt.data_check.layouts.class_files import read_class_file
from dpt.data_check.layouts.depth import depth_settings
from dpt.data_check.layouts.masks import class_weights, mask_settings
from dpt.data_check.layouts.names import rows_of_names
from dpt.data_check.layouts.records import Detected, Folder, Row
from dpt.data_check.layouts.splits import divide, rows_by_lists
from dpt.data_check.layouts.tables import rows_of_tables
from dpt.files import few

_PRODUCTS = (
    r"(?i)(^|/)(aug(mented|mentations?)?|pred(iction)?s?|results?|visuali[sz]ations?|overlays?)/"
)
"""Folders of copies, predictions and pictures for people, which are made of photos and labels."""
_NO_PHOTOS = (
    r"(?i)(^|/)(@eadir|__macosx|segmentationobject|thumb(nail)?s?)/|"
    r"[-_. ]pred(ict(ed|ion)?)?[.]\w+$"
)


def match(folder: Folder) -> Detected:
    """Returns the settings of a folder of photos with masks, depth maps or both.

    Raises:
        DataError: there are no pairs, or two readings of them.
    """
    rows = _rows(folder)
    labelled = [row for row in rows if row.labels or row.depth]
    bare = [row.image for row in rows if not (row.labels or row.depth)]
    lists, used = rows_by_lists(folder, labelled)
    if not used:
        remedy = "add some, for training and for validation"
        raise DataError(f"{folder.root}: no photo has labels: {remedy}")
    if bare:
        without = f"{plural(len(bare), 'photo')} without labels ({few(bare)})"
        remedy = "data.unlabelled=DIR trains on those of a folder"
        folder.notes.append(f"not used: {without}; {remedy}")
    unlisted = len(labelled) - len(used)
    if lists and unlisted:
        folder.notes.append(f"not used: {plural(unlisted, 'photo')} that {few(lists)} do not name")
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
    """Returns photos and labels, without files made of others if there are pairs besides."""
    paths = [path for path in folder.paths if not re.search(_NO_PHOTOS, path)]
    products = [path for path in paths if re.search(_PRODUCTS, path)]
    chosen = [f"{folder.given.get(key, '')}/" for key in ("images", "labels", "depth")]
    if products and not any(re.search(_PRODUCTS, path) for path in chosen):
        originals = [path for path in paths if not re.search(_PRODUCTS, path)]
        trial = Folder(folder.root, originals, folder.given)
        try:
            rows = _tables_or_names(trial, originals)
        except DataError:
            return _tables_or_names(folder, paths)
        count = plural(len(products), "file")
        folder.notes += [*trial.notes, f"not used: {count} made of others, such as {products[0]}"]
        return rows
    return _tables_or_names(folder, paths)


def _tables_or_names(folder: Folder, paths: Sequence[str]) -> list[Row]:
    return rows_of_tables(folder, paths) or rows_of_names(folder, paths)
