"""Splits as pure functions: from names and groups of images to lists of indices.

No function opens a file. Errors name the settings of ``data`` that define the splits.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import cast

from dpt.files import DataError, few

DEFAULT_FRACTIONS = {"train": 0.9, "val": 0.1}
"""Fractions of the splits if neither folders nor lists nor settings define them."""
_WORDS = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
SPLITS = {word: split for split, words in _WORDS.items() for word in words}
"""The split that a word in a name or a table means."""


def natural_key(name: str) -> list[str | int]:
    """Returns a key that sorts names in natural order: ``frame_9`` before ``frame_10``."""
    pieces = re.split(r"([0-9]+)", name)
    return [int(piece) if k % 2 else piece for k, piece in enumerate(pieces)]


def split_word(path: str) -> tuple[str, str]:
    """Returns the split that the last matching word of a path names, and that word, such as
    ``train2017``; two empty strings if no word matches."""
    for word in reversed(re.split(r"[-_. /]+", path)):
        split = SPLITS.get(word.rstrip("0123456789").lower())
        if split:
            return split, word
    return "", ""


_GROUPS = {
    "folder": r"^(.*)/",
    "scene": r"([^/]+?)(?:[-_.]+(?:x|y|r|c|row|col)?[0-9]+){2,}[^/0-9]*$",
    "sequence": r"([^/]*?)[-_.]?[0-9]+[^/0-9]*$",
}
"""Folders; what precedes the last two numbers of a name, as of tiles of an image, or the last one,
as of frames of a video."""


def groups_shown(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the group of each image by the kind of groups that their names show, folders first;
    without kinds of which an image has none, or of which there is one group."""
    kinds = {}
    for kind, rule in _GROUPS.items():
        matches = [re.search(rule, name) for name in names]
        groups = [match[1] for match in matches if match]
        if len(groups) == len(names) and len(set(groups)) > 1:
            kinds[kind] = groups
    return kinds


_COORDINATE = re.compile("(?:x|y|r|c|row|col)?([0-9]+)")


