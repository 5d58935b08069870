"""YOLO's label files for segmentation: a text file for each image, and ``data.yaml``.

A line is an object: its class id, and x and y of the corners as fractions of the image's width and
height. Lines of a class id and four numbers are boxes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from posixpath import splitext
from typing import Annotated

import numpy as np
import yaml
from pydantic import BeforeValidator

from dpt.data.annotations import base
from dpt.data.formats.rle import encode_relative, one_ring, trace_code
from dpt.files import DataError, few, plain_name, read_yaml
from dpt.validation import Plain, validate

_NUMBER = rb"-?(\d(\.\d*)?|\.\d+)(e-?\d+)?"
_FIRST_LINE = rb"\A\s*(\Z|\d+(\.0+)?([ \t]+" + _NUMBER + rb"){4,}[ \t]*\r?$)"
_NAMES = rb"^(\{\s*)?[\"']?names[\"']?\s*:"
_YAML = (".yaml", ".yml")
_MOST_YAML = 8
_NAME_LISTS = ("classes.txt", "obj.names")
_ROUNDING = 1e-3  # of fractions with few digits


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [] if value is None else [value]


def _by_id(value: object) -> object:
    return dict(enumerate(value)) if isinstance(value, list) else value


_Entries = Annotated[list[str], BeforeValidator(_as_list)]


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The content of ``data.yaml``."""

    names: Annotated[dict[int, base.Text], BeforeValidator(_by_id)] = field(default_factory=dict)
    path: str | None = None
    train: _Entries = field(default_factory=list)
    val: _Entries = field(default_factory=list)
    valid: _Entries = field(default_factory=list)
    test: _Entries = field(default_factory=list)
    kpt_shape: object = None

    @property
    def entries(self) -> list[tuple[str, str]]:
        """Returns a split and a path of its images, for each that is stated."""
        splits = {"train": self.train, "val": [*self.val, *self.valid], "test": self.test}
        folder = self.path or ""
        return [(split, f"{folder}/{name}") for split, names in splits.items() for name in names]


class YoloFormat(base.AnnotationFormat):
    """The smaller of two objects is in front, as for Ultralytics.

    Label files lie beside their images, or in ``labels`` where the images lie in ``images``; an
    empty one belongs to an image without objects. Without ``data.yaml``, ``classes.txt`` names the
    classes, otherwise their ids do. The entries ``train``, ``val`` and ``test`` are folders, or
    lists of images, of which the longest end of the path that is there counts.
    """

    name = "yolo"
    title = "YOLO's label files"
    front = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        labels = base.files_like(root, [*label_files(files)], _FIRST_LINE)
        return [*_settings_files(root, files), *labels] if labels else []

    def collect(self, reading: base.Reading, sources: Sequence[str]) -> None:
        root, labels = reading.root, label_files(reading.files)
        yaml_files = [path for path in sources if path.lower().endswith(_YAML)]
        yaml_files = yaml_files or _settings_files(root, reading.files)
        settings, splits = _Settings(), {}
        if len(yaml_files) > 1:
            raise DataError(f"{root}: set data.annotation_files to one of {few(yaml_files)}")
        if yaml_files:
            path = root / yaml_files[0]
            settings = validate(_Settings, read_yaml(path), str(path))
            if settings.kpt_shape is not None:
                raise base.NoMasksError(f"{path}: keypoints, but no masks: use another data set")
            splits = _splits(reading, settings, base.folder_of(yaml_files[0]))
        names = settings.names or _listed_names(reading)
        for _, name in sorted(names.items()):
            reading.add_class(name)
        rings: list[np.ndarray] = []
        for source in [path for path in sources if path in labels] or labels:
            parts = [*_parts(reading, source, names, rings)]
            reading.add_image(root / labels[source], parts, split=splits.get(labels[source], ""))
        if _are_boxes(rings):
            raise base.NoMasksError(f"{root}: boxes, turned or with landmarks: use polygons")


def _settings_files(root: Path, files: Iterable[str]) -> list[str]:
    candidates = [path for path in files if path.lower().endswith(_YAML)]
    candidates.sort(key=lambda path: path.count("/"))  # beside other programs' files
    return [path for path in candidates[:_MOST_YAML] if base.starts_with(root / path, _NAMES)]


def _listed_names(reading: base.Reading) -> dict[int, str]:
    """Returns the classes in the lists of names, which Label Studio and others write, if all lists
    are equal."""
    paths = [path for path in reading.files if path.rpartition("/")[2] in _NAME_LISTS]
    lists = [reading.listed(path) for path in paths]
    if all(names == lists[0] for names in lists):
        return dict(enumerate(lists[0] if lists else ()))
    for path in paths:
        reading.leave_out("list", "others name other classes", path)
    return {}


def _splits(reading: base.Reading, settings: _Settings, folder: str) -> dict[str, str]:
    """Returns the split of each image; empty if one split holds all of them.

    An image of several splits is of the one with the fewest images.

    Args:
        folder: that of ``data.yaml``.
    """
    images_of_split: dict[str, list[str]] = defaultdict(list)
    for split, entry in settings.entries:
        images = _images_at(reading, entry, folder)
        images_of_split[split] += images
        if not images:
            reading.leave_out("entry", "its images are not there", f"{split}: {entry}")
    splits: dict[str, str] = {}
    shared: list[str] = []
    for split, images in sorted(images_of_split.items(), key=lambda row: len(row[1])):
        shared += [path for path in images if splits.setdefault(path, split) != split]
    if len({*splits.values()}) < 2:
        return {}
    for path in shared:
        reading.leave_out("line", "its image is in a smaller split, too", path)
    return splits


