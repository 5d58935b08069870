"""Several label files of one image: which are no labels, and the question about the others."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from dpt.data.formats import io
from dpt.data.layouts.base import Folder, Row, shown
from dpt.data.layouts.kinds import Kind
from dpt.data.layouts.pairing import common_start
from dpt.data.splits import SPLITS
from dpt.files import DataError, plural

_SAME_VIEW = 0.95  # fraction of the pixels that are equal in masks of a camera's field of view


class _Place(NamedTuple):
    """Where the label files of one kind of content lie, relative to the images."""

    folder: str
    name: str  # a template with %stem


def one_for_each_image(folder: Folder, image_of: Mapping[str, str], kind: Kind) -> dict[str, str]:
    """Returns the label file of each image.

    Raises:
        DataError: an image has several.
    """
    labels_of: dict[str, list[str]] = defaultdict(list)
    for label, image in image_of.items():
        labels_of[image].append(label)
    if len(labels_of) < len(image_of):
        places = _places(labels_of)
        chosen = [place for place in places if place.folder == folder.given.get(kind)]
        for place in [place for place in places if chosen and place not in chosen]:
            folder.leave_out(places.pop(place), f" in {place.folder}, not in data.{kind} itself")
        for place, labels in [*places.items()]:
            is_mask = re.search(r"(?i)mask|fov", f"{place.folder}/{place.name}")
            if len(places) > 1 and is_mask and _is_field_of_view(folder, labels):
                folder.leave_out(labels, f" in {place.folder or '.'}, masks of the field of view")
                del places[place]
        kept = {label for labels in places.values() for label in labels}
        labels_of = {i: [x for x in labels if x in kept] for i, labels in labels_of.items()}
        if any(len(labels) > 1 for labels in labels_of.values()):
            raise _question(folder, places, labels_of, kind)
    return {image: labels[0] for image, labels in labels_of.items() if labels}


def _places(labels_of: Mapping[str, Sequence[str]]) -> dict[_Place, list[str]]:
    """Returns the label files by their place; with ``%split`` for folders that differ."""
    by_place: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for image, labels in labels_of.items():
        for label in labels:
            shared, own = _folders(image, label)
            by_place[own, _template(image, label)][label] = shared
    places: dict[_Place, list[str]] = defaultdict(list)
    for (own, name), shared_of in by_place.items():
        every_shared = {*shared_of.values()}
        start = every_shared.pop() if len(every_shared) == 1 else "%split"
        places[_Place("/".join(filter(None, (start, own))), name)] += shared_of
    return places


def folder_of_labels(rows: Sequence[Row]) -> str:
    """Returns the folder of the labels of all rows, as ``data.labels`` names it."""
    labels_of = {row.image: [row.labels] for row in rows if row.labels}
    return next(iter(_places(labels_of))).folder or "."


def _folders(image: str, label: str) -> tuple[str, str]:
    """Returns the folders that a label file shares with its image, and its own ones after them."""
    of_image, of_label = image.split("/")[:-1], label.split("/")[:-1]
    head = common_start(of_image, of_label)
    own, other = of_label[head:], of_image[head:]
    while own and ((other and own[-1] == other[-1]) or own[-1].lower() in SPLITS):
        own, other = own[:-1], other[:-1]
    return "/".join(of_label[:head]), "/".join(own)


def _template(image: str, label: str) -> str:
    """Returns the name of a label file without suffix, with ``%stem`` for what is its image's."""
    of_image, stem = (os.path.splitext(os.path.basename(path))[0] for path in (image, label))
    match = SequenceMatcher(None, of_image, stem, autojunk=False).find_longest_match()
    return f"{stem[: match.b]}%stem{stem[match.b + match.size :]}"


def _is_field_of_view(folder: Folder, labels: Sequence[str]) -> bool:
    """Returns whether masks hold one value or two, at nearly the same pixels."""
    some = (labels[0], labels[len(labels) // 2], labels[-1])
    with suppress(ValueError):  # of several sizes, or not to be read
        maps = np.stack([io.read_labels(folder.root / path) for path in some])
        views = maps == maps.max(axis=(1, 2), keepdims=True)
        are_binary = all(len(np.unique(ids)) <= 2 for ids in maps)
        return are_binary and bool((views == views[0]).mean(axis=(1, 2)).min() > _SAME_VIEW)
    return False


def _question(
    folder: Folder,
    places: Mapping[_Place, Sequence[str]],
    labels_of: Mapping[str, Sequence[str]],
    kind: Kind,
) -> DataError:
    """Returns the question which label files count."""
    image, labels = next((i, x) for i, x in labels_of.items() if len(x) > 1)
    contested = {place for place, members in places.items() if {*labels} & {*members}}
    are_folders = len({place.folder for place in contested}) == len(contested)
    choices = []
    for place in contested:
        setting = f"{kind}={place.folder}" if are_folders else f"{kind}_name={place.name}"
        choices.append(f"data.{setting} ({len(places[place])} files)")
    count = sum(len(labels) > 1 for labels in labels_of.values())
    fault = f"{plural(count, 'image')} with several {kind}, such as {image}"
    remedy = f"set {' or '.join(sorted(choices))}"
    return DataError(f"{folder.root}: {fault} with {shown(sorted(labels), 4)}: {remedy}")
