"""A training run, from configuration to metrics.json."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader

from dpt.config.build import make_eval_loader, make_objectives, require_images, with_precision
from dpt.config.overrides import as_argument, map_strings
from dpt.config.schema import LoaderSettings, RunConfig
from dpt.data import Dataset, EpochSampler
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.callbacks import FailedFiles
from dpt.files import without_passwords
from dpt.objectives import Objective
from dpt.objectives.batches import lower_is_better, nonfinite_summary
from dpt.objectives.teacher import Teacher
from dpt.process import is_first_rank
from dpt.run_log import log_table, write_json
from dpt.training.callbacks import StopOnSignal
from dpt.training.lightning_internals import kill_other_ranks
from dpt.training.quick_check import check_first_files
from dpt.training.resume import RunState, checkpoint_of, restoring, step_of, without_weight_files
from dpt.training.task import Task
from dpt.training.trainer import make_task_and_loader, make_trainer, validation_cost

log = logging.getLogger("dpt")

Scores = dict[str, float]


@dataclass(frozen=True)
class LabelledData:
    """The two splits of a run, and what is learned from them."""

    settings: LoaderSettings
    train: Dataset
    val: Dataset
    objectives: dict[str, Objective]
    teacher: Teacher


@dataclass(frozen=True)
class Run:
    """A run that is ready to start, new or from a checkpoint."""

    config: RunConfig
    data: LabelledData
    task: Task
    trainer: L.Trainer
    train_loader: DataLoader
    val_loader: DataLoader
    state: RunState
    stop: StopOnSignal
    checkpoint: Path | None
    first_step: int | None


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
    data = read_data(config)
    check_first_files(
        data.train, data.val, data.objectives, data.teacher, on_error=data.settings.on_error
    )
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
    end_if_stopped(run)
    if run.task.nonfinite:
        raise ValueError(
            f"the run has diverged: {nonfinite_summary(run.task.nonfinite)}. Lower optim.lr; "
            f"best.ckpt, if there is one, is of an earlier validation"
        )
    return scores


def read_data(config: RunConfig) -> LabelledData:
    """Makes the data sets, objectives and teacher of a run."""
    train, val = (config.data.make(split) for split in ("train", "val"))
    val.adopt_classes(train.info.class_names)
    objectives = make_objectives(config.task, train)
    return LabelledData(config.data.loader, train, val, objectives, config.task.teacher.build())


def prepare(config: RunConfig, data: LabelledData) -> Run:
    """Makes the model, new or from the run's checkpoint, its loaders and its trainer."""
    folder, settings = config.folder, data.settings
    checkpoint = checkpoint_of(folder, config.resume) if config.resume else None
    if checkpoint is not None:
        of_run = without_weight_files(config.values["model"], checkpoint)
        config = config.changed(model=of_run)
    task, train_loader = make_task_and_loader(config, data.train, data.objectives, data.teacher)
    model = task.model
    if config.overwrite and is_first_rank():
        (folder / "wandb_id.txt").unlink(missing_ok=True)
    val_loader = make_eval_loader(
        data.val, settings, model.preprocessing, task.targets, prompts=model.takes_prompts
    )
    stop = StopOnSignal(resume=f"dpt train {as_argument('resume', folder)}")
    sampler = train_loader.sampler
    assert isinstance(sampler, EpochSampler)
    config = config.completed(model.config.to_dict(), with_precision(config.values["trainer"]))
    state = RunState(cfg=config.values, sampler=sampler, batch_size=settings.batch_size)
    trainer = make_trainer(
        config,
        len(train_loader),
        [state, FailedFiles()],
        # it may save, so it comes after every callback that belongs to a step, such as EMA
        [stop],
        val_batches=len(val_loader),
        val_cost=validation_cost(settings),
    )
    require_images(trainer, len(data.val), len(data.train), settings.batch_size)
    first_step = -1 if checkpoint is None else step_of(checkpoint)
    return Run(
        config=config,
        data=data,
        task=task,
        trainer=trainer,
        train_loader=train_loader,
        val_loader=val_loader,
        state=state,
        stop=stop,
        checkpoint=checkpoint,
        first_step=first_step,
    )


