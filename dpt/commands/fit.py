"""``dpt fit DIR``: from a folder to a trained, scored and exported model.

:func:`run` detects what the folder holds, plans a run of ``train.py``, checks the data, times a few
steps to find the number that fits into the time, trains, evaluates and exports.
"""

from __future__ import annotations

import argparse
import csv
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
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_type_hints

from dpt.atomic import write_bytes
from dpt.config.overrides import as_argument, as_text, is_below, keys_of, parse
from dpt.files import real_path
from dpt.process import say

if TYPE_CHECKING:
    import lightning as L

    from dpt.data.layouts import Detected, Row
    from dpt.data_check.labels import LabelStatistics
    from dpt.validation import Plain, PlainMapping

DETAILS = """Prints its assumptions and the train.py command. If the files can be interpreted in
two ways, it lists the settings that decide and does not train. run_dir (runs/fit/DIR_DATE) holds
the run, pairs.csv, data_check/, evaluation/ and model.onnx (model.pt2 if the extra onnx is not
installed)."""
_HEAD = "task.objectives.segmentation."
_SEGMENTATION: Plain = {
    "augment": "strong",
    f"{_HEAD}dropout": 0.0,
    f"{_HEAD}auxiliary_weight": 0.0,
}
RECIPES: dict[str, Plain] = {  # as experiment=camvid and experiment=rgbd
    "segmentation": _SEGMENTATION,
    "joint": _SEGMENTATION,
    "depth": {"augment.zoom": [1, 1.5], "augment.color": 0.4, "model.decoder.batch_norm": True},
}
ENCODER = "vit_small_patch14_dinov2.lvd142m"  # DINOv2 (Oquab et al. 2023), Apache-2.0
PRETRAINED: Plain = {
    "model": "dpt_small",
    "model.encoder.weights": f"timm:{ENCODER}",
    "model.encoder.layer_scale": 1.0,
    "model.encoder.final_norm": True,
    "model.encoder.position_resize": "dinov2",
    "model.preprocessing.mean": [0.485, 0.456, 0.406],
    "model.preprocessing.std": [0.229, 0.224, 0.225],
    "optim.encoder_lr": 0.0001,
}
_FIXED = r"data\.(split_files|split_names|fractions|missing|(?!labels_)\w+_name|objects|things)\b"
"""Keys that cannot be given, as ``pairs.csv`` defines the samples."""
_PIXELS = {"cpu": 192 * 256, "cuda": 384 * 512}  # of training images
_SCALE = 1.25  # of whole images in evaluation, as a multiple of that at which they fit a crop
_ZOOM = 0.6, 1.6  # of training crops, as multiples of the scale in evaluation
_EVAL_PIXELS = 1_500_000  # of a whole image in evaluation
_EVAL_PIXELS_PER_SECOND = {"cpu": 150_000, "cuda": 15_000_000}  # of all, by the time limit
_THIN = 4.0  # pixels: structures are enlarged to this width, but not beyond their size in the file
_WEIGHT_POWER = 0.5  # of class weights
_UPRIGHT = 0.1  # of LabelStatistics.uprightness: flips and turns are used below
_CHECKED_PIXELS = 200_000_000  # largest number of pixels per split that the data check reads
_CHECKED_PIXELS_PER_SECOND = 250_000  # the same, for each second of the time limit
_CACHE_BYTES = 2 << 30  # largest cache of decoded samples
_EXPORT_SECONDS = 12.0  # of a processor that has nothing else to do
_FEW_IMAGES = 20  # of val, of which the best of several checkpoints would be chance
_MIN_STEPS = 10
_RATE = 0.001  # of learning
_LONG_RUN = 1000  # steps, below which the rate is larger
MEASURED = "measured.json"
_TIMED_STEPS = 5
_TIMING_SECONDS = 20.0  # for timing steps; four steps are timed in any case


