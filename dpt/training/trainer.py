"""Lightning's Trainer from ``conf/trainer``, with unset values filled in, and what it trains."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, Checkpoint, WeightAveraging
from torch.utils.data import DataLoader

from dpt.config import build
from dpt.config.schema import RunConfig
from dpt.data import Dataset
from dpt.data.loading import LoaderSettings
from dpt.files import few
from dpt.model import DPT
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.process import log
from dpt.training.callbacks import Lora
from dpt.training.checkpoints import AtomicCheckpointIO
from dpt.training.loggers import ignore_errors
from dpt.training.task import Task
from dpt.types.samples import Sample
from dpt.validation import Plain

VALIDATIONS = 10  # per run, unless the trainer's settings say otherwise
FRACTION_OF_VALIDATION = 0.2  # of a run's time: a short run validates less often


def make_trainer(
    config: RunConfig,
    batches_per_epoch: int,
    first: Sequence[Callback] = (),
    last: Sequence[Callback] = (),
    *,
    val_batches: int = 0,
) -> L.Trainer:
    """Makes Lightning's trainer with the configured loggers and callbacks.

    Args:
        config: of the run.
        batches_per_epoch: of all ranks together.
        first, last: callbacks before and after the configured ones.
        val_batches: in one validation, of all ranks together.
    """
    node = build.trainer_arguments(config.trainer)
    _set_length(node, config.steps)
    is_unset = node["val_check_interval"] is None and node["check_val_every_n_epoch"] is None
    if is_unset:
        node["val_check_interval"] = 1  # replaced below, when the number of ranks is known
    loggers = [ignore_errors(part.build()) for part in config.logger.values()]
    callbacks = _callbacks(config, has_loggers=bool(loggers), strategy=str(node["strategy"]))
    if node["enable_checkpointing"] is None:  # Lightning would add a callback of its own
        node["enable_checkpointing"] = any(isinstance(c, Checkpoint) for c in callbacks)
    node["plugins"] = [*(node["plugins"] or []), AtomicCheckpointIO()]
    callbacks = [*first, *callbacks, *last]
    trainer = config.trainer.build(**node, logger=loggers or False, callbacks=callbacks)
    if is_unset:
        batches = limited(trainer.limit_train_batches, batches_per_epoch / trainer.world_size)
        validation = limited(trainer.limit_val_batches, val_batches / trainer.world_size)
        validation *= validation_cost(config.data.loader)
        timed = bool(node["max_time"])
        trainer.val_check_interval = validation_interval(trainer, batches, validation, timed=timed)
    return trainer


def _set_length(node: Plain, steps: int) -> None:
    """Sets the arguments of the Trainer that say how long it trains, if they are not given."""
    if node["max_steps"] == -1 and node["max_epochs"] is None and node["max_time"] is None:
        node["max_steps"] = steps
    if node["max_epochs"] is None:
        node["max_epochs"] = -1  # no limit: steps or time end the run
    if node["max_steps"] == -1 and node["max_epochs"] == -1:
        raise ValueError("trainer.max_time: the schedule needs trainer.max_steps or max_epochs too")
    if isinstance(node["val_check_interval"], float) and node["check_val_every_n_epoch"] is None:
        node["check_val_every_n_epoch"] = 1  # a fraction of each epoch


def _callbacks(config: RunConfig, *, has_loggers: bool, strategy: str) -> list[Callback]:
    """Returns the configured callbacks; ValueError for a part whose weights would be wrong."""
    callbacks = {name: part.build() for name, part in config.callbacks.items()}
    if not has_loggers:
        callbacks.pop("learning_rate", None)  # Lightning's monitor needs a logger
    of_whole_weights = []
    teacher: Any = config.task.teacher.target  # a class
    if teacher.needs_whole_weights:
        of_whole_weights.append("task.teacher")
    if config.optim.name == "muon":
        of_whole_weights.append("optim.kind=muon")
    for name, callback in callbacks.items():
        # it sets the average when all checkpoints are written
        if isinstance(callback, L.pytorch.callbacks.StochasticWeightAveraging):
            raise ValueError(f"callbacks.{name}: its average would not be saved: use callbacks=ema")
        adapts = isinstance(callback, Lora) and callback.rank is not None
        if adapts or isinstance(callback, WeightAveraging):
            of_whole_weights.append(f"callbacks.{name}")
    if of_whole_weights and "fsdp" in strategy:
        fault = "needs whole weights, but trainer.strategy=fsdp shards them"
        raise ValueError(f"{of_whole_weights[0]} {fault}: set trainer.strategy=ddp")
    return [*callbacks.values()]


def make_task_and_loader(
    config: RunConfig, train: Dataset, objectives: Mapping[str, Objective], teacher: Teacher
) -> tuple[Task, DataLoader[Sample]]:
    """Makes a new model with its objectives, and the loader of its training images."""
    settings = config.data.loader
    images = build.image_settings(config.model, train)
    model = build.make_model(config.model, objectives, settings, config.overrides, images)
    _check_images(config, objectives, teacher, model)
    task = Task(
        model=model,
        objectives=objectives,
        teacher=teacher,
        optimizer=config.optim.factory(),
        schedule=config.schedule.factory(),
        monitor=config.task.monitor,
        max_skipped_steps=config.max_skipped_steps,
    )
    prompts = model.takes_prompts
    return task, build.make_train_loader(config, train, task.targets, prompts=prompts)


def _check_images(
    config: RunConfig, objectives: Mapping[str, Objective], teacher: Teacher, model: DPT
) -> None:
    """Raises ValueError if the training images do not suit the task, and logs what changes nothing
    about them."""
    _require_views(config, objectives)
    augment, data, is_rgb = config.augment.settings, config.data, model.preprocessing.is_rgb
    if not is_rgb and "inpainting" in model.heads:
        raise ValueError("task=inpainting paints RGB, and these images are bands: set another task")
    has_unlabelled = any(d.rest for d in (data, *data.sets.values()))
    needs_labels = any(objective.target for objective in objectives.values())
    if has_unlabelled and needs_labels and not teacher.uses_unlabelled:
        log.warning("data.unlabelled: images without labels teach nothing without task/teacher=ema")
    if bool(augment.get("strong")) != teacher.labels_images:
        log.warning("augment.strong above 0 and task/teacher=ema have an effect together alone")
    of_rgb = few([*filter(augment.get, ("gamma", "grayscale", "extra"))])
    if of_rgb and not is_rgb:
        log.warning("augment: %s are for RGB, and do not change bands", of_rgb)


def _require_views(config: RunConfig, objectives: Mapping[str, Objective]) -> None:
    """Raises ValueError if the augmentation does not give the views that the losses compare."""
    needed = [objective.views for objective in objectives.values()]
    views, crops = (config.augment.settings.get(key, 0) for key in ("views", "crops"))
    if max(needed) > views or ((views or crops) and not min(needed)):
        remedy = "augment.views=2" if max(needed) else "augment.views=0 and augment.crops=0"
        raise ValueError(f"task={config.task.name} compares {max(needed)} views: set {remedy}")


def limited(limit: float, batches: float) -> float:
    """Returns the batches that Lightning uses: ``limit``, if it is an int, or this fraction."""
    return min(limit, batches) if isinstance(limit, int) else limit * batches


def validation_cost(settings: LoaderSettings) -> float:
    """Estimates the time of a batch in validation over that of a batch in training.

    For each pixel, the forward pass takes a third of a training step, and metrics another third.
    """
    return 2 / 3 * math.prod(settings.eval_size) / math.prod(settings.image_size)


def validation_interval(
    trainer: L.Trainer, batches: float, validation: float, *, timed: bool
) -> int:
    """Returns the batches of a rank between validations, each after a whole step.

    A run has ``VALIDATIONS``, or fewer that take no more than ``FRACTION_OF_VALIDATION`` of its
    time, but at least the last one. The interval depends on counts, not on a clock, so that all
    ranks and a resumed run validate at the same steps.

    Args:
        batches: in an epoch of this rank.
        validation: time of a validation, in that of training batches.
        timed: the run may end early, and validates every 100 batches where the fraction allows it.
    """
    accumulate = trainer.accumulate_grad_batches
    limits: list[float] = []
    if trainer.max_steps != -1:
        limits.append(trainer.max_steps * accumulate)
    if trainer.max_epochs is not None and trainer.max_epochs != -1:
        limits.append(trainer.max_epochs * batches)
    between = validation * (1 / FRACTION_OF_VALIDATION - 1)  # least training between two of them
    count = min(VALIDATIONS, int(min(limits) / max(between, 1e-9)))
    interval = math.ceil(min(limits) / max(1, count))
    if timed:
        interval = min(interval, max(100, math.ceil(between)))
    interval = max(1, interval)
    if interval > batches and int(batches) % accumulate:  # an epoch ends with a shorter step
        return math.ceil(interval / int(batches)) * int(batches)
    return math.ceil(interval / accumulate) * accumulate
