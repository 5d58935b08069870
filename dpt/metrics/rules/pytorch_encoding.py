"""PyTorch-Encoding, whose evaluation the official DPT code names as its base."""

from typing import ClassVar

import numpy as np

from dpt.metrics.rules.classes import Measures, SegmentationRule

TINY = np.spacing(1)


class PyTorchEncoding(SegmentationRule):
    """The rule of ``SegmentationMetric``."""

    name = "pytorch_encoding"
    summary = "Averages IoU over all classes: those in neither ground truth nor prediction are 0."
    original = "zhanghang1989/PyTorch-Encoding encoding/utils/metrics.py:35, 108"
    absent = "0"
    measures: ClassVar[Measures] = {
        "miou": lambda a: float((a.hits / (TINY + a.union)).mean()),
        "pixel_accuracy": lambda a: float(a.hits.sum() / (TINY + a.labelled.sum())),
    }
