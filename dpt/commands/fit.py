"""``dpt fit DIR``: from a folder to a trained, scored and exported model.

:func:`run` detects what the folder holds, plans a run of ``train.py``, checks the data, times a few
steps to find the number that fits into the time, trains, evaluates and exports. The settings are
those of :mod:`dpt.training.recipe`, the length is that of :mod:`dpt.training.timing`.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import math
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from dpt.atomic import write_bytes
from dpt.config.overrides import as_argument, as_text, is_below, keys_of, parse
from dpt.files import real_path
from dpt.process import say

if TYPE_CHECKING:
    from dpt.data.layouts import Detected
    from dpt.data_check.labels import LabelStatistics
    from dpt.validation import Plain, PlainMapping

DETAILS = """Prints its assumptions and the train.py command. If the files can be interpreted in
two ways, it lists the settings that decide and does not train. run_dir (runs/fit/DIR_DATE) holds
the run, pairs.csv, data_check/, evaluation/ and model.onnx (model.pt2 if the extra onnx is not
installed)."""
_FIXED = r"data\.(split_files|split_names|fractions|missing|(?!labels_)\w+_name|objects|things)\b"
"""Keys that cannot be given, as ``pairs.csv`` defines the samples."""
_CHECKED_PIXELS = 200_000_000  # largest number of pixels per split that the data check reads
_CHECKED_PIXELS_PER_SECOND = 250_000  # the same, for each second of the time limit
_EXPORT_SECONDS = 12.0  # of a processor that has nothing else to do


@dataclass
class Plan:
    """A run of ``train.py``, and what precedes and follows it."""

    root: Path
    folder: Path  # run_dir
    overrides: list[str]  # the user's
    given: Plain  # values of the user's overrides
    seconds: float  # the time limit
    started: float  # as time.monotonic() counts
    checked_samples: int = 0  # of each split
    model: Plain = field(default_factory=dict)  # settings of the model
    arguments: list[str] = field(default_factory=list)  # of train.py
    is_only_shown: bool = False  # --plan

    @property
    def remaining(self) -> float:
        """The seconds until the time limit."""
        return self.started + self.seconds - time.monotonic()

    @property
    def slowness(self) -> float:
        """How much longer this process takes than it computes, on a machine with other work."""
        return max(1.0, (time.monotonic() - self.started) / time.process_time())


def run(arguments: list[str]) -> None:
    """Runs the command."""
    plan = _parse(arguments)
    say(f"{plan.root}: looking for images and labels; the run will be in {plan.folder}")
    from dpt.commands import export
    from dpt.config.compose import run_configured
    from dpt.data.layouts import detect
    from dpt.data_check.labels import LabelStatistics

    detected = detect(plan.root, _checked_data(plan), say)
    if "task" in plan.given:
        detected.choose_task(str(plan.given["task"]))
    elif detected.other_tasks:
        say(f"task: {detected.task}; or task={' or task='.join(detected.other_tasks)}")
    _complete(plan, detected)
    with redirect_stdout(io.StringIO()):  # refuses unknown keys before images are read
        run_configured("train", "", ["--cfg=job", *plan.arguments])
    if plan.is_only_shown:
        _show(plan, detected)
        return
    data_arguments = [o for o in plan.arguments if re.match(r"data[.=]", o)]
    data_arguments.append(f"limit={plan.checked_samples}")
    _run_in(plan, "data check", "dpt.data_check:check_data", "data_check", data_arguments)
    if detected.task in ("segmentation", "joint"):
        labels = LabelStatistics(**_measured(plan, "dpt.data_check.labels:measure_labels"))
        _plan(plan, detected, labels)
    if "steps" not in plan.given and not any(key.startswith("trainer.max_") for key in plan.given):
        _choose_steps(plan)
    for name in ("evaluation", "model.onnx", "model.pt2"):  # of a run that overwrite=true replaces
        path = plan.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(f"training: {_command(plan)}")
    say(f"then: evaluation and export of {plan.folder} (dpt evaluate, dpt export)")
    run_configured("train", "dpt.commands.fit:train", plan.arguments)
    has_onnx = all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript")))
    export.run([str(plan.folder), str(plan.folder / ("model.onnx" if has_onnx else "model.pt2"))])
    checkpoint = [f"checkpoint={as_text(str(plan.folder))}"]
    checkpoint += [o for o in plan.overrides if o.startswith("trainer.accelerator=")]
    _run_in(plan, "evaluate", "dpt.evaluation.evaluate:evaluate", "evaluation", checkpoint)


def _command(plan: Plan) -> str:
    arguments = shlex.join(o for o in plan.arguments if not o.startswith("run_dir="))
    return f"python train.py {arguments}"


def _show(plan: Plan, detected: Detected) -> None:
    """Prints pairs, the settings that follow from the folder, and the command."""
    for row in detected.rows[:3]:
        say(f"pair: {', '.join(filter(None, row))}")
    for key, value in detected.settings.items():
        say(f"setting: data.{key}={as_text(value)}")
    say(f"training: {_command(plan)}")


def _checked_data(plan: Plan) -> Plain:
    """Returns the user's keys of ``data``; ValueError if a value has not the type of its key."""
    from dpt.data import FolderDataset
    from dpt.validation import validate

    data = {k.removeprefix("data."): v for k, v in plan.given.items() if k.startswith("data.")}
    types = get_type_hints(FolderDataset, include_extras=True)
    return {k: validate(types[k], v, f"data.{k}") if k in types else v for k, v in data.items()}


