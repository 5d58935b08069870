"""Errors of depth maps, as in the BTS evaluation (Lee et al. 2019), and of surface normals."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpt import depthmath
from dpt.functional import sum_dtype
from dpt.metrics.base import SumMetric, require_one_shape
from dpt.metrics.protocols import Alignment, Protocol
from dpt.types.outputs import DepthKind
from dpt.validation import validate

_LOWER_IS_BETTER = ("abs_rel", "sq_rel", "rmse", "rmse_log", "log10", "silog")
DEPTH_ERRORS = (*_LOWER_IS_BETTER, "delta1", "delta2", "delta3")
"""The columns of :func:`depth_errors`."""
_ALIGNMENTS: dict[DepthKind, Alignment] = {
    "metric": "none",
    "relative": "scale_shift",
    "up_to_scale": "median",
}
"""The fit by default: what is unknown of each kind of prediction."""
_THRESHOLDS = {"within_11_25": 11.25, "within_22_5": 22.5, "within_30": 30.0}
_BINS = 3600  # of the angles from 0 to 180 degrees


def depth_errors(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Returns the nine errors of each image over its valid pixels (Eigen et al. 2014, section 4.3).

    With p the prediction, t the ground truth and e = ln p - ln t: ``abs_rel`` mean |p - t| / t,
    ``sq_rel`` mean (p - t)² / t (metres), ``rmse`` sqrt(mean (p - t)²) (metres), ``rmse_log``
    sqrt(mean e²), ``log10`` mean |e| / ln 10, ``silog`` 100 · sqrt(mean e² - (mean e)²) (KITTI),
    ``delta1..3`` fraction of pixels with max(p/t, t/p) < 1.25, 1.25², 1.25³.

    Args:
        prediction: float (B, H, W), metres, positive.
        target: float (B, H, W), metres, positive where valid.
        valid: bool (B, H, W).

    Returns:
        float (B, 9) in the order of ``DEPTH_ERRORS``; 0 for an image without valid pixels.
    """
    count = valid.sum((-2, -1)).clamp(min=1)
    return _errors_of(_pixel_sums(prediction, target, valid) / count[:, None])


def ause(error: Tensor, uncertainty: Tensor) -> Tensor:
    """Returns the area under the sparsification error of one image, 0 for a perfect order.

    Ilg et al. 2018, section 5: pixels are removed one by one, the most uncertain first. The mean
    error of the remaining ones, divided by that of all, is a curve over the fraction removed, and
    another one if the pixels with the largest errors go first (the oracle). The result is the area
    between the curves, exact and not at some fractions. Pixels of equal uncertainty go in a random
    order, of which this is the expectation.

    Args:
        error: float (N,), >= 0.
        uncertainty: (N,), in any unit.
    """
    error, uncertainty = error.cpu().double(), uncertainty.cpu()  # some devices lack float64
    if error.sum() == 0:
        return error.new_zeros(())
    remaining = torch.arange(1, len(error) + 1)

    def area(order: Tensor) -> Tensor:
        _, groups, counts = order.unique(return_inverse=True, return_counts=True)
        sums = error.new_zeros(len(counts)).index_add(0, groups, error)
        ordered: Tensor = (sums / counts).repeat_interleave(counts)
        return (ordered.cumsum(0) / remaining).mean()

    return (area(uncertainty) - area(error)) / error.mean()


