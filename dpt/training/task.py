"""The LightningModule: one model, and what each of its heads is trained on and scored by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.model import DPT
from dpt.objectives.base import Objective, same_size_groups, take
from dpt.training.finite import NormStatistics, SkippedSteps
from dpt.training.optim import configure_again, require_same_groups, settings_of
from dpt.training.teacher import Teacher
from dpt.types import Batch
from dpt.weights.native import SPEC_KEY

OptimizerFactory = Callable[[nn.Module], Optimizer]
ScheduleFactory = Callable[..., LRScheduler]


class Task(L.LightningModule):
    """Trains and scores a model.

    Args:
        model: the model; every head named by an objective.
        objectives: one for each head that is trained.
        teacher: a model that is imitated besides; see :class:`dpt.training.teacher.Teacher`.
        optimizer: makes the optimiser from the model; None where nothing is trained.
        schedule: makes the schedule from (optimiser, total_steps=...).
        monitor: the metric that decides which checkpoint is best, shown in the progress bar.
        max_skipped_steps: how many steps in a row may be left out for a loss or gradient that is
            not finite, before the run stops.
        lr_scale: factor of all learning rates for each batch that a step sees, over processes and
            accumulation; None leaves the rates as they are.
    """

    def __init__(
        self,
        *,
        model: DPT,
        objectives: Mapping[str, Objective],
        teacher: Teacher | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: ScheduleFactory | None = None,
        monitor: str = "",
        max_skipped_steps: int = 10,
        lr_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.objectives: Any = nn.ModuleDict(objectives)  # values are Objectives
        self.teacher = teacher
        self.optimizer_factory = optimizer
        self.schedule_factory = schedule
        self.monitor = monitor
        self.scores: dict[str, float] = {}
        self.scored_step = -1
        self.recent_losses: list[Tensor] = []  # since the last validation
        self.lr_scale = lr_scale
        self.skipped = SkippedSteps(limit=max_skipped_steps)
        self.settings: dict[str, Any] = {}  # of optimiser and schedule, as they start
        self.restored_settings: dict[str, Any] | None = None
        self.current: list[tuple[Tensor, list[str]]] = []  # loss and samples of a step's batches
        self.statistics = NormStatistics(model)
        self.restored: dict[str, Any] = {}  # the checkpoint of a resumed run

    @property
    def notes(self) -> dict[str, str]:
        """How the scores were taken, for ``metrics.json``."""
        return {k: v for objective in self.objectives.values() for k, v in objective.notes.items()}

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """uint8 images (B, 3, H, W) to the model's outputs."""
        return self.model(self._normalize(images))

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        inputs, batch = self._prepare(batch, step=self.global_step)
        teacher = self.teacher
        outputs = self.model(
            inputs,
            enlarge_logits=False,  # losses enlarge them piece by piece
            with_features=teacher is not None and teacher.with_features,
        )
        terms: dict[str, Tensor] = {}
        for objective in self.objectives.values():
            terms |= objective.losses(outputs, batch)
        if teacher is not None:
            terms |= teacher.losses(outputs, batch["image"])
        loss = torch.stack(list(terms.values())).sum()
        size = len(batch["image"])
        for name, value in terms.items():
            if len(terms) > 1:
                self.log(f"train/{name}", value.detach(), batch_size=size)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=size)
        self.recent_losses.append(loss.detach())
        self.current.append((loss.detach(), batch.get("name", [])))
        return loss

    def _normalize(self, images: Tensor) -> Tensor:
        return self.model.preprocessing.normalize(images).to(self.dtype)

    def _prepare(self, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        inputs = self._normalize(batch["image"])
        for objective in self.objectives.values():
            inputs, batch = objective.prepare(inputs, batch, step=step)
        return inputs, batch

    def evaluate_batch(self, batch: Batch) -> Iterator[tuple[dict[str, Tensor], Batch]]:
        """Outputs and labels of a batch, in groups of images of one size."""
        for images, positions in same_size_groups(batch):
            inputs, labels = self._prepare({**take(batch, positions), "image": images}, step=0)
            yield self.model(inputs), labels

    def validation_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        groups = list(self.evaluate_batch(batch))
        for outputs, labels in groups:
            for objective in self.objectives.values():
                objective.update(outputs, labels)
        return {"groups": groups}  # for the pictures

    def on_validation_epoch_start(self) -> None:
        for objective in self.objectives.values():
            objective.reset()

    def on_validation_epoch_end(self) -> None:
        self.scores = {}
        self.scored_step = self.trainer.global_step
        for objective in self.objectives.values():
            self.scores |= {f"val/{k}": v for k, v in objective.compute().items()}
        if self.recent_losses:
            losses = torch.stack(self.recent_losses)
            mean = losses[losses.isfinite()].mean().to(self.device)  # others taught nothing
            mean = self.trainer.strategy.reduce(mean)
            self.scores["train/loss_since_validation"] = float(mean)
            self.recent_losses.clear()
        for name, value in self.scores.items():
            if name == self.monitor or value == value:  # an absent class has no IoU
                # compute() has summed over the ranks: all log one number, whose mean is itself
                self.log(name, value, prog_bar=name == self.monitor, sync_dist=True)

    def configure_optimizers(self) -> Any:
        assert self.optimizer_factory is not None
        optimizer = self.optimizer_factory(self.model)
        if self.lr_scale is not None:
            batches = self.trainer.world_size * self.trainer.accumulate_grad_batches
            for group in optimizer.param_groups:
                group["lr"] *= self.lr_scale * batches
        self.settings = {"optimizer": settings_of(optimizer)}
        for state in self.restored.get("optimizer_states", ()):
            require_same_groups(optimizer, state["param_groups"])
        if self.schedule_factory is None:
            return optimizer
        total_steps = int(self.trainer.estimated_stepping_batches)
        scheduler = self.schedule_factory(optimizer, total_steps=total_steps)
        for state in self.restored.get("lr_schedulers", ()):
            if state.keys() != scheduler.state_dict().keys():  # of another schedule
                step = state["last_epoch"]
                state.clear()
                state.update(scheduler.state_dict(), last_epoch=step)
        schedule = deepcopy(scheduler.state_dict())
        self.settings |= {"schedule": schedule, "total_steps": total_steps}
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_train_start(self) -> None:
        """What was configured anew for a resumed run counts, and not what its checkpoint says."""
        self.statistics = NormStatistics(self.model)
        self.restored = {}  # its moments are as large as the model
        if self.restored_settings in (None, self.settings) or self.schedule_factory is None:
            return
        (optimizer,) = self.trainer.optimizers
        (config,) = self.trainer.lr_scheduler_configs
        config.scheduler = configure_again(
            optimizer,
            self.settings["optimizer"],
            partial(self.schedule_factory, total_steps=self.settings["total_steps"]),
            step=config.scheduler.last_epoch,
        )

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips, and leaves out a step whose loss or gradient is not finite.

        Every rank sees the same averaged gradient, so that all of them decide alike. Under
        float16 an infinite gradient is the scaler's daily business: it skips the step itself, and
        lowers its scale until that helps; below 1 it will not.

        Lightning refuses to clip under a fused optimiser in mixed precision, because that unscales
        gradients inside its step; torch's scaler may do so before, and bf16 has no scale. For other
        optimisers Lightning has unscaled them.
        """
        batches, self.current = self.current, []
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        by_value = gradient_clip_algorithm == "value"
        largest = math.inf if by_value or not gradient_clip_val else gradient_clip_val
        sharded = isinstance(self.trainer.strategy, FSDPStrategy)
        if sharded:  # each rank holds a part: they find the norm together, and clip to it
            whole: Any = self.trainer.strategy.model
            norm = whole.clip_grad_norm_(largest)
        else:
            norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.log("train/grad_norm", norm, batch_size=1)
        is_finite = bool(norm.isfinite())
        self.statistics.after_step(taken=is_finite)
        is_overflow = scaler is not None and scaler.get_scale() >= 1
        if not is_overflow and not is_finite:
            self._skip_step(optimizer, float(norm), batches)
            return
        self.skipped.passed()
        if gradient_clip_val and by_value:
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        elif gradient_clip_val and not sharded:
            clip_grads_with_norm_(parameters, gradient_clip_val, norm)

    def _skip_step(
        self, optimizer: Optimizer, norm: float, batches: list[tuple[Tensor, list[str]]]
    ) -> None:
        optimizer.zero_grad()  # without gradients nothing moves: neither weights nor moments
        self.skipped.add(
            step=self.trainer.global_step,
            norm=norm,
            batches=[(float(loss), names) for loss, names in batches],
            rank=self.global_rank,
            folder=Path(self.trainer.default_root_dir),
        )

    def run_state(self) -> dict[str, Any]:
        """What a resumed run needs to know besides weights, as plain data."""
        return {
            "recent_losses": [float(loss) for loss in self.recent_losses],
            "skipped_steps": self.skipped.total,
            "skipped_in_a_row": self.skipped.in_a_row,
            "settings": self.settings,
        }

    def set_run_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`run_state` gave."""
        self.recent_losses = list(torch.tensor(state["recent_losses"]).to(self.device).unbind())
        self.restored_settings = state.get("settings")
        self.skipped.total = state["skipped_steps"]
        self.skipped.in_a_row = state["skipped_in_a_row"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Says what of a resumed run cannot be changed, in place of torch's words for it."""
        if isinstance(self.trainer.strategy, FSDPStrategy):  # which has no whole weights here
            return
        self.restored = checkpoint
        own, found = self.state_dict(), checkpoint["state_dict"]
        shape = {k: v.shape for k, v in own.items()}
        differing = sorted(
            k for k in own.keys() | found.keys() if k not in found or shape.get(k) != found[k].shape
        )
        if differing:
            raise ValueError(
                f"resume: the run's model is not the one configured now (tensors that differ: "
                f"{len(differing)}, such as {differing[0]}): take back what was changed of model "
                f"and task, or start a new run from its weights: "
                f"model.weights=RUN/checkpoints/last.ckpt"
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[SPEC_KEY] = self.model.spec

    def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            if isinstance(value, list) and value and isinstance(value[0], Tensor):
                return [move(v) for v in value]
            return value

        return {key: move(value) for key, value in batch.items()}
