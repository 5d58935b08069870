"""Formats of label tools: one module each, all with the records of ``base``."""

from dpt.data.annotations.base import AnnotationFormat
from dpt.data.annotations.labelme import LabelmeFormat
from dpt.data.annotations.via import ViaFormat

FORMATS: dict[str, AnnotationFormat] = {tool.name: tool for tool in (LabelmeFormat(), ViaFormat())}
"""The formats by their names in ``data.annotations``."""