class DepthMetrics(SumMetric):
    """Depth errors, one number for each image, averaged over the images with a valid pixel.

    Papers that pool the pixels of all images report other numbers: ``rmse_pooled`` and, if
    ``all_pooled``, all errors with that ending.

    Args:
        protocol: how depth is scored.
        prediction_kind: ``metric``: depth in metres. ``relative``: inverse depth up to an unknown
            scale and shift. ``up_to_scale``: depth up to an unknown scale.
        uncertainties: names of scores: the :func:`ause` of each uncertainty that :meth:`update` is
            given, by |p - t| / t; NaN of a prediction without.
        **settings: of a :class:`Protocol`, in place of those of ``protocol``.
    """

    lower_is_better = frozenset(
        name + ending for name in _LOWER_IS_BETTER for ending in ("", "_pooled")
    ) | {"ause", "ause_flip"}
    has_limits = True
    errors: Tensor
    pooled: Tensor
    areas: Tensor
    images: Tensor
    pixels: Tensor

    def __init__(
        self,
        protocol: Protocol | None = None,
        *,
        prediction_kind: DepthKind = "metric",
        all_pooled: bool = False,
        uncertainties: Sequence[str] = (),
        **settings: object,
    ) -> None:
        super().__init__()
        protocol = validate(Protocol, {**vars(protocol or Protocol()), **settings}, "protocol")
        validate(DepthKind, prediction_kind, "prediction_kind")
        if prediction_kind != "metric" and protocol.alignment == "none":
            fault = f"{prediction_kind} predictions have no unit"
            raise ValueError(f"{fault}: set alignment to 'median' or 'scale_shift'")
        alignment = protocol.alignment or _ALIGNMENTS[prediction_kind]
        self.protocol: Protocol = replace(protocol, alignment=alignment)
        self.range = protocol.min_depth, protocol.max_depth or math.inf
        self.prediction_kind = prediction_kind
        self.all_pooled = all_pooled
        self.add_sum("errors", len(DEPTH_ERRORS))
        self.add_sum("pooled", len(DEPTH_ERRORS))
        self.uncertainties = tuple(uncertainties)
        self.add_sum("areas", len(self.uncertainties))
        self.add_count("images")
        self.add_count("pixels")

    def update(
        self, prediction: Tensor, target: Tensor, valid: Tensor, *uncertainties: Tensor
    ) -> None:
        """Adds images.

        Args:
            prediction: float (B, H, W) or (H, W), of the ``prediction_kind``.
            target: the same shape, metres.
            valid: bool, the same shape.
            *uncertainties: the same shape, in any unit; one for each of ``uncertainties``, or none.
        """
        require_one_shape(prediction=prediction, target=target, valid=valid)
        size = prediction.shape[-2:]
        prediction, target, valid = (t.reshape(-1, *size) for t in (prediction, target, valid))
        depth, counted = self.in_metres(prediction, target, valid)
        sums = _pixel_sums(depth, target, counted)
        count = counted.sum((1, 2))
        self.errors = self.errors + _errors_of(sums / count.clamp(min=1)[:, None]).sum(0)
        self.pooled = self.pooled + sums.sum(0)
        self.images = self.images + (count > 0).sum()
        self.pixels = self.pixels + count.sum()
        if len(uncertainties) < len(self.uncertainties):
            self.areas = self.areas + torch.nan
            return
        error = (depth - target).abs() / target
        for k in torch.nonzero(count).flatten().tolist():
            maps = (values.reshape(-1, *size)[k][counted[k]] for values in uncertainties)
            areas = [ause(error[k][counted[k]], values) for values in maps]
            self.areas = self.areas + torch.stack(areas).to(self.areas) if areas else self.areas

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars by name, NaN if no valid pixel was seen."""
        by_image = dict(zip(DEPTH_ERRORS, (self.errors / self.images).unbind(), strict=True))
        over_pixels = _errors_of(self.pooled / self.pixels).unbind()
        pooled = {f"{k}_pooled": v for k, v in zip(DEPTH_ERRORS, over_pixels, strict=True)}
        areas = dict(zip(self.uncertainties, (self.areas / self.images).unbind(), strict=True))
        pooled = pooled if self.all_pooled else {"rmse_pooled": pooled["rmse_pooled"]}
        return by_image | areas | pooled

    def cropped(self, valid: Tensor) -> Tensor:
        """Returns ``valid``, bool (B, H, W), inside the crop of the protocol."""
        top, bottom, left, right = self.protocol.box(valid.shape[-2], valid.shape[-1])
        is_inside = torch.zeros_like(valid)
        is_inside[..., top:bottom, left:right] = True
        return valid & is_inside

    def in_metres(self, prediction: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the prediction aligned and clamped, metres (B, H, W), and the pixels that count.

        Arguments as for :meth:`update`, with the batch axis.
        """
        prediction = depthmath.at_least_float32(prediction)
        target = depthmath.at_least_float32(target)
        low, high = self.range
        counted = depthmath.valid_range(target, self.cropped(valid), min_depth=low, max_depth=high)
        is_inverse = self.prediction_kind == "relative"
        if self.protocol.alignment != "none":
            fitted = counted & prediction.isfinite()
            if self.protocol.space == "inverse_depth" and not is_inverse:
                fitted &= prediction > 0
                prediction = torch.where(prediction > 0, prediction, 0.0).reciprocal()
                is_inverse = True
            reference = depthmath.inverse_depth(target, counted) if is_inverse else target
            prediction = self._align(prediction, reference, fitted)
        if is_inverse:
            prediction = prediction.clamp(1 / high, 1 / low).reciprocal()
        return prediction.nan_to_num(nan=low, posinf=high, neginf=low).clamp(low, high), counted

    def _align(self, prediction: Tensor, reference: Tensor, valid: Tensor) -> Tensor:
        if self.protocol.alignment == "median":
            return prediction * depthmath.align_median(prediction, reference, valid)[:, None, None]
        scale, shift = depthmath.align_scale_shift(prediction, reference, valid)
        return prediction * scale[:, None, None] + shift[:, None, None]


