"""Errors of depth maps as the literature reports them, with the BTS evaluation's details."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from dpt.depthmath import (
    align_median,
    align_scale_shift,
    at_least_float32,
    inverse_depth,
    masked_mean,
    valid_range,
)
from dpt.metrics.base import SumMetric

DEPTH_ERRORS = (
    "abs_rel",
    "sq_rel",
    "rmse",
    "rmse_log",
    "log10",
    "silog",
    "delta1",
    "delta2",
    "delta3",
)
"""The columns of :func:`depth_errors`."""

Alignment = Literal["none", "median", "scale_shift"]
PredictionKind = Literal["metric", "relative"]


def depth_errors(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """The nine errors of each image over its valid pixels (Eigen et al. 2014, section 4.3).

    With p the prediction, t the truth and e = ln p - ln t: ``abs_rel`` mean |p - t| / t,
    ``sq_rel`` mean (p - t)² / t (metres), ``rmse`` sqrt(mean (p - t)²) (metres), ``rmse_log``
    sqrt(mean e²), ``log10`` mean |e| / ln 10, ``silog`` 100 · sqrt(mean e² - (mean e)²) (KITTI),
    ``delta1..3`` share of pixels with max(p/t, t/p) < 1.25, 1.25², 1.25³.

    Args:
        prediction: float (B, H, W), metres, positive.
        target: float (B, H, W), metres, positive where valid.
        valid: bool (B, H, W).

    Returns:
        float (B, 9) in the order of ``DEPTH_ERRORS``; 0 for an image without valid pixels.
    """
    # Where invalid both are 1, so that every error below is 0 there without another mask.
    p = torch.where(valid, at_least_float32(prediction), 1.0)
    t = torch.where(valid, at_least_float32(target), 1.0)
    count = valid.sum((-2, -1)).clamp(min=1)

    def mean(values: Tensor) -> Tensor:
        return values.sum((-2, -1)) / count

    difference, log_error = p - t, p.log() - t.log()
    square = difference.square()
    mean_log = masked_mean(log_error, valid)
    centred = torch.where(valid, log_error - mean_log[:, None, None], 0.0)
    ratio = torch.where(valid, torch.maximum(p / t, t / p), torch.inf)
    return torch.stack(
        [
            mean(difference.abs() / t),
            mean(square / t),
            mean(square).sqrt(),
            mean(log_error.square()).sqrt(),
            mean(log_error.abs()) / math.log(10),
            100 * mean(centred.square()).sqrt(),
            *(mean((ratio < 1.25**power).to(p.dtype)) for power in (1, 2, 3)),
        ],
        dim=1,
    )


class DepthMetrics(SumMetric):
    """Depth errors, one number an image, averaged over the images that have a valid pixel.

    As in the BTS evaluation: the truth counts strictly inside (``min_depth``, ``max_depth``); the
    prediction is clamped to that range, its NaN to ``min_depth`` and infinity to ``max_depth``.
    Papers that pool the pixels of all images report another RMSE: ``rmse_pooled``.

    Args:
        max_depth: metres.
        min_depth: metres, > 0.
        prediction_kind: ``metric``: depth in metres. ``relative``: inverse depth up to an unknown
            scale and shift.
        alignment: what is fitted to each image's truth before scoring. ``none``: nothing (metric
            only). ``median``: a factor that makes the medians equal. ``scale_shift``: least
            squares. Relative predictions are fitted to the inverse of the truth, then inverted, a
            value ≤ 1/max_depth becoming ``max_depth`` (Ranftl et al. 2020); metric ones are fitted
            in metres.
    """

    errors: Tensor
    squared_error: Tensor
    images: Tensor
    pixels: Tensor

    def __init__(
        self,
        *,
        max_depth: float,
        min_depth: float = 1e-3,
        prediction_kind: PredictionKind = "metric",
        alignment: Alignment = "none",
    ) -> None:
        super().__init__()
        if not 0 < min_depth < max_depth:
            raise ValueError(
                f"0 < min_depth < max_depth is needed, got min_depth={min_depth}, "
                f"max_depth={max_depth}"
            )
        if prediction_kind not in get_args(PredictionKind):
            allowed = get_args(PredictionKind)
            raise ValueError(f"prediction_kind {prediction_kind!r} is unknown; allowed: {allowed}")
        if alignment not in get_args(Alignment):
            allowed = get_args(Alignment)
            raise ValueError(f"alignment {alignment!r} is unknown; allowed: {allowed}")
        if prediction_kind == "relative" and alignment == "none":
            raise ValueError(
                "relative predictions have no unit: alignment must be 'median' or 'scale_shift'"
            )
        self.min_depth = min_depth
        self.max_depth = max_depth
        self.prediction_kind = prediction_kind
        self.alignment = alignment
        self.add_sum("errors", len(DEPTH_ERRORS))
        self.add_sum("squared_error")
        self.add_count("images")
        self.add_count("pixels")

    def update(self, prediction: Tensor, target: Tensor, valid: Tensor) -> None:
        """Args: prediction: float (B, H, W) or (H, W), of the kind set above; target: the same
        shape, metres; valid: bool, the same shape."""
        if not (prediction.ndim in (2, 3) and prediction.shape == target.shape == valid.shape):
            shapes = [tuple(t.shape) for t in (prediction, target, valid)]
            raise ValueError(
                "prediction, target and valid must share one shape, (B, H, W) or (H, W), "
                f"got {shapes}"
            )
        if prediction.ndim == 2:
            prediction, target, valid = prediction[None], target[None], valid[None]
        target = at_least_float32(target)
        valid = valid_range(target, valid, min_depth=self.min_depth, max_depth=self.max_depth)
        depth = self._to_depth(at_least_float32(prediction), target, valid)

        errors = depth_errors(depth, target, valid).to(self.errors.dtype)
        count = valid.sum((1, 2))
        self.errors = self.errors + errors.sum(0)
        mean_square = errors[:, DEPTH_ERRORS.index("rmse")].square()
        self.squared_error = self.squared_error + (mean_square * count).sum()
        self.images = self.images + (count > 0).sum()
        self.pixels = self.pixels + count.sum()

    def compute(self) -> dict[str, Tensor]:
        """Scalars by name, NaN if no valid pixel was seen."""
        means = self.errors / self.images
        result = dict(zip(DEPTH_ERRORS, means.unbind(), strict=True))
        result["rmse_pooled"] = (self.squared_error / self.pixels).sqrt()
        return result

    def _to_depth(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Aligned depth in metres, within [min_depth, max_depth] and never NaN."""
        relative = self.prediction_kind == "relative"
        if self.alignment != "none":
            reference = inverse_depth(target, valid) if relative else target
            known = valid & prediction.isfinite()
            if self.alignment == "median":
                factor = align_median(prediction, reference, known)
                prediction = prediction * factor[:, None, None]
            else:
                scale, shift = align_scale_shift(prediction, reference, known)
                prediction = prediction * scale[:, None, None] + shift[:, None, None]
        if relative:
            prediction = prediction.clamp(1 / self.max_depth, 1 / self.min_depth).reciprocal()
        low, high = self.min_depth, self.max_depth
        return prediction.nan_to_num(nan=low, posinf=high, neginf=low).clamp(low, high)
