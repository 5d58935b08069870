"""``dpt.fit``: from a folder of images with labels to a trained, scored and exported model.

The settings are those of :mod:`dpt.training.recipe`, the length of the run is that of
:mod:`dpt.training.timing`.
"""

import importlib.util
import math
import re
import shlex
import shutil
import time as clock
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import get_type_hints

from dpt.atomic import write_bytes
from dpt.config.compose import compose
from dpt.config.overrides import as_argument, as_text, is_below, keys_of, parse
from dpt.config.run_folder import held
from dpt.config.schema import CheckConfig, RunConfig
from dpt.data import FolderDataset
from dpt.data.formats.pictures import read_size
from dpt.data.layouts import Detected, detect
from dpt.data.statistics import LabelStatistics, measure_labels
from dpt.data_check import check_data, has_errors
from dpt.files import real_path
from dpt.plugins import load_plugins
from dpt.process import say
from dpt.run import Run, evaluate, export, starting
from dpt.run_log import start_log
from dpt.training.fit import fit as train
from dpt.training.recipe import pretrained_settings, rate_settings, settings_of
from dpt.training.timing import MIN_STEPS, Times, length_of, time_steps
from dpt.validation import Plain, PlainMapping, to_plain, validate

_FIXED = (
    r"resume$|data$|data\.(root|split_files|split_names|fractions|missing|objects|things)\b"
    r"|data\.(?!labels_)\w+_name$"
)
"""Keys that cannot be given, as the folder and ``pairs.csv`` define the samples."""
_CHECKED_PIXELS = 200_000_000  # largest number of pixels per split that the data check reads
_CHECKED_PIXELS_PER_SECOND = 250_000  # the same, for each second of the time limit
_EXPORT_SECONDS = 12.0  # of a processor that has nothing else to do


def fit(folder: Path | str, *overrides: str, time: str = "15m") -> Run:
    """Trains a model on a folder of images with labels; the same as ``dpt fit``.

    Detects what the folder holds, checks the data, times a few steps to find the number that fits
    into the time, trains, exports and evaluates.

    Args:
        folder: holds images, and masks, depth maps or files of label tools.
        *overrides: as for :func:`dpt.train`, without the keys that follow from the folder.
        time: for everything, such as ``90s``, ``15m``, ``2h``.

    Returns:
        The run, with the scores of its evaluation.

    Raises:
        ValueError: a mistake, or a folder that can be interpreted in two ways.
    """
    plan = Plan(Path(folder), overrides, time)
    _check(plan)
    if plan.detected.task in ("segmentation", "joint"):
        labels = measure_labels(plan.config.data.changed(cache=False).make("train"))
        plan.change(plan.settings(labels))
    if "steps" not in plan.given and not any(k.startswith("trainer.max_") for k in plan.given):
        plan.change(plan.length_settings(time_steps(plan.config)))
    config = plan.config
    _remove_results(plan.folder)
    say(f"training: {plan.command}")
    say(f"then: evaluation and export of {plan.folder} (dpt evaluate, dpt export)")
    with starting("train", config):
        train(config, with_baselines=False)  # the evaluation adds them
    run = Run(plan.folder, config=config.values)
    has_onnx = all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript")))
    say(str(export(run, plan.folder / ("model.onnx" if has_onnx else "model.pt2"))))
    of_evaluation = [o for o in overrides if o.startswith("trainer.accelerator=")]
    of_evaluation.append(f"run_dir={as_text(str(plan.folder / 'evaluation'))}")
    return Run(plan.folder, evaluate(run, *of_evaluation).scores, config.values)


