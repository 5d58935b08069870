"""Arithmetic on depth maps with holes: inverse depth, masked statistics, alignment; and angles.

Every function with ``valid``, bool, reads nothing outside it: invalid pixels may hold 0, NaN
or infinity without reaching a value or a gradient. Maps are (B, H, W), statistics, (B,), are per
image, and no shape depends on the data. Half precision is computed in float32, float64 stays
float64.
"""

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """Returns ``values`` as float32, or unchanged if they are float64."""
    return values if values.dtype == torch.float64 else values.float()


def focal_ratio(K: Tensor, canonical_focal: float) -> Tensor:
    """Returns f / ``canonical_focal`` of cameras (B, 3, 3): canonical depth times it is in metres.

    f is the mean of fx and fy, in pixels of the network's input (Yin et al. 2023, Metric3D, section
    3.1; Depth Anything 3). The result (B,) is NaN where K is.
    """
    return (K[:, 0, 0] + K[:, 1, 1]) / (2 * canonical_focal)


def canonical_prompts(prompts: Tensor, K: Tensor | None, canonical_focal: float | None) -> Tensor:
    """Returns sparse depth (B, H, W) in metres as that of a camera with the canonical focal length.

    It is 0, unknown, for images without a camera ``K`` (B, 3, 3), and as it was without a canonical
    focal length.
    """
    if canonical_focal is None:
        return prompts
    if K is None:
        return torch.zeros_like(prompts)
    ratio = focal_ratio(K, canonical_focal).to(prompts)[:, None, None]
    return (prompts / ratio).nan_to_num(nan=0.0)


def valid_range(depth: Tensor, valid: Tensor, *, min_depth: float, max_depth: float) -> Tensor:
    """Narrows ``valid`` to depths strictly between two limits, as in BTS's evaluation code.

    NaN and infinity are never valid, also for ``max_depth=inf``.
    """
    return valid & (depth > min_depth) & (depth < max_depth)


def inverse_depth(depth: Tensor, valid: Tensor) -> Tensor:
    """Returns 1 / depth in 1/metres (..., H, W) where ``valid`` and positive, 0 elsewhere."""
    usable = valid & (depth > 0)
    safe = torch.where(usable, at_least_float32(depth), 1.0)
    return torch.where(usable, safe.reciprocal(), 0.0)


def masked_mean(values: Tensor, valid: Tensor, dim: int | tuple[int, ...] = (-2, -1)) -> Tensor:
    """Returns the mean of the valid ``values`` along ``dim``; 0 if there are none."""
    total = torch.where(valid, at_least_float32(values), 0.0).sum(dim)
    return total / valid.sum(dim).clamp(min=1)


def masked_median(values: Tensor, valid: Tensor) -> Tensor:
    """Returns the median of each image's valid values, (B, H, W) → (B,); 0 if there are none.

    As in NumPy, the mean of the middle two of an even number of values (``torch.median`` takes the
    lower one). The gradient goes to the one or two middle pixels.
    """
    flat_valid = valid.flatten(1)
    filled = torch.where(flat_valid, at_least_float32(values).flatten(1), torch.inf)
    ordered = filled.sort(dim=1).values
    count = flat_valid.sum(1, keepdim=True)
    lower = (count - 1).clamp(min=0) // 2
    upper = count // 2
    middle = 0.5 * (ordered.gather(1, lower) + ordered.gather(1, upper))
    return torch.where(count > 0, middle, 0.0).squeeze(1)


def median_mad(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (shift, scale), each (B,), such that (values - shift) / scale is normalised.

    Ranftl et al. 2020 (MiDaS), eqs. 5 and 6: shift = median(d), scale = mean |d - shift|, over the
    valid pixels alone (the authors' code takes the median over all pixels, which is 0 for sparse
    ground truth). The scale of a constant map (at most 1e-6 of spread) is 1.
    """
    values = torch.where(valid, at_least_float32(values), 0.0)
    shift = masked_median(values, valid)
    scale = masked_mean((values - shift[:, None, None]).abs(), valid)
    return shift, torch.where(scale > 1e-6, scale, 1.0)


def normalize(values: Tensor, valid: Tensor) -> Tensor:
    """Returns (B, H, W) with zero median and unit mean absolute deviation; 0 where invalid."""
    shift, scale = median_mad(values, valid)
    safe = torch.where(valid, at_least_float32(values), shift[:, None, None])
    return (safe - shift[:, None, None]) / scale[:, None, None]


def align_scale_shift(prediction: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Fits (scale, shift) of each image: argmin Σ (scale · prediction + shift - target)².

    Ranftl et al. 2020, eqs. 2-4, in centred moments: scale = cov(p, t) / var(p), shift = mean(t) -
    scale · mean(p). The normal equations of the paper lose all digits in float32 where the spread
    is small against the mean.

    Returns:
        (scale, shift), each (B,) and finite; the scale may be negative. If it is not determined
        (one valid pixel, constant prediction) it is 0 and the shift the target's mean.
    """
    p = torch.where(valid, at_least_float32(prediction), 0.0)
    t = torch.where(valid, at_least_float32(target), 0.0)
    mean_p, mean_t = masked_mean(p, valid), masked_mean(t, valid)
    centred = p - mean_p[:, None, None]
    variance = masked_mean(centred.square(), valid)
    covariance = masked_mean(centred * (t - mean_t[:, None, None]), valid)
    # rounding leaves a constant map a spread of a few units in the last place of its mean
    limits = torch.finfo(variance.dtype)
    determined = variance > (16 * limits.eps * mean_p).square() + limits.tiny
    scale = torch.where(determined, covariance / torch.where(determined, variance, 1.0), 0.0)
    return scale, mean_t - scale * mean_p


def align_median(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Returns the scale (B,) by which each prediction gets the target's median on valid pixels.

    The "median scaling" of Zhou et al. 2017. 1 if there is no valid pixel or the prediction's
    median is 0.
    """
    median_p, median_t = masked_median(prediction, valid), masked_median(target, valid)
    determined = (median_p.abs() > torch.finfo(median_p.dtype).tiny) & valid.flatten(1).any(1)
    return torch.where(determined, median_t / torch.where(determined, median_p, 1.0), 1.0)


def angle_between(vectors: Tensor, directions: Tensor) -> Tensor:
    """Returns the angles between vectors (B, 3, ...) and unit vectors of the same shape.

    The arctangent of |a × b| and a · b is exact, and has a gradient, where the arccosine has none:
    at small angles.

    Returns:
        float32 at least (B, ...), radians in 0..π.
    """
    a, b = at_least_float32(vectors), at_least_float32(directions)
    across = torch.linalg.vector_norm(torch.linalg.cross(a, b, dim=1), dim=1)
    return torch.atan2(across, (a * b).sum(dim=1))
