"""COCO's formats: panoptic (PNG files of segment ids) and instances (polygons and RLE) in JSON."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
from pycocotools import mask as coco
from pydantic import BeforeValidator, Field, StrictInt, TypeAdapter

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule, name_of_class
from dpt.data.formats.pictures import read_size
from dpt.files import DataError, check_pixels, few, parse_as, plain_name, read_bytes, required_file
from dpt.types import IGNORE_INDEX, DatasetInfo, ObjectMask, Sample

_MOST_OUTLINE = 5_000_000
"""Largest length, in pixels, of the outlines of all polygons of an object."""


def _whole(value: Any) -> Any:
    """The whole number for which ``640.0`` or ``"640"`` stands; other values as they are."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", value):
        return int(value)
    return value


def _without_nulls(row: Any) -> Any:
    """A JSON object without the keys that are null."""
    return {k: v for k, v in row.items() if v is not None} if isinstance(row, dict) else row


_Whole = Annotated[StrictInt, BeforeValidator(_whole)]
_Id = Annotated[StrictInt | str, BeforeValidator(_whole)]
_Side = Annotated[_Whole, Field(gt=0)]
_Byte = Annotated[_Whole, Field(ge=0, le=255)]
_Row = BeforeValidator(_without_nulls)


@dataclass(frozen=True, kw_only=True)
class _Image:
    id: _Id
    file_name: str
    height: _Side
    width: _Side


