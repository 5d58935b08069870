"""The base class of objectives, and functions on evaluation batches."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.files import few
from dpt.functional import resize
from dpt.losses.masks import SetLoss
from dpt.metrics.base import SumMetric
from dpt.metrics.protocols import Protocol
from dpt.segments import Segments
from dpt.types import (
    Batch,
    HeadOutput,
    HeadPrediction,
    OutputResize,
    OutputSpec,
    QueryOutput,
    Sample,
    Target,
    tensors_in,
)
from dpt.viz import output_panel

log = logging.getLogger("dpt")

OBJECTIVES: dict[str, type[Objective]] = {}
"""Objectives by the name of their head; a subclass that sets ``head`` is added automatically."""


class Objective(nn.Module, ABC):
    """The training and evaluation of one head.

    A subclass sets ``head``, ``target`` and ``metrics`` and implements :meth:`losses`. The other
    methods have defaults for heads that predict real numbers.

    Attributes:
        head: name of the head and of its output.
        target: the label that the head needs; None if it is trained on images alone.
        scored_by: a label that ``dpt evaluate`` can score by, besides ``target``.
        dense: whether there is a prediction for each pixel, or one for each image.
        views: smallest number of views (``augment.views``) that the loss compares; 0 if the head is
            trained on the images themselves.
        resize: how predictions get the size of their labels, see :class:`dpt.metrics.Protocol`.
        metrics: updated with a prediction and the labels.
        weight: factor of the loss.
        head_options: arguments of the head in the model's configuration, set in ``__init__``.
    """

    head: ClassVar[str]
    target: ClassVar[Target | None]
    scored_by: ClassVar[Target | None] = None
    dense: ClassVar[bool] = True
    views: ClassVar[int] = 0
    resize: OutputResize = "bilinear_aligned"
    metrics: SumMetric

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        if not 0 <= weight < math.inf:
            raise ValueError(f"weight={weight} of the {self.head} loss: must be finite, at least 0")
        self.weight = weight
        self.head_options: dict[str, Any] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "head" in vars(cls):
            other = OBJECTIVES.get(cls.head, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ValueError(
                    f"{cls.__module__}.{cls.__qualname__}: the head {cls.head} has the objective "
                    f"{other.__qualname__}, by which it is evaluated: choose another name"
                )
            OBJECTIVES[cls.head] = cls

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that the data set decides; ``settings`` are those of the configuration."""
        return {}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Any, protocol: Protocol) -> Self:
        """The objective that scores an output of a trained model on a data set."""
        return cls(**cls.from_data(data, {}))

    @property
    def notes(self) -> dict[str, Any]:
        """Facts about how the scores were computed, for ``metrics.json``."""
        return {}

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """Changes normalised images (B, 3, H, W), or adds labels; ``step`` is 0 in evaluation."""
        return inputs, batch

    def add_outputs(self, head: nn.Module, output: HeadOutput, batch: Batch) -> HeadOutput:
        """Adds what the head computes from labels, such as embeddings of captions."""
        return output

    @abstractmethod
    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns weighted scalar terms by name; their sum is minimised.

        Dense logits have the head's size, labels that of the images.
        """

    def remarks(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Warnings about some training samples, before training starts."""
        yield from ()

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        """The reason why a teacher with this output cannot be used; None if it can."""
        return None

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the distance from a teacher, a weighted scalar; the mean absolute one by default.

        Args:
            output: of the student, in training mode.
            teacher: its prediction; dense logits have the head's size, ``depth`` is never inverse.
            temperature: divides class logits before their softmax.
        """
        return self.weight * F.l1_loss(output.tensor, teacher)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, share: float
    ) -> dict[str, Tensor]:
        """Returns the entries of a batch that a teacher's prediction gives; none by default.

        Args:
            teacher: as in :meth:`distil`.
            size: (H, W) of maps.
            share: share of each class's pixels that are used, the most certain ones.
        """
        return {}

    def truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        """The labels of image ``k`` as ``metrics.update`` takes them, each with a batch axis of 1:
        the target and, for depth, the mask of valid pixels."""
        keys = ("depth", "valid") if self.target == "depth" else (self.target,)
        labels = cast(dict[Any, Any], batch)
        return tuple(labels[key][k][None] for key in keys)

    def predict(self, prediction: HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns what is scored of one image's prediction (1, ...), maps at ``size`` = (H, W).

        The default resizes maps (1, h, w) and (1, C, h, w) by the rule ``resize``. It leaves out
        the further tensors of a prediction that has several.
        """
        output = tensors_in(prediction)[0]
        if not self.dense or output.shape[-2:] == torch.Size(size):
            return output
        maps = output.float().flatten(0, -3)[None]
        maps = resize(maps, (size[0], size[1]), self.resize)
        return maps.view(*output.shape[:-2], *size)

    def update(self, output: HeadOutput, batch: Batch) -> None:
        """Scores an evaluation batch; maps are scored one by one, at the size of their labels."""
        if not self.dense:
            self.metrics.update(output.tensor, cast(dict[Any, Any], batch)[self.target])
            return
        for k in range(len(output.tensor)):
            truth = self.truth(batch, k)
            prediction = self.predict(output.image(k).prediction, truth[0].shape[-2:])
            self.metrics.update(prediction, *truth)

    def compute(self) -> dict[str, float]:
        """Scores since the last reset, over all processes."""
        return {k: float(v) for k, v in self.metrics.compute().items()}

    def panel(
        self, photo: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray | None:
        """Returns pictures of one image side by side, uint8 RGB; None for image-level heads.

        ``photo`` is uint8 (H, W, 3) RGB; ``output`` and ``labels`` have a batch axis of 1.
        """
        if not self.dense:
            return None
        truth = self.masked_truth(labels)
        prediction = self.predict(output.prediction, truth.shape[-2:])
        maps = truth[0].numpy(force=True), prediction[0].numpy(force=True)
        return output_panel(photo, *maps, spec)

    def masked_truth(self, labels: Batch) -> Tensor:
        """The target of one image with a batch axis, NaN outside its mask."""
        target, *mask = self.truth(labels, 0)
        return torch.where(mask[0], target, torch.nan) if mask else target

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Outputs (1, ...) of predictors that ignore the image, by the kind of predictor: the mean
        of the target over all pixels and images (``constant``) and, for dense targets, over the
        images at each position of ``size`` (``per position``). ``samples`` are labels of one
        training image each, as evaluation batches."""
        targets = (self.masked_truth(labels) for labels in samples)
        if self.dense:
            targets = (nearest(target, size) for target in targets)
        return mean_predictions(targets, dense=self.dense)


class ClassObjective(Objective):
    """An objective of a head with class logits; the data set decides the classes."""

    num_classes: int

    @classmethod
    def class_names(cls, data: Any) -> tuple[str, ...]:
        return data.class_id_names

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        names = cls.class_names(data)
        if settings.get("num_classes") not in (None, len(names)):
            raise ValueError(
                f"num_classes={settings['num_classes']}, but the data has {len(names)} classes "
                f"({', '.join(names[:4])}, ...): leave it out, or set data.num_classes"
            )
        return {"num_classes": len(names)}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Any, protocol: Protocol) -> Self:
        names = cls.class_names(data)
        if output.num_classes != len(names):
            raise ValueError(
                f"the checkpoint's {output.name} head has {output.num_classes} classes, but the "
                f"data has {len(names)}: evaluate on the data it was trained for"
            )
        warn_of_other_names(output, names, "the checkpoint")
        return super().from_output(output, data, protocol)

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        if output.num_classes != self.num_classes:
            return f"it has {output.num_classes} classes, not {self.num_classes}"
        warn_of_other_names(output, self.head_options.get("class_names", ()), "task.teacher")
        return None


class PixelClassObjective(ClassObjective):
    """An objective of a head for the classes of pixels, with their names and colours."""

    @classmethod
    def class_names(cls, data: Any) -> tuple[str, ...]:
        return data.info.class_names

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        found = super().from_data(data, settings)
        return {**found, "class_names": data.info.class_names, "palette": data.info.palette}

    def set_losses(
        self, loss: SetLoss, output: HeadOutput, labels: Tensor, truth: Sequence[Segments]
    ) -> dict[str, Tensor]:
        """Returns the terms of a set loss for the output of :class:`dpt.nn.masks.QueryHead`."""
        assert isinstance(output, QueryOutput)
        terms = loss(*output.layers, truth, pixels=output.auxiliary, labels=labels)
        return {f"loss_{self.head}_{k}": self.weight * value for k, value in terms.items()}


def warn_of_other_names(output: OutputSpec, names: Sequence[str], source: str) -> None:
    """Logs the classes of ``output``, a head of ``source``, that have other names in the data."""
    pairs = zip(output.class_names, names, strict=False)
    if other := [f"{a} ({b})" for a, b in pairs if a != b]:
        log.warning("classes of %s (and of the data): %s", source, few(other))


def mean_predictions(targets: Iterable[Tensor], *, dense: bool) -> dict[str, Tensor]:
    """Means of targets (1, ..., [h, w]) without their NaN, see :meth:`Objective.baselines`."""
    total, count = torch.zeros(()), torch.zeros(())
    for target in targets:
        known = ~target.isnan()
        total = total + torch.where(known, target, 0.0)
        count = count + known
    if not dense:
        return {"constant": total / count}
    overall = total.sum((-2, -1), keepdim=True) / count.sum((-2, -1), keepdim=True)
    by_place = torch.where(count > 0, total / count, overall)
    return {"constant": overall.expand_as(by_place), "per position": by_place}


def nearest(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (1, [C], h, w) at ``size`` by nearest neighbour, as float."""
    flat = maps.float().flatten(0, -3)[None]
    return F.interpolate(flat, size=size, mode="nearest-exact").view(*maps.shape[:-2], *size)


def merged(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The scores of all heads, given by head; ValueError if two have a score of one name."""
    found: dict[str, float] = {}
    for head, values in scores.items():
        for name, value in values.items():
            if name in found:
                raise ValueError(
                    f"the head {head} has a score {name}, as another head does: leave one out, or "
                    "score it by a metric of your own with other names"
                )
            found[name] = value
    return found


def lower_is_better(objectives: Iterable[Objective]) -> set[str]:
    """Names of the objectives' scores that are better if lower."""
    return {name for objective in objectives for name in objective.metrics.lower_is_better}


def evaluated(
    predictions: Mapping[str, HeadPrediction],
    heads: Mapping[str, nn.Module],
    objectives: Iterable[Objective],
    labels: Batch,
) -> dict[str, HeadOutput]:
    """Returns each head's output with what it computes from labels for its objective."""
    outputs = {name: HeadOutput(prediction) for name, prediction in predictions.items()}
    for objective in objectives:
        name = objective.head
        outputs[name] = objective.add_outputs(heads[name], outputs[name], labels)
    return outputs


def nonfinite_names(outputs: Mapping[str, HeadOutput], labels: Batch) -> list[str]:
    """Returns the names of the images for which an output (B, ...) holds NaN or infinity."""
    values = [tensor for output in outputs.values() for tensor in output.tensors()]
    finite = [v.reshape(len(v), -1).isfinite().all(dim=1) for v in values]
    flags = torch.stack(finite).all(dim=0).tolist()
    return [name for name, flag in zip(labels["name"], flags, strict=True) if not flag]


def nonfinite_summary(names: Sequence[str]) -> str:
    return f"predictions that are not finite (NaN or infinity): {len(names)}, such as {names[0]}"


def same_size_groups(batch: Batch) -> Iterator[tuple[Tensor, list[int]]]:
    """The images of an evaluation batch stacked by size, with their positions in the batch;
    without those that could not be read."""
    images, blank = batch["image"], batch.get("blank", [])
    if isinstance(images, Tensor) and not blank:
        yield images, list(range(len(images)))
        return
    groups: dict[torch.Size, list[int]] = {}
    for i, image in enumerate(images):
        if i not in blank:
            groups.setdefault(image.shape, []).append(i)
    for positions in groups.values():
        yield torch.stack([images[i] for i in positions]), positions


def as_photo(image: Tensor) -> np.ndarray:
    """An image (3, H, W) in 0..255 as uint8 (H, W, 3), for pictures."""
    return image.float().round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy()


def take(batch: Batch, positions: list[int]) -> Batch:
    """The samples of an evaluation batch at ``positions``, without their images."""

    def pick(values: Any) -> Any:
        return values[positions] if isinstance(values, Tensor) else [values[i] for i in positions]

    skipped = ("image", "failed", "blank")  # the last two are of the whole batch
    return cast(Batch, {k: pick(values) for k, values in batch.items() if k not in skipped})
