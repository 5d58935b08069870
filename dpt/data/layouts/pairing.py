"""Pairs labels with images: by whole names, then by what remains of names without a constant
beginning and end of each side."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from string import digits
from typing import NamedTuple

from dpt.data.layouts.base import by_folder, spaced
from dpt.data.layouts.kinds import WORDS, Kind
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, plain_name

_MAX_TRIALS = 50  # folders of images that are compared with a folder of labels


_Likeness = tuple[bool, int, int]


class _Place(NamedTuple):
    """Where files lie, without the words for their kind."""

    folders: list[str]
    words: set[str]
    split: str
    is_named: bool  # whether a word in a folder's name tells the kind


def pair(images: Sequence[str], labels: Sequence[str], kind: Kind) -> dict[str, str]:
    """Returns the image of each label file that has one.

    Raises:
        DataError: two images fit a label file equally well.
    """
    image_of: dict[str, str] = {}
    for key in (_whole_key, _key_without_kind):
        keys = _unique(images, partial(key, kind="images"))
        for path in labels:
            image = keys.get(key(path, kind))
            if image is not None:
                image_of.setdefault(path, image)
    images_in = by_folder(images)
    places = {name: _place_of(paths[0], "images") for name, paths in images_in.items()}
    partners: dict[str, set[str]] = defaultdict(set)  # folders of images by those of labels
    for path, image in image_of.items():
        partners[os.path.dirname(path)].add(os.path.dirname(image))
    folders = by_folder(path for path in labels if path not in image_of)
    levels: dict[_Likeness, dict[str, list[list[str]]]] = defaultdict(lambda: defaultdict(list))
    for directory, members in folders.items():
        place = _place_of(members[0], kind)
        # further files in a folder that has pairs are no labels of images elsewhere
        for near in partners.get(directory, places):
            other = places[near]
            alike = levels[_likeness(other, place)][directory]
            if len({place.split, other.split} - {""}) < 2 and len(alike) < _MAX_TRIALS:
                alike.append(images_in[near])
    for level in sorted(levels, reverse=True):  # every folder with those that are most like it
        for directory, trials in levels[level].items():
            _pair_folder(trials, folders[directory], image_of, once=directory in partners)
    return image_of


def _unique(paths: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Returns the paths by keys, without those whose key another one has."""
    paths_of: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        paths_of[key(path)].append(path)
    return {name: found[0] for name, found in paths_of.items() if len(found) == 1}


def _whole_key(path: str, kind: Kind) -> str:
    """Returns the path without suffix and without the words for its kind in folders' names."""
    *folders, stem = os.path.splitext(plain_name(path))[0].split("/")
    kept = [_without_words(spaced(name), kind).strip("-_. ") for name in folders]
    return "/".join([*(SPLITS.get(name.lower(), name) for name in kept if name), stem])


def _without_words(name: str, kind: Kind) -> str:
    """Returns the name of a folder without words for the kind; ``GT_color`` and ``label_images``
    lose both words."""
    if kind != "images" and WORDS[kind].search(name):
        name = WORDS["images"].sub("", name)
    return WORDS[kind].sub("", name)


def _key_without_kind(path: str, kind: Kind) -> str:
    """Returns the whole key with the word for the kind in the file's name as ``*``."""
    folders, _, stem = _whole_key(path, kind).rpartition("/")
    return f"{folders}/{WORDS[kind].sub('*', spaced(stem))}"


def _place_of(path: str, kind: Kind) -> _Place:
    """Returns the place of a file."""
    place = os.path.dirname(_whole_key(path, kind))
    is_named = bool(WORDS[kind].search(spaced(os.path.dirname(path))))
    return _Place(place.split("/"), {*re.split(r"[-_. /]+", place)}, split_word(place)[0], is_named)


def _likeness(first: _Place, second: _Place) -> _Likeness:
    """Returns whether the name of a place of images says so, how many folders at its beginning and
    end are those of a place of labels, and how many words anywhere."""
    parts, others = first.folders, second.folders
    folders = common_start(parts, others) + common_start(parts[::-1], others[::-1])
    return first.is_named, folders, len(first.words & second.words)


