"""Formats of label tools: one module each, with its reader and its writer."""

from dpt.data.annotations import base, coco, cvat, labelme, labelstudio, masks, via, yolo

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
