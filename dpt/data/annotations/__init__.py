"""Formats of label tools: one module each, all with the records of ``base``."""

from dpt.data.annotations.base import AnnotationFormat
from dpt.data.annotations.coco import CocoFormat
from dpt.data.annotations.cvat import CvatFormat
from dpt.data.annotations.labelme import LabelmeFormat
from dpt.data.annotations.labelstudio import LabelStudioFormat
from dpt.data.annotations.supervisely import SuperviselyFormat
from dpt.data.annotations.via import ViaFormat
from dpt.data.annotations.yolo import YoloFormat

FORMATS: dict[str, AnnotationFormat] = {
    tool.name: tool
    for tool in (
        CocoFormat(),
        LabelmeFormat(),
        ViaFormat(),
        YoloFormat(),
        CvatFormat(),
        LabelStudioFormat(),
        SuperviselyFormat(),
    )
}
"""The formats by their names in ``data.annotations``."""
