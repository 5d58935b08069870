"""Writes the samples of a data set in another format, and says what the format does not hold."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pycocotools import mask as coco

from dpt.data.annotations.base import AnnotatedClass, Entry, Writer
from dpt.data.annotations.masks import maps_of
from dpt.data.base import Dataset
from dpt.data.formats import pictures, rle
from dpt.data.view import resize_map
from dpt.files import DataError, few, plural, replacing, write_bytes
from dpt.types.samples import IGNORE_INDEX, ObjectMask, Sample

_CODES = 2**16
"""Larger than every object id: class · _CODES + object is a code for both."""
_WRITTEN = "written"


def objects_of(
    sample: Sample, classes: Sequence[AnnotatedClass], counts: Counter[str]
) -> list[ObjectMask]:
    """Returns the objects of a sample with labels; later ones are in front.

    Each connected part of a class that is not a thing is an object. Pixels of a thing without an
    object are a crowd. Other objects are whole, where ``sample`` holds whole masks and its maps are
    those masks with the smaller ones in front.

    Args:
        counts: of objects that are cut or left out, to which those of the sample are added.
    """
    labels = sample["labels"]
    stuff = [
        rle.object_of(class_id, part)
        for class_id, row in enumerate(classes)
        if not row.is_thing
        for part in rle.encode_parts(labels == class_id)
    ]
    if "objects" not in sample:
        return stuff
    masks = sample.get("masks", [])
    areas = rle.areas_of([item.mask for item in masks])
    whole = [masks[k] for k in np.flatnonzero(areas)]
    counts["left out, as they have no pixel"] += len(masks) - len(whole)
    if whole and areas.sum() > coco.area(coco.merge([item.mask for item in whole])):  # they overlap
        whole.sort(key=lambda item: -int(coco.area(item.mask)))
    if whole and _make_maps_of(stuff + whole, sample, classes):
        return stuff + whole
    counts["written without the pixels behind others"] += len(whole)
    return stuff + _visible_objects(labels, sample["objects"], classes)


def _make_maps_of(
    objects: Sequence[ObjectMask], sample: Sample, classes: Sequence[AnnotatedClass]
) -> bool:
    """Returns whether the maps of the objects are those of the sample, but for the objects' ids."""
    height, width = sample["labels"].shape
    labels, numbers = maps_of(objects, (height, width), classes)
    pairs = numbers.astype(np.int64) * _CODES + sample["objects"]
    counts = {len(np.unique(ids)) for ids in (numbers, sample["objects"], pairs)}
    return len(counts) == 1 and np.array_equal(labels, sample["labels"])