class Plan:
    """A run of ``dpt train`` on a folder: what is detected, and the settings that follow from it.

    Args:
        root: the folder.
        overrides: the user's; their keys are not chosen here.
        time: the limit for everything, such as ``15m``.

    Attributes:
        folder: of the run.
        given: values of the user's overrides.
        chosen: settings by key, which the user's overrides leave open.
    """

    def __init__(self, root: Path, overrides: Sequence[str], time: str) -> None:
        load_plugins()
        self._started = clock.monotonic()
        self._seconds = seconds_of(time)
        self.root, self.overrides = real_path(root), overrides
        self.given = {override.key: override.value for override in parse(overrides)}
        _refuse_fixed(self.given)
        self.folder = _free_folder(self.root, self.given)
        say(f"{self.root}: looking for images and labels; the run will be in {self.folder}")
        self.detected = _detected(self.root, self.given)
        self._table = self.folder / "pairs.csv"
        write_bytes(self._table, self.detected.table().encode())
        is_chosen = any(re.match(r"model($|[./]encoder|\.weights)", key) for key in self.given)
        self._model = {} if is_chosen else pretrained_settings()
        self.chosen = self.settings()
        self._composition = compose("train", self.arguments)

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``dpt train``."""
        return [*(f"{key}={as_text(v)}" for key, v in self.chosen.items()), *self.overrides]

    @property
    def command(self) -> str:
        """What trains the same, as typed in a shell."""
        words = [word for word in self.arguments if not word.startswith("run_dir=")]
        return f"python train.py {shlex.join(words)}"

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return RunConfig.read(self._composition.values())

    @property
    def checked_samples(self) -> int:
        """The number of samples of each split that the data check reads."""
        pixels = min(_CHECKED_PIXELS, int(self._seconds * _CHECKED_PIXELS_PER_SECOND))
        return max(32, pixels // math.prod(read_size(self.root / self.detected.image)))

    def settings(self, labels: LabelStatistics | None = None) -> Plain:
        """Returns the settings that follow from the folder and from its labels, if measured."""
        size = self.given.get("data.image_size")
        settings = settings_of(self.detected, self.root, self._table, size, labels, self._seconds)
        settings |= self._model | {"logger": "csv", "run_dir": str(self.folder)}
        if "model.weights" in self.given:  # its decoder may have no batch norm
            settings.pop("model.decoder.batch_norm", None)
        keys = keys_of(self.overrides)
        chosen: Plain = to_plain({k: v for k, v in settings.items() if not is_below(keys, k)})
        return chosen

    def length_settings(self, times: Times) -> Plain:
        """Returns the time of training, the largest number of steps and the interval of
        validations, and the rate that suits the number of steps."""
        # a machine with other work takes longer than it computes
        slowness = max(1.0, (clock.monotonic() - self._started) / clock.process_time())
        remaining = self._started + self._seconds - clock.monotonic()
        length = length_of(remaining, times, export=_EXPORT_SECONDS * slowness)
        say(f"training: {length.seconds:.0f} s, about {length.steps} steps of {times.step:.2f} s")
        if length.steps == MIN_STEPS:
            say("--time is too short here: this minimum of steps takes longer")
        settings = rate_settings(self.detected.task, self.given | self._model, length.steps)
        settings["steps"] = length.steps * 2  # if they become faster
        settings["callbacks.deadline.seconds"] = round(length.seconds)
        if "trainer.val_check_interval" not in self.given:
            interval = math.ceil(length.steps / length.validations) * times.batches
            # with a single validation, that of the last step, which takes place in any case
            settings["trainer.val_check_interval"] = interval * (1 + (length.validations == 1))
        return settings

    def change(self, settings: PlainMapping) -> None:
        """Changes settings of the run."""
        changed = {key: v for key, v in settings.items() if self.chosen.get(key) != v}
        self.chosen |= changed
        self._composition = self._composition.with_values(changed, self.arguments)

    def show(self) -> None:
        """Prints pairs, the settings that follow from the folder, and the command."""
        for row in self.detected.rows[:3]:
            say(f"pair: {', '.join(filter(None, row))}")
        for key, value in self.detected.settings.items():
            say(f"setting: data.{key}={as_text(value)}")
        say(f"training: {self.command}")


def _refuse_fixed(given: PlainMapping) -> None:
    """Raises ValueError for keys that ``dpt fit`` decides."""
    fixed = [key for key in given if re.match(_FIXED, key)]
    if fixed:
        raise ValueError(f"{fixed[0]}= needs dpt train: files and splits follow from the folder")
    if str(given.get("trainer.devices", 1)) not in ("1", "auto"):
        raise ValueError("trainer.devices: dpt fit runs on one device: give it to dpt train")


def _free_folder(root: Path, given: PlainMapping) -> Path:
    """Returns the folder of the run; ValueError if it holds files already."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(str(given.get("run_dir") or f"runs/fit/{root.name}_{now}")).absolute()
    is_used = folder.is_dir() and any(path.name != "pairs.csv" for path in folder.iterdir())
    if is_used and not given.get("overwrite"):
        remedy = "give another, or overwrite=true, which replaces evaluation and model.*"
        resume = f"python train.py {as_argument('resume', folder)} continues a run"
        raise ValueError(f"run_dir={folder} holds files already: {remedy}; {resume}")
    return folder


def _detected(root: Path, given: PlainMapping) -> Detected:
    """Returns what the folder holds, with the user's task."""
    types = get_type_hints(FolderDataset, include_extras=True)
    data = {k.removeprefix("data."): v for k, v in given.items() if k.startswith("data.")}
    checked = {k: validate(types[k], v, f"data.{k}") if k in types else v for k, v in data.items()}
    detected = detect(root, checked, say)
    if "task" in given:
        detected.choose_task(str(given["task"]))
    elif detected.other_tasks:
        say(f"task: {detected.task}; or task={' or task='.join(detected.other_tasks)}")
    return detected


def _check(plan: Plan) -> None:
    """Raises ValueError if the data of a run have errors; its folder gets the report."""
    folder = plan.folder / "data_check"
    options = {"run_dir": str(folder), "split": ["train", "val"], "limit": plan.checked_samples}
    with held(folder):
        findings = check_data(CheckConfig.read(plan.config.values | options))
    if has_errors(findings):
        raise ValueError(f"the data have errors, which are listed above and in {folder}")
    start_log(None)


def _remove_results(folder: Path) -> None:
    """Removes what follows the training of a run that overwrite=true replaces."""
    shutil.rmtree(folder / "evaluation", ignore_errors=True)
    for name in ("model.onnx", "model.pt2"):
        (folder / name).unlink(missing_ok=True)


def seconds_of(text: str) -> float:
    """Returns the seconds in ``90s``, ``15m`` or ``2h``; ValueError for other texts."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"--time {text}: must be a number and its unit, as in 90s, 15m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
