"""A training run, from configuration to metrics.json."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import lightning as L
import numpy as np
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader

from dpt.config import build
from dpt.config.overrides import as_argument, map_strings
from dpt.config.schema import RunConfig
from dpt.data import Dataset, EpochSampler
from dpt.data.base import require_same_classes
from dpt.data_check import quick_findings
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.callbacks import FailedFiles
from dpt.files import DataError, without_passwords
from dpt.objectives import Objective
from dpt.objectives.base import lower_is_better, nonfinite_summary
from dpt.objectives.teacher import Teacher
from dpt.process import is_first_rank, log
from dpt.run_log import log_table, write_json
from dpt.training import resume
from dpt.training import trainer as trainers
from dpt.training.callbacks import StopOnSignal
from dpt.training.lightning_internals import kill_other_ranks
from dpt.training.task import Task
from dpt.types.samples import Sample
from dpt.validation import Plain

CHECKED_FILES = 16  # of each split
HIGH_RATE = 3e-4  # of a pretrained encoder, with optimisers whose steps have the size of the rate
Scores = dict[str, float]


@dataclass(frozen=True)
class LabelledData:
    """The two splits of a run, and what is learned from them."""

    train: Dataset
    val: Dataset
    objectives: Mapping[str, Objective]
    teacher: Teacher


@dataclass(frozen=True)
class Run:
    """A run that is ready to start, new or from a checkpoint."""

    config: RunConfig
    data: LabelledData
    task: Task
    trainer: L.Trainer
    train_loader: DataLoader[Sample]
    val_loader: DataLoader[Sample]
    state: resume.RunState
    stop: StopOnSignal


def fit(config: RunConfig, *, with_baselines: bool = True) -> Scores:
    """Trains, validates, and writes the run's folder.

    A run that a signal or a limit ends early is validated too, and writes ``last.ckpt`` and
    ``metrics.json``. With ``resume``, the run continues from the checkpoint in its folder, if any.

    Args:
        config: of the run.
        with_baselines: also score predictors that use no trained model.

    Returns:
        The final validation metrics.
    """
    started = time.monotonic()
    L.seed_everything(config.seed, verbose=False)
    train, val = (config.data.make(split) for split in ("train", "val"))
    val.adopt_classes(train.info.class_names)
    objectives = build.make_objectives(config.task, train)
    data = LabelledData(train, val, objectives, config.task.teacher.build())
    check_first_files(data, on_error=config.data.loader.on_error)
    run = prepare(config, data)
    log_start(run)
    with run.stop:
        scores = train_and_validate(run)
        if not run.trainer.is_global_zero:
            return scores
        notes = notes_of(run)
        if scores:
            write_json(run.config.folder / "metrics.json", {**scores, **notes})
    if scores:
        log_scores(run, scores, notes, with_baselines=with_baselines)
        minutes = (time.monotonic() - started) / 60
        log.info("%d steps in %.1f minutes", run.trainer.global_step, minutes)
        log.info("checkpoints: %s", run.config.folder / "checkpoints")
        if (run.config.folder / "panels").is_dir():  # some tasks have no pictures
            log.info("panels:      %s", run.config.folder / "panels")
    if run.stop.received is not None:
        steps, command = run.trainer.global_step, run.stop.resume
        log.info("stopped by %s after %d steps", run.stop.received.name, steps)
        log.info("go on with: %s", command)
        # Only rank 0 exits non-zero; otherwise the launcher would kill it while it is writing
        raise SystemExit(128 + run.stop.received)
    if run.task.nonfinite:
        summary = nonfinite_summary(run.task.nonfinite)
        raise ValueError(f"the run has diverged: {summary}: lower optim.lr")
    return scores


def prepare(config: RunConfig, data: LabelledData) -> Run:
    """Makes the model, new or from the run's checkpoint, its loaders and its trainer."""
    folder, settings = config.folder, config.data.loader
    checkpoint = resume.checkpoint_of(folder, config.resume) if config.resume else None
    if checkpoint is not None:
        of_run = resume.without_weight_files(config.values["model"], checkpoint)
        config = config.changed(model=of_run)
    task, train_loader = trainers.make_task_and_loader(
        config, data.train, data.objectives, data.teacher
    )
    model = task.model
    if config.overwrite and is_first_rank():
        (folder / "wandb_id.txt").unlink(missing_ok=True)
    val_loader = build.make_eval_loader(
        data.val, settings, model.preprocessing, task.targets, prompts=model.takes_prompts
    )
    stop = StopOnSignal(resume=f"dpt train {as_argument('resume', folder)}")
    sampler = train_loader.sampler
    assert isinstance(sampler, EpochSampler)
    config = config.completed(
        model.config.to_dict(), build.with_precision(config.values["trainer"])
    )
    state = resume.RunState(config, sampler, checkpoint)
    trainer = trainers.make_trainer(
        config,
        len(train_loader),
        [state, FailedFiles()],
        # it may save, so it comes after every callback that belongs to a step, such as EMA
        [stop],
        val_batches=len(val_loader),
    )
    build.require_images(trainer, len(data.val), len(data.train), settings.batch_size)
    return Run(config, data, task, trainer, train_loader, val_loader, state, stop)


