"""Distillation: a trained model's predictions for the batch are targets besides the labels.

Images without labels train the model too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpt.depthmath import inverse_depth
from dpt.model import DPT
from dpt.objectives.base import Objective
from dpt.validation import validate

log = logging.getLogger("dpt")


class Teacher:
    """A frozen model, and the loss terms it adds for each head that it has too.

    It is not an ``nn.Module``, so that checkpoints, optimisers and averaged weights leave it out.

    Args:
        model: gets the training images, normalised by its own preprocessing.
        objectives: of the trained model; those whose head the teacher lacks get no term.
        weight: factor of the terms.
        temperature: of class probabilities.

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
    ) -> None:
        if weight < 0 or temperature <= 0:
            raise ValueError(
                f"task.teacher_weight={weight} must be at least 0, and "
                f"task.teacher_temperature={temperature} above 0"
            )
        heads = model.config.to_dict()["heads"]
        self.objectives = [o for o in objectives.values() if o.head in heads]
        if not self.objectives:
            wanted = " or ".join(o.head for o in objectives.values())
            raise ValueError(f"task.teacher predicts {', '.join(heads)}, but not {wanted}")
        for objective in self.objectives:
            if reason := objective.refuse_teacher(model.outputs[objective.head]):
                raise ValueError(f"task.teacher cannot be used for {objective.head}: {reason}")
        self.model = model.eval().requires_grad_(False)
        self.weight = weight
        self.temperature = temperature

    def __deepcopy__(self, memo: dict[int, Any]) -> Teacher:
        return self  # constant: averaged weights need no second copy

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs for uint8 images (B, 3, H, W); inverse depth is returned as depth."""
        model = self.model.to(images.device)
        inputs = model.preprocessing.normalize(images).to(next(model.parameters()).dtype)
        outputs = model(inputs, upsample_logits=False)
        for name, spec in model.outputs.items():
            if spec.is_inverse_depth:
                outputs[name] = inverse_depth(outputs[name], outputs[name] > 0)
        return outputs

    def losses(self, outputs: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        """Weighted scalar terms by name.

        Args:
            outputs: of the trained model, for ``images``.
            images: uint8 (B, 3, H, W).
        """
        targets = self.predict(images)
        terms = {}
        for objective in self.objectives:
            distance = objective.distil(outputs, targets, temperature=self.temperature)
            terms[f"teacher_{objective.head}"] = self.weight * distance
        return terms


def make_teacher(task: Mapping[str, Any], objectives: Mapping[str, Objective]) -> Teacher | None:
    """The model in ``task.teacher``; None if it is not set."""
    path = task.get("teacher")
    if path is None:
        return None
    keys = ("weight", "temperature")
    settings = {k: validate(float, task[f"teacher_{k}"], f"task.teacher_{k}") for k in keys}
    teacher = Teacher(model=DPT.from_pretrained(path), objectives=objectives, **settings)
    heads = ", ".join(o.head for o in teacher.objectives)
    log.info("teacher: %s (%s), for %s", path, teacher.model.config.name, heads)
    return teacher
