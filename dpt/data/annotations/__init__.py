"""Formats of label tools: one module each, all with the records of ``base``."""

from dpt.data.annotations.base import AnnotationFormat

FORMATS: dict[str, AnnotationFormat] = {}
"""The formats by their names in ``data.annotations``."""
