"""``dpt find-lr``: a sweep of the learning rate over real training steps (Smith 2017).

Lightning's ``LearningRateFinder`` gives every parameter group the same rate; here the groups keep
the ratios of the run, such as that of ``optim.encoder_lr``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dpt.atomic import replacing
from dpt.config import build
from dpt.config.model import make_model
from dpt.config.objects import check_arguments
from dpt.run_log import write_json
from dpt.training.callbacks import StopOnSignal, completes_step
from dpt.training.task import make_task
from dpt.training.trainer import make_trainer
from dpt.types import Batch
from dpt.validation import validate

log = logging.getLogger("dpt")

Floats = Sequence[float]

BELOW = 3.0
"""The suggested rate is that of the lowest loss divided by this: above, the loss rises soon."""
DIVERGED = 3.0
"""The sweep ends when the mean of ``FEW`` losses is this many times the lowest such mean."""
FEW = 5


def find_lr(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Trains with a rate that grows at every step, and suggests a rate from the losses.

    Writes ``lr.json`` and ``lr.png`` to the run's folder; no checkpoint is kept.

    Returns:
        ``optim.lr`` and, where it is set, ``optim.encoder_lr``.
    """
    folder = Path(cfg["run_dir"])
    rates = sweep_rates(**check_arguments(sweep_rates, cfg["find"], "find"))
    base = validate(float, cfg["optim"]["lr"], "optim.lr")
    if base <= 0:
        raise ValueError(f"optim.lr={base:g}: must be above 0: encoder_lr is relative to it")
    if str(cfg["trainer"]["devices"]) != "1":
        raise ValueError(f"trainer.devices={cfg['trainer']['devices']}: find-lr runs on one device")

    L.seed_everything(validate(int, cfg["seed"], "seed"), verbose=False)
    settings = build.loader_settings(cfg["data"])
    train = build.make_dataset(cfg["data"], "train")
    objectives = build.make_objectives(cfg["task"], train)
    model = make_model(cfg["model"], objectives, settings, cfg["overrides"])
    sweep = {"_target_": f"{__name__}.follow", "_partial_": True, "rates": rates, "base": base}
    task = make_task({**cfg, "schedule": sweep}, objectives, model)
    targets = [o.target for o in objectives.values()]
    loader = build.train_loader(train, settings, cfg["augment"], cfg["seed"], targets)
    recorder, stop = Recorder(), StopOnSignal()
    trainer = make_trainer(_only_steps(cfg, len(rates)), len(loader), [recorder], [stop])
    log.info("%d steps from %.1e to %.1e, in %s", len(rates), rates[0], rates[-1], folder)
    trainer.fit(task, loader)

    losses = recorder.losses
    if stop.received is not None:
        log.info("stopped by %s after %d steps: no result", stop.received.name, len(losses))
        raise SystemExit(128 + stop.received)
    found = suggest(rates, losses)
    wanted = {"optim.lr": found.rate}
    if cfg["optim"].get("encoder_lr") is not None:
        wanted["optim.encoder_lr"] = found.rate * cfg["optim"]["encoder_lr"] / base
    curve: dict[str, Any] = {"rates": rates[: len(losses)], "losses": losses}
    write_json(folder / "lr.json", {**wanted, "lowest_loss_at": found.lowest, **curve})
    _plot(folder / "lr.png", **curve, smooth=found.smooth, chosen=found.rate)
    words = " ".join(f"{key}={value:.1e}" for key, value in wanted.items())
    log.info("the loss is lowest at %.1e; try a third of it: %s", found.lowest, words)
    log.info("curve: %s", folder / "lr.png")
    return wanted


