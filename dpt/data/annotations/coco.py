"""COCO's JSON files: instances (polygons and RLE), and panoptic (PNG files of segment ids)."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from pycocotools import mask as coco
from pydantic import AliasChoices, Field, TypeAdapter

from dpt.data.annotations import base
from dpt.data.formats import io, rle, rules
from dpt.data.splits import split_word
from dpt.files import DataError, few, parse_as, path_below, plural, read_bytes
from dpt.types.samples import Rle
from dpt.validation import Plain

_LISTS = re.compile(rb'"(images|annotations|categories)"\s*:\s*\[')
_MAX_PARTS = 30_000_000  # lists and objects of a file: ten gigabytes in memory
_MOST_BESIDE = 30  # JSON files in a folder; where there are more, each belongs to an image


# ----------------------------------------------------------------------------- the JSON file


CocoId = Annotated[int | str, Field(union_mode="left_to_right")]
_Side = Annotated[int, Field(gt=0)]
_Byte = Annotated[int, Field(ge=0, le=255)]


@dataclass(frozen=True, kw_only=True)
class _Image:
    id: CocoId
    file_name: Annotated[str, Field(validation_alias=AliasChoices("file_name", "coco_url"))]  # LVIS
    height: _Side | None = None  # unknown to Label Studio for images without an object
    width: _Side | None = None


@dataclass(frozen=True, kw_only=True)
class _Category:
    id: int
    name: str
    supercategory: object = None
    isthing: bool | None = None
    color: tuple[_Byte, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Segment:
    id: CocoId | None = None
    category_id: int | None = None
    iscrowd: bool | None = None
    area: float | None = None
    segmentation: object = None

    @property
    def outlines(self) -> object:
        """Returns an RLE, or the rings of three points and more; lines have no pixel."""
        rings = self.segmentation
        if not isinstance(rings, list):
            return rings
        return [ring for ring in rings if not isinstance(ring, list) or len(ring) >= 6]

    def annotation(self, classes: Mapping[int | None, base.AnnotatedClass]) -> base.Annotation:
        """Returns the object; a segment of a PNG file has no mask of its own."""
        return base.Annotation(
            classes[self.category_id].name,
            partial(rle.encode_mask, self.outlines),
            is_crowd=bool(self.iscrowd),
            area=self.area,
            name=str(self.id),
        )


@dataclass(frozen=True, kw_only=True)
class _Annotation(_Segment):
    """A segment in the instances format; in the panoptic one all segments of an image."""

    image_id: CocoId
    file_name: str | None = None
    segments_info: list[_Segment] | None = None

    @property
    def segments(self) -> Sequence[_Segment]:
        return [self] if self.segments_info is None else self.segments_info


@dataclass(frozen=True, kw_only=True)
class _Content:
    images: Annotated[list[_Image], Field(min_length=1)]
    categories: Annotated[list[_Category], Field(min_length=1, max_length=256)]
    annotations: list[_Annotation]


_CONTENT = TypeAdapter(_Content)


# ------------------------------------------------------------------------- panoptic pictures


class PanopticImage(base.AnnotatedImage):
    """An image whose objects are the segments of a PNG file; their names are its ids."""

    def rasterise(self, size: tuple[int, int], front: base.Front) -> base.Raster:
        assert self.map_file is not None
        position_of_id = {item.name: k for k, item in enumerate(self.objects, 1)}
        stored = io.read_objects(self.map_file)
        ids, indices = np.unique(stored, return_inverse=True)
        names = [*map(str, ids.tolist())]
        differing = sorted(position_of_id.keys() ^ {*names} - {"0"})
        if differing or len(position_of_id) < len(self.objects):
            fault = f"other ids than the JSON file ({few(differing) or 'one is repeated'})"
            raise DataError(f"{self.map_file}: has {fault}: correct it")
        positions = np.array([position_of_id.get(name, 0) for name in names], np.int32)
        return base.Raster(positions[indices].reshape(stored.shape), None)


# ------------------------------------------------------------------------------- the reader


class CocoFile:
    """A JSON file in COCO's format.

    Attributes:
        is_panoptic: whether PNG files hold the segments.
        image_names: the paths that the file names, by the ids of its images.

    Raises:
        DataError: the file is not in this format, or an id is given twice, or to nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        data = read_bytes(path)
        if data.count(b"[") + data.count(b"{") > _MAX_PARTS:
            raise DataError(f"{path}: more than {_MAX_PARTS} lists and objects: divide it")
        what, remedy = "labels in COCO's format", "correct it"
        content: _Content = parse_as(_CONTENT, data, path, what=what, remedy=remedy)
        self._content = content
        self.image_names = {row.id: base.local_name(row.file_name) for row in content.images}
        self.is_panoptic = any(row.segments_info is not None for row in content.annotations)
        self.notes: list[str] = []
        self._used_ids = {item.category_id for row in content.annotations for item in row.segments}
        self._rows: dict[CocoId, list[_Annotation]] = {row.id: [] for row in content.images}
        named_ids = {row.image_id for row in content.annotations}
        self._require_ids("images", [row.id for row in content.images], named_ids)
        self._require_ids("categories", [row.id for row in content.categories], self._used_ids)
        for row in content.annotations:
            self._rows[row.image_id].append(row)

    def _require_ids(
        self, key: str, ids: Sequence[CocoId], used: Collection[CocoId | None]
    ) -> None:
        """Raises DataError if an id occurs twice, or one that is ``used`` is not there."""
        faults = [f"{i!r} is there twice" for i, count in Counter(ids).items() if count > 1]
        faults += [f"{i!r} of an annotation is not there" for i in {*used} - {*ids}]
        if faults:
            raise DataError(f"{self.path}: {key}: id {faults[0]}: correct it")

    @property
    def used_names(self) -> list[object]:
        """Names and supercategories of the categories of objects."""
        rows = [row for row in self._content.categories if row.id in self._used_ids]
        return [name for row in rows for name in (row.name, row.supercategory)]

    def classes(self, used_names: Sequence[object]) -> dict[int | None, base.AnnotatedClass]:
        """Returns the categories that are classes, in the order of their ids, with unique names."""
        rows = sorted(self._content.categories, key=lambda row: row.id)
        # Roboflow's category 0 has no objects, and the name of the project or of a class
        rows = [
            row for row in rows if row.id or row.id in self._used_ids or row.name not in used_names
        ]
        rows = [replace(row, name=rules.name_of_class(row.name, self.path)) for row in rows]
        times = Counter(row.name for row in rows)
        return {
            row.id: base.AnnotatedClass(
                name=row.name if times[row.name] == 1 else f"{row.name} ({row.id})",
                is_thing=row.isthing is not False,
                color=row.color or (),
            )
            for row in rows
        }

    def images(
        self,
        paths: Mapping[int | str, Path],
        classes: Mapping[int | None, base.AnnotatedClass],
        picture_path: Callable[[str], Path],
        split: str = "",
    ) -> list[base.AnnotatedImage]:
        """Returns the images and their objects.

        Args:
            paths: of the images, by their ids.
            classes: see :meth:`classes`.
            picture_path: called with the name of a PNG file.
        """
        image_path, count = Counter(paths.values()).most_common(1)[0]
        if count > 1:
            ids = few([str(i) for i, path in paths.items() if path == image_path])
            raise DataError(f"{self.path}: {image_path} has several ids, {ids}: give it one")
        images: list[base.AnnotatedImage] = []
        for row in self._content.images:
            objects, picture = self._objects(row.id, classes)
            kind = base.AnnotatedImage if picture is None else PanopticImage
            image = kind(
                image=paths[row.id],
                id=row.id,
                size=base.size_of(row.height, row.width),
                objects=objects,
                split=split,
                map_file=None if picture is None else picture_path(base.local_name(picture)),
            )
            images.append(image)
        segments = [row for row in self._content.annotations if row.segments_info is None]
        without_mask = [str(segment.id) for segment in segments if not segment.outlines]
        if without_mask:
            if not any(image.objects for image in images):
                raise base.NoMasksError(f"{self.path}: boxes, but no masks: add polygons or RLE")
            what = f"{plural(len(without_mask), 'object')} without a mask (id {few(without_mask)})"
            self.notes.append(f"{what} left out: {self.path}")
        return images

    def _objects(
        self, image_id: CocoId, classes: Mapping[int | None, base.AnnotatedClass]
    ) -> tuple[list[base.Annotation], str | None]:
        """Returns the objects of an image, and the name of its PNG file; None if it has none."""
        rows = self._rows[image_id]
        pictures = [item.file_name or "" for item in rows if item.segments_info is not None]
        segments = [segment for item in rows for segment in item.segments]
        objects = [k.annotation(classes) for k in segments if pictures or k.outlines]
        return objects, pictures[-1] if pictures else None


