"""Distillation: a trained model's predictions for the same batch, learned besides the labels.

The teacher needs no labels, so images without any still teach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpt.depthmath import inverse_depth
from dpt.losses.distillation import pairwise_likeness
from dpt.model import DPT

if TYPE_CHECKING:
    from dpt.objectives.base import Objective


class Teacher:
    """A frozen model, and what it adds to the loss for each head that it has too.

    It is no module: it is in no checkpoint, no optimiser and no average of weights, and a resumed
    run reads its file again.

    Args:
        model: sees the training images as its own preprocessing normalises them.
        objectives: of the model that learns; those whose head the teacher lacks go without.
        weight: factor of what it adds.
        temperature: of class probabilities, see
            :func:`dpt.losses.distillation.softened_divergence`.
        feature_weight: factor of the likeness between patches of the deepest level, see
            :func:`dpt.losses.distillation.pairwise_likeness`; 0 leaves it out.

    Raises:
        ValueError: no head is shared, or classes or kinds of depth differ.
    """

    def __init__(
        self,
        *,
        model: DPT,
        objectives: Mapping[str, Objective],
        weight: float = 1.0,
        temperature: float = 1.0,
        feature_weight: float = 0.0,
    ) -> None:
        if weight < 0 or feature_weight < 0:
            raise ValueError("task.teacher_weight and task.teacher_feature_weight: at least 0")
        if not temperature > 0:
            raise ValueError(f"task.teacher_temperature={temperature} must be above 0")
        heads = model.spec["heads"]
        self.objectives = [o for o in objectives.values() if o.head in heads]
        if not self.objectives:
            wanted = " or ".join(o.head for o in objectives.values())
            raise ValueError(f"task.teacher predicts {', '.join(heads)}: nothing to learn {wanted}")
        for objective in self.objectives:
            if reason := objective.refuse_teacher(heads[objective.head]):
                raise ValueError(f"task.teacher cannot teach {objective.head}: {reason}")
        self.model = model.eval().requires_grad_(False)
        self.weight = weight
        self.temperature = temperature
        self.feature_weight = feature_weight

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self  # it never changes: an average of weights needs no second one

    @property
    def with_features(self) -> bool:
        """Whether the model that learns must return its features too."""
        return self.feature_weight > 0

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs for uint8 images (B, 3, H, W); ``depth`` is depth whatever the head gives."""
        model = self.model.to(images.device)
        inputs = model.preprocessing.normalize(images).to(next(model.parameters()).dtype)
        outputs = model(inputs, enlarge_logits=False, with_features=self.with_features)
        if model.spec["heads"].get("depth", {}).get("kind") == "relative":
            outputs["depth"] = inverse_depth(outputs["depth"], outputs["depth"] > 0)
        return outputs

    def losses(self, outputs: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        """Weighted scalar terms by name.

        Args:
            outputs: of the model that learns, for ``images``.
            images: uint8 (B, 3, H, W).
        """
        lesson = self.predict(images)
        terms = {}
        for objective in self.objectives:
            distance = objective.distil(outputs, lesson, temperature=self.temperature)
            terms[f"teacher_{objective.head}"] = self.weight * distance
        if self.with_features:
            likeness = pairwise_likeness(outputs["features"], lesson["features"])
            terms["teacher_features"] = self.feature_weight * likeness
        return terms
