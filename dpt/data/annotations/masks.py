"""Masks as pictures: one for each object, or each class, of an image; and pictures of all ids.

A picture for each object lies in ``NAME/masks`` beside ``NAME/images`` with one image, as in the
Data Science Bowl of 2018. Masks of classes are named after the image and the class, ``a_tree.png``
or ``a_class-tree.png`` of ``a.jpg``, or lie in a folder for each class, ``masks/tree/a.png``. The
pixels of both are those that are not 0.
"""

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image

from dpt.data.annotations import base
from dpt.data.formats.io import read_objects
from dpt.data.formats.rle import overlay
from dpt.data.splits import SPLITS, natural_key
from dpt.files import DataError, few, plain_name
from dpt.types.samples import IGNORE_INDEX, ObjectMask

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


# ------------------------------------------------------------------------- a picture an object


class _Folder(NamedTuple):
    images: list[str]
    masks: list[str]


class ObjectMasksFormat(base.ToolFormat):
    """All objects are of one class, ``object``; the smaller one is in front."""

    name = "object_masks"
    title = "folders with a mask for each object"
    front = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        folders = [folder for folder in _folders(files).values() if folder.masks]
        sizes = {0, *(len(folder.images) for folder in folders)}  # 0: its image is missing
        if sizes != {0, 1} or all(len(folder.masks) == 1 for folder in folders):
            return []  # masks of several images, or of all objects of an image
        return [path for folder in folders for path in folder.masks]

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        chosen = {*sources}
        for folder in _folders(reading.files).values():
            masks = [path for path in folder.masks if path in chosen]
            if len(folder.images) == 1 and masks:
                parts = [_part(reading.root, path, "object") for path in masks]
                reading.add_image(reading.root / folder.images[0], parts)
                continue
            for image in folder.images:
                reading.leave_out("image", "no folder of its masks", image)
            for path in masks:
                reading.leave_out("mask", "its image is not there", path)


def _part(root: Path, path: str, class_name: str) -> base.Annotation:
    encode = partial(base.encode_picture, root / path)
    return base.Annotation(class_name=class_name, encode=encode, name=path)


def _folders(files: Sequence[str]) -> dict[str, _Folder]:
    """Returns the pictures in ``images`` and ``masks`` of each folder."""
    folders: dict[str, _Folder] = defaultdict(lambda: _Folder([], []))
    for path in base.images_of(files):
        folder, _, kind = base.folder_of(path).rpartition("/")
        if kind in ("images", "masks"):
            paths = folders[folder]
            (paths.images if kind == "images" else paths.masks).append(path)
    return folders


# -------------------------------------------------------------------------- a picture a class


class _Mask(NamedTuple):
    path: str
    image: str
    class_name: str


class ClassMasksFormat(base.ToolFormat):
    """A mask is an area of a class, not an object; where masks overlap, the later class counts.

    Classes are in the natural order of their names.
    """

    name = "class_masks"
    title = "masks of one class each"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        for masks in (_by_name(files), _by_folder(files)):
            names = {mask.class_name for mask in masks}
            paths_of_image: dict[str, list[str]] = defaultdict(list)
            for mask in masks:
                paths_of_image[mask.image].append(mask.path)
            groups = [paths for paths in paths_of_image.values() if len(paths) > 1]
            if not 1 < len(names) <= _MOST_CLASSES or "" in names:
                continue
            if groups and all(_are_classes(root, paths) for paths in groups[:_MOST_PROBED]):
                return [mask.path for mask in masks]
        return []

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        chosen = {*sources}
        masks = [*_by_folder(reading.files), *_by_name(reading.files)]
        masks.sort(key=lambda mask: natural_key(mask.class_name))
        parts_of_image: dict[str, list[base.Annotation]] = defaultdict(list)
        for mask in masks:
            if mask.path in chosen:
                reading.add_class(mask.class_name, is_thing=False)
                part = _part(reading.root, mask.path, mask.class_name)
                parts_of_image[mask.image].append(part)
        for image, parts in sorted(parts_of_image.items()):
            reading.add_image(reading.root / image, parts)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> base.Annotations:
        annotations = super().read(root, sources, files)
        names = few([row.name for row in annotations.classes], 10)
        annotations.notes.append(f"where masks overlap, the later of {names} counts")
        return annotations