class CocoFormat(base.AnnotationFormat):
    """COCO's instances and panoptic files, one or several below a folder, such as Roboflow's."""

    name = "coco"
    title = "COCO's JSON files"
    front = "smaller"
    lists_classes = True

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        paths = [path for path in files if path.lower().endswith(".json")]
        count = Counter(map(base.folder_of, paths))
        few_beside = [path for path in paths if count[base.folder_of(path)] <= _MOST_BESIDE]
        return [path for path in few_beside if _is_coco(root / path)]

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> base.Annotations:
        finder = base.ImageFinder(root, base.images_of(files))
        contents = {source: CocoFile(root / source) for source in sources}
        used_names = [name for content in contents.values() for name in content.used_names]
        source_of_image: dict[Path, str] = {}
        rows: dict[str, base.AnnotatedClass] = {}
        images: list[base.AnnotatedImage] = []
        for source, content in contents.items():
            names = content.image_names
            for name in names.values():  # those that are there in full count first
                finder.find([name], source)
            paths = {i: finder.path([name], source) for i, name in names.items()}
            shared = [path for path in paths.values() if path in source_of_image]
            if shared:
                both = f"{source_of_image[shared[0]]} and {source}"
                raise DataError(
                    f"{root}: {both} have {shared[0]}: set data.annotation_files={source}"
                )
            source_of_image |= dict.fromkeys(paths.values(), source)
            classes = content.classes(used_names)
            for row in classes.values():
                rows.setdefault(row.name, row)
            picture_path = partial(path_below, (root / source).with_suffix(""), source=source)
            images += content.images(paths, classes, picture_path, split_word(source)[0])
        return base.Annotations(
            source=root / sources[0] if len(sources) == 1 else root,
            images=images,
            classes=[*rows.values()],
            background=not any(content.is_panoptic for content in contents.values()),
            notes=[note for content in contents.values() for note in content.notes],
        )


