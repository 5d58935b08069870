"""Scores of predictors that understand nothing: a model that does not beat them learned nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import cv2
import numpy as np
import torch.utils.data
from torch import Tensor
from torch.utils.data import DataLoader

from dpt.data import DataError
from dpt.data.loading import collate_eval, init_worker
from dpt.data.resize import resize_map
from dpt.evaluation.callbacks import spread
from dpt.objectives import Objective
from dpt.objectives.base import take
from dpt.run_log import tracked
from dpt.types import Batch

TRAIN_SAMPLES = 200
TRAIN_PHOTOS = 500
THUMBNAIL = 16, 16  # pixels
SIZES = 8  # of labels, for which resized guesses are kept


def trivial_scores(
    objectives: Mapping[str, Objective],
    train: Any,
    val: Any,
    size: tuple[int, int],
    *,
    num_workers: int = 0,
) -> dict[str, dict[str, float]]:
    """Scores on ``val`` of predictors made from some samples of ``train``.

    ``constant`` predicts one value for every pixel and ``per position`` one value for each position
    of the image, both from 200 samples (:meth:`Objective.baselines`). ``nearest photo`` repeats the
    labels of the most similar of 500 training photos, by thumbnails of 16×16 pixels
    (:meth:`Objective.repeat`). Image-level tasks have no positions, tasks without labels no
    predictors. ``val`` is read once. Samples that cannot be read are left out.

    Args:
        objectives: by name; they are not changed.
        train, val: data sets.
        size: (H, W) of the positions.
        num_workers: processes that read and score; 0 does it in this one.

    Returns:
        Scores (``val/<name>``) by the kind of predictor.
    """
    own = {k: deepcopy(o).cpu() for k, o in objectives.items() if o.target is not None}
    indices = train.available_indices if own else ()
    chosen = [int(indices[place]) for place in sorted(spread(TRAIN_PHOTOS, len(indices)))]
    predictors = _Predictors(own, train, val, size, chosen)

    def each(function: Callable[[int], Any], count: int, title: str) -> Iterator[Any]:
        start = init_worker if num_workers else None
        loader = DataLoader(
            _Each(function, count), batch_size=None, num_workers=num_workers, worker_init_fn=start
        )
        return (found for found in tracked(loader, count, title=title) if found)

    predictors.fit(list(each(predictors.photo, len(chosen), "baselines, train")))
    if not predictors.guesses:
        return {}
    totals: dict[tuple[str, str], Tensor] = {}
    for vectors in each(predictors.score, len(val), "baselines, val"):
        for place, vector in vectors.items():
            totals[place] = totals[place] + vector if place in totals else vector
    scores: dict[str, dict[str, float]] = {}
    for (kind, key), total in totals.items():
        values = own[key].metrics.scores_of(total)
        scores.setdefault(kind, {}).update({f"val/{name}": v for name, v in values.items()})
    return scores


def named(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Scores of baselines as entries of ``metrics.json``: ``nearest_photo/val/miou``."""
    kinds = ((kind.replace(" ", "_"), row) for kind, row in rows.items())
    return {f"{kind}/{metric}": value for kind, row in kinds for metric, value in row.items()}


class _Each(torch.utils.data.Dataset):
    """``function(k)`` of each k below ``count``; None where a file cannot be read."""

    def __init__(self, function: Callable[[int], Any], count: int) -> None:
        self.function, self.count = function, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> Any:
        with suppress(DataError):
            return self.function(k)


class _Predictors:
    """The baselines of each objective; ``chosen`` are indices of ``train``."""

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        train: Any,
        val: Any,
        size: tuple[int, int],
        chosen: Sequence[int],
    ) -> None:
        self.objectives, self.train, self.val = objectives, train, val
        self.size, self.chosen = size, chosen
        self.fitted = spread(TRAIN_SAMPLES, len(chosen))
        self.guesses: dict[str, dict[str, Tensor]] = {}  # [objective][kind]
        self.resized: dict[tuple[str, Any], dict[str, Tensor]] = {}  # [objective, size][kind]

    def photo(self, place: int) -> dict[str, Any]:
        """What is kept of a training photo; of some, also the labels at ``size``."""
        sample = self.train[self.chosen[place]]
        photo = {"place": place, "name": sample.get("name", ""), "targets": [*sample]}
        photo["thumbnail"] = _thumbnail(sample)
        if place in self.fitted:
            maps = [key for key in ("labels", "depth", "valid") if key in sample]
            photo["labels"] = _labels(sample | {k: resize_map(sample[k], self.size) for k in maps})
        return photo

    def fit(self, photos: Sequence[Mapping[str, Any]]) -> None:
        self.photos = [{k: v for k, v in p.items() if k != "labels"} for p in photos]
        self.thumbnails = np.array([np.asarray(p["thumbnail"], np.float32) for p in photos])
        for key, objective in self.objectives.items():
            known = [p["labels"] for p in photos if objective.target in p.get("labels", ())]
            if known:
                self.guesses[key] = objective.baselines(known, self.size)

    def score(self, index: int) -> dict[tuple[str, str], Tensor]:
        """The metric states of each predictor for a sample of ``val``, by kind and objective."""
        sample = self.val[index]
        labels, vectors = _labels(sample), {}
        for key in self.guesses:
            objective = self.objectives[key]
            if objective.target not in labels:
                continue
            truth = objective.truth(labels, 0)
            predictions = self.at_size(key, truth[0].shape[-2:])
            fallback = [*predictions.values()][-1]
            repeated = self.nearest(objective, sample, fallback)
            for kind, prediction in {**predictions, "nearest photo": repeated}.items():
                objective.metrics.reset()
                objective.metrics.update(prediction, *truth)
                vectors[kind, key] = objective.metrics.vector()
        return vectors

    def at_size(self, key: str, size: Any) -> dict[str, Tensor]:
        """The guesses at the size of labels, resized once for each of the last few sizes."""
        if (key, size) not in self.resized:
            if len(self.resized) >= SIZES:
                self.resized.clear()
            predict = self.objectives[key].predict
            found = {kind: predict(guess, size) for kind, guess in self.guesses[key].items()}
            self.resized[key, size] = found
        return self.resized[key, size]

    def nearest(self, objective: Objective, sample: Any, fallback: Tensor) -> Tensor:
        """What the photo says that is most similar, has such labels and is not the sample's own."""
        distance = np.square(self.thumbnails - _thumbnail(sample)).sum(1)
        for k in np.argsort(distance, kind="stable").tolist():
            photo = self.photos[k]
            is_own = photo["name"] != "" and photo["name"] == sample.get("name")
            if objective.target in photo["targets"] and not is_own:
                with suppress(DataError):
                    labels = _labels(self.train[self.chosen[photo["place"]]])
                    return objective.repeat(labels, fallback)
        return fallback


def _thumbnail(sample: Any) -> np.ndarray:
    return cv2.resize(sample["image"], THUMBNAIL, interpolation=cv2.INTER_AREA).ravel()


def _labels(sample: Any) -> Batch:
    return take(collate_eval([sample]), [0])
