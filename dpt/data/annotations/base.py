"""What the formats of label tools share: their records, and the classes that read and write them.

Coordinates are in pixels of the image as it is stored: x points right, y down, and pixel edges lie
at whole numbers, so that the first pixel covers 0..1. A polygon with corners at pixel edges has
exactly the pixels that it encloses.
"""

import base64
import codecs
import math
import posixpath
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np
from pycocotools import mask as coco
from pydantic import Field, TypeAdapter

from dpt.data.formats import io, pictures, rle, rules
from dpt.data.splits import natural_key, split_word
from dpt.files import DataError, few, open_file, parse_as, plain_name, plural, read_bytes, read_text
from dpt.types.samples import ObjectMask, Rle

Front = Literal["smaller", "later"]
"""Which of two objects that overlap is in front: the smaller one, or the later one in the file."""
UNLABELLED = "\0"  # no class of a file has this name
"""The class name of objects whose pixels are to be ignored, such as those of ``__ignore__``."""
BOX = "rectangle"
"""What messages call the bounding box of an object, whose pixels it does not tell."""
BACKGROUND = ("background", "_background_")
"""Names of the class whose pixels have no object, where a format has objects alone."""
_MAX_TEXT = 64 << 20
_MOST_PROBED = 8
_START = 1 << 16

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A name in JSON, which may be written as a number."""
_Coordinate = Annotated[float, Field(allow_inf_nan=False)]
Points = list[tuple[_Coordinate, _Coordinate]]
"""Points of x and y in JSON."""


class NoMasksError(DataError):
    """The labels of a tool hold no mask, such as boxes alone."""


# ----------------------------------------------------------------------------------- records

Encoder = Callable[[tuple[int, int]], Rle]
"""Returns the mask of an object for an image of a size (H, W), which is known when it is used;
ValueError if the object does not fit, or would take too much memory."""


@dataclass(frozen=True, eq=False)
class Annotation:
    """An object in a file."""

    class_name: str  # or UNLABELLED
    encode: Encoder
    is_box: bool = False  # whether it is a rectangle, which may only be around the object
    is_crowd: bool = False  # several objects of a class, not told apart
    area: float | None = None  # by which COCO calls it small; None: that of its mask
    name: str = ""  # what messages call it, such as its id
    group: str = ""  # annotations of a class in the same group are parts of one object


class Raster(NamedTuple):
    """The pixels of the objects of an image."""

    positions: np.ndarray  # int32 (H, W), 1 + position in ``objects`` of the front one; 0 for none
    codes: Sequence[Rle] | None  # of each object as a whole; None where objects cannot overlap


@dataclass(frozen=True, kw_only=True, eq=False)
class AnnotatedImage:
    """An image and its objects, in the order of the file.

    An image that does not exist has the path at which the format says it is.
    """

    image: Path
    id: int | str | None = None  # by which COCO's results name it
    size: tuple[int, int] | None = None  # (H, W), if the format states it
    objects: Sequence[Annotation] = ()
    split: str = ""  # train, val or test, if the format states it
    map_file: Path | None = None  # the picture that holds the pixels of all objects, if one does

    def rasterise(self, size: tuple[int, int], front: Front) -> Raster:
        """Returns the pixels of the objects in an image of ``size`` (H, W).

        Raises:
            DataError: a mask cannot be read; the message names its object.
        """
        codes: list[Rle] = []
        for number, item in enumerate(self.objects, 1):
            try:
                codes.append(item.encode(size))
            except Exception as error:  # of pycocotools, of any kind
                fault = f"the mask of object {item.name or number} cannot be read"
                raise DataError(f"{self.image}: {fault}: {str(error)[:200]}: correct it") from None
        order = np.argsort(-rle.areas_of(codes), kind="stable") if front == "smaller" else None
        return Raster(rle.overlay(codes, size, order), codes)


def label_maps(
    positions: np.ndarray,
    classes: Iterable[tuple[int, bool]],
    things: Collection[int],
    outside: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns class ids and object ids, int32 (H, W) each; object ids are 0 outside of things.

    Args:
        positions: see :class:`Raster`.
        classes: of each object, its class id and whether it is a crowd.
        things: class ids whose objects are told apart.
        outside: class id of pixels without an object.
    """
    ids = [(outside, 0)]
    count = 0
    for class_id, is_crowd in classes:
        is_object = class_id in things and not is_crowd
        count += is_object
        ids.append((class_id, count if is_object else 0))
    labels, objects = np.array(ids, np.int32).T[:, positions]
    return labels, objects