def train_and_validate(run: Run) -> Scores:
    """Trains to the end of the run, or until it is stopped, and returns the last scores.

    Validates the final weights if that is not done yet, and saves missing checkpoints.
    """
    trainer, task, folder = run.trainer, run.task, run.config.folder
    try:
        with run.state.restoring():
            trainer.fit(task, run.train_loader, run.val_loader, ckpt_path=run.state.checkpoint)
        _save_if_missing(trainer, folder / "checkpoints/last.ckpt")
        if task.scored_step != trainer.global_step:
            trainer.should_stop = run.stop.agreed is not None  # then it chooses no best.ckpt
            log.info("validating the final weights")
            try:
                trainer.validate(task, run.val_loader, verbose=False)
            except SIGTERMException:  # before StopOnSignal could replace Lightning's handler
                trainer.validate(task, run.val_loader, verbose=False)
        if not task.nonfinite:
            _save_if_missing(trainer, folder / "checkpoints/best.ckpt")
    except Exception:
        kill_other_ranks(trainer)
        raise
    if dist.is_initialized():
        dist.destroy_process_group()
    return dict(task.scores)


def _save_if_missing(trainer: L.Trainer, path: Path) -> None:
    if trainer.strategy.broadcast(not path.is_file()):  # all ranks save together, or none
        trainer.save_checkpoint(path)


def notes_of(run: Run) -> dict[str, float | str]:
    """Returns what ``metrics.json`` says beside the scores."""
    received = run.stop.received
    notes = {k: v for objective in run.data.objectives.values() for k, v in objective.notes.items()}
    return {
        **notes,
        "precision": str(run.trainer.precision),
        "skipped_steps": run.task.guard.total,
        "nonfinite_predictions": len(run.task.nonfinite),
        "ended": f"stopped by {received.name}" if received else "finished",
    }


def log_scores(
    run: Run, scores: Scores, notes: Mapping[str, float | str], *, with_baselines: bool
) -> None:
    """Logs the scores beside those of baselines, which a stopped job may not have the time for."""
    data, trainer, settings = run.data, run.trainer, run.config.data.loader
    baselines: dict[str, dict[str, float]] = {}
    if with_baselines and run.stop.received is None:
        count = trainer.num_val_batches[0] * settings.batch_size * trainer.world_size
        indices = range(len(data.val))[: int(count)]  # fewer by trainer.limit_val_batches
        baselines = trivial_scores(data.objectives, data.train, data.val, indices, settings)
        write_json(run.config.folder / "metrics.json", {**scores, **named(baselines), **notes})
        for logger in trainer.loggers:
            logger.log_metrics(named(baselines), step=trainer.global_step)
            logger.save()
    columns = {**baselines, run.config.model.name: scores}
    lower = lower_is_better(data.objectives.values())
    log_table(columns, title="Scores on val", lower_is_better=lower)


