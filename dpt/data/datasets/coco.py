"""COCO's formats: panoptic (PNG files of segment ids) and instances (polygons and RLE) in JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pycocotools import mask as coco
from pydantic import BeforeValidator, Field, TypeAdapter

from dpt.data.annotations.base import local_name
from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, RawMaps, require_files
from dpt.data.formats import io
from dpt.data.formats.label_rule import LabelRule, name_of_class
from dpt.data.formats.pictures import read_size
from dpt.data.formats.rle import Rle, encode_mask
from dpt.files import DataError, few, parse_as, plain_name, read_bytes, required_file
from dpt.types import IGNORE_INDEX, DatasetInfo, ObjectMask

# ----------------------------------------------------------------------------- the JSON file


def _without_nulls(row: object) -> object:
    """Returns a JSON object without the keys that are null."""
    return {k: v for k, v in row.items() if v is not None} if isinstance(row, dict) else row


_Id = Annotated[int | str, Field(union_mode="left_to_right")]
_Side = Annotated[int, Field(gt=0)]
_Byte = Annotated[int, Field(ge=0, le=255)]
_Row = BeforeValidator(_without_nulls)


@dataclass(frozen=True, kw_only=True)
class _Image:
    id: _Id
    file_name: str
    height: _Side
    width: _Side


@dataclass(frozen=True, kw_only=True)
class CocoCategory:
    """A row of ``categories``."""

    id: int
    name: str
    supercategory: object = None
    isthing: bool = True
    color: tuple[_Byte, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Segment:
    id: _Id | None = None
    category_id: int | None = None
    iscrowd: bool = False
    area: float | None = None
    segmentation: object = None


@dataclass(frozen=True, kw_only=True)
class _Annotation(_Segment):
    """A segment in the instances format; in the panoptic one all segments of an image."""

    image_id: _Id
    file_name: str = ""
    segments_info: list[Annotated[_Segment, _Row]] | None = None


@dataclass(frozen=True, kw_only=True)
class _Content:
    images: Annotated[list[Annotated[_Image, _Row]], Field(min_length=1)]
    categories: Annotated[list[Annotated[CocoCategory, _Row]], Field(min_length=1, max_length=256)]
    annotations: list[Annotated[_Annotation, _Row]]


_CONTENT = TypeAdapter(_Content)


class _Labels(NamedTuple):
    """What the JSON file holds of an image."""

    size: tuple[int, int]
    segments: list[_Segment]


# ------------------------------------------------------------------------------ the data set


@dataclass(kw_only=True, eq=False)
class CocoDataset(FileDataset):
    """A folder of images and a JSON file of their segments, of which COCO has two kinds.

    Classes are the categories in the order of their ids, without Roboflow's placeholder; the ids
    are added to names that occur twice. Where objects overlap, which they may in the instances
    format, the smaller one is in front in the maps; ``masks`` of a sample holds each one whole.
    Pixels of a crowd have a class and no object; pixels without a segment are unlabelled.

    Args:
        images, annotations: folder and JSON file, where ``%split`` is the split's name on disk.
        masks: of the panoptic format: folder of the PNG files; None is the JSON file's path
            without its suffix.
        split_names: the splits' names on disk, where they differ.
        missing: ``skip`` leaves images out that do not exist.
    """

    images: str = "%split"
    annotations: str = "annotations/panoptic_%split.json"
    masks: str | None = None
    split_names: Mapping[str, str] | None = None
    missing: Literal["raise", "skip"] = "raise"

    def list_files(self) -> list[Files]:
        path = self.path_of(self.annotations)
        required_file(path, remedy="check data.root and data.annotations")
        content = parse_as(
            _CONTENT, read_bytes(path), path, what="in COCO's format", remedy="correct it"
        )
        for name, rows in (("images", content.images), ("categories", content.categories)):
            if len({row.id for row in rows}) < len(rows):
                raise DataError(f"{path}: an id occurs twice in {name!r}: remove one")
        segments, pictures = self._segments(content, path)
        every_segment = [*chain(*segments.values())]
        used_ids = {segment.category_id for segment in every_segment}
        self._rows = _classes(content.categories, used_ids, path)
        self._used_names = {row.name for row in self._rows if row.id in used_ids}
        self._number([row.name for row in self._rows])
        fault = _objects_fault(self._rows, every_segment)
        self.objects_fault = f"{path}: {fault}" if fault else ""
        images = self._find_images(content.images, path)
        files: list[Files] = []
        for row in content.images:
            labels = _Labels((row.height, row.width), segments[row.id])
            files.append(Files(images[row.id], objects=pictures.get(row.id), extra=labels))
        if self.missing == "skip":
            missing = {record.image for record in files if not record.image.is_file()}
            self.unpaired = (), sorted(missing)
            files = [record for record in files if record.image not in missing]
        remedy = "check data.images and data.masks, or set data.missing=skip"
        return require_files(files, source=path, remedy=remedy)

    def _segments(
        self, content: _Content, path: Path
    ) -> tuple[dict[int | str, list[_Segment]], dict[int | str, Path]]:
        """Returns the segments of each image and, of the panoptic format, its PNG file, by id."""
        segments: dict[int | str, list[_Segment]] = {row.id: [] for row in content.images}
        pictures: dict[int | str, Path] = {}
        category_ids = {row.id for row in content.categories}
        folder = path.with_suffix("") if self.masks is None else self.path_of(self.masks)
        for row in content.annotations:
            if row.image_id not in segments:
                fault = f"image_id {row.image_id!r} of an annotation is not among the images"
                raise DataError(f"{path}: {fault}: correct it")
            if row.segments_info is not None:
                pictures[row.image_id] = self.file_below(folder, local_name(row.file_name), path)
            for segment in [row] if row.segments_info is None else row.segments_info:
                if segment.category_id not in category_ids:
                    fault = f"category_id {segment.category_id} is not among the categories"
                    raise DataError(f"{path}: {fault}: correct it")
                segments[row.image_id].append(segment)
        return segments, pictures

    def _find_images(self, rows: Sequence[_Image], path: Path) -> dict[int | str, Path]:
        """Returns the image files by id."""
        folder = self.path_of(self.images)
        images = {row.id: self.file_below(folder, local_name(row.file_name), path) for row in rows}
        absent = {i: image for i, image in images.items() if not image.is_file()}
        if not all(str(image).isascii() for image in absent.values()):
            on_disk = {plain_name(str(path)): path for path in folder.rglob("*")}
            images |= {i: on_disk.get(plain_name(str(p)), p) for i, p in absent.items()}
        image, count = Counter(images.values()).most_common(1)[0]
        if count > 1:
            ids = few([str(i) for i, other in images.items() if other == image])
            raise DataError(
                f"{path}: {image} has several ids, {ids}: give it one, or remove copies"
            )
        return images

    # --------------------------------------------------------------------------- the classes

    def _number(self, names: Sequence[str]) -> None:
        """Makes the categories of these names the classes, in this order."""
        row_of_name = {row.name: row for row in self._rows}
        rows = [row_of_name.get(name, CocoCategory(id=-1, name=name)) for name in names]
        self.categories = rows
        self._class_of_id: dict[int | None, int] = {
            row.id: class_id for class_id, row in enumerate(rows) if row.name in row_of_name
        }
        colors = [row.color for row in rows] if all(len(row.color) == 3 for row in rows) else ()
        self.label_rule = LabelRule(num_classes=len(rows), class_names=names, colors=colors)

    def adopt_classes(self, names: Sequence[str]) -> None:
        if names and self.label_rule is not None and self._used_names <= set(names):
            self._number(names)
            self.info = self.make_info()

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        things = tuple(row.isthing for row in self.categories)
        return replace(info, targets=(*info.targets, "objects"), things=things)

    # ------------------------------------------------------------------------------- reading

    def read_raw_maps(self, index: int) -> RawMaps:
        files = self._files[index]
        size, segments = files.extra
        masks: list[ObjectMask] | None = None
        if files.objects is not None:
            layers, positions = _read_picture(files.objects, segments)
        else:
            codes, masks = self._codes(index), []
            for code, segment in codes:
                class_id = self._class_of_id[segment.category_id]
                counts, area = code["counts"].decode(), _area(segment, code)
                if self.categories[class_id].isthing:
                    masks.append(ObjectMask(class_id, counts, segment.iscrowd, area))
            codes.sort(key=lambda pair: coco.area(pair[0]), reverse=True)
            layers = [None, *(segment for _, segment in codes)]
            positions = np.zeros(size, np.int64)
            for position, (code, _) in enumerate(codes, 1):
                positions[coco.decode(code) > 0] = position
        ids = np.full((len(layers), 2), (IGNORE_INDEX, 0), np.int32)
        for position, layer in enumerate(layers):
            if layer is not None:
                class_id = self._class_of_id[layer.category_id]
                is_object = self.categories[class_id].isthing and not layer.iscrowd
                ids[position] = class_id, position + 1 if is_object else 0
        labels, objects = ids.T[:, positions]
        return RawMaps(labels, objects, masks)

    def _codes(self, index: int) -> list[tuple[Rle, _Segment]]:
        """Returns the RLE of each segment of an image of the instances format."""
        files = self._files[index]
        image, (size, segments) = files.image, files.extra
        # the masks take memory for the claimed size; an image may be turned by its EXIF tag
        stored = read_size(image)
        if sorted(stored) != sorted(size):
            sizes = f"{stored[1]}x{stored[0]} pixels, but {size[1]}x{size[0]} in the JSON file"
            raise DataError(f"{image}: {sizes}: correct it, or use the original image")
        codes: list[tuple[Rle, _Segment]] = []
        for segment in segments:
            try:
                codes.append((encode_mask(segment.segmentation, size), segment))
            except Exception as error:  # of pycocotools, of any kind
                fault = f"the segmentation of annotation {segment.id} cannot be read"
                raise DataError(f"{image}: {fault}: {str(error)[:200]}: correct it") from None
        return codes

    def object_faults(self, index: int) -> list[str]:
        if self._files[index].objects is not None:
            return []
        codes = [(code, segment) for code, segment in self._codes(index) if not segment.iscrowd]
        cover = np.zeros(self._files[index].extra.size, np.int32)
        for code, _ in codes:
            cover += coco.decode(code)
        empty = [str(segment.id) for code, segment in codes if not coco.area(code)]
        shared = int((cover > 1).sum())
        faults = [f"no pixel in the mask of annotation {few(empty)}"] if empty else []
        return faults + ([f"{shared} pixels are in several masks"] if shared else [])


def _classes(
    rows: Sequence[CocoCategory], used_ids: set[int | None], path: Path
) -> list[CocoCategory]:
    """Returns the categories that are classes, in the order of their ids, with unique names."""
    used_names = {
        text for row in rows if row.id in used_ids for text in (row.name, row.supercategory)
    }
    # Roboflow's category 0 has no objects, and the name of the project or of a class
    rows = [row for row in rows if row.id or row.id in used_ids or row.name not in used_names]
    rows = [replace(row, name=name_of_class(row.name, path)) for row in rows]
    times = Counter(row.name for row in rows)
    return [
        row if times[row.name] == 1 else replace(row, name=f"{row.name} ({row.id})")
        for row in sorted(rows, key=lambda row: row.id)
    ]


def _objects_fault(rows: Sequence[CocoCategory], segments: Sequence[_Segment]) -> str:
    """Returns why no object can be trained and scored; empty if one can."""
    if not segments:
        return "none of its images has an object"
    thing_ids = {row.id for row in rows if row.isthing}
    crowds = [segment.iscrowd for segment in segments if segment.category_id in thing_ids]
    return (
        f"all of its {len(crowds)} objects are crowds (iscrowd)" if all(crowds) and crowds else ""
    )


def _read_picture(
    path: Path, segments: Sequence[_Segment]
) -> tuple[list[_Segment | None], np.ndarray]:
    """Returns the segments in a PNG file, and for each pixel the position of its segment."""
    stored = io.read_objects(path)
    ids, positions = np.unique(stored, return_inverse=True)
    times = Counter(segment.id for segment in segments)
    repeated = [str(i) for i, count in times.items() if count > 1]
    if repeated:
        raise DataError(f"{path}: segment id {repeated[0]} is twice in the JSON file: correct it")
    segment_of_id = {segment.id: segment for segment in segments}
    differing = sorted(map(str, segment_of_id.keys() ^ ({*ids.tolist()} - {0})))
    if differing:
        fault = f"ids {few(differing)} are only in this file or only in the JSON file"
        raise DataError(f"{path}: {fault}: export both again")
    return [segment_of_id.get(i) for i in ids.tolist()], positions.reshape(stored.shape)


def _area(segment: _Segment, code: Rle) -> float:
    """Returns the area that the file states, which differs from the mask's, or else the mask's."""
    if segment.area is not None and segment.area >= 0:  # not NaN
        return segment.area
    return float(coco.area(code))
