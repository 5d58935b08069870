"""A picture for each object, in ``NAME/masks`` beside ``NAME/images`` with one image, as in the
Data Science Bowl of 2018. The pixels of the object are those that are not 0."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpt.data.annotations.reading import Part, Reading, ToolFormat, folder_of, images_of
from dpt.data.annotations.shapes import MaskFile


class _Folder(NamedTuple):
    images: list[str]
    masks: list[str]


class ObjectMasksFormat(ToolFormat):
    """All objects are of one class, ``object``; the smaller one is in front."""

    name = "object_masks"
    title = "folders with a mask for each object"
    front = "smaller"

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        folders = [folder for folder in _folders(files).values() if folder.masks]
        sizes = {0, *(len(folder.images) for folder in folders)}  # 0: its image is missing
        if sizes != {0, 1} or all(len(folder.masks) == 1 for folder in folders):
            return []  # masks of several images, or of all objects of an image
        return [path for folder in folders for path in folder.masks]

    def collect(self, reading: Reading, sources: Sequence[str]) -> None:
        chosen = {*sources}
        for folder in _folders(reading.files).values():
            masks = [path for path in folder.masks if path in chosen]
            if len(folder.images) == 1 and masks:
                parts = [Part("object", MaskFile(reading.root / k), name=k) for k in masks]
                reading.add_image(reading.root / folder.images[0], parts)
                continue
            for image in folder.images:
                reading.leave_out("image", "no folder of its masks", image)
            for path in masks:
                reading.leave_out("mask", "its image is not there", path)


def _folders(files: Sequence[str]) -> dict[str, _Folder]:
    """Returns the pictures in ``images`` and ``masks`` of each folder."""
    folders: dict[str, _Folder] = defaultdict(lambda: _Folder([], []))
    for path in images_of(files):
        folder, _, kind = folder_of(path).rpartition("/")
        if kind in ("images", "masks"):
            paths = folders[folder]
            (paths.images if kind == "images" else paths.masks).append(path)
    return folders
