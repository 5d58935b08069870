"""A mask for each class of an image, whose pixels are those that are not 0.

Masks are named after the image and the class, ``a_tree.png`` or ``a_class-tree.png`` of ``a.jpg``,
or lie in a folder for each class, ``masks/tree/a.png``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from dpt.data.annotations.base import Annotations
from dpt.data.annotations.reading import Part, Reading, ToolFormat, images_of
from dpt.data.annotations.shapes import MaskFile
from dpt.data.formats.io import read_objects
from dpt.data.splits import SPLITS, natural_key
from dpt.files import DataError, few, plain_name

_NO_CLASS = (
    "annotation|class|colou?rs?|copy|depth|disp(arity)?|gt|ground|truth|ids?|image|img|inst(ance)?s?"
    "|(gtfine|label|instance|labeltrain)(ids?)?|labels?|manual|masks?|objects?|overlay|photo"
    "|pred(iction)?s?|predict|rgb|segm?(entation)?|thumb(nail)?|vis(uali[sz]ation)?|[0-9]+"
)
"""Words after an image's name that do not name a class."""
_NO_CLASS_WORDS = re.compile(rf"(^|[-_ ]+)({_NO_CLASS})(?=$|[-_ ])", re.IGNORECASE)
_ORDINAL = re.compile(r"\d(st|nd|rd|th)", re.IGNORECASE)
"""A part of the names of masks by several people."""
_MASK_FOLDERS = re.compile(
    r"(.*[-_ ])?(masks?|labels?|annotations?|gt|ground.?truth|segmentations?)", re.IGNORECASE
)
_MOST_CLASSES = 64
_MOST_PROBED = 3  # images
_RATERS = 0.5
"""Masks of an image with a larger IoU are by several people, not of several classes."""


class _Mask(NamedTuple):
    path: str
    image: str
    class_name: str


class ClassMasksFormat(ToolFormat):
    """A mask is an area of a class, not an object; where masks overlap, the later class counts.

    Classes are in the natural order of their names.
    """

    name = "class_masks"
    title = "masks of one class each"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        for masks in (_by_name(files), _by_folder(files)):
            names = {mask.class_name for mask in masks}
            times = Counter(mask.image for mask in masks)
            if not 1 < len(names) <= _MOST_CLASSES or "" in names:
                continue
            several = [image for image, count in times.items() if count > 1][:_MOST_PROBED]
            groups = [[mask.path for mask in masks if mask.image == image] for image in several]
            if groups and all(_are_classes(root, paths) for paths in groups):
                return [mask.path for mask in masks]
        return []

    def collect(self, reading: Reading, sources: Sequence[str]) -> None:
        chosen = {*sources}
        masks = [*_by_folder(reading.files), *_by_name(reading.files)]
        masks.sort(key=lambda mask: natural_key(mask.class_name))
        parts_of_image: dict[str, list[Part]] = defaultdict(list)
        for mask in masks:
            if mask.path in chosen:
                reading.add_class(mask.class_name, is_thing=False)
                part = Part(mask.class_name, MaskFile(reading.root / mask.path), name=mask.path)
                parts_of_image[mask.image].append(part)
        for image, parts in sorted(parts_of_image.items()):
            reading.add_image(reading.root / image, parts)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        annotations = super().read(root, sources, files)
        names = few([row.name for row in annotations.classes], 10)
        annotations.notes.append(f"where masks overlap, the later of {names} counts")
        return annotations


def _by_name(files: Sequence[str]) -> list[_Mask]:
    """Returns the pictures whose name is that of an image, ``_`` or ``-``, and a class."""
    paths = images_of(files)
    image_of_stem = _by_stem(paths)
    masks: list[_Mask] = []
    for path in paths:
        stem = _stem(path)
        for match in re.finditer("[-_]+", stem):
            image, name = image_of_stem.get(stem[: match.start()]), stem[match.end() :]
            if image is not None and name:
                name = "" if _ORDINAL.search(name) else _NO_CLASS_WORDS.sub("", name).strip("-_ ")
                masks.append(_Mask(path, image, name))
                break
    return masks


def _by_folder(files: Sequence[str]) -> list[_Mask]:
    """Returns the pictures in ``masks/CLASS`` with the name of an image in another folder."""
    paths = images_of(files)
    class_paths = [path for path in paths if _MASK_FOLDERS.fullmatch(_parent_name(path, 2))]
    image_of_stem = _by_stem({*paths} - {*class_paths})
    masks: list[_Mask] = []
    for path in class_paths:
        image, name = image_of_stem.get(_stem(path)), _parent_name(path, 1)
        if image is not None and name.lower() not in SPLITS:
            masks.append(_Mask(path, image, name))
    return masks


def _by_stem(paths: Iterable[str]) -> dict[str, str]:
    """Returns the paths by their names without suffix, where one alone has the name."""
    times = Counter(map(_stem, paths))
    return {_stem(path): path for path in paths if times[_stem(path)] == 1}


def _stem(path: str) -> str:
    return plain_name(path.rpartition("/")[2].rpartition(".")[0])


def _parent_name(path: str, level: int) -> str:
    parts = path.split("/")
    return parts[-1 - level] if len(parts) > level else ""


def _are_classes(root: Path, paths: Iterable[str]) -> bool:
    """Returns whether masks of an image have two values each, and differ in where they are."""
    try:
        ids = [read_objects(root / path) for path in paths]
    except DataError:
        return False
    masks = [values != 0 for values in ids]
    have_two_values = all((values[values != 0] == values.max()).all() for values in ids)
    if len({mask.shape for mask in masks}) > 1 or not have_two_values:
        return False
    return all(
        (mask & other).sum() <= _RATERS * max((mask | other).sum(), 1)
        for mask, other in combinations(masks, 2)
    )
