"""Scores of predictors that use no trained model. A model that is no better learned nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import Any

import cv2
import torch
from torch import Tensor

from dpt.data import DataError, read_in_order
from dpt.data.loading import collate_eval
from dpt.data.resize import resize_map
from dpt.objectives import Objective
from dpt.run_log import tracked
from dpt.types import Batch, HeadOutput

TRAIN_SAMPLES = 500
LARGEST = 128, 128  # size of the maps that are kept of the training samples, at most
THUMBNAIL = 16, 16
NEAREST = "nearest photo"


def trivial_scores(
    objectives: Mapping[str, Objective],
    train: Any,
    val: Any,
    size: tuple[int, int],
    *,
    indices: Sequence[int] | None = None,
    num_workers: int = 0,
) -> dict[str, dict[str, float]]:
    """Scores on ``val`` of predictors made from up to 500 samples of ``train``.

    ``constant`` predicts one value for every pixel and ``per position`` one value for each position
    of the image, see :meth:`Objective.baselines`. ``nearest photo`` predicts the labels of the
    training photo with the most similar thumbnail. Image-level tasks have no ``per position``;
    tasks without labels have no baselines. Samples are read once; unreadable ones are left out.

    Args:
        objectives: they are not changed.
        size: (H, W) of the positions.
        indices: of the samples of ``val`` that count; None for all.

    Returns:
        Scores (``val/<name>``) by the kind of predictor.
    """
    labelled = [o for o in objectives.values() if o.target is not None and o.metrics.by_image]
    if not labelled:
        return {}
    size = min(size[0], LARGEST[0]), min(size[1], LARGEST[1])

    def read(
        name: str, data: Any, indices: Sequence[int], size: tuple[int, int] | None = None
    ) -> Iterator[Batch]:
        photos = read_in_order(partial(_photo, data, size), indices, num_workers=num_workers)
        title = f"baselines, {name}"
        return (photo for photo in tracked(photos, len(indices), title=title) if photo is not None)

    photos = list(read("train", train, train.some_indices(TRAIN_SAMPLES), size))
    predictors = [
        _Predictors(objective, known, size)
        for objective in labelled
        if (known := [photo for photo in photos if objective.target in photo])
    ]
    for photo in read("val", val, range(len(val)) if indices is None else indices):
        for each in predictors:
            each.update(photo)
    scores: dict[str, dict[str, float]] = {}
    for each in predictors:
        for kind, scored in each.scored.items():
            values = {f"val/{name}": value for name, value in scored.compute().items()}
            scores.setdefault(kind, {}).update(values)
    return scores


def named(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Scores of baselines as entries of ``metrics.json``, such as ``nearest_photo/val/miou``."""
    return {
        f"{k.replace(' ', '_')}/{name}": v for k, row in rows.items() for name, v in row.items()
    }


class _Predictors:
    """The predictors of one objective, and copies of it that hold their scores."""

    def __init__(
        self, objective: Objective, photos: Sequence[Batch], size: tuple[int, int]
    ) -> None:
        self.objective, self.size = deepcopy(objective).cpu(), size
        self.objective.metrics.reset()
        self.photos, self.thumbnails = photos, torch.cat([p["image"] for p in photos]).float()
        self.guesses = self.objective.baselines(photos, size)
        self.scored = {kind: deepcopy(self.objective) for kind in (*self.guesses, NEAREST)}

    def update(self, photo: Batch) -> None:
        """Scores the predictors on a photo of ``val``."""
        if self.objective.target in photo:
            for kind, scored in self.scored.items():
                guess = self.nearest(photo) if kind == NEAREST else self.guesses[kind]
                scored.update(HeadOutput(guess), photo)

    def nearest(self, photo: Batch) -> Tensor:
        """The labels of the most similar training photo that is not ``photo`` itself."""
        distance = (self.thumbnails - photo["image"]).square().flatten(1).sum(1)
        is_own = [other["name"] == photo["name"] != [""] for other in self.photos]
        distance[torch.tensor(is_own)] = torch.inf
        found = self.photos[int(distance.argmin())]
        *_, guess = self.objective.baselines([found], self.size).values()
        return guess


def _photo(dataset: Any, size: tuple[int, int] | None, index: int) -> Batch | None:
    """A sample as an evaluation batch with a thumbnail as its image; None if it cannot be read.

    Maps are resized to ``size``, (H, W), unless it is None.
    """
    with suppress(DataError):
        sample: Any = dict(dataset[index])
        for key in ("labels", "objects", "depth", "valid"):
            if key in sample and size is not None:
                sample[key] = resize_map(sample[key], size)
        sample["image"] = cv2.resize(sample["image"], THUMBNAIL, interpolation=cv2.INTER_AREA)
        return collate_eval([sample])
    return None
