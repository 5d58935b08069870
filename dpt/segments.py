"""Segments, a class and a mask each: of an image's labels, or predicted by queries.

Shapes: Q queries, K classes, N segments, (H, W) an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpt.functional import resize
from dpt.types.samples import IGNORE_INDEX

NO_SEGMENT = -1  # the id of pixels without a segment
OBJECT_IDS = 2**16
"""Larger than every object id. The codes class · OBJECT_IDS + object are exact in float32 too."""


class Segments(NamedTuple):
    """The true segments of an image."""

    classes: Tensor  # int64 (N,), class ids
    masks: Tensor  # bool (N, H, W); they do not overlap
    compared: Tensor  # bool (H, W), where masks are compared: not without a label, not in crowds
    crowds: Tensor  # int64 (H, W), the class of a thing's pixels without an object; -1 elsewhere

    def largest(self, count: int) -> Segments:
        """Returns the ``count`` largest segments; the pixels of the others are not compared."""
        if len(self.classes) <= count:
            return self
        kept = self.masks.flatten(1).sum(1).topk(count).indices.sort().values
        masks = self.masks[kept]
        is_left_out = self.masks.any(0) & ~masks.any(0)
        return Segments(self.classes[kept], masks, self.compared & ~is_left_out, self.crowds)

    @property
    def map(self) -> SegmentMap:
        """The same segments with scores of 1."""
        ids = torch.full(self.masks.shape[-2:], NO_SEGMENT, device=self.masks.device)
        for k, mask in enumerate(self.masks):
            ids[mask] = k
        return SegmentMap(ids, self.classes, torch.ones(len(self.classes)))


def segments_of(
    labels: Tensor, objects: Tensor, things: Sequence[bool], *, stuff: bool = True
) -> Segments:
    """Returns the segments of an image's labels.

    Args:
        labels: class ids (H, W); ``IGNORE_INDEX`` where unknown.
        objects: object ids (H, W), 0 where there is none.
        things: for each class, whether it is a thing: each object is one segment. Other classes
            (stuff) are one segment each. Pixels of a thing without an object (crowds) are unknown.
        stuff: if False, only things are segments; pixels of stuff and those without a label are
            background.
    """
    ids = labels.long().clamp(max=len(things))
    is_thing = torch.tensor([*things, False], device=labels.device)[ids]
    compared = ~is_thing | (objects > 0)
    crowds = torch.where(compared, -1, ids)
    if stuff:
        compared &= labels != IGNORE_INDEX
    counted = compared if stuff else compared & is_thing
    codes = ids * OBJECT_IDS + torch.where(is_thing, objects.long(), 0)
    codes = torch.where(counted, codes, -1)
    present = codes.unique()
    present = present[present >= 0]
    return Segments(present // OBJECT_IDS, codes == present[:, None, None], compared, crowds)


class SegmentMap(NamedTuple):
    """Predicted segments that do not overlap."""

    ids: Tensor  # int64 (H, W), the segment of each pixel in 0..N - 1, or NO_SEGMENT
    classes: Tensor  # int64 (N,), class ids
    scores: Tensor  # (N,), probability of the class

    @property
    def codes(self) -> Tensor:
        """Class · ``OBJECT_IDS`` + id + 1 of each pixel, int64 (H, W); -1 without a segment."""
        class_ids = torch.cat([self.classes, self.classes.new_zeros(1)])[self.ids]
        codes = class_ids * OBJECT_IDS + self.ids + 1
        return torch.where(self.ids == NO_SEGMENT, -1, codes)

    @classmethod
    def from_codes(cls, codes: Tensor) -> SegmentMap:
        """Returns the segments of ``codes`` int64 (H, W), with scores of 1."""
        present, ids = codes.unique(return_inverse=True)
        shift = int(present[0] < 0)  # whether there are pixels without a segment
        classes = present[shift:] // OBJECT_IDS
        return cls(ids - shift, classes, torch.ones_like(classes, dtype=torch.float))

    @classmethod
    def from_objects(cls, masks: Tensor, classes: Tensor, scores: Tensor) -> SegmentMap:
        """Returns the objects of a score above 0.5, the better one in front; masks (N, H, W)."""
        ids = torch.full(masks.shape[1:], NO_SEGMENT)
        for k in scores.argsort().tolist():
            if scores[k] > 0.5:
                ids[masks[k]] = k
        return cls(ids, classes, scores)


def panoptic_segments(
    masks: Tensor,
    classes: Tensor,
    things: Sequence[bool],
    *,
    size: tuple[int, int] | None = None,
    threshold: float = 0.8,
    overlap: float = 0.8,
) -> SegmentMap:
    """Returns the panoptic segmentation that queries predict (Cheng et al. 2021, section 3.4).

    Each pixel belongs to the query with the largest product of class and mask probability, if its
    mask probability there is at least 0.5. Queries are left out if too much of their mask belongs
    to others. All queries of a class of stuff are one segment.

    Args:
        masks: logits (Q, h, w).
        classes: logits (Q, K + 1), "no object" last.
        things: for each class, whether it is a thing; the others are stuff.
        size: (H, W) of the result, to which the logits are resized; None is (h, w).
        threshold: queries are used if the probability of their class is above this.
        overlap: queries are used if at least this fraction of their mask belongs to them, as in the
            code of Mask2Former and EoMT; transformers leaves out those of exactly this fraction.
    """
    scores, ids = classes.softmax(-1).max(-1)
    kept = (ids < len(things)) & (scores > threshold)
    masks, scores, ids = masks[kept], scores[kept], ids[kept]
    segment_ids = torch.full(size or masks.shape[-2:], NO_SEGMENT, device=masks.device)
    segments: list[int] = []  # index of the first query of each segment
    stuff: dict[int, int] = {}
    if len(ids):
        if size is not None:
            masks = resize(masks[None], size)[0]
        masks = masks.sigmoid()
        winner = (scores[:, None, None] * masks).argmax(0)
        inside = masks >= 0.5
        won = torch.bincount(winner.flatten(), minlength=len(ids)).tolist()
        area = inside.flatten(1).sum(1).tolist()
        for query, class_id in enumerate(ids.tolist()):
            mask = (winner == query) & inside[query]
            if not mask.any() or won[query] / area[query] < overlap:
                continue
            segment = len(segments)
            if not things[class_id]:
                segment = stuff.setdefault(class_id, segment)
            segment_ids[mask] = segment
            if segment == len(segments):
                segments.append(query)
    return SegmentMap(segment_ids, ids[segments], scores[segments])


def instances(
    masks: Tensor,
    classes: Tensor,
    things: Sequence[bool],
    size: tuple[int, int] | None = None,
    *,
    most: int = 100,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the objects that queries predict: masks bool (N, H, W), classes and scores (N,).

    The masks may overlap. As in Mask2Former, the objects are the ``most`` most probable pairs of a
    query and a class of things. The score is the probability of the class times the mean
    probability of the mask where it is above 0.5.

    Args:
        masks: logits (Q, h, w).
        classes: logits (Q, K + 1), "no object" last.
        things: for each class, whether it has objects.
        size: (H, W) of the objects' masks; None for that of the logits.
    """
    size = size or (masks.shape[-2], masks.shape[-1])
    probabilities = classes.softmax(-1)[:, :-1].clone()
    probabilities[:, ~torch.tensor(things, device=probabilities.device)] = -1
    scores, pairs = probabilities.flatten().topk(min(most, probabilities.numel()))
    pairs, scores = pairs[scores >= 0], scores[scores >= 0]
    inside = torch.empty((len(pairs), *size), dtype=torch.bool, device=masks.device)
    certainty = torch.empty_like(scores)
    # one by one, as all masks of a large image at once take gigabytes
    for index, query in enumerate(pairs // probabilities.shape[1]):
        logits = resize(masks[query][None, None], size)[0, 0]
        inside[index] = logits > 0
        certainty[index] = (logits.sigmoid() * inside[index]).sum()
    area = inside.flatten(1).sum(1)
    kept = area > 0
    scores = scores * (certainty / area.clamp(min=1))
    return inside[kept], (pairs % probabilities.shape[1])[kept], scores[kept]
