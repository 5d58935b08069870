"""Hugging Face's evaluate, by which examples of transformers score."""

from dpt.metrics.rules.classes import IOU_AND_ACCURACIES, SegmentationRule


class Evaluate(SegmentationRule):
    """The rule of ``mean_iou`` with ``ignore_index=255`` and without ``nan_to_num``."""

    name = "evaluate"
    summary = "As mmsegmentation: nan_to_num changes the scores of single classes, not their mean."
    original = "huggingface/evaluate metrics/mean_iou/mean_iou.py:96, 210: mean_iou"
    measures = IOU_AND_ACCURACIES