def _parse(arguments: list[str]) -> Plan:
    """Returns what the user asks for.

    Raises:
        ValueError: an argument that the folder decides, or a folder that holds files already.
    """
    parser = argparse.ArgumentParser(
        prog="dpt fit",
        description="Trains a model on a folder of images with labels.",
        epilog=DETAILS,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="images, and masks or depth maps")
    parser.add_argument("--time", default="15m", help="for everything: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--plan", action="store_true", help="print what is found, and stop")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as for train.py")
    options = parser.parse_intermixed_args(arguments)

    started, seconds = time.monotonic(), seconds_of(options.time)
    given = {override.key: override.value for override in parse(options.overrides)}
    if {"data", "data.root"} & given.keys():
        raise ValueError("data follows from DIR: leave out data= and data.root=")
    if "resume" in given:
        raise ValueError("a run is continued by python train.py resume=RUN: leave out resume=")
    fixed = [key for key in given if re.match(_FIXED, key)]
    if fixed:
        remedy = "dpt fit finds files and splits by names, a CSV table, or train.txt and val.txt"
        raise ValueError(f"{fixed[0]} needs python train.py: {remedy}")
    root = real_path(options.folder)
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(str(given.get("run_dir") or f"runs/fit/{root.name}_{now}")).absolute()
    is_used = folder.is_dir() and any(path.name != "pairs.csv" for path in folder.iterdir())
    if is_used and not given.get("overwrite"):
        remedy = "give another, or overwrite=true, which replaces evaluation and model.*"
        resume = f"python train.py {as_argument('resume', folder)} continues a run"
        raise ValueError(f"run_dir={folder} holds files already: {remedy}; {resume}")
    return Plan(
        root, folder, options.overrides, given, seconds, started, is_only_shown=options.plan
    )


def _complete(plan: Plan, detected: Detected) -> None:
    """Writes ``pairs.csv``, and plans the arguments of ``train.py`` and the size of the check."""
    from dpt.data.formats.pictures import read_size
    from dpt.training.recipe import pretrained_settings

    write_bytes(plan.folder / "pairs.csv", detected.table().encode())
    height, width = read_size(plan.root / detected.image)
    pixels = min(_CHECKED_PIXELS, int(plan.seconds * _CHECKED_PIXELS_PER_SECOND))
    plan.checked_samples = max(32, pixels // (height * width))
    if not any(re.match(r"model($|[./]encoder|\.weights)", key) for key in plan.given):
        plan.model = pretrained_settings()
    _plan(plan, detected)


def _plan(plan: Plan, detected: Detected, labels: LabelStatistics | None = None) -> None:
    """Plans the arguments of ``train.py``; ``labels`` are None if they are not measured yet."""
    from dpt.training.recipe import settings_of

    table, size = plan.folder / "pairs.csv", plan.given.get("data.image_size")
    settings = settings_of(detected, plan.root, table, size, labels, plan.seconds) | plan.model
    settings |= {"logger": "csv", "run_dir": str(plan.folder)}
    if "model.weights" in plan.given:  # its decoder may have no batch norm
        settings.pop("model.decoder.batch_norm", None)
    keys = keys_of(plan.overrides)
    chosen = [f"{k}={as_text(v)}" for k, v in settings.items() if not is_below(keys, k)]
    plan.arguments = chosen + plan.overrides


def _run_in(plan: Plan, command: str, job: str, name: str, arguments: Sequence[str]) -> None:
    """Runs a command that writes into the folder ``name`` of the run."""
    from dpt.config.compose import run_configured

    kept = [argument for argument in arguments if not argument.startswith("run_dir=")]
    run_configured(command, job, [*kept, f"run_dir={as_text(str(plan.folder / name))}"])


def _measured(plan: Plan, job: str) -> Plain:
    """Returns what a job measures with the planned arguments."""
    from dpt.data_check.labels import MEASURED

    folder = Path(tempfile.mkdtemp(prefix="measured-", dir=plan.folder))
    _run_in(plan, "train", job, folder.name, plan.arguments)
    values: Plain = json.loads((folder / MEASURED).read_text())
    shutil.rmtree(folder)
    return values


def _choose_steps(plan: Plan) -> None:
    """Times a few steps, and adds the time of training, the largest number of steps and the
    interval of validations."""
    from dpt.training.recipe import with_rate
    from dpt.training.timing import MIN_STEPS, Times, length_of

    times = Times(**_measured(plan, "dpt.training.timing:time_steps"))
    length = length_of(plan.remaining, times, export=_EXPORT_SECONDS * plan.slowness)
    say(f"training: {length.seconds:.0f} s, about {length.steps} steps of {times.step:.2f} s")
    if length.steps == MIN_STEPS:
        say("--time is too short here: this minimum of steps takes longer")
    plan.arguments = with_rate(plan.arguments, plan.given | plan.model, length.steps)
    plan.arguments.append(f"steps={length.steps * 2}")  # if they become faster
    plan.arguments.append(f"callbacks.deadline.seconds={length.seconds:.0f}")
    if "trainer.val_check_interval" not in plan.given:
        interval = math.ceil(length.steps / length.validations) * times.batches
        interval *= 2 if length.validations == 1 else 1  # the last step is validated in any case
        plan.arguments.append(f"trainer.val_check_interval={interval}")


def train(cfg: PlainMapping) -> None:
    """Trains without scores of baselines, which ``dpt evaluate`` adds."""
    from dpt.training.fit import fit

    fit(cfg, with_baselines=False)


def seconds_of(text: str) -> float:
    """Returns the seconds in ``90s``, ``15m`` or ``2h``; ValueError for other texts."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"--time {text}: must be a number and its unit, as in 90s, 15m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