@dataclass
class Plan:
    """A run of ``train.py``, and what precedes and follows it."""

    root: Path
    folder: Path  # run_dir
    overrides: list[str]  # the user's
    given: Plain  # values of the user's overrides
    seconds: float  # the time limit
    started: float  # as time.monotonic() counts
    checked_samples: int = _CHECKED_PIXELS // (480 * 640)  # of each split
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
        _plan(plan, detected, _measured(plan, "dpt.data_check.labels:measure_labels"))
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

    if detected.rows:
        write_bytes(plan.folder / "pairs.csv", table_text(detected.rows).encode())
        height, width = read_size(plan.root / detected.image)
        pixels = min(_CHECKED_PIXELS, int(plan.seconds * _CHECKED_PIXELS_PER_SECOND))
        plan.checked_samples = max(32, pixels // (height * width))
    if not any(re.match(r"model($|[./]encoder|\.weights)", key) for key in plan.given):
        plan.model = pretrained_settings()
    _plan(plan, detected)


def _plan(plan: Plan, detected: Detected, statistics: PlainMapping | None = None) -> None:
    """Plans the arguments of ``train.py``.

    Args:
        statistics: of the labels, those of :class:`dpt.data_check.labels.LabelStatistics`.
    """
    from dpt.data_check.labels import LabelStatistics

    labels = None if statistics is None else LabelStatistics(**statistics)
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
    folder = Path(tempfile.mkdtemp(prefix="measured-", dir=plan.folder))
    _run_in(plan, "train", job, folder.name, plan.arguments)
    values: Plain = json.loads((folder / MEASURED).read_text())
    shutil.rmtree(folder)
    return values


def _choose_steps(plan: Plan) -> None:
    """Times a few steps, and adds the time of training, the largest number of steps and the
    interval of validations."""
    times = Times(**_measured(plan, "dpt.commands.fit:time_steps"))
    length = length_of(plan.remaining, times, export=_EXPORT_SECONDS * plan.slowness)
    say(f"training: {length.seconds:.0f} s, about {length.steps} steps of {times.step:.2f} s")
    if length.steps == _MIN_STEPS:
        say("--time is too short here: this minimum of steps takes longer")
    plan.arguments = with_rate(plan.arguments, plan.given | plan.model, length.steps)
    plan.arguments.append(f"steps={length.steps * 2}")  # if they become faster
    plan.arguments.append(f"callbacks.deadline.seconds={length.seconds:.0f}")
    if "trainer.val_check_interval" not in plan.given:
        interval = math.ceil(length.steps / length.validations) * times.batches
        interval *= 2 if length.validations == 1 else 1  # the last step is validated in any case
        plan.arguments.append(f"trainer.val_check_interval={interval}")


def with_rate(arguments: Sequence[str], given: PlainMapping, steps: int) -> list[str]:
    """Returns the arguments with a larger learning rate, if a run of segmentation from random
    weights is short.

    Args:
        given: keys that the user or a pretrained encoder decides.
    """
    is_chosen = any(re.match(r"optim|model[./]?(encoder|weights|$)|steps", key) for key in given)
    if is_chosen or steps >= _LONG_RUN or "task=segmentation" not in arguments:
        return list(arguments)
    kept = [argument for argument in arguments if not argument.startswith("optim.lr=")]
    rate = _RATE * min(4.0, math.sqrt(_LONG_RUN / steps))
    return [*kept, f"optim.lr={rate:.2g}"]


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


def settings_of(
    detected: Detected,
    root: Path,
    table: Path,
    image_size: object = None,
    labels: LabelStatistics | None = None,
    seconds: float = math.inf,
) -> Plain:
    """Returns the arguments of ``train.py`` for the folder and this machine, by key.

    Args:
        table: where the samples of ``data=folder`` are listed.
        image_size: the user's ``data.image_size``, [H, W]. None: it follows from the images' size.
        labels: statistics of the masks; None if they are not known yet.
        seconds: the time limit.
    """
    import torch

    from dpt.data.formats import pictures
    from dpt.validation import validate

    device = "cuda" if torch.cuda.is_available() else "cpu"
    height, width = pictures.read_size(root / detected.image)
    scale = min(1.0, math.sqrt(_PIXELS[device] / (height * width)))
    sizes = image_size or [max(32, 32 * round(side * scale / 32)) for side in (height, width)]
    size = validate(tuple[int, int], sizes, "data.image_size")
    enlarged = _SCALE
    if labels is not None:
        limit = seconds * _EVAL_PIXELS_PER_SECOND[device] / max(1, val_images(detected))
        enlarged = enlargement(labels.thickness, (height, width), size, limit)
    cache_size = [round(side * 1.2 * enlarged) for side in size]  # enough for most zooms
    sample_bytes = 9 * max(math.prod(cache_size), height * width // 4)
    is_cached = 0 < sample_bytes * len(detected.rows) < _CACHE_BYTES
    values: Plain = {"task": detected.task, "data": detected.data, "data.root": str(root)}
    values |= RECIPES.get(detected.task, {})
    values |= {f"data.{key}": value for key, value in detected.settings.items()}
    if detected.rows:
        values |= {f"data.split_files.{split}": str(table) for split in ("train", "val", "test")}
    values |= {
        "data.image_size": size,
        "trainer.precision": "auto",
        "optim.weight_decay": 0.05,
        "optim.lr": 0.0005 if detected.task in ("instance", "panoptic") else _RATE,
        "data.num_workers": 0 if is_cached or device == "cpu" else 4,
    }
    if is_cached:
        values |= {"data.cache": True, "data.cache_size": cache_size}
    if detected.task in ("segmentation", "joint"):
        values["data.eval_size"] = [round(side * enlarged) for side in size]
        values["augment.zoom"] = [round(factor * enlarged, 3) for factor in _ZOOM]
    return values | (label_settings(labels) if labels else {})


def val_images(detected: Detected) -> int:
    """Returns about how many images are held out, 0 if that is not known yet."""
    listed = sum(row.split == "val" for row in detected.rows)
    return listed or len(detected.rows) // detected.settings.get("folds", 10)


def enlargement(
    thickness: float, image: tuple[int, int], crop: tuple[int, int], limit: float = math.inf
) -> float:
    """Returns the scale of whole images in evaluation as a multiple of that at which they cover a
    training crop: larger where structures would be thinner than ``_THIN`` pixels.

    Args:
        thickness: of the structures, in pixels of the file.
        image, crop: sizes (H, W).
        limit: of the pixels of an image in evaluation.
    """
    covering = max(crop[0] / image[0], crop[1] / image[1])
    largest = min(1.0, math.sqrt(min(_EVAL_PIXELS, limit) / math.prod(image)))
    return max(_SCALE, min(largest, _THIN / thickness) / covering)


def label_settings(labels: LabelStatistics) -> Plain:
    """Returns the settings of the loss, of the head and of the augmentation that follow from the
    masks. The head starts at the constant prediction with the smallest loss."""
    from dpt.data.layouts.masks import class_weights

    # a class of fewer than a thousandth of the pixels would leave no weight for the others
    least = sum(labels.counts) // 1000
    counts = [max(count, least) if count else 0 for count in labels.counts]
    weights = class_weights(counts, _WEIGHT_POWER)
    products = [max(1, n) * weight for n, weight in zip(labels.counts, weights, strict=True)]
    settings: Plain = {
        "task.segmentation_loss.class_weights": weights,
        f"{_HEAD}prior": [round(p / sum(products), 6) or 1e-6 for p in products],
    }
    if labels.uprightness < _UPRIGHT:
        settings |= {"augment.vflip": 0.5, "augment.turn": 1.0}
    return settings


def pretrained_settings() -> Plain:
    """Returns the arguments of ``train.py`` for a pretrained encoder. If it cannot be fetched or is
    too slow on this machine, prints the reason and returns no arguments."""
    import torch

    from dpt.functional import has_bf16
    from dpt.weights.hub import has_hub_file

    if not (torch.cuda.is_available() or has_bf16("cpu")):
        print("model: from scratch (larger encoders take long on a CPU without bf16)")
        return {}
    if not has_hub_file(f"timm/{ENCODER}", "model.safetensors"):
        print(f"model: from scratch (the encoder timm/{ENCODER} cannot be fetched)")
        return {}
    print("model: from the encoder DINOv2 ViT-S (model=dpt_stem trains from scratch)")
    return PRETRAINED


def time_steps(cfg: PlainMapping) -> None:
    """Times a few training steps, and writes :class:`Times`."""
    import numpy as np
    from lightning.pytorch.callbacks import LambdaCallback

    from dpt.config.data import loader_settings, make_dataset
    from dpt.run_log import write_json
    from dpt.training.trainer import short_run, validation_cost

    settings = loader_settings(cfg["data"])
    few_images = 2 * settings.batch_size
    if cfg["data"].get("cache") and len(make_dataset(cfg["data"], "train")) > few_images:
        # all are in the cache after two steps, as in training after the first epoch
        cfg = {**cfg, "data": {**cfg["data"], "labelled": few_images, "unlabelled": None}}
    times: list[float] = []

    def note_time(trainer: L.Trainer, *_: object) -> None:
        times.append(time.monotonic())
        trainer.should_stop = len(times) > 3 and times[-1] - times[0] > _TIMING_SECONDS

    single_batches = {**cfg, "trainer": {**cfg["trainer"], "accumulate_grad_batches": 1}}
    short_run(single_batches, LambdaCallback(on_train_batch_end=note_time), steps=_TIMED_STEPS)
    seconds = float(np.median(np.diff(times[1:])))
    images = len(make_dataset(cfg["data"], "val"))
    batches = cfg["trainer"]["accumulate_grad_batches"]
    validation = validation_cost(settings) * seconds * images / settings.batch_size
    results = Times(batches, batches * seconds, images, validation)
    write_json(Path(cfg["run_dir"]) / MEASURED, asdict(results))


@dataclass(frozen=True)
class Times:
    """Seconds of a step and of a validation, with what they consist of."""

    batches: int  # of a step
    step: float
    images: int  # of val
    validation: float


class Length(NamedTuple):
    """The length of a run."""

    seconds: float  # of training with its validations
    steps: int  # that probably fit
    validations: int


def length_of(remaining: float, times: Times, *, export: float) -> Length:
    """Returns the length of training that leaves time for scoring and for ``export`` seconds."""
    validations = 10 if remaining > 600 else 3
    if times.images < _FEW_IMAGES:
        validations = 1
    validations = max(1, min(validations, int(0.1 * remaining / times.validation)))
    # the last validation follows training, and dpt evaluate may take twice as long
    after = min(3 * times.validation + export, 0.5 * remaining)
    seconds = max(_MIN_STEPS * times.step, remaining - after)
    training = seconds - (validations - 1) * times.validation
    return Length(seconds, max(_MIN_STEPS, int(training / times.step)), validations)


def table_text(rows: Sequence[Row]) -> str:
    """Returns the rows as a CSV table that ``data.split_files`` reads."""
    target = io.StringIO()
    table = [(row.split, row.image, row.labels, row.depth, row.objects) for row in rows]
    csv.writer(target).writerows([("split", "image", "mask", "depth", "objects"), *table])
    return target.getvalue()