def sweep_rates(*, lr_min: float, lr_max: float, steps: int) -> list[float]:
    """``steps`` rates from ``lr_min`` to ``lr_max`` with a constant ratio."""
    if not 0 < lr_min < lr_max or steps < 10:
        raise ValueError(
            f"find.lr_min={lr_min:g}, find.lr_max={lr_max:g}, find.steps={steps}: needs "
            f"0 < lr_min < lr_max and at least 10 steps"
        )
    return [lr_min * (lr_max / lr_min) ** (step / (steps - 1)) for step in range(steps)]


def _plot(path: Path, rates: Floats, losses: Floats, smooth: Floats, *, chosen: float) -> None:
    """Draws the losses, the smoothed losses and the chosen rate; a diverging loss is cut off."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(rates, losses, color="lightsteelblue", linewidth=1, label="loss")
    axes.semilogx(rates, smooth, color="tab:blue", label="smoothed loss")
    axes.axvline(chosen, color="tab:red", linewidth=1, label=f"suggested rate {chosen:.1e}")
    low, high = min(smooth), min(max(smooth), 2 * smooth[0] - min(smooth))
    margin = 0.05 * (high - low) or 1.0
    axes.set(xlabel="optim.lr", ylabel="loss", ylim=(low - margin, high + margin))
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as temporary:
        figure.savefig(temporary)


def _only_steps(cfg: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The run without validation, checkpoints, loggers and other callbacks."""
    trainer = {
        **cfg["trainer"],
        **dict.fromkeys(("max_epochs", "max_time", "min_epochs", "min_steps", "profiler")),
        "max_steps": steps,
        "fast_dev_run": False,
        "limit_val_batches": 0,
        "enable_checkpointing": False,
    }
    callbacks = {"freeze": cfg["callbacks"].get("freeze")}
    return {**cfg, "trainer": trainer, "logger": {}, "callbacks": callbacks}


def follow(optimizer: Optimizer, *, total_steps: int, rates: list[float], base: float) -> LambdaLR:
    """A schedule in which a group of rate ``base`` gets ``rates``, others in proportion."""
    return LambdaLR(optimizer, lambda step: rates[min(step, len(rates) - 1)] / base)


class Recorder(Callback):
    """Keeps the loss of each optimiser step, and ends the sweep when the loss diverges."""

    def __init__(self) -> None:
        self.losses: list[float] = []  # of each step, the mean over its batches
        self.batches: list[float] = []  # of the current step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        # Lightning has divided the loss by the number of accumulated batches
        loss = float(outputs["loss"]) * trainer.accumulate_grad_batches if outputs else math.nan
        self.batches.append(loss)
        if completes_step(trainer, batch_idx):
            self.losses.append(sum(self.batches) / len(self.batches))
            self.batches = []
        losses = self.losses
        means = np.convolve(losses, np.full(FEW, 1 / FEW), "valid") if len(losses) >= FEW else [0]
        if not math.isfinite(loss) or means[-1] > DIVERGED * min(means):
            trainer.should_stop = True


class Suggestion(NamedTuple):
    rate: float
    lowest: float  # the rate with the lowest smoothed loss
    smooth: list[float]


def suggest(rates: Sequence[float], losses: Sequence[float]) -> Suggestion:
    """A rate somewhat below that of the lowest loss (Smith 2017, section 3.3).

    Losses are smoothed: each is replaced by the value of a line fitted to its neighbours, a fifth
    of the sweep.

    Raises:
        ValueError: the loss never falls.
    """
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    half = max(FEW, len(rates) // 10)
    smooth: list[float] = []
    for step in range(len(finite)):
        near = np.arange(max(0, step - half), min(len(finite), step + half + 1))
        line = np.polyfit(near - step, finite[near], 1) if len(near) > 1 else finite
        smooth.append(float(line[-1]))
    lowest = int(np.argmin(smooth)) if smooth else 0
    if lowest < half:
        raise ValueError(
            f"the loss does not fall from find.lr_min={rates[0]:.1e} on: set a smaller one, or "
            f"check with debug=overfit whether this run can train at all"
        )
    return Suggestion(rates[lowest] / BELOW, rates[lowest], smooth)
