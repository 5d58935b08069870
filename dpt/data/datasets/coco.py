"""Images and a JSON file of their objects in one of COCO's formats."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpt.data.annotations.base import Annotations
from dpt.data.annotations.coco import CocoFile, CocoFormat
from dpt.data.base import Files
from dpt.data.datasets.annotated import AnnotatedDataset, record_of
from dpt.data.datasets.files import require_files
from dpt.files import plain_name, required_file
from dpt.plugins import register


@register("coco")
@dataclass(kw_only=True, eq=False)
class CocoDataset(AnnotatedDataset):
    """A folder of images and a JSON file of their segments, of which COCO has two kinds.

    Classes are the categories in the order of their ids, without Roboflow's placeholder; the ids
    are added to names that occur twice. Where objects overlap, which they may in the instances
    format, the smaller one is in front in the maps; ``masks`` of a sample holds each one whole.
    Pixels of a crowd have a class and no object.

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
    background: bool | None = False

    def list_files(self) -> list[Files]:
        path = self.path_of(self.annotations)
        required_file(path, remedy="check data.root and data.annotations")
        content, self.annotation_file = CocoFile(path), path
        classes = content.classes(content.used_names)
        folder = path.with_suffix("") if self.masks is None else self.path_of(self.masks)
        images = content.images(
            self._find_images(content.image_names, path),
            classes,
            lambda name: self.file_below(folder, name, path),
        )
        if self.missing == "skip":
            missing = {image.image for image in images if not image.image.is_file()}
            self.unpaired = (), sorted(missing)
            images = [image for image in images if image.image not in missing]
        annotations = Annotations(
            source=path, images=images, classes=[*classes.values()], notes=content.notes
        )
        self.use(annotations, images, front=CocoFormat.front)
        remedy = "check data.images and data.masks, or set data.missing=skip"
        return require_files([*map(record_of, images)], source=path, remedy=remedy)

    def _find_images(self, names: Mapping[int | str, str], path: Path) -> dict[int | str, Path]:
        """Returns the image files by id."""
        folder = self.path_of(self.images)
        images = {i: self.file_below(folder, name, path) for i, name in names.items()}
        absent = {i: image for i, image in images.items() if not image.is_file()}
        if not all(str(image).isascii() for image in absent.values()):
            on_disk = {plain_name(str(path)): path for path in folder.rglob("*")}
            images |= {i: on_disk.get(plain_name(str(p)), p) for i, p in absent.items()}
        return images
