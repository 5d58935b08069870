"""Scores of single images, and the scores, intervals and pictures of the data set."""

import re
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import Tensor

from dpt.metrics import confidence_intervals
from dpt.objectives import Objective
from dpt.objectives.base import as_photo, merged, nonfinite_names, take
from dpt.types import Batch, HeadOutput, OutputSpec
from dpt.viz import shrink

PICTURE_WIDTH = 1400  # largest, of a row of pictures, in pixels
WORST_IMAGES = 4  # that are drawn for each dense head


class Picture(NamedTuple):
    """A row of pictures of one image."""

    rank: tuple[float, int]  # sorts the worst image first
    caption: str
    rgb: np.ndarray


def blocks_of(names: Sequence[str], rule: str | None) -> np.ndarray:
    """The number of each image's block, int (N,), for :meth:`Scorer.intervals`.

    Args:
        rule: a regular expression: images in whose names it matches the same text are a block,
            those without a match are blocks of their own; ``folder``: images of one folder are a
            block; None: each image is.
    """
    if rule is None:
        return np.arange(len(names))
    try:
        found = [re.search(".*/" if rule == "folder" else rule, name) for name in names]
    except re.error as error:
        raise ValueError(f"blocks={rule}: is not a regular expression: {error}") from None
    if not any(found):
        raise ValueError(f"blocks={rule}: matches no image's name, such as {names[0]}")
    keys = [match[0] if match else name for match, name in zip(found, names, strict=True)]
    return np.unique(keys, return_inverse=True)[1]


class Scorer:
    """Scores each image, and computes the data set's scores from the metric states of all images.

    Attributes:
        objectives: those that score single images.
        whole: the others, by name; their scores are known after :meth:`gather`.
        rows: name and scores of each image by its index, without scores per class and pooled ones.
        nonfinite: name of each image whose prediction holds NaN or infinity, by its index.
        worst: pictures of the worst images of each dense head.
        examples: captions and pictures, uint8 RGB, of other images, for the report.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        outputs: Mapping[str, OutputSpec],
    ) -> None:
        self.objectives = {k: o for k, o in objectives.items() if o.metrics.by_image}
        self.whole = {k: o for k, o in objectives.items() if not o.metrics.by_image}
        self.whole_scores: dict[str, float] = {}
        self.outputs = dict(outputs)
        self.rows: dict[int, tuple[str, dict[str, float]]] = {}
        self.nonfinite: dict[int, str] = {}
        self.states: dict[int, dict[str, Any]] = {}  # [index][objective]
        self.worst: dict[str, list[Picture]] = {
            k: [] for k, o in self.objectives.items() if o.dense
        }
        self.examples: list[tuple[str, np.ndarray]] = []
        # refuses two scores of one name before anything is scored
        merged({k: o.metrics.scores() for k, o in self.objectives.items()})

    def add(self, outputs: Mapping[str, HeadOutput], labels: Batch, photos: Tensor) -> None:
        """Scores B images: ``outputs`` of each head, ``photos`` (B, 3, H, W) in 0..255."""
        for objective in self.whole.values():
            objective.update(outputs[objective.head], labels)
        for k, index in enumerate(labels["index"].tolist()):
            own = {name: output.image(k) for name, output in outputs.items()}
            self._add_image(index, own, take(labels, [k]), photos[k])

    def _add_image(
        self, index: int, outputs: Mapping[str, HeadOutput], labels: Batch, photo: Tensor
    ) -> None:
        name = labels["name"][0]
        if nonfinite_names(outputs, labels):
            self.nonfinite[index] = name
        found: dict[str, float] = {}
        self.states[index] = {}
        for key, objective in self.objectives.items():
            metric = objective.metrics
            metric.reset()
            objective.update(outputs[objective.head], labels)
            self.states[index][key] = metric.state()
            scores = metric.scores()
            metric.reset()
            found |= {k: v for k, v in scores.items() if "/" not in k and "_pooled" not in k}
            if key not in self.worst:
                continue
            pictures, (measure, score) = self.worst[key], next(iter(scores.items()))
            rank = (-score if measure in metric.lower_is_better else score), index
            if score == score and (len(pictures) < WORST_IMAGES or rank < pictures[-1].rank):
                rgb = as_photo(photo)
                row = objective.panel(
                    rgb, outputs[objective.head], labels, self.outputs[objective.head]
                )
                assert row is not None, "a dense objective has panels"
                caption = f"{name}: {measure} {score:.3g}"
                self._keep_worst(key, [Picture(rank, caption, shrink(row, PICTURE_WIDTH))])
        self.rows[index] = name, found

    def _keep_worst(self, key: str, pictures: list[Picture]) -> None:
        ranked = sorted([*self.worst[key], *pictures], key=lambda picture: picture.rank)
        self.worst[key] = ranked[:WORST_IMAGES]

    def sorted_by(self, key: str) -> str:
        """The score by which an objective's images are sorted."""
        return next(iter(self.objectives[key].metrics.scores()))

    def gather(self) -> None:
        """Gives every process the scored images of all processes."""
        self.whole_scores = merged({key: each.compute() for key, each in self.whole.items()})
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        parts: list = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (self.rows, self.states, self.worst, self.nonfinite))
        del parts[dist.get_rank()]
        for rows, states, worst, nonfinite in parts:
            self.rows |= rows
            self.states |= states
            self.nonfinite |= nonfinite
            for key, pictures in worst.items():
                self._keep_worst(key, pictures)

    def states_of(self, key: str) -> list[Any]:
        """The state of an objective's metric for each image, in the order of the data set, so that
        scores do not depend on batches or processes."""
        return [self.states[index][key] for index in sorted(self.states)]

    def scores(self) -> dict[str, float]:
        """Scores of the data set by name."""
        once = np.ones(len(self.states))
        found = {
            k: o.metrics.resampler(self.states_of(k))(once) for k, o in self.objectives.items()
        }
        return merged({**found, " and ".join(self.whole): self.whole_scores})

    def intervals(self, blocks: np.ndarray) -> dict[str, tuple[float, float]]:
        """95 % confidence intervals of the scores; images of one block are resampled together."""
        found = dict.fromkeys(self.whole_scores, (nan, nan))
        for key, objective in self.objectives.items():
            found |= confidence_intervals(objective.metrics, self.states_of(key), blocks)
        return found
