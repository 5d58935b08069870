"""Writes the samples of a data set in another format, and says what the format does not hold."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pycocotools import mask as coco

from dpt.atomic import replacing, write_bytes
from dpt.data.annotations.base import AnnotatedClass, AnnotatedImage
from dpt.data.annotations.maps import objects_of
from dpt.data.annotations.writers import Entry, Writer
from dpt.data.base import Dataset
from dpt.data.formats.pictures import exif_orientation, read_size
from dpt.data.formats.rle import encode_pixels
from dpt.data.resize import resize_map
from dpt.files import DataError, few, plural, read_bytes
from dpt.types.samples import IGNORE_INDEX, Sample


def names_of(datasets: Mapping[str, Dataset], writer: Writer) -> dict[str, dict[Path, str]]:
    """Returns the names of the images of each split: paths from their deepest common folder."""
    names: dict[str, dict[Path, str]] = {}
    for split, dataset in datasets.items():
        records = [dataset.files(index) for index in range(len(dataset))]
        paths = [record.image for record in records if record is not None]
        common = os.path.commonpath([path.parent for path in paths])
        names[split] = {path: path.relative_to(common).with_suffix("").as_posix() for path in paths}
    every_name = [name for of_split in names.values() for name in of_split.values()]
    if "{split}" not in writer.image_file and len({*every_name}) < len(every_name):
        names = {
            split: {path: f"{split}/{name}" for path, name in of_split.items()}
            for split, of_split in names.items()
        }
    for of_split in names.values():
        name, count = Counter(of_split.values()).most_common(1)[0]
        if count > 1:
            files = [str(path) for path, other in of_split.items() if other == name]
            raise DataError(f"{few(files)}: have one name without the suffix: rename one")
    return names


def _at_size_of_image(sample: Sample) -> Sample:
    """Returns a sample whose labels have the size of its image (``data.resize_labels``)."""
    stored, size = sample["labels"].shape, sample["image"].shape[:2]
    if stored == size:
        return sample
    out = sample.copy()
    out["labels"] = resize_map(sample["labels"], size)
    if "objects" in sample:
        out["objects"] = resize_map(sample["objects"], size)
    if "masks" in sample:
        growth = size[0] * size[1] / (stored[0] * stored[1])
        out["masks"] = []
        for item in sample["masks"]:
            mask = encode_pixels(resize_map(coco.decode(item.mask), size) > 0)
            out["masks"].append(item._replace(mask=mask, area=item.area * growth))
    return out


@dataclass
class Conversion:
    """Writes the images and labels of a data set, and counts what the format does not hold."""

    writer: Writer
    classes: Sequence[AnnotatedClass]  # of the data set
    out: Path
    names: dict[str, list[str]] = field(default_factory=dict)  # of the images of each split
    objects: int = 0
    crowds: int = 0
    cut: int = 0  # objects without the pixels that others cover
    empty: int = 0  # objects without a pixel
    overlapping: list[str] = field(default_factory=list)  # images with objects that overlap
    without_labels: list[str] = field(default_factory=list)  # images that are left out
    unlabelled: list[str] = field(default_factory=list)  # images with unlabelled pixels
    turned: list[str] = field(default_factory=list)  # images whose labels do not fit upright pixels

    def add(
        self, path: Path, name: str, split: str, sample: Sample, *, exif: str | None = None
    ) -> None:
        """Writes the files of an image.

        Args:
            exif: the data set's setting.
        """
        names = self.names.setdefault(split, [])
        if "labels" not in sample:
            self.without_labels.append(str(path))
            return
        sample = _at_size_of_image(sample)
        found = objects_of(sample, self.classes)
        objects = [item for item in found.annotations if item.class_name in self.writer.class_ids]
        height, width = sample["labels"].shape
        image = AnnotatedImage(image=path, objects=objects, split=split)
        entry = Entry(name=name, image=image, size=(height, width))
        paths, contents = self.writer.label_paths(name, split), self.writer.encode(entry)
        for file, content in zip(paths, contents, strict=True):
            write_bytes(self.out / file, content)
        with replacing(self.out / f"{self.writer.image_path(name, split)}{path.suffix}") as copy:
            shutil.copyfile(path, copy)
        names.append(name)
        crowds = sum(item.is_crowd for item in objects)
        self.objects += len(objects) - crowds
        self.crowds += crowds
        self.cut += found.num_cut
        self.empty += found.num_empty
        if (sample["labels"] == IGNORE_INDEX).any():
            self.unlabelled.append(str(path))
        if not self.writer.has_overlaps and entry.has_overlaps:
            self.overlapping.append(str(path))
        turn = exif_orientation(path)
        is_stored = exif is None and turn >= 5 and read_size(path) == entry.size
        if turn > 1 and (exif == "ignore" or is_stored):
            self.turned.append(str(path))

    def finish(self) -> None:
        """Writes the files for all images."""
        files = self.writer.common_files(self._read, self.names)
        for path, content in files.items():
            write_bytes(self.out / path, content)
        if self.writer.scratch:
            shutil.rmtree(self.out / self.writer.scratch)

    def _read(self, paths: Sequence[str]) -> Iterator[bytes]:
        return (read_bytes(self.out / path) for path in paths)

    def report(self) -> list[str]:
        """Returns a line for each thing that the format does not hold, and one for the result."""
        writer = self.writer
        skipped = [row.name for row in self.classes if row.name not in writer.class_ids]
        stuff = [] if writer.has_background else [r.name for r in writer.classes if not r.is_thing]
        crowds = 0 if writer.has_crowds else self.crowds
        unlabelled = [] if writer.has_background else self.unlabelled
        become = f"become {few(skipped)}" if skipped else "have no object"
        is_full = not (writer.has_background or skipped or unlabelled)
        lines = {
            f"each connected part is an object: of {few(stuff)}": stuff,
            f"{few(skipped)}: not written; read the files with data.background=true": skipped,
            "read the files with data.background=false": is_full or (unlabelled and not skipped),
            f"unlabelled pixels {become}: in {_shown(unlabelled)}": unlabelled,
            f"{plural(crowds, 'crowd')}: written as an object each": crowds,
            f"objects that overlap are cut: in {_shown(self.overlapping)}": self.overlapping,
            f"labels fit pixels that programs turn by EXIF: in {_shown(self.turned)}": self.turned,
            f"{plural(self.cut, 'object')}: written without the pixels behind others": self.cut,
            f"{plural(self.empty, 'object')} without a pixel: left out": self.empty,
            f"without labels, left out: {_shown(self.without_labels)}": self.without_labels,
        }
        sizes = ", ".join(f"{split} {len(names)}" for split, names in self.names.items())
        written = f"{plural(self.objects, 'object')}, {len(writer.classes)} classes"
        result = f"{self.out}: {writer.name}, images: {sizes}, {written}"
        return [*(line for line, is_said in lines.items() if is_said), result]


def _shown(paths: Sequence[str]) -> str:
    return f"{plural(len(paths), 'image')} ({few(paths)})"