@dataclass(frozen=True, kw_only=True)
class AnnotatedClass:
    """A class that a format names, ``background`` or ``_background_`` too."""

    name: str
    is_thing: bool = True
    color: tuple[int, ...] = ()  # RGB, 0..255


@dataclass(kw_only=True)
class Annotations:
    """The content of the files of a format below a folder.

    Attributes:
        source: the file, or the folder that holds the files.
        classes: in their order; classes of objects that it lacks come after them.
        background: whether pixels without an object belong to none of the classes; otherwise they
            are unlabelled. The default of ``data.background``.
        notes: what was left out, or decided, and why, such as "12 boxes without a mask".
        lists: paths below the folder of the lists of classes or images that were read, too.
    """

    source: Path
    images: list[AnnotatedImage]
    classes: list[AnnotatedClass]
    background: bool = True
    notes: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)


# ------------------------------------------------------------------------- masks of label tools


def polygon(points: object) -> Encoder:
    """Returns the mask of a polygon with corners [[x, y], ...]; ValueError if it has no area."""
    return partial(rle.encode_rings, [as_ring(points).ravel()])


def size_of(height: int | None, width: int | None) -> tuple[int, int] | None:
    """Returns the size of an image (H, W), if a file states it."""
    return (height, width) if height and width else None


def as_ring(points: object) -> np.ndarray:
    """Returns corners [[x, y], ...] as float64 (N, 2).

    Raises:
        ValueError: they are not three or more finite pairs of numbers.
    """
    ring = np.asarray(points, float)
    if ring.ndim != 2 or ring.shape[1] != 2 or len(ring) < 3 or not np.isfinite(ring).all():
        raise ValueError("a polygon needs x and y of three points or more")
    return ring


def rectangle(x0: float, y0: float, x1: float, y1: float) -> Encoder:
    """Returns the mask of a rectangle with two opposite corners."""
    return polygon([[x0, y0], [x1, y0], [x1, y1], [x0, y1]])


def ellipse(x: float, y: float, radius_x: float, radius_y: float, radians: float = 0.0) -> Encoder:
    """Returns an ellipse, turned clockwise, as a polygon that differs by at most 0.05 pixels.

    Raises:
        ValueError: a radius is not a number above 0 and below a million.
    """
    if not (0 < radius_x < 1e6 and 0 < radius_y < 1e6):
        raise ValueError("no area")
    count = 8 + math.ceil(10 * math.sqrt(max(radius_x, radius_y)))
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    along, across = radius_x * np.cos(angles), radius_y * np.sin(angles)
    cos, sin = math.cos(radians), math.sin(radians)
    return polygon(np.stack([x + along * cos - across * sin, y + along * sin + across * cos], 1))


def encode_bitmap(content: str, corner: tuple[int, int], size: tuple[int, int]) -> Rle:
    """Returns the mask in a picture of a part of the image.

    The pixels are those that are opaque and, without alpha, those that are not 0. Black that is
    opaque everywhere is a full mask.

    Args:
        content: the picture's file in base64.
        corner: x and y of the pixel of the image where it begins.
    """
    picture = pictures.decode_picture("bitmap", base64.b64decode(content))
    alpha, pixels = picture.alpha, picture.pixels
    mask: np.ndarray = (pixels != 0).reshape(*pixels.shape[:2], -1).any(axis=2)
    if alpha is not None and (alpha.min() < alpha.max() or not mask.any()):
        mask = alpha > 0
    return rle.encode_pixels(placed(mask, corner, size))


