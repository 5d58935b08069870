"""Formats of label tools that are recognised, and refused with the way to COCO's format."""

from collections.abc import Sequence
from typing import ClassVar

from dpt.data.annotations.reading import Reading, ToolFormat
from dpt.files import DataError, few


class _UnreadFormat(ToolFormat):
    """A format of JSON files.

    Attributes:
        conversion: what converts it.
    """

    suffixes = (".json", ".ndjson")
    conversion: ClassVar[str]

    def collect(self, reading: Reading, sources: Sequence[str]) -> None:
        fault = f"{few([*sources])} hold annotations of {self.title}, which are not read"
        remedy = f"convert them to COCO ({self.conversion}), and set data.annotations=coco"
        raise DataError(f"{reading.root}: {fault}: {remedy}")


class LabelboxFormat(_UnreadFormat):
    name = "labelbox"
    title = "Labelbox"
    pattern = rb'"Labeled Data"\s*:|"data_row"\s*:\s*\{'
    conversion = "with Labelbox's Python library"


class DatumaroFormat(_UnreadFormat):
    name = "datumaro"
    title = "Datumaro"
    pattern = rb'"categories"\s*:\s*\{\s*"(label|mask|points)"\s*:\s*\{'
    conversion = "datum convert -if datumaro -i DIR -f coco_instances -o OUT"


class SuperAnnotateFormat(_UnreadFormat):
    name = "superannotate"
    title = "SuperAnnotate"
    pattern = rb'"instances"\s*:\s*\[\s*(\{.*"(className|classId)"|\]\s*,\s*"tags")'
    conversion = "superannotate.export_annotation(...)"
