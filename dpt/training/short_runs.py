"""Trainings of a few steps: ``dpt find-lr``, and the time of a step for ``dpt fit``."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback, LambdaCallback
from scipy.signal import savgol_filter
from torch.optim import Optimizer

from dpt.config.build import make_objectives
from dpt.config.schema import FindLrConfig, RunConfig
from dpt.files import replacing
from dpt.process import log
from dpt.run_log import write_json
from dpt.training import trainer as trainers
from dpt.training.callbacks import StepCallback
from dpt.training.optim import StepSchedule
from dpt.training.task import Task
from dpt.validation import Plain, Positive, validate

_TIMED_STEPS = 5
_TIMING_SECONDS = 20.0  # for timing steps; four steps are timed in any case


def find_lr(config: FindLrConfig) -> dict[str, float]:
    """Trains with a rate that grows at every step, and suggests one by the fall of the loss
    (Smith 2017).

    Lightning's ``LearningRateFinder`` gives every parameter group the same rate; here the groups
    keep the ratios of the run, such as that of ``optim.encoder_lr``.

    Writes ``lr.json`` and ``lr.png`` to the run's folder; no checkpoint is kept.

    Returns:
        ``optim.lr`` and, where it is set, ``optim.encoder_lr``.
    """
    folder, optim, find = config.folder, config.optim.settings, config.find
    rates = np.geomspace(find.lr_min, find.lr_max, find.steps)
    base = validate(Positive, optim.get("lr"), "optim.lr")  # encoder_lr is relative to it
    if str(devices := config.trainer.settings.get("devices")) != "1":
        raise ValueError(f"trainer.devices={devices}: find-lr runs on one device")

    L.seed_everything(config.seed, verbose=False)
    last, recorder = len(rates) - 1, Recorder()

    def sweep(optimizer: Optimizer) -> StepSchedule:
        return StepSchedule(optimizer, lambda step: float(rates[min(step, last)]) / base)

    log.info("%d steps from %.1e to %.1e, in %s", len(rates), rates[0], rates[-1], folder)
    short_run(config, recorder, steps=len(rates), schedule=sweep)
    losses = np.array(recorder.losses)
    rate, smooth = suggested_rate(rates, losses)
    suggested = {"optim.lr": rate}
    if optim.get("encoder_lr") is not None:
        suggested["optim.encoder_lr"] = rate * optim["encoder_lr"] / base
    curve: Plain = {"rates": rates[: len(losses)].tolist(), "losses": losses.tolist()}
    write_json(folder / "lr.json", {**suggested, **curve})
    _plot(folder / "lr.png", rates, losses, smooth, rate)
    words = " ".join(f"{key}={value:.1e}" for key, value in suggested.items())
    log.info("the smoothed loss has fallen by 90 %% of its total decrease at this rate: %s", words)
    log.info("curve: %s", folder / "lr.png")
    return suggested


class Recorder(StepCallback):
    """Keeps the loss of each optimiser step, and ends the sweep when the loss diverges."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, trainer: L.Trainer, task: Task) -> None:
        self.losses.append(float(trainer.callback_metrics["train/loss"]))
        means = np.convolve(self.losses, np.full(5, 0.2))[4 : len(self.losses)]
        diverges = not math.isfinite(self.losses[-1])
        if len(means):
            least = means.min()  # negative for a likelihood, as of task.log_variance
            rise = 2 * (least if least > 0 else max(-least, means[0] - least))
            diverges |= means[-1] > least + rise
        trainer.should_stop |= bool(diverges)


