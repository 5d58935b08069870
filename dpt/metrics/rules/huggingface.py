"""Hugging Face's evaluate, whose ``mean_iou`` users of transformers score by."""

from dpt.metrics.rules.classes import IOU_AND_ACCURACIES, SegmentationRule


class Evaluate(SegmentationRule):
    """The rule of ``mean_iou`` with ``ignore_index=255``.

    The example of transformers (``run_semantic_segmentation.py``) passes 0 instead: pixels of class
    0 do not count, and predictions on pixels without a label (255) enlarge the unions.
    """

    name = "evaluate"
    summary = "As mmsegmentation: nan_to_num changes the scores of single classes, not their mean."
    original = "huggingface/evaluate metrics/mean_iou/mean_iou.py:96, 210: mean_iou"
    measures = IOU_AND_ACCURACIES
