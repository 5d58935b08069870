"""What every reader of a label tool's format returns: images, their objects, and the classes.

Coordinates are in pixels of the image as it is stored: x points right, y down, and pixel edges lie
at whole numbers, so that the first pixel covers 0..1. A polygon with corners at pixel edges has
exactly the pixels that it encloses.
"""

import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import ClassVar, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np

from dpt.data.formats.rle import areas_of, encode_mask, pixels_of, subtract_mask
from dpt.data.splits import split_word
from dpt.files import DataError, path_below, plain_name
from dpt.types.samples import Rle

Front = Literal["smaller", "later"]
"""Which of two objects that overlap is in front: the smaller one, or the later one in the file."""
UNLABELLED = "\0"  # no class of a file has this name
"""The class name of objects whose pixels are to be ignored, such as those of ``__ignore__``."""


class Shape(ABC):
    """Which pixels an object has."""

    @property
    def is_box(self) -> bool:
        """Returns whether it is a rectangle, which may only be around the object."""
        return False

    @abstractmethod
    def encode(self, size: tuple[int, int]) -> Rle:
        """Returns the mask for an image of ``size`` (H, W).

        Raises:
            ValueError: the shape does not fit the image, or would take too much memory.
        """


@dataclass(frozen=True, eq=False)
class CocoShape(Shape):
    """Polygons [x, y, x, y, ...], whose union counts, or an RLE, as they stand in a COCO file."""

    segmentation: object

    def encode(self, size: tuple[int, int]) -> Rle:
        return encode_mask(self.segmentation, size)


@dataclass(frozen=True, eq=False)
class Mask(Shape):
    """Pixels that are known."""

    code: Rle

    def encode(self, size: tuple[int, int]) -> Rle:
        if [*size] != self.code["size"]:
            raise ValueError(f"it is a mask of {self.code['size']}, not of {[*size]}")
        return self.code


@dataclass(frozen=True, eq=False)
class Polygons(Shape):
    """Rings of corners, float64 (N, 2) of x and y; the holes lie inside the outer rings."""

    outer: Sequence[np.ndarray]
    holes: Sequence[np.ndarray] = ()

    def encode(self, size: tuple[int, int]) -> Rle:
        code = encode_mask([ring.ravel().tolist() for ring in self.outer], size)
        if not self.holes:
            return code
        holes = encode_mask([ring.ravel().tolist() for ring in self.holes], size)
        return subtract_mask(code, holes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Annotation:
    """An object of an image."""

    class_name: str  # or UNLABELLED
    shape: Shape
    is_crowd: bool = False  # several objects of a class, not told apart
    area: float | None = None  # by which COCO calls it small; None: that of its mask
    score: float | None = None  # of a prediction
    name: str = ""  # what messages call it, such as its id


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
            DataError: a shape cannot be read; the message names its object.
        """
        codes: list[Rle] = []
        for number, item in enumerate(self.objects, 1):
            try:
                codes.append(item.shape.encode(size))
            except DataError:
                raise
            except Exception as error:  # of pycocotools, of any kind
                fault = f"the mask of object {item.name or number} cannot be read"
                raise DataError(f"{self.image}: {fault}: {str(error)[:200]}: correct it") from None
        order = np.arange(len(codes))
        if front == "smaller":
            order = np.argsort(-areas_of(codes), kind="stable")
        positions = np.zeros(size[0] * size[1], np.int32)
        for k in order:
            positions[pixels_of(codes[k])] = k + 1
        return Raster(np.ascontiguousarray(positions.reshape(size[::-1]).T), codes)

    def maps(
        self, raster: Raster, class_ids: Mapping[str, int], things: Collection[int], outside: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns class ids and object ids, int32 (H, W) each; object ids are 0 outside of things.

        Args:
            class_ids: by the names of classes.
            things: class ids whose objects are told apart.
            outside: class id of pixels without an object.
        """
        ids = [(outside, 0)]
        count = 0
        for item in self.objects:
            class_id = class_ids[item.class_name]
            is_object = class_id in things and not item.is_crowd
            count += is_object
            ids.append((class_id, count if is_object else 0))
        labels, objects = np.array(ids, np.int32).T[:, raster.positions]
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


class AnnotationFormat(ABC):
    """A format of a label tool.

    To add one, derive from this class in a module of its own, or from
    :class:`dpt.data.annotations.reading.ToolFormat`, which counts what is left out, and add it to
    :data:`dpt.data.annotations.FORMATS`; ``data.annotations=NAME`` and ``dpt fit`` then find it.
    """

    name: ClassVar[str]  # as in data.annotations=NAME
    title: ClassVar[str]  # for messages, as in "labelme's JSON files"
    front: ClassVar[Front]
    lists_classes: ClassVar[bool] = False
    """Whether each file lists all classes, so that the files of a split are read alone."""

    @abstractmethod
    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        """Returns the files of this format, a part of ``files``; an empty list if there are none.

        It is fast: it looks at names, and at the beginning of as few files as it can.

        Args:
            files: paths of all files below ``root``, with ``/``.
        """

    @abstractmethod
    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        """Reads the files that :meth:`find` returned, or those of them that the user chose.

        Raises:
            DataError: a file cannot be read, or none of its objects has a mask; one line with the
                file and the remedy.
        """


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

    def find(self, name: str, source: str) -> Path | None:
        """Returns the image that ``source``, a path below the root, names.

        The name counts from the folder of ``source``, from the root, or from another folder;
        otherwise its last part counts, of images that no name before it had in full, and whose
        folders are not of another split. If several images have it, the one counts that is alone in
        the split that the path of ``source`` names. None if there is no such image.
        """
        name = local_name(name)
        for folder in (PurePosixPath(source).parent, PurePosixPath()):
            path = self._paths.get(plain_name(posixpath.normpath(folder / name)))
            if path is not None:
                self._named.add(path)
                return self._root / path
        candidates = self._by_ending[_ending(name)]
        below = [
            path for path in candidates if f"/{plain_name(path)}".endswith(f"/{plain_name(name)}")
        ]
        others = [path for path in candidates if path not in self._named]
        split = split_word(posixpath.dirname(name))[0]
        others = [k for k in others if len({"", split, split_word(posixpath.dirname(k))[0]}) < 3]
        candidates = below or others
        if len(candidates) > 1:
            split = split_word(source)[0]
            candidates = [path for path in candidates if split_word(path)[0] == split]
        if len(candidates) != 1:
            return None
        self._named.update(below and candidates)
        return self._root / candidates[0]

    def path(self, name: str, source: str) -> Path:
        """Returns the image that ``source`` names, or the path at which it should be.

        Raises:
            DataError: that path is not below the root.
        """
        image = self.find(name, source)
        if image is not None:
            return image
        parent = PurePosixPath(source).parent
        path = path_below(self._root, (parent / local_name(name)).as_posix(), source)
        return self._root / os.path.relpath(path, self._root)


def _ending(path: str) -> str:
    return plain_name(path).rpartition("/")[2].lower()


def as_ring(points: object) -> np.ndarray:
    """Returns corners [[x, y], ...] as float64 (N, 2).

    Raises:
        ValueError: they are not three or more finite pairs of numbers.
    """
    ring = np.asarray(points, float)
    if ring.ndim != 2 or ring.shape[1] != 2 or len(ring) < 3 or not np.isfinite(ring).all():
        raise ValueError("a polygon needs x and y of three points or more")
    return ring
