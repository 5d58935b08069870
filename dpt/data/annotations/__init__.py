"""Formats of label tools: one module each, all with the records of ``base``."""

from dpt.data.annotations.base import AnnotationFormat
from dpt.data.annotations.class_masks import ClassMasksFormat
from dpt.data.annotations.coco import CocoFormat
from dpt.data.annotations.cvat import CvatFormat
from dpt.data.annotations.labelme import LabelmeFormat
from dpt.data.annotations.labelstudio import LabelStudioFormat
from dpt.data.annotations.object_masks import ObjectMasksFormat
from dpt.data.annotations.supervisely import SuperviselyFormat
from dpt.data.annotations.unread import DatumaroFormat, LabelboxFormat, SuperAnnotateFormat
from dpt.data.annotations.via import ViaFormat
from dpt.data.annotations.yolo import YoloFormat

_EVERY_FORMAT: tuple[AnnotationFormat, ...] = (
    CocoFormat(),
    LabelmeFormat(),
    ViaFormat(),
    YoloFormat(),
    CvatFormat(),
    LabelStudioFormat(),
    SuperviselyFormat(),
    ObjectMasksFormat(),
    ClassMasksFormat(),
    LabelboxFormat(),
    DatumaroFormat(),
    SuperAnnotateFormat(),
)
FORMATS = {item.name: item for item in _EVERY_FORMAT}
"""The formats by their names in ``data.annotations``."""