def _is_coco(path: Path) -> bool:
    """Returns whether a file seems to have COCO's three lists, or is cut before their end."""
    if not base.starts_with(path, rb"\A\s*\{", _LISTS.pattern):
        return False
    with suppress(DataError):
        text = read_bytes(path)
        names = {match[1] for match in _LISTS.finditer(text)}
        return len(names) == 3 or not text.rstrip().endswith(b"}")
    return False


# ------------------------------------------------------------------------------- the writer


class CocoWriter(base.Writer):
    """Instances: polygons where an object has no hole, otherwise RLE."""

    name = "coco"
    label_files = ()
    has_crowds = True

    def __init__(self, classes: Sequence[base.AnnotatedClass]) -> None:
        super().__init__(classes)
        self._images: dict[str, list[Plain]] = defaultdict(list)  # by split
        self._annotations: dict[str, list[Plain]] = defaultdict(list)

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        images, annotations = self._images[entry.split], self._annotations[entry.split]
        height, width = entry.size
        path = self.image_path(entry.name, entry.split).removeprefix("images/")
        image = {"file_name": path + entry.image.suffix, "height": height, "width": width}
        images.append({"id": 1 + len(images), **image})
        for item in entry.objects:
            row: Plain = {"id": 1 + len(annotations), "image_id": len(images)}
            row |= {"category_id": 1 + self.class_ids[item.class_id], "area": item.area}
            row |= {"bbox": coco.toBbox(item.mask).tolist(), "iscrowd": int(item.is_crowd)}
            row["segmentation"] = _segmentation(item.mask, as_runs=item.is_crowd)
            annotations.append(row)
        return ()

    def common_files(self, names: base.Names) -> dict[str, bytes]:
        categories = [
            {"id": k, "name": row.name, "supercategory": "", "isthing": int(row.is_thing)}
            | {"color": row.color}
            for k, row in enumerate(self.classes, 1)
        ]
        files: dict[str, bytes] = {}
        for split in names:
            content = {"info": {}, "licenses": [], "images": self._images[split]}
            content |= {"annotations": self._annotations[split], "categories": categories}
            files[f"annotations/instances_{split}.json"] = json.dumps(content).encode()
        return files


def _segmentation(code: Rle, *, as_runs: bool) -> object:
    parts = [] if as_runs else rle.trace_code(code)
    if as_runs or any(part.holes for part in parts):
        return {"size": code["size"], "counts": code["counts"].decode()}
    return [part.outer.ravel().tolist() for part in parts]
