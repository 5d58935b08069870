"""YOLO's label files for segmentation: a text file for each image, and ``data.yaml``.

A line is an object: its class id, and x and y of the corners as fractions of the image's width and
height. Lines of a class id and four numbers are boxes.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dpt.data.annotations.base import (
    AnnotatedClass,
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
    ImageFinder,
    as_ring,
)
from dpt.data.annotations.reading import (
    MAX_IMAGE_BYTES,
    Reading,
    Text,
    files_like,
    folder_of,
    images_of,
    starts_with,
)
from dpt.data.annotations.shapes import RelativePolygon
from dpt.data.splits import SPLITS
from dpt.files import DataError, few, read_text, read_yaml
from dpt.validation import validate

_NUMBER = rb"-?\d?(\.\d*)?(e-?\d+)?"
_FIRST_LINE = rb"\A\s*(\Z|\d+(\.0+)?([ \t]+" + _NUMBER + rb"){4,}[ \t]*\r?$)"

_YAML = (".yaml", ".yml")
_MOST_YAML = 8


class YoloFormat(AnnotationFormat):
    """The smaller of two objects is in front, as for Ultralytics.

    Label files lie beside their images, or in ``labels`` where the images lie in ``images``; an
    empty one belongs to an image without objects. Without ``data.yaml``, classes are named by their
    ids. Its entries ``train``, ``val`` and ``test`` are folders, or lists of images, whatever
    folder they count from.
    """

    name: ClassVar[str] = "yolo"
    title: ClassVar[str] = "YOLO's label files"
    front: ClassVar[Front] = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        labels = files_like(root, [*_label_files(files)], _FIRST_LINE)
        return [*_settings_files(root, files), *labels] if labels else []

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading, labels = Reading(root, self.title, files), _label_files(files)
        chosen = [path for path in sources if path in labels] or [*labels]
        settings_files = [path for path in sources if path.lower().endswith(_YAML)]
        settings = _Settings(root, settings_files or _settings_files(root, files))
        splits = settings.splits(reading, files)
        for source in chosen:
            image = labels[source]
            objects, split = _objects(reading, source, settings), splits.get(image, "")
            reading.images.append(AnnotatedImage(image=root / image, objects=objects, split=split))
        classes = [AnnotatedClass(name=name) for _, name in sorted(settings.names.items())]
        return reading.result(classes or None)


class _Settings:
    """The content of ``data.yaml``.

    Args:
        sources: its path below the root; empty if there is none.
    """

    def __init__(self, root: Path, sources: Sequence[str]) -> None:
        if len(sources) > 1:
            fault = f"{few(sources)} each name classes"
            raise DataError(f"{root}: {fault}: set data.annotation_files to one of them")
        self.source = sources[0] if sources else ""
        content = read_yaml(root / self.source) if sources else {}
        place = str(root / self.source)
        content = _typed(dict[str, object], content, place)
        if "kpt_shape" in content:
            raise DataError(f"{root / self.source}: keypoints, but no masks: use another data set")
        names = content.get("names") or {}
        names = dict(enumerate(names)) if isinstance(names, list) else names
        self.names: dict[int, str] = _typed(dict[int, Text], names, f"{place}: names")
        entries = {SPLITS[key]: value for key, value in content.items() if key in SPLITS and value}
        entries = {key: v if isinstance(v, list) else [v] for key, v in entries.items()}
        self._entries: dict[str, list[str]] = _typed(dict[str, list[str]], entries, place)
        self._folder = _parts(str(content.get("path") or ""))

    def class_name(self, class_id: int) -> str:
        if not self.names:
            return f"class_{class_id}"
        if class_id not in self.names:
            raise ValueError(f"class {class_id} is not among the names in {self.source}")
        return self.names[class_id]

    def splits(self, reading: Reading, files: Sequence[str]) -> dict[str, str]:
        """Returns the split of each image; empty if it is not stated, or one holds all images."""
        images, finder = images_of(files), ImageFinder(reading.root, images_of(files))
        folders = {folder for path in images for folder in _parents(path)}
        split_of_folder: dict[str, str] = {}
        splits: dict[str, str] = {}
        for split, entries in self._entries.items():
            for entry in entries:
                place = self._locate(entry, {*folders, *files})
                if place is None:
                    reading.leave_out("entry", f"of {self.source} without its images", entry)
                elif place in folders:
                    split_of_folder.setdefault(place, split)
                else:
                    for path in _listed(reading, place, finder):
                        splits.setdefault(path, split)
        for path in images:
            nearest = next((f for f in _parents(path) if f in split_of_folder), None)
            if nearest is not None:
                splits.setdefault(path, split_of_folder[nearest])
        return splits if len({*splits.values()}) > 1 else {}

    def _locate(self, entry: str, paths: set[str]) -> str | None:
        """Returns the path below the root of a folder or list, whatever its beginning is."""
        parts = _parts(entry)
        is_absolute = entry.startswith(("/", "\\")) or ":" in entry
        whole = parts if is_absolute else [*self._folder, *parts]
        fewest = 1 if is_absolute else len(parts)
        for start in range(len(whole) - fewest + 1):
            for folder in (folder_of(self.source), ""):
                path = "/".join(filter(None, [folder, *whole[start:]]))
                if path in paths:
                    return path
        return None


def _typed(kind: Any, value: object, place: str) -> Any:
    try:
        return validate(kind, value, place)
    except ValueError as error:
        raise DataError(f"{error}: correct it") from None


def _listed(reading: Reading, source: str, finder: ImageFinder) -> Iterator[str]:
    """Yields the images that a text file lists, a path in each line."""
    for line in read_text(reading.root / source, limit=MAX_IMAGE_BYTES).splitlines():
        name = line.strip()
        path = finder.find(name, source) if name else None
        if path is not None:
            yield path.relative_to(reading.root).as_posix()
        elif name:
            reading.leave_out("line", f"of {source} without its image", name)


def _parts(path: str) -> list[str]:
    """Returns the names in a path, without those that lead upwards or to where it is."""
    path = posixpath.normpath(path.replace("\\", "/"))
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def _parents(path: str) -> list[str]:
    """Returns the folders above a path, the nearest first; the root is the empty text."""
    folders = []
    while path:
        path = folder_of(path)
        folders.append(path)
    return folders


def _settings_files(root: Path, files: Iterable[str]) -> list[str]:
    candidates = [path for path in files if path.lower().endswith(_YAML)]
    return [path for path in candidates[:_MOST_YAML] if starts_with(root / path, rb"^names\s*:")]


def _label_files(files: Sequence[str]) -> dict[str, str]:
    """Returns the images of all text files that have one beside them, or in ``images``."""
    image_of_stem = {posixpath.splitext(path)[0]: path for path in images_of(files)}
    labels: dict[str, str] = {}
    for path in files:
        stem, suffix = posixpath.splitext(path)
        if suffix.lower() == ".txt":
            before, folder, name = f"/{stem}".rpartition("/labels/")
            swapped = f"{before}/images/{name}"[1:] if folder else stem
            image = image_of_stem.get(swapped, image_of_stem.get(stem))
            if image is not None:
                labels[path] = image
    return labels


def _objects(reading: Reading, source: str, settings: _Settings) -> list[Annotation]:
    path, objects = reading.root / source, []
    for number, line in enumerate(read_text(path, limit=MAX_IMAGE_BYTES).splitlines(), 1):
        try:
            values = [float(text) for text in line.split()]
            if len(values) == 5:
                reading.leave_out_box(source)
            elif values:
                name, ring = settings.class_name(int(values[0])), as_ring(_pairs(values[1:]))
                objects.append(Annotation(class_name=name, shape=RelativePolygon(ring)))
        except (ValueError, OverflowError) as error:
            fault = f"line {number} is not a class and x, y of three corners or more ({error})"
            raise DataError(f"{path}: {fault}: correct it") from None
    return objects


def _pairs(values: Sequence[float]) -> list[tuple[float, float]]:
    return [*zip(values[::2], values[1::2], strict=True)]