@dataclass(frozen=True, kw_only=True)
class _Category:
    id: _Whole
    name: str
    supercategory: Any = None
    isthing: bool = True
    color: tuple[_Byte, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Segment:
    id: _Id | None = None
    category_id: _Whole | None = None
    iscrowd: bool = False
    area: float | None = None
    segmentation: Any = None


@dataclass(frozen=True, kw_only=True)
class _Annotation(_Segment):
    """A segment in the instances format; in the panoptic one all segments of an image."""

    image_id: _Id
    file_name: str = ""
    segments_info: list[Annotated[_Segment, _Row]] | None = None


@dataclass(frozen=True, kw_only=True)
class _Content:
    images: Annotated[list[Annotated[_Image, _Row]], Field(min_length=1)]
    categories: Annotated[list[Annotated[_Category, _Row]], Field(min_length=1, max_length=256)]
    annotations: list[Annotated[_Annotation, _Row]]


_CONTENT = TypeAdapter(_Content)


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
        remedy = "check data.root and data.annotations"
        path = required_file(self.path_of(self.annotations), remedy=remedy)
        content = parse_as(
            _CONTENT, read_bytes(path), path, what="in COCO's format", remedy="correct it"
        )
        for name, rows in (("images", content.images), ("categories", content.categories)):
            if len({row.id for row in rows}) < len(rows):
                raise DataError(f"{path}: an id occurs twice in {name!r}: remove one")
        segments, pictures = self._read_segments(content, path)
        self._read_categories(content.categories, [*chain(*segments.values())])
        if self.objects_fault:
            self.objects_fault = f"{path}: {self.objects_fault}"
        photos = self._find_photos(content.images, path)
        files: list[Files] = []
        for row in content.images:
            if (photo := photos.get(row.id)) is not None:
                check_pixels(photo, row.height, row.width)
                size_and_segments = (row.height, row.width), segments[row.id]
                files.append(Files(photo, objects=pictures.get(row.id), own=size_and_segments))
        self._codes_read_last: tuple[int, list[tuple[Any, _Segment]]] = -1, []
        return existing(files, source=path, remedy="check data.images and data.masks")

    def _read_segments(
        self, content: _Content, path: Path
    ) -> tuple[dict[int | str, list[_Segment]], dict[int | str, Path]]:
        """The segments of each image and, of the panoptic format, its PNG file, by its id."""
        segments: dict[int | str, list[_Segment]] = {row.id: [] for row in content.images}
        categories = {row.id for row in content.categories}
        pictures: dict[int | str, Path] = {}
        folder = path.with_suffix("") if self.masks is None else self.path_of(self.masks)
        for row in content.annotations:
            if row.image_id not in segments:
                raise DataError(
                    f"{path}: an annotation names no image (image_id {row.image_id!r}): remove it, "
                    "or add the image"
                )
            if row.segments_info is not None:
                pictures[row.image_id] = self.file_below(folder, local_name(row.file_name), path)
            for part in [row] if row.segments_info is None else row.segments_info:
                if part.category_id not in categories:
                    raise DataError(
                        f"{path}: category_id {part.category_id} of an annotation is not among "
                        "the categories: add it to them"
                    )
                segments[row.image_id].append(part)
        return segments, pictures

    def _read_categories(self, rows: Sequence[_Category], segments: Sequence[_Segment]) -> None:
        """Numbers the classes, and finds out whether any object can be trained and scored."""
        used = {part.category_id for part in segments}
        named = {text for row in rows if row.id in used for text in (row.name, row.supercategory)}
        # Roboflow's category 0 has no objects, and the name of the project or of a class
        rows = [row for row in rows if row.id or row.id in used or row.name not in named]
        path = self.path_of(self.annotations)
        rows = [replace(row, name=name_of_class(row.name, path)) for row in rows]
        times = Counter(row.name for row in rows)
        self._rows = [
            row if times[row.name] == 1 else replace(row, name=f"{row.name} ({row.id})")
            for row in sorted(rows, key=lambda row: row.id)
        ]
        self._number([row.name for row in self._rows])
        self._used = {row.name for row in self._rows if row.id in used}
        things = {row.id for row in rows if row.isthing}
        crowds = [part.iscrowd for part in segments if part.category_id in things]
        if not segments:
            self.objects_fault = "none of its images has an object"
        elif crowds and all(crowds):
            self.objects_fault = f"all of its {len(crowds)} objects are crowds (iscrowd)"

    def _number(self, names: Sequence[str]) -> None:
        """Makes the categories of these names the classes, in this order."""
        by_name = {row.name: row for row in self._rows}
        rows = [by_name.get(name, _Category(id=-1, name=name)) for name in names]
        self._classes: dict[int | None, int] = {
            r.id: k for k, r in enumerate(rows) if r.name in by_name
        }
        self.categories = [(row.id, row.name, row.isthing) for row in rows]
        self.label_rule = LabelRule(
            num_classes=len(rows),
            class_names=names,
            colors=[row.color for row in rows] if all(len(row.color) == 3 for row in rows) else (),
        )

    def adopt_classes(self, names: Sequence[str]) -> None:
        if names and self.label_rule is not None and self._used <= set(names):
            self._number(names)
            self.info = self.make_info()

    def _find_photos(self, rows: Sequence[_Image], path: Path) -> dict[int | str, Path]:
        """The photos that exist by the ids of their images."""
        folder = self.path_of(self.images)
        photos = {row.id: self.file_below(folder, local_name(row.file_name), path) for row in rows}
        if spelled := [i for i, p in photos.items() if not (str(p).isascii() or p.is_file())]:
            on_disk = {plain_name(str(path)): path for path in folder.rglob("*")}
            photos |= {i: on_disk.get(plain_name(str(photos[i])), photos[i]) for i in spelled}
        times = Counter(photos.values())
        if twice := [str(photo) for photo, count in times.items() if count > 1]:
            ids = [str(i) for i, photo in photos.items() if str(photo) == twice[0]]
            raise DataError(
                f"{path}: {len(twice)} of {len(times)} image files are listed under several ids "
                f"({twice[0]}: {few(ids)}): give each file one id, or remove copies"
            )
        there = {i: photo for i, photo in photos.items() if photo.is_file()}
        absent = [str(photo) for i, photo in photos.items() if i not in there]
        if absent and self.missing == "raise":
            raise DataError(
                f"{path}: {len(absent)} of {len(photos)} images are missing ({few(absent)}): check "
                "data.images, add them, or set data.missing=skip"
            )
        self.unpaired = (), [Path(name) for name in absent]
        return there

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        things = tuple(thing for _, _, thing in self.categories)
        return replace(info, targets=(*info.targets, "objects"), things=things)

    def read_sample(self, index: int) -> Sample:
        sample = super().read_sample(index)
        if "objects" in sample and self._files[index].objects is None:
            sample["masks"] = [
                ObjectMask(k, code["counts"].decode(), part.iscrowd, _area(part, code))
                for code, part in self._codes(index)
                if self.categories[k := self._classes[part.category_id]][2]
            ]
        return sample

    def read_raw_maps(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Class ids and object ids of a sample, int32 (H, W)."""
        picture, (size, segments) = self._files[index].objects, self._files[index].own
        if picture is not None:
            parts, places = _read_picture(picture, segments)
        else:
            codes = sorted(self._codes(index), key=lambda pair: coco.area(pair[0]), reverse=True)
            parts, places = [None, *(part for _, part in codes)], np.zeros(size, np.int64)
            for place, (code, _) in enumerate(codes, 1):
                places[coco.decode(code) > 0] = place
        rows = np.full((len(parts), 2), (IGNORE_INDEX, 0), np.int32)
        for place, part in enumerate(parts):
            if part is not None:
                class_id = self._classes[part.category_id]
                is_object = self.categories[class_id][2] and not part.iscrowd
                rows[place] = class_id, place + 1 if is_object else 0
        labels, objects = rows.T[:, places]
        return labels, objects

    def _codes(self, index: int) -> list[tuple[Any, _Segment]]:
        """The RLE of each segment, as pycocotools has it; those read last are kept."""
        if self._codes_read_last[0] == index:
            return self._codes_read_last[1]
        photo, (size, segments) = self._files[index].image, self._files[index].own
        # the masks take memory for the claimed size; a photo may be turned by its EXIF tag
        if sorted(stored := read_size(photo)) != sorted(size):
            raise DataError(
                f"{photo}: is {stored[1]}x{stored[0]} pixels, but {size[1]}x{size[0]} in the JSON "
                "file: correct it, or use the image for which it was made"
            )
        codes = []
        for part in segments:
            try:
                codes.append((encode_mask(part.segmentation, size), part))
            except Exception as error:  # of pycocotools, of any kind
                where = f"{self.name(index)}: the segmentation of annotation {part.id}"
                raise DataError(f"{where} cannot be read: {str(error)[:200]}: correct it") from None
        self._codes_read_last = index, codes
        return codes

    def object_faults(self, index: int) -> list[str]:
        if self._files[index].objects is not None:
            return []
        codes = [(code, part) for code, part in self._codes(index) if not part.iscrowd]
        cover = np.zeros(self._files[index].own[0], np.int32)
        for code, _ in codes:
            cover += coco.decode(code)
        empty, shared = [str(p.id) for code, p in codes if not coco.area(code)], (cover > 1).sum()
        faults = [f"no pixel in the mask of annotation {few(empty)}"] if empty else []
        return faults + ([f"{shared} pixels are in several masks"] if shared else [])


def _read_picture(
    path: Path, segments: Sequence[_Segment]
) -> tuple[list[_Segment | None], np.ndarray]:
    """The segments in a PNG file, and for each pixel the position of its segment: int (H, W)."""
    ids, places = np.unique(stored := io.read_objects(path), return_inverse=True)
    by_id = {part.id: part for part in segments}
    if twice := [str(i) for i, count in Counter(p.id for p in segments).items() if count > 1]:
        raise DataError(f"{path}: segment id {twice[0]} occurs twice in the JSON file: correct it")
    if differ := sorted(map(str, by_id.keys() ^ ({*ids.tolist()} - {0}))):
        raise DataError(
            f"{path}: its segments and those of the JSON file differ: ids {few(differ)} occur in "
            "only one of the two files: export both again"
        )
    return [by_id.get(i) for i in ids.tolist()], places.reshape(stored.shape)


def local_name(name: str) -> str:
    """The path in a ``file_name``; of a URL, or a path with a drive, its last part."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", name):
        name = unquote(urlsplit(name).path)
        return name.rpartition("/")[2]
    return PureWindowsPath(name).name if re.match(r"[A-Za-z]:[\\/]", name) else name


def _area(part: _Segment, code: Any) -> float:
    """The area that the file states, which differs from that of the mask, or else the mask's."""
    if part.area is not None and part.area >= 0:  # not NaN
        return part.area
    return float(coco.area(code))


def encode_mask(segmentation: Any, size: tuple[int, int]) -> Any:
    """Polygons, or an RLE, as an RLE of pycocotools, which does not check them."""
    height, width = size
    if isinstance(segmentation, list):
        _check_polygons([np.asarray(polygon, float) for polygon in segmentation], height, width)
        codes = coco.frPyObjects(segmentation, height, width)
        while len(codes) > 1:  # in groups, as the time to merge N at once grows with N²
            codes = [coco.merge(codes[k : k + 8]) for k in range(0, len(codes), 8)]
        return codes[0]
    code = segmentation if isinstance(segmentation, Mapping) else {}
    if [*map(_whole, code.get("size", ()))] != [height, width]:
        raise ValueError(f"it is neither polygons nor an RLE of {height}x{width}")
    counts = code.get("counts")
    if not isinstance(counts, str | list):
        raise ValueError("its counts are neither a text nor a list")
    if len(counts) > (height * width + 1) * (6 if isinstance(counts, str) else 1):
        raise ValueError(f"it has more counts than {height}x{width} pixels")
    counts = rle_counts(counts) if isinstance(counts, str) else np.asarray(counts)
    if counts.dtype.kind != "i" or counts.min() < 0 or counts.max() > height * width:
        raise ValueError(f"its counts are not whole numbers up to {height * width}")
    if counts.sum() != height * width:
        raise ValueError(f"its counts sum to {counts.sum()}, not {height * width}")
    return coco.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)


