"""Predicted classes and segments in the formats of label tools, with copies of the images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpt.data.annotations import WRITERS
from dpt.data.annotations.base import AnnotatedClass, Entry, Reader, Writer
from dpt.data.formats.rle import encode_parts, encode_pixels, object_of
from dpt.files import read_bytes
from dpt.predict.inputs import InputFile
from dpt.predict.painting import Style
from dpt.predict.prediction import Prediction
from dpt.predict.product import Product
from dpt.types.outputs import OutputSpec
from dpt.types.samples import ObjectMask
from dpt.viz import output_palette


def label_products(spec: OutputSpec, folder: str, tool: str) -> list[Product]:
    """Returns the files of each image in a label tool's format.

    Args:
        folder: of the files.
        tool: name of the format.
    """
    things = spec.things or (False,) * (spec.num_classes or 0)
    colors = output_palette(spec).tolist()
    classes = [
        AnnotatedClass(name=spec.class_name(k), is_thing=is_thing, color=tuple(colors[k]))
        for k, is_thing in enumerate(things)
    ]
    writer = WRITERS[tool](classes)
    labels = [
        LabelFile(spec.name, folder, writer=writer, position=position)
        for position in range(len(writer.label_paths("", "")))
    ]
    return [*labels, ImageCopy(spec.name, folder, writer=writer)]


@dataclass(frozen=True, kw_only=True)
class _ToolProduct(Product):
    writer: Writer

    @property
    def is_picture(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class LabelFile(_ToolProduct):
    """One of the label files of an image."""

    position: int  # among the label files

    def path(self, source: InputFile) -> str:
        return f"{self.folder}/{self.writer.label_paths(source.name, '')[self.position]}"

    def encode(
        self, prediction: Prediction, source: InputFile, image: np.ndarray | None, style: Style
    ) -> bytes:
        height, width = prediction.arrays[self.name].shape
        objects = _objects(self.name, prediction)
        entry = Entry(
            image=source.path,
            name=source.name,
            size=(height, width),
            objects=[item for item in objects if item.class_id in self.writer.class_ids],
        )
        return self.writer.encode(entry)[self.position]

    def common_files(self, read: Reader, names: Sequence[str]) -> dict[str, bytes]:
        if self.position:
            return {}

        def read_below(paths: Sequence[str]) -> Iterable[bytes]:
            return read([f"{self.folder}/{path}" for path in paths])

        files = self.writer.common_files(read_below, {"": names})
        return {f"{self.folder}/{path}": content for path, content in files.items()}


@dataclass(frozen=True, kw_only=True)
class ImageCopy(_ToolProduct):
    """A copy of the image where the label tool expects it."""

    def path(self, source: InputFile) -> str:
        return f"{self.folder}/{self.writer.image_path(source.name, '')}{source.path.suffix}"

    def encode(
        self, prediction: Prediction, source: InputFile, image: np.ndarray | None, style: Style
    ) -> bytes:
        return read_bytes(source.fetch())


def _objects(name: str, prediction: Prediction) -> list[ObjectMask]:
    """Returns the predicted things, and the connected parts of all other classes."""
    spec, array = prediction.outputs[name], prediction.arrays[name]
    if spec.kind == "logits":
        return [
            object_of(class_id, part)
            for class_id in np.unique(array).tolist()
            for part in encode_parts(array == class_id)
        ]
    objects: list[ObjectMask] = []
    for segment in prediction.segments_of(name):
        masks = [encode_pixels(segment.mask)] if segment.is_thing else encode_parts(segment.mask)
        score = round(segment.score, 6)
        objects += [object_of(segment.class_id, mask, score=score) for mask in masks]
    return objects
