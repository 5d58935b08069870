"""COCO's formats: panoptic (PNG files of segment ids) and instances (polygons and RLE) in JSON."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pycocotools import mask as coco
from pydantic import Field, StrictInt, TypeAdapter

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule
from dpt.files import DataError, few, parse_as, read_bytes, required_file
from dpt.types import IGNORE_INDEX, DatasetInfo

_Side = Annotated[StrictInt, Field(gt=0)]
_Byte = Annotated[StrictInt, Field(ge=0, le=255)]


@dataclass(frozen=True, kw_only=True)
class _Image:
    id: StrictInt | str
    file_name: str
    height: _Side
    width: _Side


@dataclass(frozen=True, kw_only=True)
class _Category:
    id: StrictInt
    name: str
    isthing: bool = True
    color: tuple[_Byte, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Segment:
    id: StrictInt | str | None = None
    category_id: StrictInt | None = None
    iscrowd: bool = False
    segmentation: Any = None


@dataclass(frozen=True, kw_only=True)
class _Annotation(_Segment):
    """A segment in the instances format; in the panoptic one all segments of an image."""

    image_id: StrictInt | str
    file_name: str = ""
    segments_info: list[_Segment] | None = None


@dataclass(frozen=True, kw_only=True)
class _Content:
    images: Annotated[list[_Image], Field(min_length=1)]
    categories: Annotated[list[_Category], Field(min_length=1, max_length=IGNORE_INDEX)]
    annotations: list[_Annotation]


_CONTENT = TypeAdapter(_Content)


@dataclass(kw_only=True, eq=False)
class CocoDataset(FileDataset):
    """A folder of images and a JSON file of their segments, of which COCO has two kinds.

    Classes are the categories in the order of their ids; the ids are added to names that occur
    twice. Where objects overlap, which they may in the instances format, the smaller one is in
    front. Pixels of a crowd have a class and no object; pixels without a segment are unlabelled.

    Args:
        images, annotations: folder and JSON file, where ``%split`` is the split's name on disk.
        masks: of the panoptic format: folder of the PNG files; None is the JSON file's path
            without its suffix.
        split_names: the splits' names on disk, where they differ.
    """

    images: str = "%split"
    annotations: str = "annotations/panoptic_%split.json"
    masks: str | None = None
    split_names: Mapping[str, str] | None = None

    def list_files(self) -> list[Files]:
        remedy = "check data.root and data.annotations"
        path = required_file(self.path_of(self.annotations), remedy=remedy)
        content = parse_as(
            _CONTENT, read_bytes(path), path, what="in COCO's format", remedy="correct it"
        )
        images, categories = content.images, sorted(content.categories, key=lambda row: row.id)
        for name, rows in (("images", images), ("categories", categories)):
            if len({row.id for row in rows}) < len(rows):
                raise DataError(f"{path}: an id occurs twice in {name!r}: remove one")
        self._classes = {row.id: k for k, row in enumerate(categories)}
        times = Counter(row.name for row in categories)
        names = [r.name if times[r.name] == 1 else f"{r.name} ({r.id})" for r in categories]
        self.categories = [(r.id, n, r.isthing) for r, n in zip(categories, names, strict=True)]
        colors = [row.color for row in categories]
        self.label_rule = LabelRule(
            num_classes=len(categories),
            class_names=names,
            colors=colors if all(len(c) == 3 for c in colors) else (),
        )
        segments: dict[int | str, list[_Segment]] = {row.id: [] for row in images}
        pictures: dict[int | str, Path] = {}
        folder = path.with_suffix("") if self.masks is None else self.path_of(self.masks)
        for row in content.annotations:
            if row.image_id not in segments:
                raise DataError(
                    f"{path}: an annotation names no image (image_id {row.image_id!r}): remove it, "
                    "or add the image"
                )
            if row.segments_info is not None:
                pictures[row.image_id] = folder / row.file_name
            for part in [row] if row.segments_info is None else row.segments_info:
                if part.category_id not in self._classes:
                    raise DataError(
                        f"{path}: category_id {part.category_id} of an annotation is not among "
                        "the categories: add it to them"
                    )
                segments[row.image_id].append(part)
        photos = self.path_of(self.images)
        files: list[Files] = []
        for row in images:
            photo, own = photos / row.file_name, ((row.height, row.width), segments[row.id])
            io.check_pixels(photo, row.height, row.width)
            files.append(Files(photo, objects=pictures.get(row.id), own=own))
        return existing(files, source=path, remedy="check data.images and data.masks")

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        things = tuple(thing for _, _, thing in self.categories)
        return replace(info, targets=(*info.targets, "objects"), things=things)

    def read_raw_maps(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Class ids and object ids of a sample, int32 (H, W)."""
        row = self._files[index]
        path, (size, segments) = row.objects, row.own
        if path is not None:
            stored = io.read_objects(path)
            present, places = np.unique(stored, return_inverse=True)
            own: dict[Any, _Segment] = {}
            for part in segments:
                if part.id in own:
                    fault = f"segment id {part.id} occurs twice in the JSON file"
                    raise DataError(f"{path}: {fault}: correct it")
                own[part.id] = part
            ids = present.tolist()
            if differ := sorted(map(str, own.keys() ^ (set(ids) - {0}))):
                raise DataError(
                    f"{path}: its segments and those of the JSON file differ: ids {few(differ)} "
                    "occur in only one of the two files: export both again"
                )
            parts = [own.get(i) for i in ids]
            places = places.reshape(stored.shape)
        else:
            codes = sorted(self._codes(index), key=lambda pair: coco.area(pair[0]), reverse=True)
            parts = [None, *(part for _, part in codes)]
            places = np.zeros(size, np.int64)
            for place, (code, _) in enumerate(codes, 1):
                places[coco.decode(code) > 0] = place
        rows = np.full((len(parts), 2), (IGNORE_INDEX, 0), np.int32)
        for place, part in enumerate(parts):
            if part is not None:
                class_id = self._classes[part.category_id]
                counts = self.categories[class_id][2] and not part.iscrowd
                rows[place] = class_id, place + 1 if counts else 0
        labels, objects = rows.T[:, places]
        return labels, objects

    def _codes(self, index: int) -> Iterator[tuple[Any, _Segment]]:
        """The RLE of each segment, as pycocotools has it."""
        size, segments = self._files[index].own
        for part in segments:
            try:
                yield encode_mask(part.segmentation, size), part
            except Exception as error:  # of pycocotools, of any kind
                where = f"{self.name(index)}: the segmentation of annotation {part.id}"
                fault = str(error)[:200]
                raise DataError(f"{where} cannot be read: {fault}: correct it") from None

    def object_faults(self, index: int) -> list[str]:
        if self._files[index].objects is not None:
            return []
        empty: list[str] = []
        once, twice = np.zeros((2, *self._files[index].own[0]), bool)
        for code, part in self._codes(index):
            if not part.iscrowd:
                mask = coco.decode(code) > 0
                empty += [] if mask.any() else [str(part.id)]
                twice |= once & mask
                once |= mask
        faults = [f"no pixel in the mask of annotation {few(empty)}"] if empty else []
        return faults + ([f"{twice.sum()} pixels are in several masks"] if twice.any() else [])


