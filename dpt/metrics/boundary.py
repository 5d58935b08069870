"""Boundary IoU (Cheng et al. 2021): overlap of the pixels near class boundaries."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

DILATION = 0.02
"""Width of the boundary, as a share of the image's diagonal (Cheng et al. 2021, section 4.2)."""


def boundary_width(height: int, width: int, ratio: float = DILATION) -> int:
    """In pixels, at least one."""
    return max(1, round(ratio * math.hypot(height, width)))


def near_boundary(ids: Tensor, width: int) -> Tensor:
    """Pixels at most ``width`` pixels (Chebyshev distance) from another class or the border.

    Equal to what ``width`` erosions by 3 × 3 remove from each class, for all classes in one pass:
    a pixel is not near a boundary if its window holds one class alone, that is, if all pairs of
    neighbours in the window are equal.

    Args:
        ids: integer (B, H, W), not negative.
        width: in pixels, at least 1.

    Returns:
        bool (B, H, W).
    """
    padded = F.pad(ids, (width,) * 4, value=-1)  # unlike every class
    equal = padded[..., 1:] == padded[..., :-1]
    rows = _all_of(equal, 2 * width, dim=-1)  # each row of the window holds one class
    middle = padded[..., width:-width]
    column = _all_of(middle[:, 1:] == middle[:, :-1], 2 * width, dim=-2)
    return ~(_all_of(rows, 2 * width + 1, dim=-2) & column)


def boundary_counts(
    prediction: Tensor,
    labels: Tensor,
    num_classes: int,
    ignore_index: int = 255,
    ratio: float = DILATION,
) -> Tensor:
    """Pixels near the boundary of each class: int64 (3, K), in both, in truth, in prediction.

    With G and P a class in truth and prediction, and G_d and P_d their pixels within distance d of
    the outside: |G_d ∩ P_d|, |G_d|, |P_d| (Cheng et al. 2021, eq. 3), summed over a data set as
    for IoU. Pixels labelled ``ignore_index`` do not count and belong to no class in both.

    Args:
        prediction, labels: integer class ids (B, H, W).
        num_classes: K.
        ignore_index: label of pixels that do not count.
        ratio: d as a share of the diagonal.
    """
    known = (labels != ignore_index) & (labels >= 0) & (labels < num_classes)
    has_class = known & (prediction >= 0) & (prediction < num_classes)
    truth = torch.where(known, labels.int(), num_classes)
    found = torch.where(has_class, prediction.int(), num_classes)
    found = torch.where(known, found, num_classes + 1)  # a hole differs from "no class predicted"
    height, width = labels.shape[-2:]
    distance = boundary_width(height, width, ratio)
    near_truth, near_found = near_boundary(truth, distance), near_boundary(found, distance)

    def count(ids: Tensor, where: Tensor) -> Tensor:
        bins = torch.where(where, ids, num_classes).flatten()
        return torch.bincount(bins, minlength=num_classes + 1)[:num_classes]

    return torch.stack(
        [
            count(truth, near_truth & near_found & (truth == found)),
            count(truth, near_truth & known),
            count(found, near_found & has_class),
        ]
    )


def boundary_iou(counts: Tensor) -> Tensor:
    """(K,) from (3, K) counts; NaN for a class in neither truth nor prediction."""
    both, truth, found = counts.double() if counts.device.type != "mps" else counts.float()
    return both / (truth + found - both)


def _all_of(flags: Tensor, count: int, *, dim: int) -> Tensor:
    """Whether ``count`` consecutive flags are all set, from each position, in log₂(count) steps."""
    size = 1
    while size < count:
        step = min(size, count - size)
        length = flags.shape[dim] - step
        flags = flags.narrow(dim, 0, length) & flags.narrow(dim, step, length)
        size += step
    return flags
