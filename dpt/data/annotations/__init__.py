"""Formats of label tools: one module each, with its reader and its writer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.annotations import base
from dpt.data.annotations.coco import CocoFormat, CocoWriter
from dpt.data.annotations.cvat import CvatFormat
from dpt.data.annotations.labelme import LabelmeFormat, LabelmeWriter
from dpt.data.annotations.labelstudio import LabelStudioFormat
from dpt.data.annotations.masks import ClassMasksFormat, FolderWriter, ObjectMasksFormat, VocWriter
from dpt.data.annotations.supervisely import SuperviselyFormat
from dpt.data.annotations.via import ViaFormat
from dpt.data.annotations.yolo import YoloFormat, YoloWriter
from dpt.files import DataError, few


@dataclass(frozen=True)
class UnreadFormat(base.AnnotationFormat):
    """A format that is recognised, and refused with the way to COCO's format.

    Attributes:
        pattern: regular expression, searched in the beginning of a file.
        conversion: what converts it.
    """

    name: str
    title: str
    pattern: bytes
    conversion: str

    def find(self, root: Path, files: Sequence[str]) -> list[str]:
        candidates = [path for path in files if path.lower().endswith((".json", ".ndjson"))]
        return base.files_like(root, candidates, self.pattern)

    def read(self, root: Path, sources: Sequence[str], files: Sequence[str]) -> base.Annotations:
        fault = f"{few([*sources])} hold annotations of {self.title}, which are not read"
        remedy = f"convert them to COCO ({self.conversion}), and set data.annotations=coco"
        raise DataError(f"{root}: {fault}: {remedy}")


_EVERY_FORMAT: tuple[base.AnnotationFormat, ...] = (
    CocoFormat(),
    LabelmeFormat(),
    ViaFormat(),
    YoloFormat(),
    CvatFormat(),
    LabelStudioFormat(),
    SuperviselyFormat(),
    ObjectMasksFormat(),
    ClassMasksFormat(),
    UnreadFormat(
        "labelbox",
        "Labelbox",
        rb'"Labeled Data"\s*:|"data_row"\s*:\s*\{',
        "with Labelbox's Python library",
    ),
    UnreadFormat(
        "datumaro",
        "Datumaro",
        rb'"categories"\s*:\s*\{\s*"(label|mask|points)"\s*:\s*\{',
        "datum convert -if datumaro -i DIR -f coco_instances -o OUT",
    ),
    UnreadFormat(
        "superannotate",
        "SuperAnnotate",
        rb'"instances"\s*:\s*\[\s*(\{.*"(className|classId)"|\]\s*,\s*"tags")',
        "superannotate.export_annotation(...)",
    ),
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
