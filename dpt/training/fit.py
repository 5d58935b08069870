"""A training run, from configuration to metrics.json."""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import SIGTERMException

from dpt.config import build
from dpt.config.model import complete, make_model
from dpt.config.objects import make
from dpt.config.overrides import as_argument
from dpt.config.resume import map_strings
from dpt.config.run_keys import RunKeys
from dpt.config.trainer import require_batches, require_images, with_precision
from dpt.data import DataError, EpochSampler
from dpt.data.base import require_same_classes
from dpt.data_check import quick_findings
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.callbacks import FailedFiles
from dpt.files import without_passwords
from dpt.objectives.base import lower_is_better, nonfinite_summary
from dpt.objectives.teacher import Teacher
from dpt.process import is_first_rank
from dpt.run_log import log_table, write_json
from dpt.training.callbacks import StopOnSignal
from dpt.training.lightning_internals import kill_other_ranks
from dpt.training.resume import RunState, checkpoint_of, restoring, step_of, without_weight_files
from dpt.training.task import Task, make_task
from dpt.training.trainer import make_trainer, validation_cost
from dpt.validation import validate

log = logging.getLogger("dpt")

CHECKED_FILES = 16  # of each split, that are read before training starts


def fit(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Trains, validates, and writes the run's folder.

    A run that a signal or a limit ends early is validated too, and writes ``last.ckpt`` and
    ``metrics.json``. With ``resume``, the run continues from the checkpoint in its folder, if any.

    Args:
        cfg: configuration of the run as plain data (``conf/train.yaml``).

    Returns:
        The final validation metrics.
    """
    folder, started = Path(cfg["run_dir"]), time.monotonic()
    keys = validate(RunKeys, cfg, "")
    L.seed_everything(keys.seed, verbose=False)

    # data, and what is trained on it
    build.refuse_unused(keys.overrides)
    settings = build.loader_settings(cfg["data"])
    train, val = (build.make_dataset(cfg["data"], split) for split in ("train", "val"))
    val.adopt_classes(train.info.class_names)
    objectives = build.make_objectives(cfg["task"], train)
    targets = [o.target for o in objectives.values()]
    teacher = make(cfg["task"].get("teacher"), "task.teacher", Teacher)
    check_data(train, val, objectives, teacher, on_error=settings.on_error)

    # the model, new or from the run's checkpoint
    checkpoint = checkpoint_of(folder, cfg["resume"]) if cfg["resume"] else None
    parts = cfg["model"] if checkpoint is None else without_weight_files(cfg["model"], checkpoint)
    model = make_model(parts, objectives, settings, cfg["overrides"])
    task = make_task(cfg, objectives, teacher, model)

    # loaders and trainer
    if cfg["overwrite"] and is_first_rank():
        (folder / "wandb_id.txt").unlink(missing_ok=True)
    train_loader = build.train_loader(train, settings, cfg["augment"], keys.seed, targets)
    val_loader = build.eval_loader(val, settings, model.preprocessing, targets)
    sampler = train_loader.sampler
    stop = StopOnSignal(resume=f"dpt train {as_argument('resume', folder)}")
    assert isinstance(sampler, EpochSampler)
    cfg = {**cfg, "model": complete(parts, model), "trainer": with_precision(cfg["trainer"])}
    state = RunState(cfg=cfg, sampler=sampler, batch_size=settings.batch_size)
    # StopOnSignal may save, so it comes after every callback that belongs to a step, such as EMA
    cost = validation_cost(settings)
    trainer = make_trainer(
        cfg, len(train_loader), [state, FailedFiles()], [stop],
        val_batches=len(val_loader), val_cost=cost,
    )  # fmt: skip
    require_batches(trainer, len(train), settings.batch_size)
    require_images(trainer, len(val))
    log_start(cfg, trainer, task, settings.batch_size, len(train), len(val))
    begun = step_of(checkpoint) if checkpoint is not None else -1
    if checkpoint is not None:
        log.info("resume: from %s, step %d", checkpoint, begun)
    for logger in trainer.loggers:
        logger.log_hyperparams(map_strings(cfg, without_passwords))

    # training and the last validation
    with stop:
        try:
            with restoring(checkpoint, state):
                trainer.fit(task, train_loader, val_loader, ckpt_path=checkpoint)
            ended = trainer.should_stop and stop.received is None
            if cfg["trainer"]["max_time"] and ended and trainer.global_step == begun:
                log.info("resume: the run's time is over; a longer trainer.max_time extends it")
            scores = finish(trainer, task, val_loader, folder)
        except Exception:
            kill_other_ranks(trainer)
            raise
        if dist.is_initialized():
            dist.destroy_process_group()
        if not trainer.is_global_zero:
            return scores
        notes: dict[str, float | str] = {
            **{k: v for o in objectives.values() for k, v in o.notes.items()},
            "precision": str(trainer.precision),
            "skipped_steps": task.guard.total,
            "nonfinite_predictions": len(task.nonfinite),
            "ended": f"stopped by {stop.received.name}" if stop.received else "finished",
        }
        if scores:
            write_json(folder / "metrics.json", {**scores, **notes})

    # baselines, which take time that a stopped job may not have
    if scores:
        rows: dict[str, dict[str, float]] = {}
        if stop.received is None:
            size, workers = settings.image_size, settings.num_workers
            count = trainer.num_val_batches[0] * settings.batch_size * trainer.world_size
            scored = range(len(val))[: int(count)]  # fewer by trainer.limit_val_batches
            rows = trivial_scores(objectives, train, val, size, indices=scored, num_workers=workers)
            write_json(folder / "metrics.json", {**scores, **named(rows), **notes})
            for logger in trainer.loggers:
                logger.log_metrics(named(rows), step=trainer.global_step)
                logger.save()
        columns = {**rows, cfg["model"]["name"]: scores}
        lower = lower_is_better(objectives.values())
        log_table(columns, title="Scores on val", lower_is_better=lower)
        minutes = (time.monotonic() - started) / 60
        log.info("%d steps in %.1f minutes", trainer.global_step, minutes)
        log.info("checkpoints: %s", folder / "checkpoints")
        if (panels := folder / "panels").is_dir():  # some tasks have no pictures
            log.info("panels:      %s", panels)
    if stop.received is not None:
        log.info("stopped by %s after %d steps", stop.received.name, trainer.global_step)
        log.info("go on with: %s", stop.resume)
        # Only rank 0 exits non-zero; otherwise the launcher would kill it while it is writing
        raise SystemExit(128 + stop.received)
    if task.nonfinite:
        raise ValueError(
            f"the run has diverged: {nonfinite_summary(task.nonfinite)}. Lower optim.lr; "
            f"best.ckpt, if there is one, is of an earlier validation"
        )
    return scores


def check_data(
    train: Any,
    val: Any,
    objectives: Mapping[str, Any],
    teacher: Teacher,
    *,
    on_error: str,
) -> None:
    """Reads a few files of each split, and warns about what may be wrong with them."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # their launcher ends them; srun does not
        return
    for name, objective in objectives.items():
        if objective.target and objective.target not in val.info.targets:
            lacks = build.LABEL_NAMES[objective.target]
            log.warning("%s is trained but not scored: the val split has no %s", name, lacks)
        elif objective.target == "objects" and val.objects_fault:
            log.warning("%s is trained but not scored: %s", name, val.objects_fault)
    require_same_classes(train, val)
    for dataset in (train, val):
        try:
            remarks = dataset.validate(limit=CHECKED_FILES)
            if dataset.reads_files:
                remarks = [*remarks, *quick_findings(dataset, CHECKED_FILES)]
            if dataset is train and (dataset.reads_files or teacher.labels_images):
                remarks += missing_labels(train, objectives, teacher)
        except DataError as error:
            if on_error != "skip":
                raise
            remarks = [str(error)]
        for remark in remarks:
            log.warning("%s", remark)


def missing_labels(train: Any, objectives: Mapping[str, Any], teacher: Teacher) -> Iterator[str]:
    """Warnings about targets that no image has, and about a teacher without images to label."""
    found = (train[index] for index in train.some_indices(CHECKED_FILES))
    # pictures and maps are not kept: 16 large ones take a gigabyte
    samples: list[Any] = [{k: None if np.ndim(v) else v for k, v in s.items()} for s in found]
    read = [sample.keys() for sample in samples]
    for name, objective in objectives.items():
        yield from objective.remarks(samples)
        if objective.target and not any(objective.target in keys for keys in read):
            lacks = build.LABEL_NAMES[objective.target]
            yield f"{name}: none of the {len(read)} training images that were read has {lacks}"
    targets = {objective.target for objective in objectives.values()}
    if teacher.labels_images and all(targets & keys for keys in read):
        yield (
            f"task/teacher: all of the {len(read)} training images that were read have labels; "
            "the teacher labels only images without them"
        )


def log_start(
    cfg: Mapping[str, Any],
    trainer: L.Trainer,
    task: Task,
    batch_size: int,
    train_images: int,
    val_images: int,
) -> None:
    """Logs what is trained on what, and how many images a step uses."""
    model = task.model
    log.info(
        "%s on %s (%d train, %d val images), %s with %.1f M parameters, in %s",
        cfg["task"]["name"], cfg["data"]["_target_"].rpartition(".")[2], train_images, val_images,
        model.config.name, sum(p.numel() for p in model.parameters()) / 1e6, cfg["run_dir"],
    )  # fmt: skip
    accumulate, ranks = trainer.accumulate_grad_batches, trainer.world_size
    parts = [f"{batch_size} images a batch"]
    parts += [f"{accumulate} batches accumulated"] if accumulate > 1 else []
    parts += [f"{ranks} processes"] if ranks > 1 else []
    images = batch_size * accumulate * ranks
    log.info("each step uses %d images (%s)", images, ", ".join(parts))
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    if threads > 1 and threads + load > 1.5 * (os.cpu_count() or 1):
        log.warning("this machine is busy: OMP_NUM_THREADS=1 before the command may be faster")


def finish(trainer: L.Trainer, task: Task, val_loader: Any, folder: Path) -> dict[str, float]:
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