def _pixel_sums(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Returns sums over each image's valid pixels, (B, 9).

    They are of |p - t| / t, (p - t)² / t, (p - t)², e², |e|, e and the three thresholds.
    """
    # 1 where invalid: every term but the thresholds is 0 there
    p = torch.where(valid, depthmath.at_least_float32(prediction), 1.0)
    t = torch.where(valid, depthmath.at_least_float32(target), 1.0)
    difference = p - t
    log_error = p.log() - t.log()
    square = difference.square()
    ratio = torch.where(valid, torch.maximum(p / t, t / p), torch.inf)
    terms = [difference.abs() / t, square / t, square]
    terms += [log_error.square(), log_error.abs(), log_error]
    terms += [ratio < 1.25**power for power in (1, 2, 3)]
    dtype = sum_dtype(p.device)
    return torch.stack([term.sum((-2, -1), dtype=dtype) for term in terms], dim=1)


def _errors_of(means: Tensor) -> Tensor:
    """Returns the nine errors (..., 9) from means over pixels, in the order of `_pixel_sums`."""
    abs_rel, sq_rel, square, log_square, log_abs, log, *deltas = means.unbind(-1)
    variance = (log_square - log.square()).clamp(min=0)
    roots = square.sqrt(), log_square.sqrt(), log_abs / math.log(10), 100 * variance.sqrt()
    return torch.stack([abs_rel, sq_rel, *roots, *deltas], dim=-1)


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
    counts: Tensor
    """int64: all pixels, and those below each of ``_THRESHOLDS``."""
    histogram: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 2)  # of angles and their squares
        self.add_count("counts", 1 + len(_THRESHOLDS))
        self.add_count("histogram", _BINS)

    def update(self, prediction: Tensor, target: Tensor, valid: Tensor) -> None:
        """Adds images.

        Args:
            prediction: float (B, 3, H, W), of any length above 0; without a direction, which zeros
                and NaN do not have, its angle counts as 180 degrees.
            target: float (B, 3, H, W), of length 1 where valid.
            valid: bool (B, H, W).
        """
        require_one_shape(prediction=prediction, target=target)
        angles = depthmath.angle_between(prediction, target).rad2deg().to(self.sums.dtype)
        angles = angles.where(prediction.any(dim=1), 180.0).nan_to_num(nan=180.0)[valid]
        self.sums = self.sums + torch.stack([angles.sum(), angles.square().sum()])
        limits = angles.new_tensor([torch.inf, *_THRESHOLDS.values()])
        self.counts = self.counts + (angles[:, None] < limits).sum(0)
        bins = (angles * (_BINS / 180)).long().clamp(max=_BINS - 1)
        self.histogram = self.histogram + torch.bincount(bins, minlength=_BINS)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars by name, NaN if no normal was known."""
        mean, square = self.sums / self.counts[0]
        fractions = dict(zip(_THRESHOLDS, self.counts[1:] / self.counts[0], strict=True))
        errors = {"angle": mean, "angle_median": self._median(), "angle_rmse": square.sqrt()}
        return errors | fractions

    def _median(self) -> Tensor:
        below = self.histogram.cumsum(0)
        half = self.counts[0] / 2
        k = int(torch.searchsorted(below, half).clamp(max=_BINS - 1))
        inside = (half - (below[k] - self.histogram[k])) / self.histogram[k]
        return (k + inside) * (180 / _BINS)
