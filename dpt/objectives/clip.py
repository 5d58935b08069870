"""Training on images and their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from dpt.losses.contrastive import contrastive_loss
from dpt.metrics.image import RetrievalMetrics
from dpt.metrics.protocols import Protocol
from dpt.nn.base import Head
from dpt.objectives.base import Objective, Outputs
from dpt.types import Batch, OutputSpec


class ClipObjective(Objective):
    """Trains ``outputs["clip"]`` (B, E) against the captions' embeddings (Radford et al. 2021).

    Args:
        dim, text_dim, text_depth, text_heads, text_length: of the head, see
            :class:`dpt.nn.text.ClipHeadConfig`.
        class_names: names of the data's image-level classes, for zero-shot accuracy.
        prompt: the text of a class, with ``{}`` for its name.
    """

    head = "clip"
    target = "caption"
    dense = False

    def __init__(
        self,
        *,
        dim: int = 128,
        text_dim: int = 128,
        text_depth: int = 4,
        text_heads: int = 4,
        text_length: int = 128,
        class_names: Sequence[str] = (),
        prompt: str = "a {}",
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.head_options = {
            "dim": dim,
            "text_dim": text_dim,
            "text_depth": text_depth,
            "text_heads": text_heads,
            "text_length": text_length,
        }
        if "{}" not in prompt:
            raise ValueError(f"prompt={prompt!r}: must contain {{}}, the place of a class's name")
        self.prompts = [prompt.replace("{}", name) for name in class_names]
        self.metrics = RetrievalMetrics()

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"class_names": data.class_id_names}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Any, protocol: Protocol) -> Self:
        raise ValueError("a clip head is scored in training only, on the whole val split")

    def complete(self, head: Head, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        found = {**outputs, "clip_text": head.scaled_text(batch["caption"])}
        if self.prompts and not head.training:
            found["clip_classes"] = outputs["clip"] @ head.embed_text(self.prompts).mT
        return found

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        known = has_caption(batch, outputs["clip"])
        loss = contrastive_loss(outputs["clip"], outputs["clip_text"], known)
        return {"loss_clip": self.weight * loss}

    def update(self, outputs: Outputs, batch: Batch) -> None:
        known = has_caption(batch, outputs["clip"])
        self.metrics.update(outputs["clip"][known], outputs["clip_text"][known])
        if "clip_classes" in outputs and "class_id" in batch:
            self.metrics.update_classes(outputs["clip_classes"], batch["class_id"])

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        return {}


def has_caption(batch: Batch, like: Tensor) -> Tensor:
    """bool (B,), on the device of ``like``."""
    return torch.tensor([bool(text) for text in batch["caption"]], device=like.device)