def encode_mask(found: Any, size: tuple[int, int]) -> Any:
    """A segmentation, polygons or RLE, as an RLE of pycocotools, which does not check them."""
    height, width = size
    if isinstance(found, list):
        polygons = [np.asarray(polygon, float) for polygon in found]
        if not found or any(p.ndim != 1 or p.size < 6 or p.size % 2 for p in polygons):
            raise ValueError("a polygon needs x and y of three points or more")
        corners, side = np.concatenate(polygons), max(size)
        # pycocotools clips polygons at the border, but needs unbounded memory for distant points
        if not ((corners >= -side) & (corners <= 2 * side)).all():
            raise ValueError(f"a polygon is far outside the image of {height}x{width}")
        return coco.merge(coco.frPyObjects(found, height, width))
    if not isinstance(found, Mapping) or found.get("size") != [height, width]:
        raise ValueError(f"it is neither polygons nor an RLE of {height}x{width}")
    counts = found.get("counts")
    counts = np.asarray(rle_counts(counts) if isinstance(counts, str) else counts)
    if counts.dtype.kind != "i" or counts.min() < 0 or counts.max() > height * width:
        raise ValueError(f"its counts are not whole numbers up to {height * width}")
    if counts.sum() != height * width:
        raise ValueError(f"its counts sum to {counts.sum()}, not {height * width}")
    return coco.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)


def rle_counts(text: str) -> list[int]:
    """The run lengths of COCO's compressed RLE: 5 bits a character, from the fourth on differences.

    pycocotools does not check that they fit the image.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if shift > 40:
            raise ValueError("its counts are not a valid RLE")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:  # the last of this number
            if bits & 16:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts
