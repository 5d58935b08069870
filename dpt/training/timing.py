"""How long the steps of a run take, and how many fit into the time of ``dpt fit``."""

import time
from dataclasses import dataclass

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import LambdaCallback

from dpt.config.schema import RunConfig
from dpt.training.trainer import short_run, validation_cost

_TIMED_STEPS = 5
_TIMING_SECONDS = 20.0  # for timing steps; four steps are timed in any case
MIN_STEPS = 10
_FEW_IMAGES = 20  # of val, of which the best of several checkpoints would be chance


@dataclass(frozen=True)
class Times:
    """Seconds of a step and of a validation, with what they consist of."""

    batches: int  # of a step
    step: float
    images: int  # of val
    validation: float


@dataclass(frozen=True)
class Length:
    """The length of a run."""

    seconds: float  # of training with its validations
    steps: int  # that probably fit
    validations: int


def time_steps(config: RunConfig) -> Times:
    """Times a few training steps of a run."""
    settings = config.data.loader
    few_images = 2 * settings.batch_size
    if (
        config.data.parts["train"].settings.get("cache")
        and len(config.data.make("train")) > few_images
    ):
        # all are in the cache after two steps, as in training after the first epoch
        few = {**config.values["data"], "labelled": few_images, "unlabelled": None}
        config = config.changed(data=few)
    times: list[float] = []

    def note_time(trainer: L.Trainer, *_: object) -> None:
        times.append(time.monotonic())
        trainer.should_stop = len(times) > 3 and times[-1] - times[0] > _TIMING_SECONDS

    single_batches = config.changed(
        trainer={**config.values["trainer"], "accumulate_grad_batches": 1}
    )
    short_run(single_batches, LambdaCallback(on_train_batch_end=note_time), steps=_TIMED_STEPS)
    seconds = float(np.median(np.diff(times[1:])))
    images = len(config.data.make("val"))
    batches = config.trainer.settings.get("accumulate_grad_batches", 1)
    validation = validation_cost(settings) * seconds * images / settings.batch_size
    return Times(batches, batches * seconds, images, validation)


def length_of(remaining: float, times: Times, *, export: float) -> Length:
    """Returns the length of training that leaves time for scoring and for ``export`` seconds."""
    validations = 10 if remaining > 600 else 3
    if times.images < _FEW_IMAGES:
        validations = 1
    validations = max(1, min(validations, int(0.1 * remaining / times.validation)))
    # the last validation follows training, and dpt evaluate may take twice as long
    after = min(3 * times.validation + export, 0.5 * remaining)
    seconds = max(MIN_STEPS * times.step, remaining - after)
    training = seconds - (validations - 1) * times.validation
    return Length(seconds, max(MIN_STEPS, int(training / times.step)), validations)