def log_start(run: Run) -> None:
    """Logs what is trained on what, and how many images a step uses."""
    data, trainer, model = run.data, run.trainer, run.task.model
    images = f"{len(data.train)} train, {len(data.val)} val images"
    size = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    network = f"{model.config.name} with {size:.1f} M parameters"
    task, kind, folder = run.config.task.name, run.config.data.kind, run.config.folder
    log.info("%s on %s (%s), %s, in %s", task, kind, images, network, folder)
    factors = run.config.data.loader.batch_size, trainer.accumulate_grad_batches, trainer.world_size
    text = "each step uses %d images: batch size %d, accumulated batches %d, processes %d"
    log.info(text, math.prod(factors), *factors)
    if run.config.model.encoder_weights is not None:
        rate = run.config.optim.settings.get("encoder_lr") or 0.0
        log.info("pretrained encoder: its rate is optim.encoder_lr=%g", rate)
        if rate > HIGH_RATE and run.config.optim.name != "sgd":
            text = "optim.encoder_lr=%g: above about %g, training forgets pretrained weights"
            log.warning(text, rate, HIGH_RATE)
    for logger in trainer.loggers:
        logger.log_hyperparams(map_strings(run.config.values, without_passwords))


def check_first_files(data: LabelledData, *, on_error: str) -> None:
    """Reads a few files of each split, and warns about what may be wrong with them."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # their launcher ends them; srun does not
        return
    for remark in unscored(data.val, data.objectives):
        log.warning("%s", remark)
    require_same_classes(data.train, data.val)
    for dataset in (data.train, data.val):
        try:
            remarks = [*dataset.validate(limit=CHECKED_FILES)]
            if dataset.reads_files:
                remarks += quick_findings(dataset, CHECKED_FILES)
            if dataset is data.train and (dataset.reads_files or data.teacher.labels_images):
                remarks += missing_labels(data)
        except DataError as error:
            if on_error != "skip":
                raise
            remarks = [str(error)]
        for remark in remarks:
            log.warning("%s", remark)


def unscored(val: Dataset, objectives: Mapping[str, Objective]) -> Iterator[str]:
    """Yields warnings about heads for which the val split has no labels."""
    for name, objective in objectives.items():
        if objective.target and objective.target not in val.info.targets:
            lacks = build.LABEL_NAMES[objective.target]
            yield f"{name} is trained but not scored: the val split has no {lacks}"
        elif objective.target == "objects" and val.objects_fault:
            yield f"{name} is trained but not scored: {val.objects_fault}"


def missing_labels(data: LabelledData) -> Iterator[str]:
    """Yields warnings about targets that no image has, and about a teacher without images to
    label."""
    indices = data.train.some_indices(CHECKED_FILES)
    samples = [without_arrays(data.train[index]) for index in indices]
    count = len(samples)
    for name, objective in data.objectives.items():
        yield from objective.remarks(samples)
        if objective.target and not any(objective.target in sample for sample in samples):
            lacks = build.LABEL_NAMES[objective.target]
            yield f"{name}: none of the {count} training images that were read has {lacks}"
    targets = {objective.target for objective in data.objectives.values()}
    if data.teacher.labels_images and all(targets & sample.keys() for sample in samples):
        yield f"task/teacher: all {count} training images read have labels: it labels none"


def without_arrays(sample: Sample) -> Sample:
    """Returns a sample with None for images and maps: 16 large ones take a gigabyte."""
    values: Plain = {**sample}
    return cast(Sample, {key: None if np.ndim(value) else value for key, value in values.items()})
