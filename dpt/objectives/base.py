"""The base classes of objectives, and functions on evaluation batches and scores of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.depthmath import canonical_prompts
from dpt.files import few, plural
from dpt.functional import resize
from dpt.metrics.base import SumMetric
from dpt.metrics.protocols import Protocol
from dpt.process import log
from dpt.types.outputs import HeadOutput, HeadPrediction, OutputSpec, prompt_focal, tensors_in
from dpt.types.preprocessing import OutputResize
from dpt.types.samples import Batch, Sample, Target
from dpt.validation import NonNegative, Plain, PlainMapping
from dpt.viz import output_panel

OBJECTIVES: dict[str, type[Objective]] = {}
"""Objectives by the name of their head; a subclass that sets ``head`` is added automatically."""


class Objective(nn.Module, ABC):
    """The training and evaluation of one head.

    A subclass sets ``head``, ``target`` and ``metrics`` and implements :meth:`losses`. The other
    methods have defaults for heads that predict real numbers.

    Attributes:
        head: name of the head and of its output.
        target: the label that the head needs; None if it is trained on images alone.
        more_targets: labels that the loss reads where they exist, besides ``target``.
        scored_by: a label that ``dpt evaluate`` can score by, besides ``target``.
        dense: whether there is a prediction for each pixel, or one for each image.
        views: smallest number of views (``augment.views``) that the loss compares; 0 if the head is
            trained on the images themselves.
        has_rules: whether rules of other projects can score it (``protocol=all``).
        measured: settings of the head that are statistics of the training data. A resumed run keeps
            them, as its weights belong to them.
        resize: how predictions get the size of their labels, see :class:`dpt.metrics.Protocol`.
        metrics: updated with a prediction and the labels.
        weight: factor of the loss.
        compares_mirrored: whether ``dpt evaluate`` also predicts the mirrored images, mirrored back
            as ``HeadOutput.auxiliary``.
        head_settings: settings of the head that follow from the objective's arguments. Arguments
            whose names are fields of the head's :class:`dpt.nn.HeadConfig`, and those of
            :meth:`from_data`, are settings of the head too.
    """

    head: ClassVar[str]
    target: ClassVar[Target | None]
    scored_by: ClassVar[Target | None] = None
    dense: ClassVar[bool] = True
    views: ClassVar[int] = 0
    measured: ClassVar[Sequence[str]] = ()
    resize: OutputResize = "bilinear_aligned"
    compares_mirrored: bool = False
    has_rules: ClassVar[bool] = False
    metrics: SumMetric
    more_targets: Sequence[Target] = ()

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__()
        self.weight = weight
        self.head_settings: Plain = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "head" in vars(cls):
            other = OBJECTIVES.get(cls.head, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                fault = f"the head {cls.head} has the objective {other.__qualname__} already"
                raise ValueError(f"{cls.__module__}.{cls.__qualname__}: {fault}")
            OBJECTIVES[cls.head] = cls

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        """Returns the settings that the data set decides, of the objective and of the head.

        ``settings`` are those of the configuration.
        """
        return {}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        """Returns the objective that scores an output of a trained model on a data set."""
        return cls(**cls.from_data(data, {}))

    @property
    def targets(self) -> tuple[Target | None, ...]:
        """The labels of a training batch that the loss reads."""
        return (self.target, *self.more_targets)

    @property
    def notes(self) -> Plain:
        """Facts about how the scores were computed, for ``metrics.json``."""
        return {}

    def remarks(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yields warnings about some training samples, before training starts."""
        yield from ()

    # --- training

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """Changes normalised images (B, 3, H, W), or adds labels; ``step`` is 0 in evaluation."""
        return inputs, batch

    def freeze_untrained(self, head: nn.Module) -> None:
        """Freezes layers of the head that no loss trains: DDP waits for gradients of others."""

    def add_outputs(self, head: nn.Module, output: HeadOutput, batch: Batch) -> HeadOutput:
        """Adds what the head computes from labels, such as embeddings of captions."""
        return output

    @abstractmethod
    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        """Returns weighted scalar terms by name; their sum is minimised.

        Dense logits have the head's size, labels that of the images.
        """

    # --- learning from a teacher, see dpt.objectives.teacher

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        """Returns why a teacher with this output cannot be used; None if it can."""
        return None

    def usable(self, teacher: Tensor, batch: Batch) -> Tensor:
        """Returns a teacher's prediction with NaN where the student cannot be compared with it."""
        return teacher

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the distance from a teacher, a weighted scalar; the mean absolute one by default.

        Args:
            output: of the student, in training mode.
            teacher: its prediction; dense logits have the head's size, ``depth`` is never inverse.
            temperature: divides class logits before their softmax.
        """
        if output.tensor.shape != teacher.shape:  # PyTorch would broadcast some
            shapes = f"{list(teacher.shape)}, and the trained model {list(output.tensor.shape)}"
            raise ValueError(f"task.teacher cannot teach {self.head}: it gives {shapes}")
        return self.weight * F.l1_loss(output.tensor, teacher)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, fraction: float
    ) -> dict[str, Tensor]:
        """Returns the entries of a batch that a teacher's prediction gives.

        Args:
            teacher: as in :meth:`distil`.
            size: (H, W) of maps.
            fraction: of each class's pixels that are used, the most certain ones.
        """
        return {}

    # --- evaluation

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        """Returns the labels of image ``k`` as ``metrics.update`` takes them.

        Each has a batch axis of 1. They are the target and, for depth, the mask of valid pixels.
        """
        if self.target == "depth":
            return batch["depth"][k][None], batch["valid"][k][None]
        return (labels_of(batch, self.target)[k][None],)

    def predict(self, prediction: HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns what is scored of one image's prediction (1, ...), maps at ``size`` = (H, W).

        The default resizes maps (1, h, w) and (1, C, h, w) by the rule ``resize``. It leaves out
        the further tensors of a prediction that has several.
        """
        values = tensors_in(prediction)[0]
        if not self.dense or values.shape[-2:] == torch.Size(size):
            return values
        maps = resize(values.float().flatten(0, -3)[None], (size[0], size[1]), self.resize)
        return maps.view(*values.shape[:-2], *size)

    def uncertainties(self, output: HeadOutput, size: Sequence[int]) -> tuple[Tensor, ...]:
        """Returns how uncertain an image's prediction is by each measure, (1, *size)."""
        return ()

    def update(self, output: HeadOutput, batch: Batch) -> None:
        """Scores an evaluation batch; maps are scored one by one, at the size of their labels."""
        if not self.dense:
            self.metrics.update(output.tensor, labels_of(batch, self.target))
            return
        for k in range(len(output.tensor)):
            target, *mask = self.ground_truth(batch, k)
            size, image = target.shape[-2:], output.image(k)
            uncertainties = self.uncertainties(image, size)
            self.metrics.update(self.predict(image.prediction, size), target, *mask, *uncertainties)

    def compute(self) -> dict[str, float]:
        """Returns the scores since the last reset, over all processes."""
        return {k: float(v) for k, v in self.metrics.compute().items()}

    def panel(
        self, image: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray | None:
        """Returns pictures of one image side by side, uint8 RGB; None for image-level heads.

        Classes have the colours of ``spec``, the model's own, or else those of the data set.
        ``image`` is uint8 (H, W, 3) RGB; ``output`` and ``labels`` have a batch axis of 1.
        """
        if not self.dense:
            return None
        target = self.masked_target(labels)
        prediction = self.predict(output.prediction, target.shape[-2:])
        return output_panel(
            image, target[0].numpy(force=True), prediction[0].numpy(force=True), spec
        )

    def masked_target(self, labels: Batch) -> Tensor:
        """Returns the target of one image with a batch axis, NaN outside its mask."""
        target, *mask = self.ground_truth(labels, 0)
        return torch.where(mask[0], target, torch.nan) if mask else target

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns predictions (1, ...) that ignore the image, by the kind of predictor.

        They are the mean of the target over all pixels and images (``constant``) and, for dense
        targets, over the images at each position of ``size`` (``per position``). ``samples`` are
        labels of one training image each, as evaluation batches.
        """
        targets = (self.masked_target(labels) for labels in samples)
        if self.dense:
            targets = (nearest(target, size) for target in targets)
        return mean_predictions(targets, dense=self.dense)


class ClassObjective(Objective):
    """An objective of a head with class logits; the data set decides the classes."""

    num_classes: int
    class_names: tuple[str, ...]

    @classmethod
    def names_of_classes(cls, data: Dataset) -> tuple[str, ...]:
        return data.class_id_names

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        names = cls.names_of_classes(data)
        if settings.get("num_classes") not in (None, len(names)):
            count = plural(len(names), "class")
            fault = f"num_classes={settings['num_classes']}, but the data has {count}"
            raise ValueError(f"{fault}: leave it out, or set data.num_classes")
        return {"num_classes": len(names), "class_names": names}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        names = cls.names_of_classes(data)
        if output.num_classes != len(names):
            fault = f"{output.num_classes} classes, but the data has {len(names)}"
            raise ValueError(f"the checkpoint's {output.name} head has {fault}: give other data")
        warn_of_other_names(output, names, "the checkpoint")
        return super().from_output(output, data, protocol)

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        if output.num_classes != self.num_classes:
            return f"it has {output.num_classes} classes, not {self.num_classes}"
        warn_of_other_names(output, self.class_names, "task.teacher")
        return None


def labels_of(batch: Batch, target: Target | None) -> Tensor:
    """Returns the labels of a batch; maps in evaluation are a list with one for each image."""
    return cast(dict[str | None, Tensor], batch)[target]


def warn_of_other_names(output: OutputSpec, names: Sequence[str], source: str) -> None:
    """Logs the classes of ``output``, a head of ``source``, that have other names in the data."""
    pairs = zip(output.class_names, names, strict=False)
    differing = [f"{a} ({b})" for a, b in pairs if a != b]
    if differing:
        log.warning("classes of %s (and of the data): %s", source, few(differing))


def mean_predictions(targets: Iterable[Tensor], *, dense: bool) -> dict[str, Tensor]:
    """Returns means of targets (1, ..., [h, w]) without NaN, see :meth:`Objective.baselines`."""
    total, count = torch.zeros(()), torch.zeros(())
    for target in targets:
        is_valid = ~target.isnan()
        total = total + torch.where(is_valid, target, 0.0)
        count = count + is_valid
    if not dense:
        return {"constant": total / count}
    overall = total.sum((-2, -1), keepdim=True) / count.sum((-2, -1), keepdim=True)
    per_position = torch.where(count > 0, total / count, overall)
    return {"constant": overall.expand_as(per_position), "per position": per_position}


def nearest(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns maps (1, [C], h, w) at ``size`` by nearest neighbour, as float."""
    flat = maps.float().flatten(0, -3)[None]
    return F.interpolate(flat, size=size, mode="nearest-exact").view(*maps.shape[:-2], *size)


# --- evaluation batches, and the outputs and scores of several heads


def same_size_groups(batch: Batch) -> Iterator[tuple[Tensor, list[int]]]:
    """Yields the images of an evaluation batch stacked by size, with their positions in the batch.

    Images that could not be read are left out.
    """
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


def take(batch: Batch, positions: list[int]) -> Batch:
    """Returns the samples of an evaluation batch at ``positions``, without their images."""

    def pick(values: Tensor | list[object]) -> object:
        return values[positions] if isinstance(values, Tensor) else [values[i] for i in positions]

    skipped = ("image", "failed", "blank")  # the last two are of the whole batch
    entries = cast(dict[str, Tensor | list[object]], batch)
    return cast(Batch, {k: pick(values) for k, values in entries.items() if k not in skipped})


def prompts_of(batch: Batch, outputs: Mapping[str, OutputSpec]) -> Tensor | None:
    """Returns the sparse depth (B, H, W) of images of one size, as the model with these outputs
    takes it; None if the batch has none."""
    if "prompt" not in batch:
        return None
    return canonical_prompts(
        torch.stack(list(batch["prompt"])), batch.get("K"), prompt_focal(outputs)
    )


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


def merged_scores(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores of all heads, given by head; ValueError if two have one name."""
    merged: dict[str, float] = {}
    for head, values in scores.items():
        for name, value in values.items():
            if name in merged:
                raise ValueError(f"two heads, one is {head}, have a score {name}: leave one out")
            merged[name] = value
    return merged


def lower_is_better(objectives: Iterable[Objective]) -> set[str]:
    """Returns the names of the objectives' scores that are better if lower."""
    return {name for objective in objectives for name in objective.metrics.lower_is_better}


def nonfinite_names(outputs: Mapping[str, HeadOutput], labels: Batch) -> list[str]:
    """Returns the names of the images for which an output (B, ...) holds NaN or infinity."""
    values = [tensor for output in outputs.values() for tensor in output.tensors()]
    finite = [v[:, None].flatten(1).isfinite().all(dim=1) for v in values]  # also of no object
    flags = torch.stack(finite).all(dim=0).tolist()
    return [name for name, flag in zip(labels["name"], flags, strict=True) if not flag]


def nonfinite_summary(names: Sequence[str]) -> str:
    return f"predictions that are not finite (NaN or infinity): {len(names)}, such as {names[0]}"
