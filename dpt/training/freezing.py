"""Parts of a model that are not trained: for the whole run, or until a step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.optim import Optimizer

from dpt.training.task import Task
from dpt.types import Batch

log = logging.getLogger("dpt")


class Freeze(Callback):
    """Holds parts of the model still; meanwhile they run as in evaluation (batch norm, dropout).

    For the whole run, their parameters take no gradients and are unknown to the optimiser. Until a
    step, the optimiser knows them, and their gradients are computed and then thrown away: it costs
    the time of a full step, but processes keep in step and nothing has to be rebuilt or restored.
    Either way neither weight decay nor momentum touches what is frozen.

    Args:
        parts: modules of the model by name: ``encoder``, ``decoder``, ``heads.depth``,
            ``encoder.blocks.0``, ...
        until_step: the optimiser step that trains them first; None freezes them for the whole run.
    """

    def __init__(self, *, parts: Sequence[str] = (), until_step: int | None = None) -> None:
        if until_step is not None and until_step < 0:
            raise ValueError(f"callbacks.freeze.until_step={until_step}: must not be negative")
        self.parts = tuple(parts)
        self.until_step = until_step
        self.modules: list[nn.Module] = []
        self.frozen = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Before the optimiser and the processes' wrapper see the model."""
        if stage != "fit" or not self.parts:
            return
        assert isinstance(pl_module, Task)
        self.modules = [_part(pl_module.model, name) for name in self.parts]
        if self.until_step is None:
            for module in self.modules:
                module.requires_grad_(False)
        if trainer.is_global_zero:
            count = sum(p.numel() for module in self.modules for p in module.parameters())
            until = "the whole run" if self.until_step is None else f"step {self.until_step}"
            names = ", ".join(self.parts)
            log.info("frozen until %s: %s (%.1f M parameters)", until, names, count / 1e6)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        frozen = self.until_step is None or trainer.global_step < self.until_step
        if frozen != self.frozen:
            self.frozen = frozen
            for module in self.modules:
                module.train(not frozen)

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer
    ) -> None:
        if self.frozen:
            for module in self.modules:
                for parameter in module.parameters():
                    parameter.grad = None


def _part(model: nn.Module, name: str) -> nn.Module:
    try:
        if not name:
            raise AttributeError
        return model.get_submodule(name)
    except AttributeError:
        heads: Any = model.heads
        names = [n for n, _ in model.named_children() if n != "heads"]
        names += [f"heads.{head}" for head in heads]
        raise ValueError(
            f"callbacks.freeze.parts: the model has no {name!r}; there are {', '.join(names)}, and "
            f"modules inside of them"
        ) from None
