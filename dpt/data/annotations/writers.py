"""Writes labels in the formats of label tools, with exactly the pixels that they have."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import PIL.Image
import yaml
from pycocotools import mask as coco

from dpt.data.annotations.base import AnnotatedClass, AnnotatedImage
from dpt.data.annotations.maps import maps_of
from dpt.data.annotations.tracing import one_ring, trace_code
from dpt.data.annotations.yolo import label_stem
from dpt.data.formats.rle import areas_of
from dpt.files import DataError, parse_json
from dpt.types.samples import IGNORE_INDEX, Rle
from dpt.validation import Plain

Reader = Callable[[Sequence[str]], Iterable[bytes]]
"""Returns the contents of files of the written folder by their paths."""

_VOID, _BLACK = (224, 224, 192), (0, 0, 0)
"""The colours of unlabelled pixels and of the background in VOC's pictures."""
_DEFAULT = "default"  # what CVAT calls the split of images without one


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """An image to write."""

    name: str  # of its files, a path without suffix
    image: AnnotatedImage
    size: tuple[int, int]  # (H, W)

    @cached_property
    def codes(self) -> list[Rle]:
        """The masks of its objects."""
        return [item.shape.encode(self.size) for item in self.image.objects]

    @property
    def has_overlaps(self) -> bool:
        """Whether pixels are in several objects."""
        codes = self.codes
        return bool(codes) and areas_of(codes).sum() > areas_of([coco.merge(codes)])[0]


