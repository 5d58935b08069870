"""BTS (Lee et al. 2019) after Eigen et al. 2014: what most papers of metric depth report."""

from typing import ClassVar

import numpy as np

from dpt.metrics.rules.base import DepthImage, DepthRule
from dpt.metrics.rules.errors import EIGEN, Errors
from dpt.metrics.rules.moments import Floats, Mask


class Bts(DepthRule):
    """The rule of ``compute_errors`` and the clamps before it."""

    name = "bts"
    summary = "Clamps metres to the range of the data and fits nothing."
    original = "cleinc/bts pytorch/bts_test.py: compute_errors"
    errors: ClassVar[Errors] = EIGEN

    def predicted(self, image: DepthImage, counted: Mask) -> Floats:
        low, high = self.min_depth, image.max_depth
        metres = np.nan_to_num(image.prediction_at(counted), nan=low, posinf=high, neginf=low)
        return metres.clip(low, high)