def _images_at(reading: base.Reading, path: str, folder: str) -> list[str]:
    """Returns the images in a folder or in a list: the longest end of ``path`` that is there."""
    images, known = base.images_of(reading.files), {*reading.files}
    names = [name for name in re.split(r"[/\\]", path) if name not in ("", ".", "..")]
    for start in range(len(names)):
        for parent in (folder, ""):
            end = "/".join(filter(None, [parent, *names[start:]]))
            inside = [image for image in images if image.startswith(f"{end}/")]
            if inside or end in known:
                return inside or _listed(reading, end)
    return []


def _listed(reading: base.Reading, source: str) -> list[str]:
    """Returns the images that a text file lists, a path in each line."""
    images: list[str] = []
    for name in reading.listed(source):
        path = reading.finder.find([name], source)
        if path is None:
            reading.leave_out("line", "its image is not there", f"{source}: {name}")
        else:
            images.append(path.relative_to(reading.root).as_posix())
    return images


def label_files(files: Sequence[str]) -> dict[str, str]:
    """Returns the images of all text files that have one beside them, or in ``images``."""
    images = {plain_name(splitext(path)[0]): path for path in base.images_of(files)}
    images |= {label_stem(stem): path for stem, path in images.items()}
    texts = {path: splitext(plain_name(path))[0] for path in files if path.lower().endswith(".txt")}
    return {path: images[stem] for path, stem in texts.items() if stem in images}


def label_stem(image_stem: str) -> str:
    """Returns the path of an image's label file, both without suffix, as Ultralytics finds it, or
    in ``labels_x`` beside ``images_x``."""
    path = f"/{image_stem}"
    if "/images/" in path:
        return "/labels/".join(path.rsplit("/images/", 1))[1:]
    folder, _, name = path.rpartition("/")
    return f"{'labels'.join(folder.rsplit('images', 1))}/{name}"[1:]


def _parts(
    reading: base.Reading, source: str, names: dict[int, str], rings: list[np.ndarray]
) -> Iterator[base.Annotation]:
    """Yields the objects of a label file, and appends their corners (N, 2) to ``rings``."""
    for line in reading.lines(source):
        try:
            values = [float(text) for text in line.split()]
            class_id = int(values[0])
            if len(values) in (5, 6):  # a confidence may follow
                reading.leave_out(base.BOX, "no mask", source)
                continue
            if len(values) % 2 == 0:
                raise ValueError("one number more, such as a confidence: leave it out")
            rings.append(base.as_ring([*zip(values[1::2], values[2::2], strict=True)]))
            name = names[class_id] if names else f"class_{class_id}"
            yield base.Annotation(name, partial(encode_relative, rings[-1]))
        except (KeyError, ValueError, OverflowError) as error:
            fault = f"{line[:60]!r} is not a known class, and x, y of three corners or more"
            raise DataError(f"{reading.root / source}: {fault} ({error}): correct it") from None


def _are_boxes(rings: Sequence[np.ndarray]) -> bool:
    """Returns whether all rings (N, 2) are rectangles, of which some are turned, or a box, its
    centre and its size, and the same number of points inside it, as for faces; points that are not
    above 0 are hidden."""
    if len({*map(len, rings)}) != 1:
        return False
    corners = np.array(rings)
    if corners.shape[1] == 4:
        first, second, third, fourth = corners.transpose(1, 0, 2)
        is_turned = np.abs(second - first).min(axis=1) > _ROUNDING
        are_halved = np.abs(first + third - second - fourth).max() < _ROUNDING  # diagonals
        return bool(is_turned.any() and are_halved)
    centres, sizes, points = np.split(corners, [1, 2], axis=1)
    is_inside = (np.abs(points - centres) <= 0.55 * sizes) | (points <= 0)
    return corners.shape[1] > 4 and bool(is_inside.all())


class YoloWriter(base.Writer):
    """A line for each object, with one ring that bridges join to holes and further parts."""

    name = "yolo"

    def label_paths(self, name: str, split: str) -> tuple[str, ...]:
        return (f"{label_stem(self.image_path(name, split))}.txt",)

    def encode(self, entry: base.Entry) -> tuple[bytes, ...]:
        lines: list[str] = []
        for item in entry.objects:
            ring = one_ring(trace_code(item.mask)) / entry.size[::-1]
            numbers = " ".join(f"{value:.8g}" for value in ring.ravel().tolist())
            lines.append(f"{self.class_ids[item.class_id]} {numbers}\n")
        return ("".join(lines).encode(),)

    def common_files(self, names: base.Names) -> dict[str, bytes]:
        content: Plain = {split: f"images/{split}" for split in names}
        content["names"] = {k: row.name for k, row in enumerate(self.classes)}
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        return {"data.yaml": text.encode()}
