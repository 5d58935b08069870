"""A training run, from configuration to metrics.json."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from dpt.config import build
from dpt.config.compose import ENDED, FINISHED
from dpt.config.objects import convert
from dpt.config.trainer import require_batches, require_images
from dpt.data import DataError, EpochSampler
from dpt.data_check import quick_findings
from dpt.evaluation.baselines import trivial_scores
from dpt.evaluation.callbacks import FailedFiles
from dpt.run_log import log_table, write_json
from dpt.training.build import make_task
from dpt.training.callbacks import StopOnSignal
from dpt.training.finite import forget_later
from dpt.training.loggers import OneFileCSVLogger
from dpt.training.resume import (
    RunState,
    checkpoint_of,
    mark_going_on,
    step_of,
    without_weight_files,
)
from dpt.training.task import Task
from dpt.training.trainer import make_trainer

log = logging.getLogger("dpt")

CHECKED_FILES = 16
"""Files of each split that are read before training starts."""


def fit(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Trains, validates, and leaves the run's folder complete.

    Every ending that can still validate does so and writes ``last.ckpt`` and ``metrics.json``. A
    folder that holds a checkpoint is continued from it.

    Args:
        cfg: the run as plain data (``conf/train.yaml``).

    Returns:
        The final validation metrics, also in ``metrics.json``.
    """
    folder = Path(cfg["run_dir"])
    L.seed_everything(convert(cfg["seed"], int, "seed"), verbose=False)
    settings = build.loader_settings(cfg["data"])
    train, val = (build.make_dataset(cfg["data"], split) for split in ("train", "val"))
    objectives = build.make_objectives(cfg["task"], train)
    for name, objective in objectives.items():
        if objective.target and objective.target not in val.info.targets:
            lacks = build.LABEL_NAMES[objective.target]
            log.warning("%s is trained but not scored: the val split has no %s", name, lacks)
    for dataset in (train, val):
        for remark in first_look(dataset, skips_broken=settings.on_error == "skip"):
            log.warning("%s", remark)
    checkpoint = checkpoint_of(folder) if cfg["resume"] else None
    parts = cfg["model"] if checkpoint is None else without_weight_files(cfg["model"], checkpoint)
    model = build.make_model(parts, objectives, settings)
    task = make_task(cfg, objectives, model)
    targets = [o.target for o in objectives.values()]
    train_loader = build.train_loader(train, settings, cfg["augment"], cfg["seed"], targets)
    val_loader = build.eval_loader(val, settings, model.preprocessing, targets)

    stop, sampler = StopOnSignal(), train_loader.sampler
    assert isinstance(sampler, EpochSampler)
    state = RunState(sampler=sampler, batch_size=settings.batch_size)
    # the stop, which may save, comes after all that a step consists of, as the average of weights
    trainer = make_trainer(cfg, len(train_loader), [state, FailedFiles()], [stop])
    require_batches(trainer, len(train), settings.batch_size)
    require_images(trainer, len(val))
    if trainer.is_global_zero:
        log.info(
            "%s on %s (%d train, %d val images), %s with %.1f M parameters, in %s",
            cfg["task"]["name"],
            cfg["data"]["_target_"].rpartition(".")[2],
            len(train),
            len(val),
            model.spec["name"],
            sum(p.numel() for p in model.parameters()) / 1e6,
            folder,
        )
    started = time.monotonic()
    log_start(trainer, settings.batch_size, task, checkpoint, folder)
    log_settings(trainer, cfg)
    with none_left_behind(trainer):
        trainer.fit(task, train_loader, val_loader, ckpt_path=checkpoint)
        minutes = (time.monotonic() - started) / 60
        if stop.requeued and stop.received is not None:  # SLURM ends the job soon
            log.info("stopped after %d steps; SLURM starts the job again", trainer.global_step)
            raise SystemExit(128 + stop.received)
        scores = finish(trainer, task, val_loader, folder)
    if dist.is_initialized():
        dist.destroy_process_group()  # what follows is for the first rank alone
    if trainer.is_global_zero and scores:
        notes: dict[str, float | str] = {
            **task.notes,
            "precision": str(trainer.precision),
            "skipped_steps": task.skipped.total,
            ENDED: f"stopped by {stop.received.name}" if stop.received else FINISHED,
        }
        write_json(folder / "metrics.json", {**scores, **notes})
        rows = trivial_scores(objectives, train, val, settings.image_size)
        baselines = {
            f"{k.replace(' ', '_')}/{m}": v for k, row in rows.items() for m, v in row.items()
        }
        write_json(folder / "metrics.json", {**scores, **baselines, **notes})
        log_table({**rows, cfg["model"]["name"]: scores}, title="Scores on val")
        log.info("%d steps in %.1f minutes", trainer.global_step, minutes)
        log.info("checkpoints: %s", folder / "checkpoints")
        log.info("pictures:    %s", folder / "panels")
    # the first rank alone: one that ends with a code while the first still writes has it killed
    if stop.received is not None and trainer.is_global_zero:
        log.info("stopped by %s after %d steps", stop.received.name, trainer.global_step)
        raise SystemExit(128 + stop.received)
    return scores


