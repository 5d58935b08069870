"""mmsegmentation: scores of most published models since 2020."""

from dpt.metrics.rules.classes import IOU_AND_ACCURACIES, SegmentationRule


class MMSegmentation(SegmentationRule):
    """The rule of ``IoUMetric``, whose aAcc, mIoU and mAcc are rounded to two places of percent."""

    name = "mmsegmentation"
    summary = "Averages IoU over the classes in ground truth or prediction."
    original = "mmsegmentation 1.2.2 mmseg/evaluation/metrics/iou_metric.py:164, 203: IoUMetric"
    measures = IOU_AND_ACCURACIES
