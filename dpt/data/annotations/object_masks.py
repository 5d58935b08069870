"""A picture for each object, in ``NAME/masks`` beside ``NAME/images`` with one image, as in the
Data Science Bowl of 2018. The pixels of the object are those that are not 0."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from dpt.data.annotations.base import (
    AnnotatedImage,
    Annotation,
    AnnotationFormat,
    Annotations,
    Front,
)
from dpt.data.annotations.reading import Reading, folder_of, images_of
from dpt.data.annotations.shapes import MaskFile


class _Folder(NamedTuple):
    images: list[str]
    masks: list[str]


class ObjectMasksFormat(AnnotationFormat):
    """All objects are of one class, ``object``; the smaller one is in front."""

    name: ClassVar[str] = "object_masks"
    title: ClassVar[str] = "folders with a mask for each object"
    front: ClassVar[Front] = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        folders = [folder for folder in _folders(files).values() if folder.masks]
        is_one = all(len(folder.images) == 1 for folder in folders)
        if not is_one or all(len(folder.masks) == 1 for folder in folders):
            return []  # masks of several images, or of all objects of an image
        return [path for folder in folders for path in folder.masks]

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        reading, chosen = Reading(root, self.title, files), {*sources}
        for folder in _folders(files).values():
            masks = [path for path in folder.masks if path in chosen]
            if len(folder.images) != 1 or not masks:
                for image in folder.images:
                    reading.leave_out("image", "without a folder of its masks", image)
                continue
            objects = [
                Annotation(class_name="object", shape=MaskFile(root / path), name=path)
                for path in masks
            ]
            path = root / folder.images[0]
            reading.images.append(AnnotatedImage(image=path, objects=objects))
        return reading.result()


def _folders(files: Sequence[str]) -> dict[str, _Folder]:
    """Returns the pictures in ``images`` and ``masks`` of each folder."""
    folders: dict[str, _Folder] = defaultdict(lambda: _Folder([], []))
    for path in images_of(files):
        folder, _, kind = folder_of(path).rpartition("/")
        if kind in ("images", "masks"):
            paths = folders[folder]
            (paths.images if kind == "images" else paths.masks).append(path)
    return folders
