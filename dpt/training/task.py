"""The LightningModule: a model with an objective for each trained head, and its step guard."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from inspect import signature
from pathlib import Path
from typing import cast

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.config.build import takes_bf16_weights
from dpt.exporting.runtimes import TorchRuntime, with_bf16_weights
from dpt.library_internals import set_skipped_on_device, skips_on_device, unscales_gradients
from dpt.model import DPT
from dpt.nn.network import low_rank_tensors, merged_state, unmerged_state
from dpt.nn.tta import joined
from dpt.objectives import Objective, base
from dpt.objectives.teacher import Teacher
from dpt.process import log
from dpt.run_log import csv_cell
from dpt.training.lightning_internals import clip_shards, loss_scaler
from dpt.types.outputs import HeadOutput, HeadPrediction
from dpt.types.samples import Batch, Inputs, Target
from dpt.validation import Plain
from dpt.weights.formats import CONFIG_KEY

Evaluated = tuple[dict[str, HeadOutput], Batch]
"""The outputs of the heads for images of one size, and their labels."""
OR_NEW_RUN = "or start a new run from its weights: model.weights=RUN/checkpoints/last.ckpt"


class Task(L.LightningModule):
    """Trains and scores a model.

    Args:
        model: has every head named by an objective.
        objectives: losses and metrics of each trained head, by name.
        teacher: a model whose predictions are targets too.
        optimizer: creates the optimiser from the model; None if nothing is trained.
        schedule: creates the schedule from (optimiser, total_steps=...), or from the optimiser.
        monitor: the score that decides which checkpoint is best, shown in the progress bar.
        max_skipped_steps: skipped steps in a row (gradient not finite) after which the run stops.
    """

    def __init__(
        self,
        *,
        model: DPT,
        objectives: Mapping[str, Objective],
        teacher: Teacher | None = None,
        optimizer: Callable[[nn.Module], Optimizer] | None = None,
        schedule: Callable[..., LRScheduler] | None = None,
        monitor: str = "",
        max_skipped_steps: int = 10,
    ) -> None:
        super().__init__()
        self.model = model
        self.objectives = cast(MutableMapping[str, Objective], nn.ModuleDict(objectives))
        for objective in objectives.values():
            objective.resize = model.preprocessing.output_interpolation
            objective.freeze_untrained(model.heads[objective.head])
        self.teacher = teacher or Teacher()
        self.teacher.setup(model, objectives)
        self.optimizer_factory = optimizer
        self.schedule_factory = schedule
        self.monitor = monitor
        self.guard = StepGuard(model, limit=max_skipped_steps)
        self.scores: dict[str, float] = {}  # of the last validation
        self.nonfinite: list[str] = []  # images whose prediction there is not finite
        self.scored_step = -1  # step of the last validation
        self.scored_copy: TorchRuntime | None = None  # predicts in validation, in the model's place
        self.optimizer_settings: list[Plain] = []  # of each group, as configured
        self.total_steps = math.inf

    @property
    def targets(self) -> list[Target | None]:
        """The labels that the objectives read."""
        return [target for o in self.objectives.values() for target in o.targets]

    def forward(self, images: Tensor) -> dict[str, HeadPrediction]:
        """Returns the model's predictions for images (B, C, H, W) as they are read."""
        return self.model(self._normalize(images))

    def _normalize(self, images: Tensor) -> Tensor:
        return self.model.preprocessing.normalize(images).to(self.dtype)

    def _prepare(self, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        images = batch["views"].large.flatten(0, 1) if "views" in batch else batch["image"]
        inputs = self._normalize(images)
        for objective in self.objectives.values():
            inputs, batch = objective.prepare(inputs, batch, step=step)
        return inputs, batch

    def on_train_start(self) -> None:
        self.guard.keep_statistics()
        self.total_steps = float(self.trainer.estimated_stepping_batches)

    def on_train_end(self) -> None:
        self.guard.fetch(self.trainer)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        progress = self.global_step / self.total_steps
        batch = self.teacher.add_labels(batch, progress=progress)
        inputs, batch = self._prepare(batch, step=self.global_step)
        for head in self.model.heads.values():
            head.set_progress(progress)
        outputs = self._training_outputs(inputs, batch)
        terms = self._losses(outputs, batch) | self.teacher.losses(outputs, batch)
        loss = torch.stack(list(terms.values())).sum()
        loss = self.guard.checked(loss, outputs, batch.get("name", []))
        size = len(batch["image"])
        if len(terms) > 1:
            self.log_dict({f"train/{k}": v.detach() for k, v in terms.items()}, batch_size=size)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=size)
        return loss

    def _training_outputs(self, inputs: Tensor, batch: Batch) -> dict[str, HeadOutput]:
        prompts = base.prompts_of(batch, self.model.outputs)
        outputs = self.model(inputs, raw=True, prompts=prompts)  # losses upsample the logits
        small = batch["views"].small if "views" in batch else None
        if small is not None:  # these views have another size
            crops = self.model(self._normalize(small.flatten(0, 1)), raw=True)
            for name, output in outputs.items():
                output.crops = crops[name]
        for objective in self.objectives.values():
            name = objective.head
            outputs[name] = objective.add_outputs(self.model.heads[name], outputs[name], batch)
        return outputs

    def _losses(self, outputs: Mapping[str, HeadOutput], batch: Batch) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        for objective in self.objectives.values():
            for name, term in objective.losses(outputs[objective.head], batch).items():
                if name in terms or term.ndim > 0:
                    fault = f"its {name} must be one number under a name of its own"
                    raise ValueError(f"{type(objective).__name__}: {fault}")
                terms[name] = term
        return terms

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        norm = self.guard.clip(self.trainer, optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.log("train/grad_norm", norm, batch_size=1)
        self.teacher.update(self.model)  # after the guard has restored BatchNorm's statistics

    def on_validation_epoch_start(self) -> None:
        for objective in self.objectives.values():
            objective.metrics.reset()
        self.nonfinite = []
        if takes_bf16_weights(self.trainer):  # after callbacks, which may set averaged weights
            self.scored_copy = with_bf16_weights(self.model, self.device)

    def validation_step(self, batch: Batch, batch_index: int) -> dict[str, list[Evaluated]]:
        groups = list(self.evaluate_batch(batch))
        for outputs, labels in groups:
            self.nonfinite += base.nonfinite_names(outputs, labels)
            for objective in self.objectives.values():
                objective.update(outputs[objective.head], labels)
        return {"groups": groups}  # for the panels

    def evaluate_batch(self, batch: Batch) -> Iterator[Evaluated]:
        """Yields outputs and labels of a batch, in groups of images of one size."""
        objectives = self.objectives.values()
        for images, positions in base.same_size_groups(batch):
            inputs, labels = self._prepare({**base.take(batch, positions), "image": images}, step=0)
            prompts = base.prompts_of(labels, self.model.outputs)
            predictions = self._predictions(inputs, prompts)
            yield base.evaluated(predictions, self.model.heads, objectives, labels), labels

    def _predictions(self, inputs: Tensor, prompts: Tensor | None) -> Mapping[str, HeadPrediction]:
        if self.scored_copy is None:
            return self.model(inputs, prompts=prompts)
        return joined(self.scored_copy.tensors, self.model.outputs, Inputs(inputs, prompts))

    def on_validation_epoch_end(self) -> None:
        self.scored_copy = None
        scores = base.merged_scores({name: o.compute() for name, o in self.objectives.items()})
        self.scores = {f"val/{k}": v for k, v in scores.items()}
        if self.trainer.sanity_checking:  # one batch before the first step
            self.improves(None)  # refuses an unknown name of ``monitor``
            self.scores = {}
            return
        if self.scored_step < 0 and math.isnan(self.scores.get(self.monitor, 0.0)):
            log.warning("task.monitor=%s has no value: best.ckpt is the last one", self.monitor)
        self.scored_step = self.global_step
        for name, value in self.scores.items():
            if name == self.monitor or value == value:  # NaN: class does not occur
                # compute() has summed over the ranks, so all of them log the same number
                self.log(name, value, prog_bar=name == self.monitor, sync_dist=True)
        self._warn_of_nonfinite()

    def _warn_of_nonfinite(self) -> None:
        if dist.is_initialized():
            gathered: list[list[str]] = [[]] * dist.get_world_size()
            dist.all_gather_object(gathered, self.nonfinite)
            self.nonfinite = [name for names in gathered for name in names]
        if self.nonfinite:
            summary = base.nonfinite_summary(self.nonfinite)
            log.warning("step %d: %s; best.ckpt is not replaced", self.global_step, summary)

    def improves(self, best: float | None) -> bool:
        """Returns whether the monitored score of the last validation is better than ``best``."""
        name = self.monitor
        if name not in self.scores:
            names = ", ".join(key for key in self.scores if key.count("/") == 1)
            raise ValueError(f"task.monitor={name}: there is no such score; choose from {names}")
        if self.nonfinite:
            return False
        if best is None or math.isnan(best):
            return True
        lower = name.removeprefix("val/") in base.lower_is_better(self.objectives.values())
        return self.scores[name] < best if lower else self.scores[name] > best

    def new_optimizer(self) -> Optimizer:
        """Returns a new optimiser of the model's parameters, without state."""
        assert self.optimizer_factory is not None
        return self.optimizer_factory(self.model)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.new_optimizer()
        if self.schedule_factory is None:
            return optimizer
        arguments = {}
        if "total_steps" in signature(self.schedule_factory).parameters:  # unlike most of torch's
            arguments["total_steps"] = int(self.trainer.estimated_stepping_batches)
        schedule = self.schedule_factory(optimizer, **arguments)
        self.optimizer_settings = [
            {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
        ]
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: Plain) -> None:
        self.guard.fetch(self.trainer)
        checkpoint[CONFIG_KEY] = self.model.config.to_dict()
        if low_rank := low_rank_tensors(checkpoint["state_dict"]):  # of callbacks.lora
            checkpoint["lora"] = low_rank
            checkpoint["state_dict"] = merged_state(checkpoint["state_dict"])
        if teacher := self.teacher.state_dict():
            checkpoint["average"] = teacher  # readers load the key "teacher" as a model
        checkpoint["skipped_steps"] = [self.guard.total, self.guard.in_a_row]

    def on_load_checkpoint(self, checkpoint: Plain) -> None:
        self.guard.total, self.guard.in_a_row = checkpoint["skipped_steps"]
        if isinstance(self.trainer.strategy, FSDPStrategy):  # weights here are sharded
            return
        low_rank = checkpoint.get("lora", {})
        checkpoint["state_dict"] = unmerged_state(checkpoint["state_dict"], low_rank)
        if weights := checkpoint.get("current_model_state"):  # beside an average
            callbacks = self.trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it late
            if not any(isinstance(callback, WeightAveraging) for callback in callbacks):
                log.info("resume: from the run's weights, not from their average (callbacks=ema)")
                checkpoint["state_dict"] = weights
        self.teacher.load_state_dict(checkpoint.get("average", {}))


# --- steps whose gradient is not finite


Batches = list[tuple[Tensor, Sequence[str]]]  # loss and sample names of each batch of a step
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
CHECK_EVERY = 10  # steps after which the results of a fused optimiser are fetched


class StepGuard:
    """Clips gradients, and skips steps whose gradient is not finite.

    A skipped step changes neither weights, nor the optimiser's state, nor BatchNorm's running
    statistics; its samples are listed in ``nonfinite.csv``. All ranks have the same averaged
    gradient, so they skip the same steps. PyTorch's fused Adam skips a step on the device, so the
    results are fetched every ``CHECK_EVERY`` steps; for other optimisers each step is waited for.
    In the first steps, BatchNorm's running statistics are the mean of those of the steps so far,
    later the usual moving average: a model of few steps is not scored by its initial statistics.

    Args:
        model: its BatchNorm statistics are restored.
        limit: skipped steps in a row after which the run stops.
    """

    def __init__(self, model: nn.Module, *, limit: int) -> None:
        self.model = model
        self.limit = limit
        self.total = 0
        self.in_a_row = 0
        self.batches: Batches = []
        self.steps: list[tuple[int, Tensor, Batches]] = []  # whose results are not fetched
        self.keep_statistics()

    def keep_statistics(self) -> None:
        """Copies BatchNorm's statistics; to be called when training starts, on its device."""
        self.norms = [m for m in self.model.modules() if isinstance(m, BATCH_NORMS)]
        self.buffers = [b for norm in self.norms for b in norm.buffers()]
        self.kept = [[b.clone() for b in norm.buffers()] for norm in self.norms]

    def checked(
        self, loss: Tensor, outputs: Mapping[str, HeadOutput], names: Sequence[str]
    ) -> Tensor:
        """Returns the loss of a batch, or NaN if an output or a BatchNorm statistic is not finite.

        The loss itself may be finite: its mask may leave out such pixels, and BatchNorm divides by
        an infinite variance. The gradient of the result is not finite either, on all ranks.
        """
        values = [tensor for output in outputs.values() for tensor in output.tensors()]
        values += [buffer for buffer in self.buffers if buffer.is_floating_point()]
        sums = torch.stack([v.detach().sum(dtype=torch.float32) for v in values])
        loss = loss * torch.where(sums.isfinite().all(), 1.0, torch.nan)
        self.batches.append((loss.detach(), names))
        return loss

    def clip(
        self, trainer: L.Trainer, optimizer: Optimizer, limit: float | None, algorithm: str | None
    ) -> Tensor:
        """Clips the gradients to ``limit`` (None: no limit); no step follows if one is not finite.

        Returns the norm of all gradients before clipping, a scalar.
        """
        scaler = loss_scaler(trainer)
        # Lightning neither unscales nor clips for fused optimisers, which unscale in their step
        if scaler is not None and unscales_gradients(optimizer):
            scaler.unscale_(optimizer)
        norm = clipped_norm(trainer, optimizer, limit, algorithm)
        is_finite = norm.isfinite()
        for norm_layer, statistics in zip(self.norms, self.kept, strict=True):
            _average_first_steps(norm_layer, statistics, trainer.global_step)
            for now, kept in zip(norm_layer.buffers(), statistics, strict=True):
                kept.copy_(torch.where(is_finite, now, kept))
                now.copy_(kept)
        step, self.batches = (trainer.global_step, norm, self.batches), []
        if scaler is not None and scaler.get_scale() >= 1 and not is_finite:
            return norm  # an overflow of float16: GradScaler skips the step and halves its scale
        self.steps.append(step)
        if scaler is None and skips_on_device(optimizer):
            set_skipped_on_device(optimizer, ~is_finite)
            if len(self.steps) >= min(CHECK_EVERY, self.limit):
                self.fetch(trainer)
            return norm
        if not is_finite:
            optimizer.zero_grad()  # sets gradients to None, so that the step changes nothing
        self.fetch(trainer)
        return norm

    def fetch(self, trainer: L.Trainer) -> None:
        """Fetches the results of the latest steps, and reports those that were skipped."""
        if not self.steps:
            return
        steps, self.steps = self.steps, []
        norms = torch.stack([norm for _, norm, _ in steps]).tolist()
        for norm, (number, _, batches) in zip(norms, steps, strict=True):
            if math.isfinite(norm):
                self.in_a_row = 0
            else:
                self._report(trainer, number, norm, batches)

    def _report(self, trainer: L.Trainer, step: int, norm: float, batches: Batches) -> None:
        self.total += 1
        self.in_a_row += 1
        path = Path(trainer.default_root_dir) / "nonfinite.csv"
        with path.open("a", newline="", errors="backslashreplace") as file:
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(["step", "rank", "loss", "gradient_norm", "sample"])
            for loss, names in batches:
                start = (step, trainer.global_rank, float(loss), norm)
                rows.writerows([*start, csv_cell(name)] for name in names)
        if self.total & (self.total - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            losses = ", ".join(f"{float(loss):g}" for loss, _ in batches)
            text = "step %d: loss %s, gradient norm %g: step skipped (%d so far), see %s"
            log.warning(text, step, losses, norm, self.total, path)
        if self.in_a_row >= self.limit:
            fault = f"loss or gradient not finite in {self.in_a_row} steps in a row, see {path}"
            raise ValueError(f"{fault}: lower optim.lr, or set trainer.precision=32-true")


def _average_first_steps(
    norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm,
    kept: Sequence[Tensor],
    step: int,
) -> None:
    """Makes the statistics of a BatchNorm their mean over the steps, as long as these are few.

    Args:
        kept: its buffers before this step.
        step: number of steps before this one.
    """
    # without a momentum it computes the mean of all batches itself
    momentum = norm.momentum or 1.0
    if norm.num_batches_tracked is None or (1 + step) * momentum >= 1:
        return
    # a model may have run several times since, as for views, or not, as its frozen parts
    passes = (norm.num_batches_tracked - kept[-1]).clamp(min=1)
    gain = 1 / (1 + step) / (1 - (1 - momentum) ** passes)
    for now, before in zip(norm.buffers(), kept, strict=True):
        if now.is_floating_point():
            now.copy_(torch.where(gain > 1, before + gain * (now - before), now))


def clipped_norm(
    trainer: L.Trainer, optimizer: Optimizer, limit: float | None, algorithm: str | None
) -> Tensor:
    """Clips the gradients, see :meth:`StepGuard.clip`; returns their norm before, a scalar."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    by_value = algorithm == "value"
    is_sharded = isinstance(trainer.strategy, FSDPStrategy)
    if is_sharded:  # each rank holds a part of every gradient
        norm = clip_shards(trainer, limit if limit and not by_value else math.inf)
    else:
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
    if limit and by_value:
        clip_grad_value_(parameters, limit)
    elif limit and not is_sharded:
        clip_grads_with_norm_(parameters, limit, norm)
    return norm
