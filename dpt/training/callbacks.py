"""Callbacks of a run: throughput, progress, frozen parts, LoRA, a clean stop on a signal."""

import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Self, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, WeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException
from pydantic import Field
from torch import nn

from dpt.data.loading import seconds_without_batch
from dpt.files import plural
from dpt.model import DPT
from dpt.nn import Encoder
from dpt.nn.network import add_low_rank
from dpt.objectives.teacher import ema
from dpt.plugins import register
from dpt.process import SIGNALS, Stopped, end_now, log, requeue
from dpt.training.lightning_internals import ProgressBar, batch_index, end_training_at
from dpt.training.optim import StepSchedule
from dpt.training.task import BATCH_NORMS, Task
from dpt.training.token_cache import TokenCache
from dpt.types.samples import Batch
from dpt.validation import Count, Plain, PlainMapping, Positive, Share

Layers = Annotated[int, Field(ge=0, le=1000)]
Handler = Callable[[int, FrameType | None], object] | int | None
STUCK = 20.0  # seconds without a batch after which a run that was told to stop ends


class StepCallback(Callback):
    """A callback with a hook after each optimiser step, when no accumulated gradients remain."""

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        """Runs after an optimiser step."""

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: object, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        if completes_step(trainer, batch_idx):
            self.on_step(trainer, cast(Task, pl_module))