def suggested_rate(rates: np.ndarray, losses: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the rate at which 90 % of the loss's fall are reached, and the smoothed losses.

    The rate of the lowest loss (Smith 2017, section 3.3) is not used: in a short sweep, noise
    decides it. A smoothed loss is the value of a line fitted to a fifth of the sweep around it.
    """
    losses, half = losses[np.isfinite(losses)], len(rates) // 10
    enough = len(losses) > 2 * half
    smooth = savgol_filter(losses, 2 * half + 1, 1) if enough else losses
    if not enough or smooth.argmin() < half:
        fault = f"the loss does not fall from find.lr_min={rates[0]:.1e} on"
        raise ValueError(f"{fault}: set a smaller one, or try debug=overfit")
    reached = smooth <= 0.1 * smooth[0] + 0.9 * smooth.min()
    if smooth.argmin() == len(rates) - 1:
        log.warning("the loss still falls at find.lr_max=%.1e: set a larger one", rates[-1])
    return float(rates[reached.argmax()]), smooth


def _plot(
    path: Path, rates: np.ndarray, losses: np.ndarray, smooth: np.ndarray, chosen: float
) -> None:
    """Draws the losses, the smoothed losses and the chosen rate; a diverging loss is cut off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(rates[: len(losses)], losses, color="lightsteelblue", label="loss")
    axes.semilogx(rates[: len(smooth)], smooth, color="tab:blue", label="smoothed loss")
    axes.axvline(chosen, color="tab:red", label=f"suggested rate {chosen:.1e}")
    margin = smooth[0] - smooth.min()
    axes.set(xlabel="optim.lr", ylabel="loss", ylim=(smooth.min() - margin, smooth[0] + margin))
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary)


@dataclass(frozen=True)
class Times:
    """Seconds of a step and of a validation, with what they consist of."""

    batches: int  # of a step
    step: float
    images: int  # of val
    validation: float


def time_steps(config: RunConfig) -> Times:
    """Times a few training steps of a run."""
    settings = config.data.loader
    batches = config.trainer.settings.get("accumulate_grad_batches", 1)
    few_images = 2 * settings.batch_size
    is_cached = config.data.parts["train"].settings.get("cache")
    if is_cached and len(config.data.make("train")) > few_images:
        # all are in the cache after two steps, as in training after the first epoch
        few = {**config.values["data"], "labelled": few_images, "unlabelled": None}
        config = config.changed(data=few)
    times: list[float] = []

    def note_time(trainer: L.Trainer, *_: object) -> None:
        times.append(time.monotonic())
        trainer.should_stop = len(times) > 3 and times[-1] - times[0] > _TIMING_SECONDS

    config = config.changed(trainer={**config.values["trainer"], "accumulate_grad_batches": 1})
    short_run(config, LambdaCallback(on_train_batch_end=note_time), steps=_TIMED_STEPS)
    seconds = float(np.median(np.diff(times[1:])))
    images = len(config.data.make("val"))
    validation = trainers.validation_cost(settings) * seconds * images / settings.batch_size
    return Times(batches, batches * seconds, images, validation)


def short_run(
    config: RunConfig,
    callback: Callback,
    *,
    steps: int,
    schedule: Callable[[Optimizer], StepSchedule] | None = None,
) -> None:
    """Trains a new model for ``steps`` steps, without validations, loggers and checkpoints.

    Args:
        config: of the run; of its callbacks only ``lora`` and ``freeze`` are used.
        schedule: in place of the configured one.
    """
    train = config.data.make("train")
    objectives, teacher = make_objectives(config.task, train), config.task.teacher.build()
    task, loader = trainers.make_task_and_loader(config, train, objectives, teacher)
    task.schedule_factory = schedule or task.schedule_factory
    limits: Plain = dict.fromkeys(("max_epochs", "max_time", "min_epochs", "min_steps", "profiler"))
    limits |= {"fast_dev_run": False, "limit_val_batches": 0, "enable_checkpointing": False}
    callbacks = {name: config.values["callbacks"].get(name) for name in ("lora", "freeze")}
    arguments = {**config.values["trainer"], **limits, "max_steps": steps}
    short = config.changed(trainer=arguments, logger={}, callbacks=callbacks)
    trainers.make_trainer(short, len(loader), [callback]).fit(task, loader)
