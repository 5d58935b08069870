"""The set loss of mask classification: matching, classes, masks (Cheng et al. 2022, Mask2Former).

Shapes: B batch, Q queries, K classes, N segments of an image, P points, (h, w) a predicted mask,
(H, W) the labels.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from dpt.depthmath import at_least_float32
from dpt.functional import mean_over_processes
from dpt.losses.segmentation import CrossEntropyLoss
from dpt.plugins import register
from dpt.segments import Segments
from dpt.validation import Count, NonNegative, Probability

Pair = tuple[Tensor, Tensor]
"""Queries of an image, and the segments assigned to them: int64 (N,) each."""


@register("set")
class SetLoss(nn.Module):
    """Assigns a query to each segment at the least total cost and compares the pairs.

    Classes are compared by cross-entropy, in which "no object" has the weight ``no_object``; masks
    by sigmoid cross-entropy and Dice at random points, more of them where the prediction is
    uncertain (Kirillov et al. 2020, PointRend, section 3.1). If several layers predict, each is
    matched separately and their losses are added. The losses of masks are summed over segments and
    divided by the mean number of segments of a process.

    Args:
        no_object: weight of queries without a segment.
        class_weight, mask_weight, dice_weight: of the terms, also in the cost of a pair.
        pixel_weight: of the cross-entropy of class logits of pixels, if the head has them.
        num_points: P, at most one for each value of a mask.
        oversample: number of candidates for uncertain points, as a multiple of P.
        importance: fraction of the points that are the most uncertain candidates; the others are
            drawn uniformly.
    """

    def __init__(
        self,
        *,
        no_object: NonNegative = 0.1,
        class_weight: NonNegative = 2.0,
        mask_weight: NonNegative = 5.0,
        dice_weight: NonNegative = 5.0,
        pixel_weight: NonNegative = 4.0,
        num_points: Count = 12544,
        oversample: Annotated[float, Field(ge=1)] = 3.0,
        importance: Probability = 0.75,
    ) -> None:
        super().__init__()
        self.no_object, self.class_weight = no_object, class_weight
        self.mask_weight, self.dice_weight = mask_weight, dice_weight
        self.pixel_weight = pixel_weight
        self.pixel_loss: nn.Module = CrossEntropyLoss()
        self.num_points, self.oversample, self.importance = num_points, oversample, importance

    def forward(
        self,
        masks: Tensor,
        classes: Tensor,
        ground_truth: Sequence[Segments],
        *,
        pixels: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Returns weighted scalars: ``class``, ``mask``, ``dice`` and, with ``pixels``, ``pixel``.

        Args:
            masks: logits (B, L, Q, h, w) of L layers.
            classes: logits (B, L, Q, K + 1), "no object" last.
            ground_truth: the segments of each image; images without a known pixel are left out.
            pixels: class logits of pixels (B, K, h, w), None where the head has none.
            labels: their class ids, (B, H, W).

        Of an image with more segments than queries the largest ones count.
        """
        rows = [k for k, segments in enumerate(ground_truth) if segments.compared.any()]
        masks, classes = at_least_float32(masks[rows]), at_least_float32(classes[rows])
        ground_truth = [ground_truth[k].largest(masks.shape[2]) for k in rows]
        layers = zip(masks.unbind(1), classes.unbind(1), strict=True)
        of_layers = [self._layer(*layer, ground_truth) for layer in layers]
        terms = {k: torch.stack([layer[k] for layer in of_layers]).sum() for k in of_layers[0]}
        if pixels is not None and labels is not None:
            terms["pixel"] = self.pixel_weight * self.pixel_loss(pixels, labels)
        return terms

    def _layer(
        self, masks: Tensor, classes: Tensor, ground_truth: Sequence[Segments]
    ) -> dict[str, Tensor]:
        pairs = self.match(masks, classes, ground_truth)
        no_object = classes.shape[-1] - 1
        targets = classes.new_full(classes.shape[:2], no_object, dtype=torch.long)
        for k, (queries, segments) in enumerate(pairs):
            targets[k, queries] = ground_truth[k].classes[segments]
        weights = classes.new_ones(classes.shape[-1])
        weights[-1] = self.no_object
        entropy = F.cross_entropy(classes.mT, targets, weight=weights, reduction="sum")
        total = mean_over_processes(weights[targets].sum()).clamp(min=1e-6)
        mask, dice = self._mask_terms(masks, pairs, ground_truth)
        return {
            "class": self.class_weight * entropy / total,
            "mask": self.mask_weight * mask,
            "dice": self.dice_weight * dice,
        }

    @torch.no_grad()
    def match(self, masks: Tensor, classes: Tensor, ground_truth: Sequence[Segments]) -> list[Pair]:
        """Returns, for each image, queries and the segments assigned to them, int64 (N,) each.

        The assignment minimises the sum of costs, computed at P points (Kuhn 1955).
        """
        pairs = []
        for mask, logits, segments in zip(masks, classes, ground_truth, strict=True):
            points = torch.rand(1, min(self.num_points, mask[0].numel()), 2, device=masks.device)
            predicted, true, unknown = (
                sample(maps[None].to(mask), points)[0]
                for maps in (mask, segments.masks, ~segments.compared[None])
            )
            is_known = (unknown == 0).to(mask)
            weight = is_known / is_known.sum().clamp(min=1)
            cost = -self.class_weight * logits.softmax(-1)[:, segments.classes]
            cost = cost + self.mask_weight * (
                (F.softplus(-predicted) * weight) @ true.T
                + (F.softplus(predicted) * weight) @ (1 - true).T
            )
            probability = predicted.sigmoid() * is_known
            total = probability.sum(1)[:, None] + (true * is_known).sum(1)
            cost = cost + self.dice_weight * (1 - (2 * probability @ true.T + 1) / (total + 1))
            largest = torch.finfo(cost.dtype).max
            cost = cost.nan_to_num(largest, largest, largest)  # of queries that have diverged
            queries, matched = map(torch.as_tensor, linear_sum_assignment(cost.cpu()))
            pairs.append((queries.to(masks.device), matched.to(masks.device)))
        return pairs

    def _mask_terms(
        self, masks: Tensor, pairs: Sequence[Pair], ground_truth: Sequence[Segments]
    ) -> tuple[Tensor, Tensor]:
        """Returns cross-entropy and Dice of the pairs, summed and divided by their number."""
        sizes = [len(queries) for queries, _ in pairs]
        total = mean_over_processes(masks.new_tensor(float(sum(sizes)))).clamp(min=1)
        if not sum(sizes):
            return masks.sum() * 0, masks.sum() * 0
        predicted = torch.cat([masks[k, queries] for k, (queries, _) in enumerate(pairs)])[:, None]
        with torch.no_grad():
            points = self._points(predicted)
            values = []
            images = zip(ground_truth, pairs, points.split(sizes), strict=True)
            for image, (_, segments), points_of_image in images:
                unknown = ~image.compared.expand(len(segments), -1, -1)
                maps = torch.stack((image.masks[segments], unknown), dim=1)  # (N, 2, H, W)
                values.append(sample(maps.to(masks), points_of_image))
            true, unknown = torch.cat(values).unbind(1)
        logits, is_known = sample(predicted, points)[:, 0], (unknown == 0).to(masks)
        entropy = F.binary_cross_entropy_with_logits(logits, true, reduction="none")
        entropy = (entropy * is_known).sum(1) / is_known.sum(1).clamp(min=1)
        probability, true = logits.sigmoid() * is_known, true * is_known
        dice = 1 - (2 * (probability * true).sum(1) + 1) / (probability.sum(1) + true.sum(1) + 1)
        return entropy.sum() / total, dice.sum() / total

    def _points(self, masks: Tensor) -> Tensor:
        """Returns points (N, P, 2) in 0..1 for masks (N, 1, h, w): uncertain ones, then others."""
        count = min(self.num_points, masks[0].numel())
        candidates = torch.rand(len(masks), int(count * self.oversample), 2, device=masks.device)
        uncertainty = -sample(masks, candidates)[:, 0].abs()
        kept = int(self.importance * count)
        chosen = uncertainty.topk(kept, dim=1).indices[..., None].expand(-1, -1, 2)
        uniform = torch.rand(len(masks), count - kept, 2, device=masks.device)
        return torch.cat((candidates.gather(1, chosen), uniform), dim=1)


def sample(maps: Tensor, points: Tensor) -> Tensor:
    """Returns bilinear values (N, C, P) of maps (N, C, h, w) at (x, y) in 0..1, (N, P, 2)."""
    grid = 2 * points[:, :, None].to(maps) - 1
    return F.grid_sample(maps, grid, align_corners=False)[..., 0]