def _visible_objects(
    labels: np.ndarray, objects: np.ndarray, classes: Sequence[AnnotatedClass]
) -> list[ObjectMask]:
    """Returns the objects of things in the order of their ids, and the crowds after them."""
    things = [class_id for class_id, row in enumerate(classes) if row.is_thing]
    numbers = np.where(objects > 0, objects.astype(np.int64), _CODES)
    codes = np.where(np.isin(labels, things), numbers * _CODES + labels, -1)
    present, positions = np.unique(codes, return_inverse=True)
    masks = rle.encode_each(positions.reshape(labels.shape) + 1)
    return [
        rle.object_of(code % _CODES, mask, is_crowd=code // _CODES == _CODES)
        for code, mask in zip(present.tolist(), masks, strict=True)
        if code >= 0
    ]


def names_of(datasets: Mapping[str, Dataset], writer: Writer) -> dict[str, dict[Path, str]]:
    """Returns the names of the images of each split: paths from their deepest common folder."""
    names = {split: _names_in(dataset) for split, dataset in datasets.items()}
    every_name = [name for of_split in names.values() for name in of_split.values()]
    if "{split}" not in writer.image_file and len({*every_name}) < len(every_name):
        return {
            split: {path: f"{split}/{name}" for path, name in of_split.items()}
            for split, of_split in names.items()
        }
    return names


def _names_in(dataset: Dataset) -> dict[Path, str]:
    records = [dataset.files(index) for index in range(len(dataset))]
    paths = [record.image for record in records if record is not None]
    common = os.path.commonpath([path.parent for path in paths])
    names = {path: path.relative_to(common).with_suffix("").as_posix() for path in paths}
    name, count = Counter(names.values()).most_common(1)[0]
    if count > 1:
        files = [str(path) for path, other in names.items() if other == name]
        raise DataError(f"{few(files)}: have one name without the suffix: rename one")
    return names


def _at_size_of_image(sample: Sample) -> Sample:
    """Returns a sample whose labels have the size of its image (``data.resize_labels``)."""
    stored, size = sample["labels"].shape, sample["image"].shape[:2]
    if stored == size:
        return sample
    out = sample.copy()
    for key in ("labels", "objects"):
        if key in sample:
            out[key] = resize_map(sample[key], size)
    if "masks" in sample:
        growth = size[0] * size[1] / (stored[0] * stored[1])
        out["masks"] = []
        for item in sample["masks"]:
            mask = rle.encode_pixels(resize_map(coco.decode(item.mask), size) > 0)
            out["masks"].append(item._replace(mask=mask, area=item.area * growth))
    return out


class Conversion:
    """Writes the images and labels of a data set, and counts what the format does not hold.

    Args:
        classes: of the data set.
        out: the folder to write.
    """

    def __init__(self, writer: Writer, classes: Sequence[AnnotatedClass], out: Path) -> None:
        self._writer, self._classes, self._out = writer, classes, out
        self._skipped = [k.name for i, k in enumerate(classes) if i not in writer.class_ids]
        self._names: dict[str, list[str]] = {}  # of the images of each split
        self._counts: Counter[str] = Counter()  # of objects, by what became of them
        self._images: dict[str, list[str]] = defaultdict(list)  # by what the format lacks of them

    def add(
        self, path: Path, name: str, split: str, sample: Sample, *, exif: str | None = None
    ) -> None:
        """Writes the files of an image.

        Args:
            exif: the data set's setting.
        """
        names = self._names.setdefault(split, [])
        if "labels" not in sample:
            self._images["images without labels are left out"].append(str(path))
            return
        writer = self._writer
        sample = _at_size_of_image(sample)
        height, width = sample["labels"].shape
        objects = objects_of(sample, self._classes, self._counts)
        masks = [item for item in objects if item.class_id in writer.class_ids]
        entry = Entry(image=path, name=name, split=split, size=(height, width), objects=masks)
        paths, contents = writer.label_paths(name, split), writer.encode(entry)
        for file, content in zip(paths, contents, strict=True):
            write_bytes(self._out / file, content)
        with replacing(self._out / f"{writer.image_path(name, split)}{path.suffix}") as copy:
            shutil.copyfile(path, copy)
        names.append(name)
        crowds = sum(item.is_crowd for item in masks)
        self._counts["written as an object, though a crowd"] += crowds * (not writer.has_crowds)
        self._counts[_WRITTEN] += len(masks) - crowds
        if not writer.has_background and (sample["labels"] == IGNORE_INDEX).any():
            fate = f"become {few(self._skipped)}" if self._skipped else "have no object"
            self._images[f"unlabelled pixels {fate}"].append(str(path))
        if not writer.has_overlaps and entry.has_overlaps:
            self._images["objects that overlap are cut"].append(str(path))
        if _is_turned(path, entry.size, exif):
            self._images["labels fit pixels that programs turn by EXIF"].append(str(path))

    def finish(self) -> None:
        """Writes the files for all images."""
        files = self._writer.common_files(self._names)
        for path, content in files.items():
            write_bytes(self._out / path, content)

    def report(self, out: Path) -> list[str]:
        """Returns a line for each thing that the format does not hold, and one for the result in
        ``out``."""
        writer, skipped = self._writer, self._skipped
        stuff = [row.name for row in writer.classes if not row.is_thing]
        lines: list[str] = []
        if stuff and not writer.has_background:
            lines.append(f"each connected part is an object: of {few(stuff)}")
        if skipped:
            remedy = "read the files with data.background=true"
            lines.append(f"{few(skipped)}: not written; {remedy}")
        elif not writer.has_background:
            lines.append("read the files with data.background=false")
        count = self._counts.pop(_WRITTEN, 0)
        written = f"{plural(count, 'object')}, {plural(len(writer.classes), 'class')}"
        lines += [f"{plural(n, 'object')}: {fate}" for fate, n in self._counts.items() if n]
        for lack, paths in self._images.items():
            lines.append(f"{lack}: {plural(len(paths), 'image')} ({few(paths)})")
        sizes = ", ".join(f"{split} {len(names)}" for split, names in self._names.items())
        return [*lines, f"{out}: {writer.name}, images: {sizes}, {written}"]


def _is_turned(path: Path, size: tuple[int, int], exif: str | None) -> bool:
    """Returns whether labels of ``size`` fit the stored pixels of an image that EXIF turns."""
    is_stored = exif != "apply" and pictures.read_size(path) == size
    return is_stored and pictures.exif_orientation(path) > 1
