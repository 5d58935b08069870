"""Formats of label tools that are recognised, and refused with the way to COCO's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dpt.data.annotations.base import AnnotationFormat, Annotations, Front
from dpt.data.annotations.reading import files_like
from dpt.files import DataError, few


class _UnreadFormat(AnnotationFormat):
    """A format in JSON files.

    Attributes:
        pattern: regular expression, searched in the beginning of a file.
        conversion: what converts it.
    """

    front: ClassVar[Front] = "later"
    pattern: ClassVar[bytes]
    conversion: ClassVar[str]

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith((".json", ".ndjson"))]
        return files_like(root, candidates, self.pattern)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> Annotations:
        fault = f"{few([*sources])} hold annotations of {self.title}, which are not read"
        remedy = f"convert them to COCO ({self.conversion}), and set data.annotations=coco"
        raise DataError(f"{root}: {fault}: {remedy}")


class LabelboxFormat(_UnreadFormat):
    name: ClassVar[str] = "labelbox"
    title: ClassVar[str] = "Labelbox"
    pattern: ClassVar[bytes] = rb'"Labeled Data"\s*:|"data_row"\s*:\s*\{'
    conversion: ClassVar[str] = "with Labelbox's Python library"


class DatumaroFormat(_UnreadFormat):
    name: ClassVar[str] = "datumaro"
    title: ClassVar[str] = "Datumaro"
    pattern: ClassVar[bytes] = rb'"categories"\s*:\s*\{\s*"(label|mask|points)"\s*:\s*\{'
    conversion: ClassVar[str] = "datum convert -if datumaro -i DIR -f coco_instances -o OUT"


class SuperAnnotateFormat(_UnreadFormat):
    name: ClassVar[str] = "superannotate"
    title: ClassVar[str] = "SuperAnnotate"
    pattern: ClassVar[bytes] = (
        rb'"instances"\s*:\s*\[\s*(\{.*"(className|classId)"|\]\s*,\s*"tags")'
    )
    conversion: ClassVar[str] = "superannotate.export_annotation(...)"
