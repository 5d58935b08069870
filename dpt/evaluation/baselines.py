"""Scores of predictors that use no trained model. A model that is no better learned nothing."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import cast

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.data import DataError, Dataset, read_in_order
from dpt.data.loading import LoaderSettings, collate_eval
from dpt.data.view import MAP_FILLS, by_four_bands, resize_map
from dpt.geometry import Camera
from dpt.objectives import Objective
from dpt.run_log import tracked
from dpt.types.outputs import HeadOutput
from dpt.types.samples import Batch

TRAIN_SAMPLES = 500
MAX_SIZE = 128, 128  # of the maps that are kept of the training samples
THUMBNAIL = 16, 16
NEAREST = "nearest photo"


def trivial_scores(
    objectives: Mapping[str, Objective],
    train: Dataset,
    val: Dataset,
    indices: Sequence[int],
    settings: LoaderSettings,
) -> dict[str, dict[str, float]]:
    """Returns scores on ``val`` of predictors made from up to 500 samples of ``train``.

    ``constant`` predicts one value for every pixel and ``per position`` one value for each position
    of the image, see :meth:`Objective.baselines`. ``nearest photo`` predicts the labels of the
    training image with the most similar thumbnail. Image-level tasks have no ``per position``;
    tasks without labels have no baselines. Samples are read once; unreadable ones are left out.

    Args:
        objectives: they are not changed.
        indices: of the samples of ``val`` that count.
        settings: their ``image_size`` is the size of the positions.

    Returns:
        Scores (``val/<name>``) by the kind of predictor.
    """
    labelled = [o for o in objectives.values() if o.target is not None and o.metrics.by_image]
    if not labelled:
        return {}
    height, width = settings.image_size
    size = min(height, MAX_SIZE[0]), min(width, MAX_SIZE[1])
    train_indices = train.some_indices(TRAIN_SAMPLES)
    samples = list(_read("train", train, train_indices, settings.num_workers, size))
    scored = [o for o in labelled if any(o.target in sample for sample in samples)]
    predictors = [_Predictors(objective, samples, size) for objective in scored]
    for sample in _read("val", val, indices, settings.num_workers):
        for predictor in predictors:
            predictor.update(sample)
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for predictor in predictors:
        for kind, objective in predictor.scored.items():
            scores[kind] |= {f"val/{name}": value for name, value in objective.compute().items()}
    return dict(scores)


def named(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns scores of baselines by the key in ``metrics.json``: ``nearest_photo/val/miou``."""
    return {
        f"{kind.replace(' ', '_')}/{name}": value
        for kind, row in rows.items()
        for name, value in row.items()
    }


class _Predictors:
    """The predictors of one objective, and copies of it that hold their scores."""

    def __init__(
        self, objective: Objective, samples: Sequence[Batch], size: tuple[int, int]
    ) -> None:
        self.objective, self.size = deepcopy(objective).cpu(), size
        self.objective.metrics.reset()
        self.objective.metrics.drop_rules()
        self.samples = [sample for sample in samples if objective.target in sample]
        self.names = [sample["name"] for sample in self.samples]
        self.thumbnails = torch.cat([sample["image"] for sample in self.samples]).float()
        self.predictions = self.objective.baselines(self.samples, size)
        self.scored = {kind: deepcopy(self.objective) for kind in (*self.predictions, NEAREST)}

    def update(self, sample: Batch) -> None:
        """Scores the predictors on a sample of ``val``."""
        if self.objective.target in sample:
            predictions = {**self.predictions, NEAREST: self.nearest(sample)}
            for kind, objective in self.scored.items():
                objective.update(HeadOutput(predictions[kind]), sample)

    def nearest(self, sample: Batch) -> Tensor:
        """Returns the labels of the most similar training image that is not the sample's own."""
        distance = (self.thumbnails - sample["image"]).square().flatten(1).sum(1)
        is_same = [name == sample["name"] != [""] for name in self.names]
        distance[torch.tensor(is_same)] = torch.inf
        nearest = self.samples[int(distance.argmin())]
        *_, prediction = self.objective.baselines([nearest], self.size).values()
        return prediction


def _read(
    name: str,
    dataset: Dataset,
    indices: Sequence[int],
    num_workers: int,
    size: tuple[int, int] | None = None,
) -> Iterator[Batch]:
    """Yields the samples that can be read; maps are resized to ``size``, (H, W), if it is given."""
    samples = read_in_order(partial(_sample, dataset, size), indices, num_workers=num_workers)
    for sample in tracked(samples, len(indices), title=f"baselines, {name}"):
        if sample is not None:
            yield sample


def _sample(dataset: Dataset, size: tuple[int, int] | None, index: int) -> Batch | None:
    """Returns an evaluation batch with a thumbnail as its image; None if it cannot be read."""
    with suppress(DataError):
        sample = dataset[index].copy()
        arrays = cast(dict[str, np.ndarray], sample)
        for key in MAP_FILLS:
            if key in sample and size is not None:
                arrays[key] = resize_map(arrays[key], size)
        resize = partial(cv2.resize, dsize=THUMBNAIL, interpolation=cv2.INTER_AREA)
        image = by_four_bands(sample["image"], resize)
        if "K" in sample:
            height, width = sample["image"].shape[:2]
            sample["K"] = Camera(sample["K"], (height, width)).resized(THUMBNAIL).K
        sample["image"] = image if image.dtype == np.uint8 else np.nan_to_num(image)
        return collate_eval([sample])
    return None
