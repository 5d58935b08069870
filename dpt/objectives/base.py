"""What each head of a model learns and how it is scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from dpt.types import Batch, Target


class Objective(nn.Module, ABC):
    """What one head learns and how it is scored.

    A class of its own has one file and one YAML in ``conf/task``, and joins ``OBJECTIVES`` by the
    name of its head, so that ``dpt evaluate`` finds it. ``metrics`` is a
    :class:`dpt.metrics.base.SumMetric`.
    """

    head: ClassVar[str]
    target: ClassVar[Target | None]  # None: it learns from pictures alone
    metrics: Metric

    @property
    def notes(self) -> dict[str, str]:
        """What a reader of the scores must know about how they were taken."""
        return {}

    def head_options(self) -> dict[str, Any]:
        """Arguments of the head in the model's spec, beside those that the model gives it."""
        return {}

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """What the model is shown of the normalised images (B, 3, H, W): all, as a rule.

        Args:
            batch: labels, and ``image``, from which a task without labels may make its own.
            step: training steps before this one; 0 in evaluation.
        """
        return inputs, batch

    @abstractmethod
    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Weighted scalar terms by name; their sum is minimised."""

    def refuse_teacher(self, options: Mapping[str, Any]) -> str | None:
        """Why a model whose head of this name has these options cannot teach; None if it can."""
        return f"{self.head} cannot be taught"

    def distil(
        self, outputs: Mapping[str, Tensor], lesson: Mapping[str, Tensor], *, temperature: float
    ) -> Tensor:
        """How far outputs are from a teacher's for the same images: a weighted scalar.

        Args:
            outputs: of the model that learns, in training.
            lesson: of the teacher, in evaluation; dense logits keep the head's own size, and depth
                is depth, also where the teacher's is relative.
            temperature: of class probabilities.
        """
        raise NotImplementedError

    def predict(self, output: Tensor, size: tuple[int, int]) -> Tensor:
        """One image's output, batch axis kept, as the prediction at ``size`` = (H, W)."""
        return output

    @abstractmethod
    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        """Scores a batch of evaluation, image by image, at each label's own resolution."""

    def compute(self) -> dict[str, float]:
        """Metrics since the last reset, summed over all ranks."""
        return {k: float(v) for k, v in self.metrics.compute().items()}

    def reset(self) -> None:
        """Forgets what was scored."""
        self.metrics.reset()


def refuse_classes(count: int, options: Mapping[str, Any]) -> str | None:
    """Why a teacher's head cannot teach ``count`` classes, if it cannot."""
    found = options["num_classes"]
    return None if found == count else f"it tells {found} classes apart, this run {count}"


def same_size_groups(batch: Batch) -> Iterator[tuple[Tensor, list[int]]]:
    """Images of an evaluation batch, stacked by size, with their positions in the batch."""
    images = batch["image"]
    if isinstance(images, Tensor):
        yield images, list(range(len(images)))
        return
    groups: dict[torch.Size, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(image.shape, []).append(i)
    for positions in groups.values():
        yield torch.stack([images[i] for i in positions]), positions


def take(batch: Batch, positions: list[int]) -> Batch:
    """The samples of an evaluation batch at ``positions``, images aside."""
    picked: dict[str, Any] = {}
    values: Any
    for key, values in batch.items():
        if key in ("image", "failed"):  # the latter is of the whole batch
            continue
        picked[key] = (
            values[positions] if isinstance(values, Tensor) else [values[i] for i in positions]
        )
    return cast(Batch, picked)
