"""What a predictor that never looks at the image would score: the floor under every result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data import DataError
from dpt.data.loading import as_tensor
from dpt.objectives import (
    ClassificationObjective,
    DepthObjective,
    Objective,
    RegressionObjective,
    SegmentationObjective,
)
from dpt.types import IGNORE_INDEX, Batch

Seen = list[dict[str, Any]]  # samples

TRAIN_SAMPLES = 200


def trivial_scores(
    objectives: Mapping[str, Objective], train: Any, val: Any, size: tuple[int, int]
) -> dict[str, dict[str, float]]:
    """Scores on ``val`` of two predictors fitted on ``train``.

    ``constant`` says the same for each pixel (median depth, most frequent class), ``per position``
    the same for each pixel at one place of the frame. Image-level tasks have only a constant,
    tasks without labels nothing.

    Args:
        size: (H, W) at which places are told apart.
    """
    if all(o.target is None for o in objectives.values()):
        return {}
    indices = train.available_indices
    places = np.linspace(0, len(indices) - 1, min(len(indices), TRAIN_SAMPLES)).round().astype(int)
    seen = list(_readable(train, [indices[place] for place in places]))
    guesses = {name: _fit(o, seen, size) for name, o in objectives.items()}
    scores: dict[str, dict[str, float]] = {}
    for kind in ("constant", "per position"):
        for objective in objectives.values():
            objective.reset()
        for batch in _batches(val):
            for name, objective in objectives.items():
                guess = guesses[name].get(kind)
                if guess is not None and objective.target in batch:
                    objective.update({objective.head: guess}, batch)
        scores[kind] = {
            f"val/{k}": v
            for name, o in objectives.items()
            if kind in guesses[name]
            for k, v in o.compute().items()
        }
    for objective in objectives.values():
        objective.reset()
    return {kind: values for kind, values in scores.items() if values}


def _readable(dataset: Any, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Samples; files that broke in mid-run are left out, as ``data.on_error=skip`` did before."""
    for index in indices:
        with suppress(DataError):
            yield dataset[int(index)]


def _batches(dataset: Any) -> Iterator[Batch]:
    """Labels of one sample at a time, as a batch of evaluation."""
    for sample in _readable(dataset, range(len(dataset))):
        batch: dict[str, Any] = {}
        for key in ("depth", "valid", "labels"):
            if key in sample:
                batch[key] = [as_tensor(sample[key])]
        for key in ("class_id", "value"):
            if key in sample:
                batch[key] = torch.tensor([sample[key]])
        yield cast(Batch, batch)


def _fit(objective: Objective, seen: Seen, size: tuple[int, int]) -> dict[str, Tensor]:
    """Outputs as a model would give them, one image: {kind of guess: tensor}."""
    seen = [sample for sample in seen if objective.target in sample]
    if not seen:
        return {}
    if isinstance(objective, DepthObjective):
        return _fit_depth(seen, size, relative=objective.kind == "relative")
    if isinstance(objective, SegmentationObjective):
        return _fit_labels(seen, size, objective.num_classes)
    if isinstance(objective, RegressionObjective):
        mean = np.mean([sample["value"] for sample in seen])
        return {"constant": torch.tensor([float(mean)])}
    if isinstance(objective, ClassificationObjective):
        ids = np.array([sample["class_id"] for sample in seen])
        counts = np.bincount(ids, minlength=objective.num_classes)
        return {"constant": torch.from_numpy(counts).float()[None]}
    return {}  # of a user's own head nobody knows what to guess


def _fit_depth(seen: Seen, size: tuple[int, int], *, relative: bool) -> dict[str, Tensor]:
    maps = torch.stack(
        [
            _nearest(np.where(sample["valid"], sample["depth"], np.nan), size).float()
            for sample in seen
        ]
    )
    overall = maps.nanmedian()
    by_place = maps.nanmedian(dim=0).values
    by_place = torch.where(by_place.isnan(), overall, by_place)
    guesses = {"constant": overall.expand(1, *size), "per position": by_place[None]}
    return {k: v.reciprocal() for k, v in guesses.items()} if relative else guesses


def _fit_labels(seen: Seen, size: tuple[int, int], classes: int) -> dict[str, Tensor]:
    counts = torch.zeros(classes, *size)
    for sample in seen:
        labels = _nearest(sample["labels"], size).long()
        known = labels != IGNORE_INDEX
        one_hot = F.one_hot(torch.where(known, labels, 0), classes) * known[..., None]
        counts += one_hot.permute(2, 0, 1)
    overall = counts.sum(dim=(1, 2))[:, None, None].expand(-1, *size)
    # one-hot, so that resizing the "logits" does not weigh places by their sureness
    guesses = {"constant": overall, "per position": counts}
    return {
        k: F.one_hot(v.argmax(dim=0), classes).permute(2, 0, 1).float()[None]
        for k, v in guesses.items()
    }


def _nearest(array: np.ndarray, size: tuple[int, int]) -> Tensor:
    tensor = as_tensor(array)[None, None].float()
    return F.interpolate(tensor, size=size, mode="nearest-exact")[0, 0]
