"""Scores of predictors that ignore the image: a lower bound for every model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

from dpt.data import DataError
from dpt.data.loading import collate_eval
from dpt.evaluation.callbacks import spread
from dpt.objectives import Objective
from dpt.objectives.base import take
from dpt.types import Batch

TRAIN_SAMPLES = 200


def trivial_scores(
    objectives: Mapping[str, Objective], train: Any, val: Any, size: tuple[int, int]
) -> dict[str, dict[str, float]]:
    """Scores on ``val`` of predictors fitted on up to 200 samples of ``train``.

    See :meth:`Objective.baselines`: ``constant`` predicts one value for every pixel, ``per
    position`` one value for each position of the image. Image-level tasks have only a constant,
    tasks without labels none. Samples that cannot be read are left out.

    Args:
        objectives: by name; they are not changed.
        train, val: data sets.
        size: (H, W) of the positions.

    Returns:
        Scores (``val/<name>``) by the kind of predictor.
    """
    labelled = [o for o in objectives.values() if o.target is not None]
    if not labelled:
        return {}
    indices = train.available_indices
    places = sorted(spread(TRAIN_SAMPLES, len(indices)))
    seen = list(_labels(train, [indices[place] for place in places]))
    runs: list[tuple[str, Objective, Any]] = []
    for objective in labelled:
        known = [labels for labels in seen if objective.target in labels]
        guesses = objective.baselines(known, size) if known else {}
        for kind, guess in guesses.items():
            scored = deepcopy(objective)
            scored.metrics.reset()
            runs.append((kind, scored, {objective.head: guess}))
    for labels in _labels(val, range(len(val))):
        for _, scored, outputs in runs:
            if scored.target in labels:
                scored.update(outputs, labels)
    scores: dict[str, dict[str, float]] = {}
    for kind, scored, _ in runs:
        values = {f"val/{name}": value for name, value in scored.compute().items()}
        scores.setdefault(kind, {}).update(values)
    return scores


def _labels(dataset: Any, indices: Iterable[int]) -> Iterator[Batch]:
    """The labels of single samples as evaluation batches."""
    for index in indices:
        with suppress(DataError):
            yield take(collate_eval([dataset[int(index)]]), [0])
