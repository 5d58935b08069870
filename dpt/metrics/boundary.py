"""Boundary IoU: overlap of what lies near the outlines of prediction and truth."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

DILATION = 0.02
"""Width of the boundary, as a share of the picture's diagonal (Cheng et al. 2021, section 4.2)."""


def boundary_width(height: int, width: int, ratio: float = DILATION) -> int:
    """In pixels, at least one."""
    return max(1, round(ratio * math.hypot(height, width)))


def near_boundary(ids: Tensor, width: int) -> Tensor:
    """Where another class, or the picture's end, is at most ``width`` pixels away: bool (B, H, W).

    Away along the longer of the two axes: what ``width`` erosions by 3 × 3 leave of a class is not
    near. One pass serves all classes: not near are the pixels whose window holds one class alone,
    and it does if all neighbours in it are equal.

    Args:
        ids: integer (B, H, W), not negative.
        width: in pixels, at least 1.
    """
    padded = F.pad(ids, (width,) * 4, value=-1)  # unlike every class
    beside = padded[..., 1:] == padded[..., :-1]
    rows = _all_of(beside, 2 * width, dim=-1)  # of all columns of the window, in each of its rows
    middle = padded[..., width:-width]
    below = _all_of(middle[:, 1:] == middle[:, :-1], 2 * width, dim=-2)
    return ~(_all_of(rows, 2 * width + 1, dim=-2) & below)


def boundary_counts(
    prediction: Tensor,
    labels: Tensor,
    num_classes: int,
    ignore_index: int = 255,
    ratio: float = DILATION,
) -> Tensor:
    """Pixels near the boundary of each class: int64 (3, K), in both, in truth, in prediction.

    With G and P a class in truth and prediction, and G_d and P_d their pixels at most d away from
    what is outside: |G_d ∩ P_d|, |G_d|, |P_d| (Cheng et al. 2021, eq. 3), to be summed over a data
    set, as for IoU. Pixels labelled ``ignore_index`` count nowhere and are of no class in both.

    Args:
        prediction, labels: integer class ids (B, H, W).
        num_classes: K.
        ignore_index: label of pixels that do not count.
        ratio: d as a share of the diagonal.
    """
    known = (labels != ignore_index) & (labels >= 0) & (labels < num_classes)
    of_a_class = known & (prediction >= 0) & (prediction < num_classes)
    truth = torch.where(known, labels.int(), num_classes)
    found = torch.where(of_a_class, prediction.int(), num_classes)
    found = torch.where(known, found, num_classes + 1)  # a hole, unlike what is no class at all
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
            count(found, near_found & of_a_class),
        ]
    )


def boundary_iou(counts: Tensor) -> Tensor:
    """(K,) from (3, K) counts; NaN for a class in neither truth nor prediction."""
    both, truth, found = counts.double() if counts.device.type != "mps" else counts.float()
    return both / (truth + found - both)


def _all_of(flags: Tensor, count: int, *, dim: int) -> Tensor:
    """Whether ``count`` flags in a row are all set, from each one on, in log₂(count) steps."""
    size = 1
    while size < count:
        step = min(size, count - size)
        length = flags.shape[dim] - step
        flags = flags.narrow(dim, 0, length) & flags.narrow(dim, step, length)
        size += step
    return flags
