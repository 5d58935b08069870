"""Images beside masks or depth maps, in folders of their own or with other names."""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from dpt.data.layouts.base import Detected, Folder, Row, pictures_of, shown
from dpt.data.layouts.choices import folder_of_labels, one_for_each_image
from dpt.data.layouts.kinds import (
    KINDS,
    Kind,
    ending,
    kinds_by_names,
    kinds_by_values,
    with_choice,
)
from dpt.data.layouts.pairing import pair
from dpt.data.layouts.samples import samples_of
from dpt.data.splits import split_word
from dpt.files import DataError


def match_pictures(folder: Folder) -> Detected | None:
    """Recognises images and labels by words in the names of folders and files; where no word tells,
    labels by their values: few, or depth of 16 bits."""
    pictures = pictures_of(folder.paths)
    kinds = kinds_by_names(folder, pictures)
    rows, layout = _rows(folder, kinds), "pairs by names"
    if not _are_paired(rows):
        images = [path for path in pictures if kinds.get(path, "images") == "images"]
        read = kinds_by_values(folder, images)
        if "images" not in read.values():  # images of 16 bits
            read = {path: "images" if kind == "depth" else kind for path, kind in read.items()}
        rows, layout = _rows(folder, with_choice(folder, kinds | read)), "pairs by values"
    return _samples(folder, rows, layout) if _are_paired(rows) else None


def rows_by_names(folder: Folder) -> list[Row]:
    """Returns a row for each image, with the labels that words and equal names tell.

    Raises:
        DataError: an image has several labels.
    """
    return _rows(folder, kinds_by_names(folder, pictures_of(folder.paths)))


def refuse_masks(folder: Folder, paths: Sequence[str], objects: str, setting: str) -> None:
    """Raises DataError if images pair with masks by their names, beside a file of objects.

    Args:
        setting: what chooses the objects.
    """
    trial = Folder(folder.root, [*paths], {})
    try:
        rows = rows_by_names(trial)
    except DataError:
        return
    if any(row.labels for row in rows):
        remedy = f"set data.labels={folder_of_labels(rows)} or {setting}"
        raise DataError(f"{folder.root}: holds masks and objects ({objects}): {remedy}")


def what_is_seen(folder: Folder) -> str:
    """Returns how many files of which suffix lie in which folders, for a refusal."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in folder.paths:
        suffix = os.path.splitext(path)[1].lower()
        places[os.path.join(os.path.dirname(path), f"*{suffix}")].append(path)
    lines = [
        f"{len(paths)} {paths[0] if len(paths) == 1 else name}"
        for name, paths in sorted(places.items(), key=lambda item: -len(item[1]))
    ]
    return shown(lines, 6)


def _are_paired(rows: Sequence[Row]) -> bool:
    return any(row.labels or row.depth for row in rows)


def _rows(folder: Folder, kinds: Mapping[str, Kind]) -> list[Row]:
    """Returns a row for each image, with its labels if they pair."""
    files: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    for path, kind in kinds.items():
        files[kind].append(path)
    images, maps = files["images"], dict[Kind, dict[str, str]]()
    for kind in ("labels", "depth", "objects"):
        image_of = pair(images, files[kind], kind)
        maps[kind] = one_for_each_image(folder, image_of, kind)
    rows = []
    for image in images:
        row = Row(image, **{kind: paths.get(image, "") for kind, paths in maps.items()})
        splits = [split_word(os.path.dirname(path))[0] for path in row]
        rows.append(row._replace(split=next(filter(None, splits), "")))
    return rows


def _samples(folder: Folder, rows: Sequence[Row], layout: str) -> Detected:
    """Notes what was recognised, and what does not pair, and returns the settings."""
    paired = [row for row in rows if row.labels or row.depth]
    places = []
    for title, index in (("images", 0), ("masks", 1), ("depth maps", 2)):
        folders = Counter(os.path.dirname(row[index]) or "." for row in paired if row[index])
        if folders:
            places.append(f"{folders.total()} {title} in {shown([*folders])}")
    stems = {os.path.splitext(row.image)[0] for row in paired}
    rows = [  # 7_second.png beside 7.jpg with its labels is no image
        row
        for row in rows
        if row in paired or not ending(os.path.splitext(row.image)[0], stems, by_word=False)
    ]
    example = " with ".join(path for path in paired[0][:3] if path)
    folder.note(f"layout: {layout}: {'; '.join(places)}; such as {example}")
    used = {path for row in rows for path in row} | folder.used
    stray = [path for path in pictures_of(folder.paths) if path not in used]
    keys = [
        f"data.{key}" for key in ("images", "labels", "depth", "labels_name") if key in folder.given
    ]
    reason = f", or excluded by {', '.join(keys)}" if keys else ""
    folder.leave_out(stray, f", without an image that lacks labels{reason}")
    return samples_of(folder, rows)