def tiles_beside(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Returns the tiles, such as ``a_0_512.png``, with tiles of their scene in ``others`` both in
    their row and in their column; none if no tile is at 0, as such numbers may be dates."""
    tiles, other_tiles = _tiles(names), _tiles(others)
    numbers = {number for _, *place in (*tiles.values(), *other_tiles.values()) for number in place}
    rows = {(scene, row) for scene, row, _ in other_tiles.values()}
    columns = {(scene, column) for scene, _, column in other_tiles.values()}
    return [
        name
        for name, (scene, row, column) in tiles.items()
        if 0 in numbers and (scene, row) in rows and (scene, column) in columns
    ]


def _tiles(names: Sequence[str]) -> dict[str, tuple[str, int, int]]:
    """Returns scene, row and column (or column and row) of the names that end with two numbers."""
    tiles: dict[str, tuple[str, int, int]] = {}
    for name in names:
        words = re.split("[-_.]+", name.rpartition("/")[2])
        while words and not re.search("[0-9]", words[-1]):  # the suffix
            words.pop()
        *scene, row, column = ["", "", *words]
        numbers = _COORDINATE.fullmatch(row), _COORDINATE.fullmatch(column)
        if numbers[0] and numbers[1] and any(scene):
            tiles[name] = ("_".join(scene), int(numbers[0][1]), int(numbers[1][1]))
    return tiles


def original_name(name: str) -> str:
    """Returns the name that Roboflow's copies share: ``a_jpg`` for ``a_jpg.rf.HASH.jpg``."""
    return re.sub(r"\.rf\.[0-9A-Za-z]{8,}.*", "", name)


def group_names(names: Sequence[str], group_by: str | None) -> list[str]:
    """Returns the group of each image.

    Args:
        group_by: a regular expression. Its match in a name is the group, or the match of its first
            bracket if it has one. None: each image is a group, with its copies by Roboflow.
    """
    if group_by is None:
        return [original_name(name) for name in names]
    try:
        pattern = re.compile(group_by)
        matches = [pattern.search(name) for name in names]
        groups = [match and match[min(1, pattern.groups)] for match in matches]
    except re.error as error:
        raise DataError(f"data.group_by={group_by}: no regular expression: {error}") from None
    if None in groups:
        name = names[groups.index(None)]
        raise DataError(f"data.group_by={group_by}: does not match {name}: correct it")
    return cast(list[str], groups)


def folds(
    groups: Sequence[str],
    count: int,
    index: int,
    gap: int = 0,
    class_ids: Sequence[int | None] | None = None,
) -> tuple[list[int], list[int]]:
    """Divides images into ``count`` parts of whole groups, in the natural order of the groups.

    Args:
        groups: the group of each image.
        index: the part that validates, from 0.
        gap: number of groups on either side of that part that are left out.
        class_ids: the class of each image. The groups of all classes are mixed in proportion to
            their numbers, so that every part has every class.

    Returns:
        The indices of the images for training and of those for validation.
    """
    if index >= count:
        raise DataError(f"data.fold={index}: with data.folds={count} it is 0 to {count - 1}")
    groups_of_class: dict[int | None, set[str]] = {}
    for group, class_id in zip(groups, class_ids or [None] * len(groups), strict=True):
        groups_of_class.setdefault(class_id, set()).add(group)
    positions: dict[str, float] = {}  # among the groups of the class, from 0 to 1
    for names in groups_of_class.values():
        ordered = sorted(names, key=lambda name: (natural_key(name), name))
        positions |= {name: rank / len(ordered) for rank, name in enumerate(ordered)}
    order = sorted(positions, key=lambda name: (positions[name], name))
    if count > len(order):
        fault = f"data.folds={count}: there are {len(order)} groups, such as {few(order)}"
        raise DataError(f"{fault}: set data.group_by to an expression that separates them")
    start, stop = (len(order) * k // count for k in (index, index + 1))
    val_groups = set(order[start:stop])
    train_groups = {*order[: max(0, start - gap)], *order[stop + gap :]}
    train = [i for i, group in enumerate(groups) if group in train_groups]
    val = [i for i, group in enumerate(groups) if group in val_groups]
    return train, val


def by_fraction(
    groups: Sequence[str], fractions: Mapping[str, float], labelled: Sequence[bool] | None = None
) -> dict[str, list[int]]:
    """Divides images by fractions of the number of their groups.

    Groups are sorted by a hash of their name, so the result is the same on every machine, and new
    images change few assignments.

    Args:
        groups: the group of each image; a group is never divided.
        labelled: whether each image has labels. Groups without labels are divided separately, so
            every split gets its fraction of the labels.

    Returns:
        The indices of the images of each split.
    """
    if min(fractions.values()) <= 0 or sum(fractions.values()) > 1 + 1e-6:
        raise DataError(f"data.fractions={dict(fractions)} must be above 0 and sum to at most 1")
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    flags = [True] * len(groups) if labelled is None else labelled
    labelled_groups = {group for group, flag in zip(groups, flags, strict=True) if flag}
    splits: dict[str, list[int]] = {name: [] for name in fractions}
    for names, least in ((labelled_groups, 1), (members.keys() - labelled_groups, 0)):
        ranked = sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).hexdigest())
        start = 0
        for split, count in _counts(len(ranked), fractions, least).items():
            chosen = ranked[start : start + count]
            splits[split] += [i for name in chosen for i in members[name]]
            start += count
    return {split: sorted(indices) for split, indices in splits.items()}


def _counts(total: int, fractions: Mapping[str, float], least: int) -> dict[str, int]:
    """Returns the number of groups of each split, at least ``least``, out of ``total``."""
    counts = {name: max(least, int(total * f + 1e-6)) for name, f in fractions.items()}
    rest = total - sum(counts.values())
    if rest < 0 or sum(fractions.values()) > 1 - 1e-6:
        counts[max(counts, key=lambda name: counts[name])] += rest
    if min(counts.values()) < least:
        raise DataError(f"data.fractions={dict(fractions)}: {total} images or groups are too few")
    return counts


def evenly(names: Sequence[str], kinds: Sequence[Sequence[bool]], count: int | None) -> list[int]:
    """Selects images with labels, evenly spaced in natural order among those of the same kinds.

    Args:
        kinds: for each image, which kinds of labels it has.
        count: the number of images; None selects all that have labels.

    Returns:
        The indices of the selected images, ascending.
    """
    candidates = [i for i, kind in enumerate(kinds) if any(kind)]
    count = len(candidates) if count is None else count
    if count > len(candidates):
        raise DataError(f"data.labelled={count}: {len(candidates)} training images have labels")
    candidates.sort(key=lambda i: (kinds[i], natural_key(names[i])))
    return sorted(candidates[k * len(candidates) // count] for k in range(count))