def completes_step(trainer: L.Trainer, batch_idx: int) -> bool:
    """Returns whether the optimiser steps after this batch."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch


@register("throughput")
class Throughput(Callback):
    """Logs ``train/images_per_s`` over all ranks, without the time of validation.

    Lightning's ``ThroughputMonitor`` refuses most values of ``accumulate_grad_batches``.
    """

    def __init__(self) -> None:
        self.images, self.since = 0, 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        self.images, self.since = 0, time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, pl_module: object) -> None:
        self.on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: object, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        self.images += len(batch["image"]) * trainer.world_size
        if trainer.global_step % 10 == 0:
            rate = self.images / (time.monotonic() - self.since)
            cast(Task, pl_module).log("train/images_per_s", rate, batch_size=1)


@register("deadline")
class Deadline(StepCallback):
    """Ends training by the clock, and the schedule with it.

    After every step the run gets as many steps as fit into the time at its pace so far, but no more
    than are configured, and the schedule is compressed to them: on a machine that becomes slower
    the rate still reaches its end. A resumed run has the rest of the time.

    Args:
        seconds: of training with its validations; None: the configured steps are all made.
    """

    def __init__(self, *, seconds: Positive | None) -> None:
        self.seconds = seconds
        self.spent = 0.0  # before this process resumed the run
        self.begun: float | None = None
        self.most_steps = 0

    def elapsed(self) -> float:
        """Returns the seconds that all processes of the run have trained."""
        here = 0.0 if self.begun is None else time.monotonic() - self.begun
        return self.spent + here

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        self.begun, self.most_steps = time.monotonic(), int(trainer.estimated_stepping_batches)
        if trainer.global_step:
            self.on_step(trainer, cast(Task, pl_module))

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        if self.seconds is None:
            return
        step, elapsed = trainer.global_step, max(self.elapsed(), 1e-6)
        fitting = step + int(step * max(0.0, self.seconds / elapsed - 1))
        total = trainer.strategy.broadcast(min(fitting, self.most_steps))
        end_training_at(trainer, total)
        task.total_steps = float(total)
        for config in trainer.lr_scheduler_configs:
            if isinstance(config.scheduler, StepSchedule):
                config.scheduler.set_pace(self.most_steps / total)

    def state_dict(self) -> Plain:
        return {"seconds": self.elapsed()}

    def load_state_dict(self, state_dict: PlainMapping) -> None:
        self.spent = float(state_dict["seconds"])


class ProgressLines(StepCallback):
    """Progress without a terminal: 20 log lines per run, and one per validation."""

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        total = trainer.estimated_stepping_batches
        if trainer.global_step % max(1, int(total) // 20) == 0:
            shown = ("train/loss", "train/images_per_s")
            values = {k: float(v) for k, v in trainer.callback_metrics.items() if k in shown}
            text = ", ".join(f"{k.removeprefix('train/')} {v:.4g}" for k, v in values.items())
            log.info("step %d/%s: %s", trainer.global_step, total, text)

    def on_validation_end(self, trainer: L.Trainer, pl_module: object) -> None:
        task = cast(Task, pl_module)
        if task.monitor in task.scores:
            score = task.scores[task.monitor]
            log.info("step %d: %s %.4f", trainer.global_step, task.monitor, score)


@register("progress")
def make_progress() -> Callback:
    """Makes a progress bar in a terminal, log lines elsewhere."""
    return ProgressBar(leave=False) if sys.stdout.isatty() else ProgressLines()


@register("ema")
class MovingAverage(WeightAveraging):
    """A moving average of the weights (:func:`dpt.objectives.teacher.ema`), which is validated and
    saved instead of them."""

    def __init__(self, *, decay: Share, use_buffers: bool = True) -> None:
        super().__init__(use_buffers=use_buffers, avg_fn=ema(decay))


@register("freeze")
class Freeze(Callback):
    """Keeps parts of the model constant: without gradients, not in the optimiser, in evaluation
    mode (BatchNorm, dropout).

    Args:
        parts: modules of the model by name: ``encoder``, ``decoder``, ``decoders.depth``,
            ``heads.depth``, ``encoder.blocks.0``, ...
        layers: number of the encoder's first layers, see :meth:`dpt.nn.Encoder.layer_ids`: the
            first has the patches and their positions, each further one a block. No gradient is
            computed below the others, which saves most of the time that a frozen encoder saves.
        cache: folder for the tokens of an encoder that is frozen as a whole, see
            :class:`dpt.training.token_cache.TokenCache`. None: they are computed in each step.
    """

    def __init__(
        self, *, parts: Sequence[str], layers: Layers = 0, cache: str | None = None
    ) -> None:
        self.parts, self.layers, self.cache = tuple(parts), layers, cache
        self.modules: list[nn.Module] = []

    def setup(self, trainer: L.Trainer, pl_module: object, stage: str) -> None:
        """Runs before the optimiser and DDP are created."""
        if stage != "fit" or not (self.parts or self.layers):
            return
        model = cast(Task, pl_module).model
        frozen = self._parameters(model)
        for parameter in frozen:
            parameter.requires_grad_(False)
        with_parameters = (m for m in model.modules() if next(m.parameters(), None) is not None)
        self.modules = [m for m in with_parameters if frozen.issuperset(m.parameters())]
        shown = [*self.parts, f"{plural(self.layers, 'layer')} of the encoder"]
        names = ", ".join(shown if self.layers else self.parts)
        log.info("frozen: %s (%.1f M parameters)", names, sum(p.numel() for p in frozen) / 1e6)

    def _parameters(self, model: DPT) -> set[nn.Parameter]:
        """Returns the parameters that are kept constant."""
        modules = dict(model.named_modules())
        unknown = [name for name in self.parts if not name or name not in modules]
        if unknown:
            names = ", ".join(dict(model.named_children()))
            raise ValueError(f"callbacks.freeze.parts: no {unknown[0]!r} among {names}")
        frozen = {p for name in self.parts for p in modules[name].parameters()}
        if self.layers:
            ids, parameters = model.encoder.layer_ids(), model.encoder.named_parameters()
            frozen |= {p for name, p in parameters if ids[name] < self.layers}
        return frozen

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        for module in self.modules:
            module.eval()
        model = cast(Task, pl_module).model
        for head in model.heads.values():
            head.training = True  # of the head alone: it gives the outputs that the loss needs
        if self.cache is None:
            return
        encoder: Any = model.encoder
        if any(p.requires_grad for p in encoder.parameters()):
            raise ValueError("callbacks.freeze.cache: needs callbacks.freeze.parts=[encoder]")
        loaders = (trainer.train_dataloader, trainer.val_dataloaders)
        capacity = 2 * sum(len(loader.dataset) for loader in loaders if loader is not None)
        settings = model.config.to_dict()["encoder"]
        # flips are stored, too
        encoder.forward = TokenCache(encoder, settings, Path(self.cache), capacity)

    def on_train_end(self, trainer: L.Trainer, pl_module: object) -> None:
        vars(cast(Task, pl_module).model.encoder).pop("forward", None)


@register("lora")
class Lora(Callback):
    """Trains updates of low rank to the encoder's linear layers, in place of its own weights and
    BatchNorm statistics (:class:`dpt.nn.network.LowRank`).

    Checkpoints hold the adapted weights, as of any model, and what a resumed run needs besides.

    Args:
        rank: of the updates; layers with a side of at most ``rank`` are frozen only. None: the
            encoder is trained as usual.
    """

    def __init__(self, *, rank: Count | None) -> None:
        self.rank = rank
        self.encoder: Encoder | None = None

    def setup(self, trainer: L.Trainer, pl_module: object, stage: str) -> None:
        """Runs before the optimiser, averages of the weights and DDP are created."""
        if stage != "fit" or self.rank is None:
            return
        task = cast(Task, pl_module)
        self.encoder = task.model.encoder.requires_grad_(False)
        all_layers = self.encoder.lora_layers().values()
        layers = [layer for layer in all_layers if self.rank < min(layer.weight.shape)]
        if not layers:
            raise ValueError(f"callbacks.lora.rank={self.rank}: no linear layer is larger")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch.initial_seed() + 1)  # the same with any number of ranks
            for layer in layers:
                add_low_rank(layer, self.rank)
        if task.teacher.needs_whole_weights:  # it averages the model, with these updates
            task.teacher.setup(task.model, task.objectives)
        count = sum(p.numel() for p in self.encoder.parameters() if p.requires_grad)
        text = "LoRA: updates of rank %d to %s of the encoder (%.2f M parameters)"
        log.info(text, self.rank, plural(len(layers), "linear layer"), count / 1e6)

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        if self.encoder is None:
            return
        if not any(p.requires_grad for p in self.encoder.parameters()):
            raise ValueError("callbacks.freeze.parts: leave out what callbacks.lora trains")
        for module in self.encoder.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()


class StopOnSignal(StepCallback):
    """Ctrl-C, SIGTERM and SIGUSR1 stop the run after the current step; a second Ctrl-C at once.

    The run saves, validates and writes its metrics, unless its loader hangs: then it ends with the
    last checkpoint that was written. SIGUSR1 under SLURM
    (``#SBATCH --signal=SIGUSR1@90``) saves, puts the job back into the queue and exits, since the
    job may have only seconds left. All ranks stop at the same step: they exchange signals about
    once a second, because each exchange synchronises the device.

    Args:
        resume: the command that continues the run.
    """

    def __init__(self, *, resume: str = "") -> None:
        self.resume = resume
        self.received: signal.Signals | None = None
        self.agreed: signal.Signals | None = None  # the same on all ranks
        self.handlers: dict[signal.Signals, Handler] = {}
        self.every, self.asked = 1, 0.0  # steps between two exchanges, time of the latest

    def __enter__(self) -> Self:
        self.handlers = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers = {}
        if self.received is not None and isinstance(error, SIGTERMException):  # its code is 0
            raise Stopped(self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            self._end_now()
        if self.received is None:
            self.received = signal.Signals(number)
            start_new_thread(self._end_if_stuck, (time.monotonic(),))
        text = "%s: saving and validating, then stopping; Ctrl-C after it stops at once"
        log.info(text, self.received.name)

    def _end_if_stuck(self, asked: float) -> None:
        """Ends the process if the loader gives no batch: a file system may hang for ever."""
        while self.handlers:
            if min(seconds_without_batch(), time.monotonic() - asked) > STUCK:
                self._end_now(f"; no batch came for {STUCK:g} s")
            time.sleep(0.5)

    def _end_now(self, remark: str = "") -> None:
        remark += f"; go on from the last checkpoint: {self.resume}"
        end_now(Stopped(self.received or signal.SIGTERM, remark))

    def on_train_start(self, trainer: L.Trainer, pl_module: object) -> None:
        signal.signal(signal.SIGTERM, self._receive)  # instead of Lightning's, which broadcasts
        self.asked = time.monotonic()

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        if trainer.world_size == 1 or trainer.global_step % self.every == 0:
            now = time.monotonic()
            slowest = self._agree(trainer, now - self.asked)
            self.every = min(64, 2 * self.every) if slowest < 1 else max(1, self.every // 2)
            self.asked = now

    def _agree(self, trainer: L.Trainer, seconds: float = 0.0) -> float:
        """Stops the run if a rank has received a signal; returns the largest ``seconds``."""
        number = float(self.received or 0)
        if trainer.world_size > 1:
            values = torch.tensor([number, seconds], device=trainer.strategy.root_device)
            number, seconds = trainer.strategy.reduce(values, reduce_op="max").tolist()
        if number:  # not self.received: other ranks do not know a signal that comes now
            self.agreed = self.received = signal.Signals(int(number))
            # RunCheckpoints writes last.ckpt now; should_stop would add a validation
            end_training_at(trainer, trainer.global_step)
        return seconds

    def on_validation_start(self, trainer: L.Trainer, pl_module: object) -> None:
        signal.signal(signal.SIGTERM, self._receive)
        self._requeue(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: object) -> None:
        if completes_step(trainer, batch_index(trainer)):
            self._agree(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: object) -> None:
        self._requeue(trainer)

    def _requeue(self, trainer: L.Trainer) -> None:
        """Asks SLURM to run this job, or this task of a job array, again, and exits."""
        outcome = requeue() if self.agreed == signal.SIGUSR1 else None
        if outcome is not None:
            if outcome:
                log.info("saved for SLURM's signal; %s", outcome)
            raise SystemExit(128 + signal.SIGUSR1)
