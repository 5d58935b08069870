"""Formats of label tools: one module each, with its reader and its writer."""

from dpt.data.annotations import base
from dpt.data.annotations.coco import CocoFormat, CocoWriter
from dpt.data.annotations.cvat import CvatFormat
from dpt.data.annotations.labelme import LabelmeFormat, LabelmeWriter
from dpt.data.annotations.labelstudio import LabelStudioFormat
from dpt.data.annotations.masks import FolderWriter, ObjectMasksFormat, VocWriter
from dpt.data.annotations.via import ViaFormat
from dpt.data.annotations.yolo import YoloFormat, YoloWriter

_EVERY_FORMAT: tuple[base.AnnotationFormat, ...] = (
    CocoFormat(),
    LabelmeFormat(),
    ViaFormat(),
    YoloFormat(),
    CvatFormat(),
    LabelStudioFormat(),
    ObjectMasksFormat(),
)
FORMATS = {item.name: item for item in _EVERY_FORMAT}
"""The formats by their names in ``data.annotations``."""

_EVERY_WRITER: tuple[type[base.Writer], ...] = (
    CocoWriter,
    YoloWriter,
    LabelmeWriter,
    VocWriter,
    FolderWriter,
)
WRITERS = {writer.name: writer for writer in _EVERY_WRITER}
"""By the names of ``dpt data convert --to``."""
