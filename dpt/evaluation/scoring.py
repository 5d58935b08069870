"""Scores of single images, and the scores, intervals and pictures of the data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dpt.metrics import confidence_intervals
from dpt.objectives import Objective
from dpt.objectives.base import take
from dpt.types import Batch, OutputSpec
from dpt.viz.panel import shrink

PICTURE_WIDTH = 1400
"""Largest width of a row of pictures, in pixels."""


@dataclass(order=True)
class Picture:
    """A row of pictures of one image, and its score."""

    score: float
    index: int
    name: str = field(compare=False)
    rgb: np.ndarray = field(compare=False, default_factory=lambda: np.empty((0, 0, 3), np.uint8))


class Gallery:
    """Pictures of the ``keep`` images with the lowest and of those with the highest score."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.pictures: list[Picture] = []  # at most 2 · keep, by score

    def offer(self, score: float, index: int, name: str, draw: Callable[[], np.ndarray]) -> None:
        """Draws and adds an image if its score is among the lowest or highest so far."""
        new = Picture(score, index, name)
        pictures = self._extremes([*self.pictures, new])
        if score == score and new in pictures:  # NaN is never drawn
            new.rgb = draw()
            self.pictures = pictures

    def merge(self, other: Gallery) -> None:
        """Adds the pictures of another gallery and keeps the extremes of both."""
        self.pictures = self._extremes([*self.pictures, *other.pictures])

    def _extremes(self, pictures: list[Picture]) -> list[Picture]:
        ranked, keep = sorted(pictures), self.keep
        return ranked if len(ranked) <= 2 * keep else ranked[:keep] + ranked[-keep:]

    def extremes(self) -> tuple[list[Picture], list[Picture]]:
        """Lowest first, and highest first; no image is in both."""
        half = len(self.pictures) // 2
        return self.pictures[: len(self.pictures) - half], self.pictures[::-1][:half]


class Scorer:
    """Scores each image, and computes the data set's scores from the metric states of all images.

    Args:
        objectives: by name.
        outputs: declarations of the heads' outputs.
        keep: number of the best and of the worst images that are drawn, for each dense head.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        outputs: Mapping[str, OutputSpec],
        *,
        keep: int = 4,
    ) -> None:
        self.objectives = dict(objectives)
        self.outputs = dict(outputs)
        self.names: dict[int, str] = {}
        self.states: dict[int, dict[str, Tensor]] = {}  # [index][objective]: sparse float64 (S,)
        self.galleries = {name: Gallery(keep) for name, o in objectives.items() if o.dense}

    def add(self, outputs: Mapping[str, Tensor], labels: Batch, photos: Tensor) -> None:
        """Scores B images: ``outputs`` of each head, ``photos`` uint8 (B, 3, H, W)."""
        for k, index in enumerate(labels["index"].tolist()):
            own = {name: output[k : k + 1] for name, output in outputs.items()}
            self._add_image(index, own, take(labels, [k]), photos[k])

    def _add_image(
        self, index: int, outputs: Mapping[str, Tensor], labels: Batch, photo: Tensor
    ) -> None:
        name = self.names[index] = labels["name"][0]
        self.states[index] = {}
        for key, objective in self.objectives.items():
            metric = objective.metrics
            metric.reset()
            objective.update(outputs, labels)
            vector = metric.vector()
            metric.reset()
            self.states[index][key] = vector.to_sparse()
            if key in self.galleries:

                def draw(objective: Objective = objective) -> np.ndarray:
                    rgb = photo.permute(1, 2, 0).cpu().numpy()
                    declared = self.outputs[objective.head]
                    row = objective.panel(rgb, outputs, labels, declared)
                    assert row is not None, "a dense objective has panels"
                    return shrink(row, PICTURE_WIDTH)

                score = metric.scores_of(vector)[self.sorted_by(key)]
                self.galleries[key].offer(score, index, name, draw)

    def sorted_by(self, key: str) -> str:
        """The score by which an objective's images are sorted."""
        metric = self.objectives[key].metrics
        return metric.primary or next(iter(metric.scores_of(metric.vector())))

    def gather(self) -> None:
        """Gives every process the scored images of all processes."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        parts: list = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.names, self.states, self.galleries))
        for rank, (names, states, galleries) in enumerate(parts):
            if rank != dist.get_rank():
                self.names |= names
                self.states |= states
                for key, gallery in galleries.items():
                    self.galleries[key].merge(gallery)

    def vectors(self, key: str) -> Tensor:
        """The states of an objective's metric for each image, in order: sparse float64 (N, S)."""
        return torch.stack([self.states[index][key] for index in sorted(self.states)]).coalesce()

    def total(self, key: str) -> Tensor:
        """The states of an objective's metric over all images, (S,).

        They are added in the order of the data set, so the sum does not depend on batches or
        processes.
        """
        total = torch.zeros_like(self.objectives[key].metrics.vector())
        for index in sorted(self.states):
            total += self.states[index][key]
        return total

    def scores(self) -> dict[str, float]:
        """Scores of the data set by name."""
        return {
            name: value
            for key, objective in self.objectives.items()
            for name, value in objective.metrics.scores_of(self.total(key)).items()
        }

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % confidence intervals of the scores."""
        return {
            name: interval
            for key, objective in self.objectives.items()
            for name, interval in confidence_intervals(objective.metrics, self.vectors(key)).items()
        }

    def per_image(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Name and scores of each image, without scores per class or range and pooled scores."""
        for index in sorted(self.states):
            scores: dict[str, float] = {}
            for key, objective in self.objectives.items():
                scores |= objective.metrics.scores_of(self.states[index][key].to_dense())
            yield (
                self.names[index],
                {k: v for k, v in scores.items() if "/" not in k and not k.endswith("_pooled")},
            )
