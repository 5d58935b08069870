"""Predicted classes and segments in the formats of label tools, with copies of the images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpt.data.annotations.base import AnnotatedClass, AnnotatedImage, Annotation, Mask
from dpt.data.annotations.tracing import trace
from dpt.data.annotations.writers import Entry, Reader, Writer, make_writer
from dpt.data.formats.rle import encode_pixels
from dpt.files import read_bytes
from dpt.predict.inputs import InputFile
from dpt.predict.painting import Style
from dpt.predict.prediction import Prediction
from dpt.predict.product import Product
from dpt.types.outputs import OutputSpec
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
    writer = make_writer(tool, classes)
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
        objects = [
            item
            for item in _objects(self.name, prediction)
            if item.class_name in self.writer.class_ids
        ]
        record = AnnotatedImage(image=source.path, objects=objects)
        entry = Entry(name=source.name, image=record, size=(height, width))
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


def _objects(name: str, prediction: Prediction) -> list[Annotation]:
    """Returns the predicted things, and the connected parts of all other classes."""
    spec, array = prediction.outputs[name], prediction.arrays[name]
    if spec.kind == "logits":
        return [
            Annotation(class_name=spec.class_name(class_id), shape=part)
            for class_id in np.unique(array).tolist()
            for part in trace(array == class_id)
        ]
    objects = []
    for segment in prediction.segments_of(name):
        shape = Mask(encode_pixels(segment.mask))
        for part in [shape] if segment.is_thing else trace(segment.mask):
            score = round(segment.score, 6)
            objects.append(Annotation(class_name=segment.class_name, shape=part, score=score))
    return objects
