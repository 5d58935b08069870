"""``dpt find-lr``: a sweep of the learning rate over the real training step (Smith 2017)."""

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
from dpt.config.objects import convert
from dpt.run_log import write_json
from dpt.training.build import make_task
from dpt.training.callbacks import StopOnSignal
from dpt.training.trainer import make_trainer
from dpt.types import Batch

log = logging.getLogger("dpt")

ROWS = 16
"""Lines of the table."""
BELOW = 3.0
"""The suggested rate is the one of the lowest loss by this: there it begins to rise again."""
DIVERGED = 3.0
"""The sweep ends where the mean of a few losses is this many times the lowest such mean."""
FEW = 5


def find_lr(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Trains with a rate that grows at every step, and says where the loss still falls.

    All parameter groups grow together: their ratios are those of the run. Nothing is kept but
    ``lr.json`` and ``lr.png`` in the run's folder.

    Args:
        cfg: the run as plain data (``conf/find_lr.yaml``).

    Returns:
        ``optim.lr`` and, where it is set, ``optim.encoder_lr``.
    """
    folder = Path(cfg["run_dir"])
    low, high, steps = (
        convert(cfg["find"][key], kind, f"find.{key}")
        for key, kind in (("lr_min", float), ("lr_max", float), ("steps", int))
    )
    base = convert(cfg["optim"]["lr"], float, "optim.lr")
    if not 0 < low < high or steps < 10:
        raise ValueError(
            f"find.lr_min={low:g}, find.lr_max={high:g}, find.steps={steps}: needs 0 < lr_min < "
            f"lr_max and at least 10 steps"
        )
    if base <= 0:
        raise ValueError(f"optim.lr={base:g}: must be above 0, to give encoder_lr its ratio")
    if str(cfg["trainer"]["devices"]) != "1":
        raise ValueError(f"trainer.devices={cfg['trainer']['devices']}: find-lr runs on one device")
    rates = [low * (high / low) ** (step / (steps - 1)) for step in range(steps)]

    L.seed_everything(convert(cfg["seed"], int, "seed"), verbose=False)
    settings = build.loader_settings(cfg["data"])
    train = build.make_dataset(cfg["data"], "train")
    objectives = build.make_objectives(cfg["task"], train)
    model = build.make_model(cfg["model"], objectives, settings)
    sweep = {"_target_": f"{__name__}.follow", "_partial_": True, "rates": rates, "base": base}
    task = make_task({**cfg, "schedule": sweep}, objectives, model)
    targets = [o.target for o in objectives.values()]
    loader = build.train_loader(train, settings, cfg["augment"], cfg["seed"], targets)
    recorder, stop = Recorder(steps), StopOnSignal()
    trainer = make_trainer(_only_steps(cfg, steps), len(loader), [recorder], [stop])
    log.info("%d steps from %.1e to %.1e, in %s", steps, low, high, folder)
    trainer.fit(task, loader)

    losses = recorder.losses()
    if stop.received is not None:
        log.info("stopped by %s after %d steps: too few to tell", stop.received.name, len(losses))
        raise SystemExit(128 + stop.received)
    found = suggest(rates, losses)
    wanted = {"optim.lr": found.rate}
    if cfg["optim"].get("encoder_lr") is not None:
        wanted["optim.encoder_lr"] = found.rate * cfg["optim"]["encoder_lr"] / base
    curve: dict[str, Any] = {"rates": rates[: len(losses)], "losses": losses}
    write_json(folder / "lr.json", {**wanted, "lowest_loss_at": found.lowest, **curve})
    _plot(folder / "lr.png", curve["rates"], losses, found.smooth, chosen=found.rate)
    log.info("%s", table(curve["rates"], found.smooth))
    words = " ".join(f"{key}={value:.1e}" for key, value in wanted.items())
    log.info("the loss is lowest at %.1e; try a third of it: %s", found.lowest, words)
    log.info("curve: %s", folder / "lr.png")
    return wanted


def _plot(
    path: Path,
    rates: Sequence[float],
    losses: Sequence[float],
    smooth: Sequence[float],
    *,
    chosen: float,
) -> None:
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
    """The run without what happens beside its training steps."""
    length = {"max_steps": steps, "max_epochs": None, "max_time": None, "min_epochs": None,
              "min_steps": None, "fast_dev_run": False}  # fmt: skip
    nothing_else = {"limit_val_batches": 0, "enable_checkpointing": False, "profiler": None}
    return {
        **cfg,
        "trainer": {**cfg["trainer"], **length, **nothing_else},
        "logger": {},
        "callbacks": {"freeze": cfg["callbacks"].get("freeze")},
    }


def follow(optimizer: Optimizer, *, total_steps: int, rates: list[float], base: float) -> LambdaLR:
    """A schedule that gives a group of rate ``base`` the ``rates``, the others in proportion."""
    return LambdaLR(optimizer, lambda step: rates[min(step, len(rates) - 1)] / base)


class Recorder(Callback):
    """Keeps the loss of each optimiser step, and ends the run where it has diverged."""

    def __init__(self, steps: int) -> None:
        self.batches: list[list[float]] = [[] for _ in range(steps)]
        self.step = 0

    def losses(self) -> list[float]:
        """The mean over each step's batches, up to the last step taken."""
        return [sum(batch) / len(batch) for batch in self.batches if batch]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        # Lightning has divided it by the number of accumulated batches
        loss = float(outputs["loss"]) * trainer.accumulate_grad_batches if outputs else math.nan
        self.batches[self.step].append(loss)
        losses = self.losses()
        means = np.convolve(losses, np.full(FEW, 1 / FEW), "valid") if len(losses) >= FEW else [0]
        if not math.isfinite(loss) or means[-1] > DIVERGED * min(means):
            trainer.should_stop = True


class Suggestion(NamedTuple):
    rate: float
    lowest: float  # the rate at which the loss is lowest
    smooth: list[float]


def suggest(rates: Sequence[float], losses: Sequence[float]) -> Suggestion:
    """A rate somewhat below the one at which the loss is lowest (Smith 2017, section 3.3).

    Losses of single batches jump: the loss at a step is that of a line through the steps around
    it, a fifth of the sweep.

    Raises:
        ValueError: the loss never falls.
    """
    finite = np.array([loss for loss in losses if math.isfinite(loss)])
    half = max(FEW, len(rates) // 10)
    smooth: list[float] = []
    for step in range(len(finite)):
        around = np.arange(max(0, step - half), min(len(finite), step + half + 1))
        line = np.polyfit(around - step, finite[around], 1) if len(around) > 1 else finite
        smooth.append(float(line[-1]))
    lowest = int(np.argmin(smooth)) if smooth else 0
    if lowest < half:
        raise ValueError(
            f"the loss does not fall from find.lr_min={rates[0]:.1e} on: give a smaller one, or "
            f"see with debug=overfit whether this run can learn at all"
        )
    return Suggestion(rates[lowest] / BELOW, rates[lowest], smooth)


def table(rates: Sequence[float], losses: Sequence[float]) -> str:
    """Some of the rates with their losses, as text with bars."""
    kept = np.unique(np.linspace(0, len(losses) - 1, ROWS).round().astype(int))
    low, high = min(losses), max(losses)
    lines = ["optim.lr     loss"]
    for i in kept:
        bar = "#" * round(1 + 39 * (losses[i] - low) / ((high - low) or 1.0))
        lines.append(f"{rates[i]:8.1e} {losses[i]:8.4g}  {bar}")
    return "\n".join(lines)
