"""Losses of depth: scale-invariant log, scale- and shift-invariant, gradients; and of normals.

Those of depth take ``prediction``, ``target`` (B, H, W) and ``valid`` bool (B, H, W). All return a
scalar: the mean over the batch of one number per image, which is 0 for an image without valid
pixels. (The papers' own code pools the pixels of a batch, so that an image's weight depends on the
others.)

Only element-wise operations, sums and sorts are used, which autocast leaves in float32;
half-precision inputs are converted first.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from dpt import depthmath
from dpt.depthmath import at_least_float32, inverse_depth, masked_mean, normalize, valid_range
from dpt.plugins import register
from dpt.types.outputs import DepthKind
from dpt.validation import Count, NonNegative, Positive, Share

SILogForm = Literal["bts", "depth_anything", "eigen"]

_FORMS = {"bts": (0.85, 10.0, True), "depth_anything": (0.5, 1.0, True), "eigen": (0.5, 1.0, False)}
"""λ, the factor and whether a root is taken."""


@register("silog")
class SILogLoss(nn.Module):
    """Scale-invariant log error of metric depth.

    With e = ln(prediction) - ln(target) over an image's valid pixels:

    ==================  ==================================  =====================================
    ``form``            loss                                source
    ==================  ==================================  =====================================
    ``bts``             10 · sqrt(mean e² - .85 (mean e)²)  Lee et al. 2019, eq. 4 and code
    ``depth_anything``  sqrt(mean e² - .5 (mean e)²)        Yang et al. 2024 (V2), code, λ = .5
    ``eigen``           mean e² - .5 (mean e)²              Eigen et al. 2014, eq. 4, λ = .5
    ==================  ==================================  =====================================

    Computed as var e + (1 - λ) (mean e)², which rounding cannot make negative. Where the root is 0
    its gradient is set to 0. Below ``eps`` the logarithm of the prediction is continued by its
    tangent, ln(eps) + (p - eps) / eps, whose gradient raises a prediction of 0.

    Args:
        form: see the table.
        eps: metres, > 0.
    """

    def __init__(self, *, form: SILogForm = "bts", eps: Positive = 1e-3) -> None:
        super().__init__()
        self.form, self.eps = form, eps

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss; ``prediction`` and ``target`` are in metres."""
        variance_focus, factor, has_root = _FORMS[self.form]
        error, valid = _log_error(prediction, target, valid, self.eps)
        mean, variance = _mean_and_variance(error, valid)
        loss = variance + (1 - variance_focus) * mean.square()
        return (factor * (_sqrt(loss) if has_root else loss)).mean()


class GradientMatchingLoss(nn.Module):
    """Multi-scale gradient matching of two maps of the same unit (Ranftl et al. 2020, eq. 11).

    Σ_k 1/M_k Σ_i |∇x R_i^k| + |∇y R_i^k| with R = prediction - target and R^k every 2^k-th pixel
    of R, k = 0 .. scales - 1. A difference counts where both neighbours are valid. M_k is the
    number of valid pixels at scale k, as in the authors' code.

    Args:
        scales: number of scales, at least 1.
    """

    def __init__(self, *, scales: Count = 4) -> None:
        super().__init__()
        self.scales = scales

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        _check_shapes(prediction, target, valid)
        prediction = torch.where(valid, at_least_float32(prediction), 0.0)
        residual = prediction - torch.where(valid, at_least_float32(target), 0.0)
        per_image = residual.new_zeros(len(residual))
        for scale in range(self.scales):
            step = 2**scale
            r, m = residual[:, ::step, ::step], valid[:, ::step, ::step]
            dx = torch.where(m[:, :, 1:] & m[:, :, :-1], r[:, :, 1:] - r[:, :, :-1], 0.0)
            dy = torch.where(m[:, 1:] & m[:, :-1], r[:, 1:] - r[:, :-1], 0.0)
            total = dx.abs().sum((1, 2)) + dy.abs().sum((1, 2))
            per_image = per_image + total / m.sum((1, 2)).clamp(min=1)
        return per_image.mean()


