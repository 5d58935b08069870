"""Errors of surface normals."""

import torch
from torch import Tensor

from dpt.depthmath import angle_between
from dpt.metrics.base import SumMetric, require_one_shape

_THRESHOLDS = {"within_11_25": 11.25, "within_22_5": 22.5, "within_30": 30.0}
_BINS = 3600  # of the angles from 0 to 180 degrees


class NormalMetrics(SumMetric):
    """Angles between predicted and true normals in degrees, over the pixels of all images.

    As in the literature (Fouhey et al. 2013, section 5.2): ``angle``, their mean;
    ``angle_median``; ``angle_rmse``, the root of the mean square; ``within_11_25``, ``within_22_5``
    and ``within_30``, the fractions of pixels with smaller angles. The median is interpolated in a
    histogram of 0.05 degrees.
    """

    lower_is_better = frozenset({"angle", "angle_median", "angle_rmse"})
    has_limits = True
    sums: Tensor
    pixels: Tensor
    within: Tensor
    histogram: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 2)  # of angles and their squares
        self.add_count("pixels")
        self.add_count("within", len(_THRESHOLDS))
        self.add_count("histogram", _BINS)

    def update(self, prediction: Tensor, target: Tensor, valid: Tensor) -> None:
        """Adds images.

        Args:
            prediction: float (B, 3, H, W), of any length above 0.
            target: float (B, 3, H, W), of length 1 where valid.
            valid: bool (B, H, W).
        """
        require_one_shape(prediction=prediction, target=target)
        angles = angle_between(prediction, target)[valid].rad2deg().to(self.sums.dtype)
        angles = angles.nan_to_num(nan=180.0)
        self.sums = self.sums + torch.stack([angles.sum(), angles.square().sum()])
        self.pixels = self.pixels + len(angles)
        limits = angles.new_tensor(list(_THRESHOLDS.values()))
        self.within = self.within + (angles[:, None] < limits).sum(0)
        bins = (angles * (_BINS / 180)).long().clamp(max=_BINS - 1)
        self.histogram = self.histogram + torch.bincount(bins, minlength=_BINS)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars by name, NaN if no normal was known."""
        mean, square = self.sums / self.pixels
        fractions = dict(zip(_THRESHOLDS, self.within / self.pixels, strict=True))
        errors = {"angle": mean, "angle_median": self._median(), "angle_rmse": square.sqrt()}
        return errors | fractions

    def _median(self) -> Tensor:
        below = self.histogram.cumsum(0)
        half = self.pixels / 2
        k = int(torch.searchsorted(below, half).clamp(max=_BINS - 1))
        inside = (half - (below[k] - self.histogram[k])) / self.histogram[k]
        return (k + inside) * (180 / _BINS)