def placed(mask: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Returns a mask of an image, bool (H, W), with ``mask`` at a corner x, y as far as it is
    inside the image."""
    (left, top), (height, width) = corner, mask.shape
    y, x = max(top, 0), max(left, 0)
    whole = np.zeros(size, bool)
    inside = whole[y : max(top + height, 0), x : max(left + width, 0)]
    inside[:] = mask[y - top :, x - left :][: inside.shape[0], : inside.shape[1]]
    return whole


def encode_picture(path: Path, size: tuple[int, int]) -> Rle:
    """Returns the pixels of a picture that are not 0."""
    ids = io.read_objects(path)
    if ids.shape != size:
        sizes = f"{ids.shape[1]}x{ids.shape[0]} pixels, but its image {size[1]}x{size[0]}"
        raise DataError(f"{path}: {sizes}: use masks of the image's size")
    return rle.encode_pixels(ids != 0)


def encode_union(encoders: Sequence[Encoder], size: tuple[int, int]) -> Rle:
    """Returns the pixels of any of several masks."""
    return rle.merge_masks([encode(size) for encode in encoders])


def encode_difference(encode: Encoder, others: tuple[Encoder, ...], size: tuple[int, int]) -> Rle:
    """Returns the pixels of a mask that no other one has."""
    return rle.subtract_mask(encode(size), _union(others, size))


@lru_cache(maxsize=8)
def _union(encoders: tuple[Encoder, ...], size: tuple[int, int]) -> Rle:
    return encode_union(encoders, size)  # mostly the same for all objects of an image


# --------------------------------------------------------------------------------- finding files


def images_of(files: Iterable[str]) -> list[str]:
    """Returns the paths that end as images do."""
    return [path for path in files if path.lower().endswith(io.IMAGE_SUFFIXES)]


def with_suffixes(stem: str) -> list[str]:
    """Returns the names that an image can have."""
    return [f"{stem}{suffix}" for suffix in io.IMAGE_SUFFIXES]


def folder_of(path: str) -> str:
    """Returns the folder of a path with ``/``; empty for the root."""
    return path.rpartition("/")[0]


def files_like(root: Path, candidates: Sequence[str], *patterns: bytes) -> list[str]:
    """Returns the candidates without those in folders where no file that was looked at matches.

    Args:
        patterns: regular expressions, searched in the beginning of at most 16 candidates: some of
            all, and the first of some folders.
    """
    first_of_folder = {folder_of(path): path for path in reversed(candidates)}
    probed = {*_evenly(candidates), *_evenly([*first_of_folder.values()])}
    matching = {folder_of(path) for path in probed if starts_with(root / path, *patterns)}
    others = {folder_of(path) for path in probed} - matching
    return [path for path in candidates if folder_of(path) not in others] if matching else []


def _evenly(paths: Sequence[str]) -> list[str]:
    step = max(1, len(paths) / _MOST_PROBED)
    return [paths[int(k * step)] for k in range(min(_MOST_PROBED, len(paths)))]


def starts_with(path: Path, *patterns: bytes) -> bool:
    """Returns whether the beginning of a file holds all patterns; False if it cannot be read."""
    with suppress(DataError), open_file(path) as file:
        start = file.read(_START).removeprefix(codecs.BOM_UTF8)
        return all(re.search(pattern, start, re.MULTILINE) for pattern in patterns)
    return False


def local_name(name: str) -> str:
    """Returns the path in a file name of a label tool; of a URL, or a path with a drive, its last
    part."""
    if "://" in name:
        return unquote(re.split("[?#]", name)[0].rpartition("/")[2])
    path = PureWindowsPath(name)
    if path.drive and path.root:
        return path.name
    return name.replace("\\", "/")


class ImageFinder:
    """Finds the image files that label files name, whatever folder the label tool ran in.

    Args:
        images: paths of the image files below ``root``, with ``/``.
    """

    def __init__(self, root: Path, images: Sequence[str]) -> None:
        self._root = root
        self._paths = {plain_name(path): path for path in images}
        self._by_ending: dict[str, list[str]] = defaultdict(list)
        self._named: set[str] = set()  # paths that were found by all parts of a name
        for path in images:
            self._by_ending[_ending(path)].append(path)

    def find(self, names: Iterable[str], source: str) -> Path | None:
        """Returns the first image of several names that is there; None if none is.

        Args:
            names: from the folder of ``source``, from the root, or from another folder.
            source: the label file, a path below the root.
        """
        for name in filter(None, names):
            paths = self._find(local_name(name), source)
            if paths:  # of several, which is meant is unknown
                return self._root / paths[0] if len(paths) == 1 else None
        return None

    def _find(self, name: str, source: str) -> list[str]:
        """Returns the image that ``source`` names, or several that are equally likely.

        Of a name that is not there in full, its last part counts, of images that no name before it
        had in full, and whose folders are not of another split. If several images have it, the one
        counts that is of the split that the path of ``source`` names, and nearest to it.
        """
        for folder in (PurePosixPath(source).parent, PurePosixPath()):
            path = self._paths.get(plain_name(posixpath.normpath(folder / name)))
            if path is not None:
                self._named.add(path)
                return [path]
        candidates = self._by_ending[_ending(name)]
        ending = f"/{plain_name(name)}"
        below = [path for path in candidates if f"/{plain_name(path)}".endswith(ending)]
        candidates = below or self._similar(candidates, name)
        if len(candidates) > 1:
            candidates = _nearest(candidates, source)
        if len(candidates) == 1:
            self._named.update(below and candidates)
        return candidates

    def has(self, path: Path) -> bool:
        """Returns whether an image is there."""
        return plain_name(path.relative_to(self._root).as_posix()) in self._paths

    def _similar(self, paths: Sequence[str], name: str) -> list[str]:
        """Returns the paths that no name had in full, without those of another split than the
        name's."""
        split = split_word(posixpath.dirname(name))[0]
        splits = {path: split_word(posixpath.dirname(path))[0] for path in paths}
        return [k for k in paths if k not in self._named and len({"", split, splits[k]}) < 3]

    def path(self, names: Sequence[str], source: str) -> Path:
        """Returns the image of :meth:`find`, or the path below the root at which it should be."""
        path = self.find(names, source)
        if path is None:
            name = local_name(names[0] or source.rpartition("/")[2])
            place = posixpath.normpath(posixpath.join(folder_of(source), name))
            path = self._root / re.sub(r"^(/(.*/)?|(\.\./)+)", "", place)
        return path


def _nearest(paths: Sequence[str], source: str) -> list[str]:
    """Returns the paths of the split of a label file, if there are any, and those in its folder, or
    in the nearest one above it."""
    split = split_word(source)[0]
    of_split = [path for path in paths if split_word(path)[0] == split] or paths
    shared = {path: len(posixpath.commonpath([path, source])) for path in of_split}
    return [path for path in of_split if shared[path] == max(shared.values())]


def _ending(path: str) -> str:
    return plain_name(path).rpartition("/")[2].lower()


# ---------------------------------------------------------------------------------------- reading


class AnnotationFormat:
    """A format of a label tool, whose files are recognised by their suffix and their beginning.

    To add one, derive from this class in a module of its own, and add it to
    :data:`dpt.data.annotations.FORMATS`; ``data.annotations=NAME`` and ``dpt fit`` then find it.
    """

    name: ClassVar[str]  # as in data.annotations=NAME
    title: ClassVar[str]  # for messages, as in "labelme's JSON files"
    front: ClassVar[Front] = "later"
    lists_classes: ClassVar[bool] = False
    """Whether each file lists all classes, so that the files of a split are read alone."""
    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    patterns: ClassVar[tuple[bytes, ...]] = ()
    """Regular expressions, all of which are searched in the beginning of a file."""

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        """Returns the files of this format, a part of ``files``; an empty list if there are none.

        It is fast: it looks at names, and at the beginning of as few files as it can.

        Args:
            files: paths of all files below ``root``, with ``/``.
        """
        candidates = [path for path in files if path.lower().endswith(self.suffixes)]
        return files_like(root, candidates, *self.patterns)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        """Reads the files that :meth:`find` returned, or those of them that the user chose.

        Raises:
            DataError: a file cannot be read, or none of its objects has a mask; one line with the
                file and the remedy.
        """
        reading = Reading(root, self.title, files)
        self.collect(reading, sources)
        return reading.result()

    def collect(self, reading: "Reading", sources: Sequence[str]) -> None:
        """Adds the images, and the classes if the files list them, to ``reading``."""
        raise NotImplementedError


class Region(NamedTuple):
    """A shape in a file, before it is known whether it has an area."""

    class_name: str | None  # None if it is not known, or not one
    noun: str  # what messages call its kind, such as polygon
    make: Callable[[], Encoder]  # ValueError if it has no area
    group: str = ""
    name: str = ""  # what messages call it


class Reading:
    """Collects what a reader finds, and counts what it leaves out.

    Args:
        title: the format's, see :class:`AnnotationFormat`.
        files: all files below ``root``.
    """

    def __init__(self, root: Path, title: str, files: Sequence[str]) -> None:
        self.root, self.title, self.files = root, title, files
        self.finder = ImageFinder(root, images_of(files))
        self._images: dict[Path, AnnotatedImage] = {}
        self._classes: dict[str, AnnotatedClass] = {}
        self._left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._lists: list[str] = []

    def content(self, kind: TypeAdapter[Any], source: str) -> Any:
        """Returns the content of a label file, JSON, as the type of ``kind``."""
        path, what = self.root / source, f"one of {self.title}"
        remedy = "export it again, or set data.annotation_files to the right files"
        return parse_as(kind, read_bytes(path), path, what=what, remedy=remedy)

    def lines(self, source: str) -> list[str]:
        """Returns the lines with text of a label file, or of a list beside the label files."""
        lines = read_text(self.root / source, limit=_MAX_TEXT).splitlines()
        return [line.strip() for line in lines if line.strip()]

    def listed(self, source: str) -> list[str]:
        """Returns the lines with text of a list beside the label files."""
        self._lists.append(source)
        return self.lines(source)

    def leave_out(self, noun: str, why: str, place: str) -> None:
        """Counts one more that has no place in the labels, such as a "line" with "no area"."""
        self._left_out[noun, why].append(place)

    def add_class(self, name: str, *, color: str = "") -> None:
        """Adds a class that a file lists, with its colour ``#rrggbb``."""
        is_color = re.fullmatch("#?[0-9A-Fa-f]{6}", color) is not None
        rgb = tuple(bytes.fromhex(color.removeprefix("#"))) if is_color else ()
        name = rules.name_of_class(name, self.root)
        self._classes.setdefault(name, AnnotatedClass(name=name, color=rgb))

    def parts(self, regions: Iterable[Region], place: str) -> list[Annotation]:
        """Returns the regions with a class and an area, and counts the others.

        Args:
            place: what messages call the image.
        """
        parts: list[Annotation] = []
        for region in regions:
            try:
                encode = region.make()
                if region.class_name is None:
                    raise ValueError("not of one class")
            except (ValueError, OverflowError) as error:
                self.leave_out(region.noun, str(error), place)
                continue
            is_box = region.noun == BOX
            name, group = region.name, region.group
            parts.append(Annotation(region.class_name, encode, is_box, name=name, group=group))
        return parts

    def add_image(
        self,
        image: Path,
        parts: Iterable[Annotation],
        *,
        size: tuple[int, int] | None = None,
        split: str = "",
    ) -> None:
        """Adds an image with the parts of its objects, in their order.

        Raises:
            DataError: the image is there already, or a name cannot be that of a class.
        """
        if image in self._images:
            raise DataError(f"{self.root}: {image} is labelled twice: set data.annotation_files")
        groups: dict[tuple[str, str, int], list[Annotation]] = defaultdict(list)
        for number, part in enumerate(parts):
            is_unlabelled = part.class_name == UNLABELLED
            name = UNLABELLED if is_unlabelled else rules.name_of_class(part.class_name, image)
            groups[name, part.group, -1 if part.group else number].append(part)
        objects: list[Annotation] = []
        for (name, _, _), group in groups.items():
            encode = partial(encode_union, [part.encode for part in group])
            is_box = all(part.is_box for part in group)
            objects.append(Annotation(name, encode, is_box, name=group[0].name))
        self._images[image] = AnnotatedImage(image=image, size=size, objects=objects, split=split)

    @property
    def _objects(self) -> list[Annotation]:
        """Returns the objects of classes."""
        objects = (item for image in self._images.values() for item in image.objects)
        return [item for item in objects if item.class_name != UNLABELLED]

    @property
    def class_names(self) -> set[str]:
        """The classes of objects."""
        return {item.class_name for item in self._objects}

    def result(self) -> Annotations:
        """Returns the records, after checks that some image has an object with a mask."""
        images = _split_by_folders(self.root, [*self._images.values()])
        missing = [str(image.image) for image in images if not self.finder.has(image.image)]
        if len(missing) == len(images) and (images or not self._left_out):
            shown = f" ({few(missing)})" if images else ""
            raise DataError(f"{self.root}: no image of {self.title} is there{shown}: add them")
        if not self._classes:
            for name in sorted(self.class_names, key=natural_key):
                self.add_class(name)
        return Annotations(
            source=self.root,
            images=images,
            classes=[*self._classes.values()],
            notes=self._notes(),
            lists=self._lists,
        )

    def _notes(self) -> list[str]:
        """Returns what was left out; DataError if no object is left but rectangles."""
        notes = [
            f"{plural(len(places), noun)} left out ({why}): {few([*dict.fromkeys(places)])}"
            for (noun, why), places in self._left_out.items()
        ]
        bare = [str(p.relative_to(self.root)) for p, row in self._images.items() if not row.objects]
        if bare:
            notes.append(f"{plural(len(bare), 'image')} without an object: {few(bare)}")
        objects = self._objects
        boxes = sum(item.is_box for item in objects)
        if boxes:
            notes.append(f"{boxes} of {plural(len(objects), 'object')} are rectangles")
        if boxes == len(objects):
            has_boxes = boxes or any(noun == BOX for noun, _ in self._left_out)
            fault = f"boxes, but no masks: {self.title}" if has_boxes else f"{self.title}: no masks"
            remedy = "draw polygons or masks, or set data.labels to the folder of masks"
            raise NoMasksError(f"{self.root}: {fault} ({'; '.join(notes) or 'empty'}): {remedy}")
        return notes


def _split_by_folders(root: Path, images: list[AnnotatedImage]) -> list[AnnotatedImage]:
    """Returns the images with their splits, if words in the names of their folders tell all."""
    if any(image.split for image in images):
        return images
    splits = [split_word(str(image.image.parent.relative_to(root)))[0] for image in images]
    if "train" not in splits or "" in splits or len({*splits}) < 2:
        return images
    return [replace(image, split=split) for image, split in zip(images, splits, strict=True)]


# ---------------------------------------------------------------------------------------- writing

Names = Mapping[str, Sequence[str]]
"""The names of the images of each split."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """An image to write."""

    image: Path
    name: str  # of its files, a path without suffix
    split: str
    size: tuple[int, int]  # (H, W)
    objects: Sequence[ObjectMask]  # later ones are in front

    @property
    def has_overlaps(self) -> bool:
        """Whether pixels are in several objects."""
        codes = [item.mask for item in self.objects]
        return bool(codes) and rle.areas_of(codes).sum() > rle.areas_of([coco.merge(codes)])[0]


class Writer(ABC):
    """Makes the files of a format. To add one, derive from this class and add it to ``WRITERS``.

    Args:
        classes: of the data set, with the colours of pictures; ``self.classes`` are those that the
            format has.
    """

    name: ClassVar[str]
    image_file: ClassVar[str] = "images/{split}/{name}"  # without its suffix
    label_files: tuple[str, ...]  # of an image, as image_file
    class_list: ClassVar[str] = ""  # path of a list of the classes
    has_background: ClassVar[bool] = False  # whether pixels can have a class without an object
    has_overlaps: ClassVar[bool] = True
    has_crowds: ClassVar[bool] = False

    def __init__(self, classes: Sequence[AnnotatedClass]) -> None:
        left_out = () if self.has_background else BACKGROUND
        row_of_id = {k: row for k, row in enumerate(classes) if row.name not in left_out}
        self.classes = [*row_of_id.values()]
        self.class_ids = {class_id: k for k, class_id in enumerate(row_of_id)}
        """The ids in the files by those of the data set."""

    def class_of(self, item: ObjectMask) -> AnnotatedClass:
        """Returns the class of an object."""
        return self.classes[self.class_ids[item.class_id]]

    def image_path(self, name: str, split: str) -> str:
        """Returns the path of an image without its suffix."""
        return self.image_file.format(name=name, split=split)

    def label_paths(self, name: str, split: str) -> tuple[str, ...]:
        """Returns the paths of the label files of an image."""
        return tuple(path.format(name=name, split=split) for path in self.label_files)

    @abstractmethod
    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        """Returns the content of the label files of an image."""

    def common_files(self, names: Names) -> dict[str, bytes]:
        """Returns the files for all images by their paths."""
        return {self.class_list: as_lines(row.name for row in self.classes)}


def as_lines(lines: Iterable[str]) -> bytes:
    """Returns the content of a text file."""
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