@register("si")
class ScaleInvariantLoss(nn.Module):
    """Log error of depth up to scale, which a factor of the prediction does not change.

    sqrt(mean e² - (mean e)²) with e = ln(prediction) - ln(target) over an image's valid pixels
    (Eigen et al. 2014, eq. 3), plus ``gradient_weight`` times gradient matching of e (Ranftl et al.
    2020, eq. 11, in logarithms as Li and Snavely 2018, MegaDepth, section 4.2).

    Args:
        gradient_weight: 0 leaves gradient matching out.
        gradient_scales: number of scales of gradient matching.
        eps: > 0, where the logarithm is continued by its tangent, see :class:`SILogLoss`.
    """

    def __init__(
        self,
        *,
        gradient_weight: NonNegative = 0.5,
        gradient_scales: Count = 4,
        eps: Positive = 1e-6,
    ) -> None:
        super().__init__()
        self.gradient_weight, self.eps = gradient_weight, eps
        self.gradient_matching = GradientMatchingLoss(scales=gradient_scales)

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss; ``target`` is in metres, ``prediction`` in any unit of depth."""
        error, valid = _log_error(prediction, target, valid, self.eps)
        loss = _sqrt(_mean_and_variance(error, valid)[1]).mean()
        if self.gradient_weight > 0:
            gradients = self.gradient_matching(error, torch.zeros_like(error), valid)
            loss = loss + self.gradient_weight * gradients
        return loss


@register("ssi")
class ScaleShiftInvariantLoss(nn.Module):
    """The trimmed scale- and shift-invariant loss of MiDaS (Ranftl et al. 2020, eqs. 5-7, 11, 12).

    Prediction and true inverse depth are each brought to zero median and unit mean absolute
    deviation over the valid pixels (eqs. 5, 6); the loss is 1/(2M) Σ |residual| over the U_M
    smallest of the image's M residuals, U_M = floor((1 - trim) · M) (eq. 7), plus
    ``gradient_weight`` times gradient matching between the aligned maps (eqs. 11, 12).

    Args:
        trim: fraction of the largest residuals that is left out, in [0, 1), to three decimals.
        gradient_weight: α of eq. 12; 0 leaves gradient matching out.
        gradient_scales: K of eq. 11.
    """

    def __init__(
        self, *, trim: Share = 0.2, gradient_weight: NonNegative = 0.5, gradient_scales: Count = 4
    ) -> None:
        super().__init__()
        self.trim = trim
        self.gradient_weight = gradient_weight
        self.gradient_matching = GradientMatchingLoss(scales=gradient_scales)

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss of relative inverse depth; ``target`` is *depth* in metres."""
        _check_shapes(prediction, target, valid)
        valid = valid_range(target, valid, min_depth=0.0, max_depth=torch.inf)
        aligned = normalize(prediction, valid)
        aligned_target = normalize(inverse_depth(target, valid), valid)
        residual = torch.where(valid, (aligned - aligned_target).abs(), torch.inf).flatten(1)
        ordered = residual.sort(dim=1).values  # the valid ones first
        count = valid.flatten(1).sum(1, keepdim=True)
        kept = count * round((1 - self.trim) * 1000) // 1000  # in integers: exact at any size
        rank = torch.arange(ordered.shape[1], device=ordered.device)
        total = torch.where(rank < kept, ordered, 0.0).sum(1, keepdim=True)
        loss = (total / (2 * count.clamp(min=1))).mean()
        if self.gradient_weight > 0:
            gradients = self.gradient_matching(aligned, aligned_target, valid)
            loss = loss + self.gradient_weight * gradients
        return loss


class LogVarianceLoss(nn.Module):
    """Negative log-likelihood of depth whose error has a predicted variance σ².

    The mean over an image's valid pixels of ½ exp(-s) e² + ½ s with s = ln σ² (Kendall and Gal
    2017, section 3.1, eq. 8), which is smallest at s = ln e². The error e is that of ln(depth) for
    ``metric`` depth, the same minus its mean for ``up_to_scale``, and for ``relative`` depth that
    of inverse depth with zero median and unit mean absolute deviation, as in
    :class:`ScaleShiftInvariantLoss`.
    """

    def __init__(self, *, kind: DepthKind, eps: Positive = 1e-3) -> None:
        super().__init__()
        self.kind, self.eps = kind, eps

    def forward(
        self, prediction: Tensor, log_variance: Tensor, target: Tensor, valid: Tensor
    ) -> Tensor:
        """Returns the loss; ``target`` is depth in metres, ``log_variance`` (B, H, W)."""
        error, valid = _log_error(prediction, target, valid, self.eps)
        if self.kind == "up_to_scale":
            error = error - masked_mean(error, valid)[:, None, None]
        elif self.kind == "relative":
            error = normalize(prediction, valid) - normalize(inverse_depth(target, valid), valid)
        s = torch.where(valid, at_least_float32(log_variance), 0.0)  # exp(-s) may be infinite
        return masked_mean(0.5 * (torch.exp(-s) * error.square() + s), valid).mean()


class AngularLoss(nn.Module):
    """The mean angle between predicted and true normals, in radians.

    It is the mean over the batch of one number per image, which is 0 for an image without known
    normals. Do et al. 2020 ("Surface normal estimation of tilted images via spatial rectifier",
    section 3) truncate the same loss where the arccosine has no gradient; the arctangent of
    :func:`dpt.depthmath.angle_between` needs no truncation.
    """

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss.

        Args:
            prediction: float (B, 3, H, W), of any length above 0.
            target: float (B, 3, H, W), of length 1 where valid.
            valid: bool (B, H, W).
        """
        return masked_mean(depthmath.angle_between(prediction, target), valid).mean()


def _log_error(
    prediction: Tensor, target: Tensor, valid: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns ln(prediction) - ln(target), and ``valid`` where the target has a logarithm.

    Below ``eps`` the logarithm of the prediction is continued by its tangent.
    """
    _check_shapes(prediction, target, valid)
    valid = valid_range(target, valid, min_depth=0.0, max_depth=torch.inf)
    prediction = torch.where(valid, at_least_float32(prediction), 1.0)
    floored = prediction.clamp(min=eps)
    error = floored.log() + (prediction - floored) / eps
    return error - torch.where(valid, at_least_float32(target), 1.0).log(), valid


def _mean_and_variance(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    mean = masked_mean(values, valid)
    return mean, masked_mean((values - mean[:, None, None]).square(), valid)


def _sqrt(values: Tensor) -> Tensor:
    """Returns the square root, with a gradient of 0 at 0 instead of infinity."""
    is_zero = values <= torch.finfo(values.dtype).tiny  # not NaN, which stays NaN
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, values).sqrt())


def _check_shapes(prediction: Tensor, target: Tensor, valid: Tensor) -> None:
    if not (prediction.ndim == 3 and prediction.shape == target.shape == valid.shape):
        raise ValueError("depth, target and valid must share one shape (B, H, W)")
