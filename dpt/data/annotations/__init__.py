"""Formats of label tools: one module each, with its reader and its writer."""

from collections.abc import Sequence
from pathlib import Path

from dpt.data.annotations import base, coco, cvat, labelme, labelstudio, masks, via, yolo
from dpt.files import few

_EVERY_FORMAT: tuple[base.AnnotationFormat, ...] = (
    coco.CocoFormat(),
    labelme.LabelmeFormat(),
    via.ViaFormat(),
    yolo.YoloFormat(),
    cvat.CvatFormat(),
    labelstudio.LabelStudioFormat(),
    masks.ObjectMasksFormat(),
)
FORMATS = {item.name: item for item in _EVERY_FORMAT}
"""The formats by their names in ``data.annotations``."""

_LABEL_TOOLS = (coco.CocoWriter, yolo.YoloWriter, labelme.LabelmeWriter)
WRITERS: dict[str, type[base.Writer]] = {
    writer.name: writer for writer in (*_LABEL_TOOLS, masks.VocWriter, masks.FolderWriter)
}
"""By the names of ``dpt data convert --to``."""

UNREAD: tuple[tuple[str, bytes, str], ...] = (
    (".csv", rb"\A.*\bregion_shape_attributes\b", "VIA's CSV: export the annotations as JSON"),
    (".csv", rb"(?i)\A.*\b(encoded_?pixels|rle)", "Kaggle's run lengths: draw them as PNG masks"),
    (".json", rb'"annotator"\s*:', "Label Studio's JSON-MIN: export JSON"),
    (".xml", rb"<pt\b", "LabelMe's XML: let CVAT read it, and export CVAT for images 1.1"),
    (".xml", rb"<bndbox\b", "boxes, as Pascal VOC's: draw polygons or masks"),
    (".xml", rb"<(Vertex|Coordinate|Shapes)\b", "contours, as Aperio's: draw them as PNG masks"),
    (".txt", rb"\A\s*\d+[ \t]\d\d\S*([ \t]\d\S*){3}", "YOLO's in pixels: export fractions"),
    (".txt", rb"\A\s*[^\s\d.+-].*?([ \t][-\d.]+){4}", "YOLO's with names: export class ids"),
)
"""Label files that are not read: their suffix, a pattern that is searched in their beginning, and
what they are, with the remedy. Text files count where YOLO's would be."""


def unread_files(root: Path, files: Sequence[str]) -> str:
    """Returns a text about the files of ``UNREAD`` that are there; empty if none is.

    Args:
        files: paths of all files below ``root``, with ``/``.
    """
    texts: list[str] = []
    for suffix, pattern, text in UNREAD:
        candidates = yolo.label_files(files) if suffix == ".txt" else files
        paths = [path for path in candidates if path.lower().endswith(suffix)]
        matching = base.files_like(root, paths, pattern)
        texts += [f"{few(matching)} not read, {text}"] if matching else []
    return "; ".join(texts)