def _pair_folder(
    folders: Sequence[Sequence[str]], labels: Sequence[str], image_of: dict[str, str], *, once: bool
) -> None:
    """Adds the pairs of the label files of a folder with the images of folders, those first whose
    names have most in common.

    Args:
        once: images that have labels get no second ones.

    Raises:
        DataError: images of two folders fit the same label files equally well.
    """
    is_elsewhere = not image_of.keys().isdisjoint(labels)  # than most of the images
    while left := [path for path in labels if path not in image_of]:
        labelled = {*image_of.values()}
        trials = []
        for images in folders:
            free = [path for path in images if path not in labelled]
            kept, found = _by_affixes(free, left) if free else (0, {})
            if once or len(left) < len(labels) or len(found) == 1:
                found = {x: image for x, image in found.items() if _begins_with(x, image)}
            if 2 * len(found) >= (len(images) if is_elsewhere else min(len(free), len(left))):
                trials.append((kept, True, found))
            if len(free) < len(images) and not (once or is_elsewhere):
                kept, found = _by_affixes(images, left)
                if 2 * len(found) >= len(images):
                    trials.append((kept, False, found))
        trials.sort(key=lambda trial: trial[:2], reverse=True)
        if not trials or not trials[0][2]:
            return
        pairs = trials[0][2]
        for kept, is_free, others in trials[1:]:
            shared = [path for path in pairs if others.get(path, pairs[path]) != pairs[path]]
            if (kept, is_free) == trials[0][:2] and 2 * len(shared) >= len(pairs):
                names = f"{pairs[shared[0]]} and {others[shared[0]]}"
                remedy = "set data.images to the folder of one (train.py reads bands of several)"
                raise DataError(f"{names} are both images of {shared[0]}: {remedy}")
        image_of.update(pairs)


def _begins_with(label: str, image: str) -> bool:
    """Returns whether the numbers in a label file's name begin with those of its image's name."""
    of_label, of_image = (re.findall(r"\d+", _stem(path)) for path in (label, image))
    return of_label[: len(of_image)] == of_image


def _by_affixes(images: Sequence[str], labels: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Returns the pairs of the best constant beginnings and ends that are left out of the names of
    images and of labels (of most pairs, and then those that leave out least), and before them the
    length of what remains of one name."""
    stems = _unique(images, _stem)
    before, after = _common_affixes([*stems])
    before, after = before.rstrip(digits), after.lstrip(digits)  # numbers are not cut
    cores = [name[len(before) : len(name) - len(after)] for name in stems]
    best: tuple[int, int, dict[str, str]] = 0, 0, {}
    names = [_stem(path) for path in labels]
    with_core = [next((x for x in names if core in x), names[0]) for core in _some(cores)]
    for name in dict.fromkeys(_some(names) + with_core):
        for core in sorted((core for core in cores if core and core in name), key=len)[-3:]:
            for start in {name.find(core), name.rfind(core)}:
                affixes = name[:start], name[start + len(core) :]
                kept, found = _match(stems, labels, (before, after), affixes, core)
                best = max(best, (len(found), kept, found), key=lambda trial: trial[:2])
    return best[1:]


def _match(
    stems: dict[str, str],
    labels: Sequence[str],
    of_image: tuple[str, str],
    of_label: tuple[str, str],
    core: str,
) -> tuple[int, dict[str, str]]:
    """Returns the pairs whose names are equal without a beginning and an end, and before them the
    length of what remains of one name.

    Args:
        of_image, of_label: the beginning and the end; what they have in common is no part of them.
        core: what remains of one name.
    """
    head = common_start(of_image[0][::-1], of_label[0][::-1])
    tail = common_start(of_image[1], of_label[1])
    kept = of_image[0][len(of_image[0]) - head :] + core + of_image[1][:tail]
    starts = [text[: len(text) - head] for text in (of_image[0], of_label[0])]
    ends = [text[tail:] for text in (of_image[1], of_label[1])]
    if any(text[-1:].isdigit() for text in starts) and kept[:1].isdigit():
        return 0, {}  # a number would be cut
    if any(text[:1].isdigit() for text in ends) and kept[-1:].isdigit():
        return 0, {}
    pairs = {}
    pattern = re.compile(f"{re.escape(starts[1])}(.*){re.escape(ends[1])}", re.DOTALL)
    for path in labels:
        match = pattern.fullmatch(_stem(path))
        image = stems.get(starts[0] + match[1] + ends[0]) if match else None
        if image is not None:
            pairs[path] = image
    counts = Counter(pairs.values())
    return len(kept), {path: image for path, image in pairs.items() if counts[image] == 1}


def _some(names: Sequence[str]) -> list[str]:
    """Returns the first, the middle and the last name."""
    return [*names[:1], *names[len(names) // 2 :][:1], *names[-1:]]


def _stem(path: str) -> str:
    return os.path.splitext(plain_name(os.path.basename(path)))[0]


def _common_affixes(names: Sequence[str]) -> tuple[str, str]:
    """Returns the beginning and the end that all names share; none of a single name."""
    if len(names) < 2:
        return "", ""
    head = common_start(min(names), max(names))
    ends = [name[head:][::-1] for name in names]
    tail = common_start(min(ends), max(ends))
    return names[0][:head], ends[0][:tail][::-1]


def common_start(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns how many items at the beginning of two texts or lists are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