def _by_name(files: Sequence[str]) -> list[_Mask]:
    """Returns the pictures whose name is that of an image, ``_`` or ``-``, and a class."""
    paths = base.images_of(files)
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
    paths = base.images_of(files)
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


# ----------------------------------------------------------------------- pictures of all ids


def maps_of(
    objects: Sequence[ObjectMask], size: tuple[int, int], classes: Sequence[base.AnnotatedClass]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns class ids, uint8 (H, W), and object ids, uint16; later objects are in front."""
    things = {class_id for class_id, row in enumerate(classes) if row.is_thing}
    positions = overlay([item.mask for item in objects], size)
    pairs = [(item.class_id, item.is_crowd) for item in objects]
    labels, numbers = base.label_maps(positions, pairs, things, IGNORE_INDEX)
    return labels.astype(np.uint8), numbers.astype(np.uint16)


class FolderWriter(base.Writer):
    """Class ids and object ids in pictures, as ``data=folder`` reads them."""

    name = "folder"
    label_files: tuple[str, ...] = ("masks/{split}/{name}.png", "objects/{split}/{name}.png")
    class_list = "classes.txt"
    has_background = True
    has_overlaps = False
    has_crowds = True

    def __init__(self, classes: Sequence[base.AnnotatedClass]) -> None:
        super().__init__(classes)
        if not any(row.is_thing for row in classes):
            self.label_files = self.label_files[:1]

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        labels, objects = maps_of(entry.objects, entry.size, self.classes)
        return (_picture(labels), _picture(objects))[: len(self.label_files)]


_VOID, _BLACK = (224, 224, 192), (0, 0, 0)
"""The colours of unlabelled pixels and of the background in VOC's pictures."""


class VocWriter(FolderWriter):
    """Class ids and object ids in pictures with a palette; 255 is unlabelled."""

    name = "voc"
    image_file = "JPEGImages/{name}"
    label_files = ("SegmentationClass/{name}.png", "SegmentationObject/{name}.png")

    def __init__(self, classes: Sequence[base.AnnotatedClass]) -> None:
        colors = [k.color for k in classes if k.name not in base.BACKGROUND or k.color != _BLACK]
        if len({_VOID, _BLACK, *colors}) < len(colors) + 2:  # by which label tools know classes
            pairs = zip(classes, _VOC_COLORS[1:], strict=False)
            classes = [replace(row, color=color) for row, color in pairs]
        super().__init__(classes)

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        unfit = [row.name for row in self.classes if ":" in row.name]
        if unfit:
            raise DataError(f"class {unfit[0]}: labelmap.txt cannot hold the colon: rename it")
        labels, objects = maps_of(entry.objects, entry.size, self.classes)
        numbers = np.unique(objects, return_inverse=True)[1].reshape(objects.shape)
        numbers += objects.min() > 0
        if numbers.max() >= IGNORE_INDEX:
            fault = f"{numbers.max()} objects, in VOC's format at most {IGNORE_INDEX - 1}"
            raise DataError(f"{entry.image}: {fault}: choose another format")
        numbers[labels == IGNORE_INDEX] = IGNORE_INDEX
        colors = [row.color for row in self.classes]
        pictures = _picture(labels, colors), _picture(numbers.astype(np.uint8), _VOC_COLORS)
        return pictures[: len(self.label_files)]

    def common_files(self, read: base.Reader, names: base.Names) -> dict[str, bytes]:
        rows = [f"{row.name}:{','.join(map(str, row.color))}::" for row in self.classes]
        lists = {
            f"ImageSets/Segmentation/{split or 'default'}.txt": base.as_lines(names[split])
            for split in names
        }
        return {"labelmap.txt": base.as_lines(["# label:color_rgb:parts:actions", *rows]), **lists}


def _bits(k: int, channel: int) -> int:
    return sum((k >> (3 * j + channel) & 1) << (7 - j) for j in range(3))


_VOC_COLORS = [tuple(_bits(k, channel) for channel in range(3)) for k in range(256)]
"""VOC's palette, in which neighbours differ."""


def _picture(ids: np.ndarray, colors: Sequence[Sequence[int]] = ()) -> bytes:
    """Returns ids as PNG; with ``colors`` it has a palette, in which 255 is VOC's void."""
    picture = PIL.Image.fromarray(ids)
    if colors:
        rows = np.zeros((256, 3), np.uint8)
        rows[: len(colors)] = colors
        rows[IGNORE_INDEX] = _VOID
        picture.putpalette(rows.tobytes())
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
