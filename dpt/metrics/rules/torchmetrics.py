"""torchmetrics."""

import numpy as np

from dpt.metrics.rules.classes import IOU, SegmentationRule
from dpt.metrics.rules.moments import Floats


class TorchMetrics(SegmentationRule):
    """The rule of ``MulticlassJaccardIndex(K, average="macro", ignore_index=255)``."""

    name = "torchmetrics"
    summary = "As mmsegmentation, without a score if a labelled pixel is predicted as no class."
    original = "torchmetrics 1.9.0 functional/classification/jaccard.py:38: _jaccard_index_reduce"
    measures = IOU
    no_class = "refused"

    def finish(self, total: Floats) -> Floats:
        return np.array([np.nan]) if total[:, -1].any() else super().finish(total)