class Writer(ABC):
    """Makes the files of a format. To add one, derive from this class and add it to ``WRITERS``.

    Args:
        classes: with the colours of pictures.
    """

    name: ClassVar[str]
    image_file: ClassVar[str] = "images/{split}/{name}"  # without its suffix
    label_files: tuple[str, ...]  # of an image, as image_file
    class_list: ClassVar[str] = ""  # path of a list of the classes
    has_background: ClassVar[bool] = False  # whether pixels can have a class without an object
    has_overlaps: ClassVar[bool] = True
    has_crowds: ClassVar[bool] = False
    scratch: ClassVar[str] = ""  # folder of files that :meth:`common_files` alone needs

    def __init__(self, classes: Sequence[AnnotatedClass]) -> None:
        self.classes = classes
        self.class_ids = {row.name: k for k, row in enumerate(classes)}

    def image_path(self, name: str, split: str) -> str:
        """Returns the path of an image without its suffix."""
        return _filled(self.image_file, name, split)

    def label_paths(self, name: str, split: str) -> tuple[str, ...]:
        """Returns the paths of the label files of an image."""
        return tuple(_filled(path, name, split) for path in self.label_files)

    @abstractmethod
    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        """Returns the content of the label files of an image."""

    def common_files(self, read: Reader, names: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
        """Returns the files for all images by their paths.

        Args:
            read: returns the contents of label files.
            names: of the images of each split.
        """
        return {self.class_list: _lines(row.name for row in self.classes)}


def _filled(template: str, name: str, split: str) -> str:
    """Returns a path; an image without a split lies in no folder of one."""
    path = template.format(name=name, split=split)
    return "/".join(part for part in path.split("/") if part)


class CocoWriter(Writer):
    """Instances: polygons where an object has no hole, otherwise RLE."""

    name = "coco"
    label_files = ("parts/{split}/{name}.json",)
    scratch = "parts"
    has_crowds = True

    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        height, width = entry.size
        path = self.image_path(entry.name, entry.image.split).removeprefix("images/")
        file_name = path + entry.image.image.suffix
        image = {"file_name": file_name, "height": height, "width": width}
        rows: list[Plain] = []
        for item, code in zip(entry.image.objects, entry.codes, strict=True):
            area = float(coco.area(code)) if item.area is None else item.area
            row: Plain = {"category_id": 1 + self.class_ids[item.class_name], "area": area}
            row |= {"bbox": coco.toBbox(code).tolist(), "iscrowd": int(item.is_crowd)}
            row["segmentation"] = _segmentation(code, as_runs=item.is_crowd)
            rows.append(row if item.score is None else row | {"score": item.score})
        return (json.dumps({"image": image, "annotations": rows}).encode(),)

    def common_files(self, read: Reader, names: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
        categories = [
            {"id": k, "name": row.name, "supercategory": "", "isthing": int(row.is_thing)}
            | {"color": row.color}
            for k, row in enumerate(self.classes, 1)
        ]
        files: dict[str, bytes] = {}
        for split in names:
            images: list[Plain] = []
            annotations: list[Plain] = []
            paths = [self.label_paths(name, split)[0] for name in names[split]]
            for path, text in zip(paths, read(paths), strict=True):
                part = parse_json(text, path)
                images.append({"id": 1 + len(images), **part["image"]})
                for row in part["annotations"]:
                    number = 1 + len(annotations)
                    annotations.append({"id": number, "image_id": len(images), **row})
            content = {"info": {}, "licenses": [], "images": images}
            content |= {"annotations": annotations, "categories": categories}
            path_of_split = f"annotations/instances_{split or _DEFAULT}.json"
            files[path_of_split] = json.dumps(content).encode()
        return files


def _segmentation(code: Rle, *, as_runs: bool) -> object:
    parts = [] if as_runs else trace_code(code)
    if as_runs or any(part.holes for part in parts):
        return {"size": code["size"], "counts": code["counts"].decode()}
    return [part.outer[0].ravel().tolist() for part in parts]


class YoloWriter(Writer):
    """A line for each object, with one ring that bridges join to holes and further parts."""

    name = "yolo"

    def label_paths(self, name: str, split: str) -> tuple[str, ...]:
        return (f"{label_stem(self.image_path(name, split))}.txt",)

    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        lines = []
        for item, code in zip(entry.image.objects, entry.codes, strict=True):
            ring = one_ring(trace_code(code)) / entry.size[::-1]
            numbers = " ".join(f"{value:.8g}" for value in ring.ravel().tolist())
            lines.append(f"{self.class_ids[item.class_name]} {numbers}\n")
        return ("".join(lines).encode(),)

    def common_files(self, read: Reader, names: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
        content: Plain = {split or "train": f"images/{split}".rstrip("/") for split in names}
        content["names"] = {k: row.name for k, row in enumerate(self.classes)}
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        return {"data.yaml": text.encode()}


class LabelmeWriter(Writer):
    """A JSON file beside each image: a polygon for each part of an object, with bridges to its
    holes; ``group_id`` joins the parts."""

    name = "labelme"
    image_file = "{split}/{name}"
    label_files = ("{split}/{name}.json",)
    class_list = "labels.txt"

    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        shapes = []
        for number, code in enumerate(entry.codes, 1):
            item, parts = entry.image.objects[number - 1], trace_code(code)
            for part in parts:
                shape: Plain = {"label": item.class_name, "points": one_ring([part]).tolist()}
                shape["group_id"] = number if len(parts) > 1 else None
                shape["description"] = "" if item.score is None else f"score {item.score:g}"
                shapes.append(shape | {"shape_type": "polygon", "flags": {}, "mask": None})
        content: Plain = {"version": "5.5.0", "flags": {}, "shapes": shapes}
        content["imagePath"] = entry.name.rpartition("/")[2] + entry.image.image.suffix
        content |= {"imageData": None, "imageHeight": entry.size[0], "imageWidth": entry.size[1]}
        return (json.dumps(content).encode(),)


class FolderWriter(Writer):
    """Class ids and object ids in pictures, as ``data=folder`` reads them."""

    name = "folder"
    label_files: tuple[str, ...] = ("masks/{split}/{name}.png", "objects/{split}/{name}.png")
    class_list = "classes.txt"
    has_background = True
    has_overlaps = False
    has_crowds = True

    def __init__(self, classes: Sequence[AnnotatedClass]) -> None:
        super().__init__(classes)
        if not any(row.is_thing for row in classes):
            self.label_files = self.label_files[:1]

    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        labels, objects = maps_of(entry.image, entry.size, self.classes)
        return (_picture(labels), _picture(objects))[: len(self.label_files)]


class VocWriter(FolderWriter):
    """Class ids and object ids in pictures with a palette; 255 is unlabelled."""

    name = "voc"
    image_file = "JPEGImages/{name}"
    label_files = ("SegmentationClass/{name}.png", "SegmentationObject/{name}.png")

    def __init__(self, classes: Sequence[AnnotatedClass]) -> None:
        colors = [k.color for k in classes if k.name not in BACKGROUND or k.color != _BLACK]
        if len({_VOID, _BLACK, *colors}) < len(colors) + 2:  # by which label tools know classes
            pairs = zip(classes, _VOC_COLORS[1:], strict=False)
            classes = [replace(row, color=color) for row, color in pairs]
        super().__init__(classes)

    def encode(self, entry: Entry) -> tuple[bytes, ...]:
        unfit = [row.name for row in self.classes if ":" in row.name]
        if unfit:
            raise DataError(f"class {unfit[0]}: labelmap.txt cannot hold the colon: rename it")
        labels, objects = maps_of(entry.image, entry.size, self.classes)
        numbers = np.unique(objects, return_inverse=True)[1].reshape(objects.shape)
        numbers += objects.min() > 0
        if numbers.max() >= IGNORE_INDEX:
            fault = f"{numbers.max()} objects, in VOC's format at most {IGNORE_INDEX - 1}"
            raise DataError(f"{entry.image.image}: {fault}: choose another format")
        numbers[labels == IGNORE_INDEX] = IGNORE_INDEX
        colors = [row.color for row in self.classes]
        pictures = _picture(labels, colors), _picture(numbers.astype(np.uint8), _VOC_COLORS)
        return pictures[: len(self.label_files)]

    def common_files(self, read: Reader, names: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
        rows = [f"{row.name}:{','.join(map(str, row.color))}::" for row in self.classes]
        lists = {
            f"ImageSets/Segmentation/{split or _DEFAULT}.txt": _lines(names[split])
            for split in names
        }
        return {"labelmap.txt": _lines(["# label:color_rgb:parts:actions", *rows]), **lists}


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


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


WRITERS: dict[str, type[Writer]] = {
    writer.name: writer
    for writer in (CocoWriter, YoloWriter, LabelmeWriter, VocWriter, FolderWriter)
}
"""By the names of ``dpt data convert --to``."""

BACKGROUND = ("background", "_background_")
"""Names of the class whose pixels have no object, where a format has objects alone."""


def make_writer(name: str, classes: Sequence[AnnotatedClass]) -> Writer:
    """Returns the writer of a format, for those of the classes that the format has."""
    kind = WRITERS[name]
    return kind([row for row in classes if kind.has_background or row.name not in BACKGROUND])