def train_and_validate(run: Run) -> Scores:
    """Trains to the end of the run, or until it is stopped, and returns the last scores."""
    trainer, stop = run.trainer, run.stop
    try:
        with restoring(run.checkpoint, run.state):
            trainer.fit(run.task, run.train_loader, run.val_loader, ckpt_path=run.checkpoint)
        ended = trainer.should_stop and stop.received is None
        if (
            run.config.trainer.settings.get("max_time")
            and ended
            and trainer.global_step == run.first_step
        ):
            log.info("resume: the run's time is over; a longer trainer.max_time extends it")
        scores = finish(trainer, run.task, run.val_loader, run.config.folder)
    except Exception:
        kill_other_ranks(trainer)
        raise
    if dist.is_initialized():
        dist.destroy_process_group()
    return scores


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
    data, trainer = run.data, run.trainer
    baselines: dict[str, dict[str, float]] = {}
    if with_baselines and run.stop.received is None:
        count = trainer.num_val_batches[0] * data.settings.batch_size * trainer.world_size
        baselines = trivial_scores(
            data.objectives,
            data.train,
            data.val,
            data.settings.image_size,
            indices=range(len(data.val))[: int(count)],  # fewer by trainer.limit_val_batches
            num_workers=data.settings.num_workers,
        )
        write_json(run.config.folder / "metrics.json", {**scores, **named(baselines), **notes})
        for logger in trainer.loggers:
            logger.log_metrics(named(baselines), step=trainer.global_step)
            logger.save()
    columns = {**baselines, run.config.model.name: scores}
    lower = lower_is_better(data.objectives.values())
    log_table(columns, title="Scores on val", lower_is_better=lower)


def end_if_stopped(run: Run) -> None:
    """Raises SystemExit if a signal has ended the run."""
    received = run.stop.received
    if received is not None:
        log.info("stopped by %s after %d steps", received.name, run.trainer.global_step)
        log.info("go on with: %s", run.stop.resume)
        # Only rank 0 exits non-zero; otherwise the launcher would kill it while it is writing
        raise SystemExit(128 + received)


def log_start(run: Run) -> None:
    """Logs what is trained on what, and how many images a step uses."""
    data, trainer, model = run.data, run.trainer, run.task.model
    log.info(
        "%s on %s (%d train, %d val images), %s with %.1f M parameters, in %s",
        run.config.task.name,
        run.config.data.kind,
        len(data.train),
        len(data.val),
        model.config.name,
        sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        run.config.folder,
    )
    accumulate, ranks = trainer.accumulate_grad_batches, trainer.world_size
    batch_size = data.settings.batch_size
    factors = [f"{batch_size} images a batch"]
    factors += [f"{accumulate} batches accumulated"] if accumulate > 1 else []
    factors += [f"{ranks} processes"] if ranks > 1 else []
    images = batch_size * accumulate * ranks
    log.info("each step uses %d images (%s)", images, ", ".join(factors))
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    if threads > 1 and threads + load > 1.5 * (os.cpu_count() or 1):
        log.warning("this machine is busy: OMP_NUM_THREADS=1 before the command may be faster")
    if run.checkpoint is not None:
        log.info("resume: from %s, step %d", run.checkpoint, run.first_step)
    for logger in trainer.loggers:
        logger.log_hyperparams(map_strings(run.config.values, without_passwords))


def finish(trainer: L.Trainer, task: Task, val_loader: DataLoader, folder: Path) -> Scores:
    """Validates the final weights if that is not done yet, and saves missing checkpoints."""
    _save_if_missing(trainer, folder / "checkpoints/last.ckpt")
    if task.scored_step != trainer.global_step:
        trainer.should_stop = False
        log.info("validating the final weights")
        try:
            trainer.validate(task, val_loader, verbose=False)
        except SIGTERMException:  # it came before StopOnSignal could replace Lightning's handler
            trainer.validate(task, val_loader, verbose=False)
    if not task.nonfinite:
        _save_if_missing(trainer, folder / "checkpoints/best.ckpt")
    return dict(task.scores)


def _save_if_missing(trainer: L.Trainer, path: Path) -> None:
    if trainer.strategy.broadcast(not path.is_file()):  # all ranks save together, or none
        trainer.save_checkpoint(path)