@contextmanager
def none_left_behind(trainer: L.Trainer) -> Iterator[None]:
    """An error of the first process ends those it started: they would wait, and hold their GPUs."""
    try:
        yield
    except Exception:
        launcher = trainer.strategy.launcher
        if isinstance(launcher, _SubprocessScriptLauncher):
            launcher.kill(signal.SIGKILL)
        raise


def first_look(dataset: Any, *, skips_broken: bool) -> list[str]:
    """Remarks on a few files of a data set, read before any training time is spent.

    Raises:
        ValueError: a fault that training would meet too; only a remark where ``skips_broken``.
    """
    if not dataset.reads_files:
        return []
    try:
        remarks = dataset.validate(limit=CHECKED_FILES)
    except DataError as error:
        if not skips_broken:
            raise
        return [str(error)]
    return [*remarks, *quick_findings(dataset, CHECKED_FILES)]


def log_settings(trainer: L.Trainer, cfg: Mapping[str, Any]) -> None:
    for logger in trainer.loggers:
        logger.log_hyperparams(dict(cfg))


def log_start(
    trainer: L.Trainer, batch_size: int, task: Task, checkpoint: Path | None, folder: Path
) -> None:
    """What a reader of the log wants to know of a run before its first step."""
    if not trainer.is_global_zero:
        return
    if checkpoint is not None:
        step = step_of(checkpoint) or 0
        log.info("resume: from %s, step %d", checkpoint, step)
        mark_going_on(folder)
        forget_later(folder, step)
        for logger in trainer.loggers:
            if isinstance(logger, OneFileCSVLogger):
                logger.resume_at(step)
    accumulate = trainer.accumulate_grad_batches
    parts = [f"{batch_size} images a batch"]
    parts += [f"{accumulate} batches accumulated"] if accumulate > 1 else []
    parts += [f"{trainer.world_size} processes"] if trainer.world_size > 1 else []
    seen = batch_size * accumulate * trainer.world_size
    log.info("each step sees %d images (%s)", seen, ", ".join(parts))
    if task.lr_scale is None:
        log.info("learning rates are as configured (reference_batch=N scales them with N images)")
    else:
        factor = task.lr_scale * trainer.world_size * accumulate
        log.info("learning rates are %g times those configured (reference_batch)", factor)


def finish(trainer: L.Trainer, task: Task, val_loader: Any, folder: Path) -> dict[str, float]:
    """Scores the last weights, if the last validation did not, and saves them."""
    last, best = (folder / "checkpoints" / name for name in ("last.ckpt", "best.ckpt"))
    if _absent(trainer, last):
        trainer.save_checkpoint(last)
    if task.scored_step != trainer.global_step:
        trainer.should_stop = False
        trainer.validate(task, val_loader, verbose=False)
    if _absent(trainer, best):  # nobody looks for it
        trainer.save_checkpoint(best)
    return dict(task.scores)


def _absent(trainer: L.Trainer, path: Path) -> bool:
    """Whether the first rank sees no such file: all must save together, or none."""
    return bool(trainer.strategy.broadcast(not path.is_file()))