def _check_polygons(polygons: Sequence[np.ndarray], height: int, width: int) -> None:
    """Raises ValueError for polygons for which pycocotools would need too much memory or time:
    both grow with the length of the outline, and it does not check that memory is given."""
    if not polygons or any(p.ndim != 1 or p.size < 6 or p.size % 2 for p in polygons):
        raise ValueError("a polygon needs x and y of three points or more")
    side, outline = max(height, width), 0.0
    for corners in (polygon.reshape(-1, 2) for polygon in polygons):
        if not ((corners >= -side) & (corners <= 2 * side)).all():  # NaN too
            raise ValueError(f"a polygon is far outside the image of {height}x{width}")
        steps = np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1)
        outline += steps.sum() + len(corners)
    if outline > _MOST_OUTLINE:
        raise ValueError(f"its outline has {outline:.3g} pixels, more than {_MOST_OUTLINE}")


def rle_counts(text: str) -> np.ndarray:
    """The run lengths of COCO's compressed RLE: 5 bits a character, from the fourth on differences.

    pycocotools does not check that they fit the image.
    """
    digits = np.frombuffer(text.encode(), np.uint8).astype(np.int64) - 48
    is_last = digits & 32 == 0  # of the digits of a number, from low to high
    starts = np.flatnonzero(np.append(True, is_last))[:-1]
    places = np.arange(len(digits)) - np.repeat(starts, np.diff(starts, append=len(digits)))
    if not is_last[-1:].any() or digits.min() < 0 or digits.max() > 63 or places.max() > 8:
        raise ValueError("its counts are not a valid RLE")
    counts = np.add.reduceat((digits & 31) << 5 * places, starts)
    is_negative = digits[is_last] & 16 > 0
    counts -= is_negative.astype(np.int64) << 5 * (places[is_last] + 1)
    counts[1::2] = counts[1::2].cumsum()  # of masks
    counts[2::2] = counts[2::2].cumsum()  # of what lies between
    return counts
