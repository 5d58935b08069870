"""Scores of single images: what the data set's scores, their intervals and the report come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dpt.evaluation.pictures import panel_row, shrink
from dpt.metrics import SumMetric, confidence_intervals
from dpt.objectives import Objective
from dpt.objectives.base import take
from dpt.types import Batch

SORTED_BY = {"depth": "abs_rel", "segmentation": "miou"}
"""What the best and the worst images of a head are chosen by."""
PICTURE_WIDTH = 1400
"""Rows of pictures are kept no wider, in pixels."""


@dataclass(frozen=True)
class Record:
    """One image's share in the states of each objective's metric, zeros left out."""

    name: str
    states: dict[str, tuple[np.ndarray, np.ndarray]]  # by objective: positions, values


@dataclass(order=True)
class Picture:
    """A row of pictures and the score it is kept for."""

    score: float
    index: int
    name: str = field(compare=False)
    rgb: np.ndarray = field(compare=False)


class Gallery:
    """The images with the lowest and the highest score, ``keep`` of each; no others are kept."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.low: list[Picture] = []
        self.high: list[Picture] = []

    def offer(self, score: float, index: int, name: str, draw: Callable[[], np.ndarray]) -> None:
        """Takes an image if it is among the extremes so far; only then is it drawn."""
        if score != score:
            return
        key = (score, index)
        is_low = len(self.low) < self.keep or key < (self.low[-1].score, self.low[-1].index)
        is_high = len(self.high) < self.keep or key > (self.high[-1].score, self.high[-1].index)
        if is_low or is_high:
            self.add(Picture(score, index, name, draw()))

    def add(self, picture: Picture) -> None:
        self.low = sorted([*self.low, picture])[: self.keep]
        self.high = sorted([*self.high, picture], reverse=True)[: self.keep]

    def merge(self, other: Gallery) -> None:
        """Takes the extremes of other images."""
        for picture in {p.index: p for p in (*other.low, *other.high)}.values():
            self.add(picture)

    def extremes(self) -> tuple[list[Picture], list[Picture]]:
        """Lowest and highest first, no image in both."""
        low = self.low
        if len(low) < self.keep or low[-1].index in {p.index for p in self.high}:  # few images
            everything = sorted({p.index: p for p in (*self.low, *self.high)}.values())
            half = len(everything) // 2
            return everything[: len(everything) - half], everything[len(everything) - half :][::-1]
        return low, self.high


class Scorer:
    """Takes predictions and labels, image by image, and knows every score afterwards.

    Args:
        objectives: that score, by name.
        palette: colours of the classes, or None.
        keep: how many of the best and of the worst images are drawn.
    """

    def __init__(
        self, objectives: Mapping[str, Objective], *, palette: object = None, keep: int = 4
    ) -> None:
        self.objectives = dict(objectives)
        self.palette = palette
        self.sizes = {k: len(sum_metric(o).vector()) for k, o in objectives.items()}
        self.records: dict[int, Record] = {}
        self.galleries = {name: Gallery(keep) for name in objectives if name in SORTED_BY}

    def add(self, outputs: Mapping[str, Tensor], labels: Batch, photos: Tensor) -> None:
        """Args: outputs: a tensor a head, of B images; labels: theirs, as a batch of evaluation;
        photos: uint8 (B, 3, H, W)."""
        for k, index in enumerate(labels["index"].tolist()):
            one = {name: output[k : k + 1] for name, output in outputs.items()}
            self._add_image(index, one, take(labels, [k]), photos[k])

    def _add_image(
        self, index: int, outputs: Mapping[str, Tensor], labels: Batch, photo: Tensor
    ) -> None:
        name, states = labels["name"][0], {}
        for key, objective in self.objectives.items():
            metric = sum_metric(objective)
            metric.reset()
            objective.update(outputs, labels)
            vector = metric.vector()
            positions = vector.nonzero()[:, 0]
            states[key] = positions.int().numpy(), vector[positions].numpy()
            if key in self.galleries:
                draw = partial(self._draw, objective, outputs, labels, photo)
                score = metric.scores_of(vector)[SORTED_BY[key]]
                self.galleries[key].offer(score, index, name, draw)
            metric.reset()
        self.records[index] = Record(name, states)

    def _draw(
        self, objective: Objective, outputs: Mapping[str, Tensor], labels: Batch, photo: Tensor
    ) -> np.ndarray:
        rgb = photo.permute(1, 2, 0).cpu().numpy()
        row = panel_row(objective, rgb, outputs, labels, self.palette)
        assert row is not None  # of heads with a gallery
        return shrink(row, PICTURE_WIDTH)

    def gather(self) -> None:
        """Brings the images of all processes together, on every one of them."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        parts: list = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.records, self.galleries))
        for rank, (records, galleries) in enumerate(parts):
            if rank != dist.get_rank():
                self.records |= records
                for key, gallery in galleries.items():
                    self.galleries[key].merge(gallery)

    def indices(self) -> list[int]:
        """Of the images that were scored, in order."""
        return sorted(self.records)

    def total(self, key: str) -> Tensor:
        """The states of an objective's metric over all images, (S,).

        Added in the order of the data set, so that neither batches nor processes show.
        """
        total = np.zeros(self.sizes[key])
        for index in self.indices():
            positions, values = self.records[index].states[key]
            total[positions] += values
        return torch.from_numpy(total)

    def states(self, key: str) -> dict[str, Tensor]:
        """:meth:`total` by the names of the states."""
        return sum_metric(self.objectives[key]).states_of(self.total(key))

    def scores(self) -> dict[str, float]:
        """Of the whole data set, by name."""
        return {
            name: value
            for key, objective in self.objectives.items()
            for name, value in sum_metric(objective).scores_of(self.total(key)).items()
        }

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Confidence intervals of the scores at 95 %."""
        found: dict[str, tuple[float, float]] = {}
        for key, objective in self.objectives.items():
            found |= confidence_intervals(sum_metric(objective), self._vectors(key))
        return found

    def per_image(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Name and scores of each image; classes, ranges and pooled values left out."""
        for index in self.indices():
            row: dict[str, float] = {}
            for key, objective in self.objectives.items():
                vector = torch.zeros(self.sizes[key], dtype=torch.float64)
                positions, values = map(torch.from_numpy, self.records[index].states[key])
                vector[positions] = values
                row |= sum_metric(objective).scores_of(vector)
            kept = {k: v for k, v in row.items() if "/" not in k and not k.endswith("_pooled")}
            yield self.records[index].name, kept

    def _vectors(self, key: str) -> Tensor:
        """The shares of all images, in order: sparse float64 (N, S)."""
        parts = [self.records[i].states[key] for i in self.indices()]
        rows = np.repeat(np.arange(len(parts)), [len(positions) for positions, _ in parts])
        places = np.stack([rows, np.concatenate([positions for positions, _ in parts])])
        values = torch.from_numpy(np.concatenate([values for _, values in parts]))
        size = (len(parts), self.sizes[key])
        return torch.sparse_coo_tensor(
            torch.from_numpy(places), values, size, check_invariants=True
        ).coalesce()


def sum_metric(objective: Objective) -> SumMetric:
    """The objective's metric, whose states are sums over images."""
    metric = objective.metrics
    if not isinstance(metric, SumMetric):
        name = type(metric).__name__
        raise ValueError(f"{name} cannot be scored image by image: derive it from SumMetric")
    return metric
