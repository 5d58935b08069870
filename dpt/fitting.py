"""``dpt.fit``: from a folder of images with labels to a trained, scored and exported model."""

import copy
import importlib.util
import math
import re
import shlex
import shutil
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import get_type_hints

import torch

from dpt.config.compose import compose
from dpt.config.overrides import as_text, is_below, keys_of, parse
from dpt.config.run_folder import held
from dpt.config.schema import CheckConfig, RunConfig
from dpt.data import Dataset, FolderDataset, collate_eval
from dpt.data.formats.pictures import read_size
from dpt.data.layouts import Detected, detect
from dpt.data.statistics import LabelStatistics, class_weights, measure_labels, typical_depth
from dpt.data_check import check_data, has_errors
from dpt.files import missing_path, real_path, write_bytes
from dpt.functional import has_bf16, resize
from dpt.metrics.instances import connected_areas
from dpt.model import DPT
from dpt.objectives.segmentation import InstanceObjective
from dpt.plugins import load_plugins
from dpt.predict import Predictor
from dpt.process import say
from dpt.run import Run, evaluate, export, starting
from dpt.run_log import start_log
from dpt.training.fit import fit as train
from dpt.training.short_runs import Times, time_steps
from dpt.types.outputs import HeadOutput, Objects
from dpt.validation import Count, Plain, PlainMapping, to_plain, validate
from dpt.weights.hub import has_hub_file

_FIXED = (
    r"resume$|data$|data\.(root|split_files|split_names|missing|objects|things)\b"
    r"|data\.(fractions|folds?|group_by|gap)$"
    r"|data\.(?!labels_|images_)\w+_name$"
)
"""Keys that cannot be given, as the folder and ``pairs.csv`` define the samples."""
_CHECK_PART, _CHECK_SECONDS = 0.1, 60.0  # of the time limit, and in all, for the data check
_EXPORT_SECONDS = 12.0  # of a processor that has nothing else to do
_HEAD = "task.objectives.segmentation."
_PRIOR_DEPTH = "task.objectives.depth.prior"
_SEGMENTATION = {"augment": "strong", f"{_HEAD}dropout": 0.0, f"{_HEAD}auxiliary_weight": 0.0}
RECIPES: dict[str, Plain] = {  # as experiment=camvid and experiment=rgbd, with zooms around 1
    "segmentation": _SEGMENTATION,
    "joint": _SEGMENTATION,
    "depth": {"augment.zoom": [0.8, 1.25], "augment.color": 0.4, "model.decoder.batch_norm": True},
    "instance": {"optim.lr": 0.0005},
    "panoptic": {"optim.lr": 0.0005},
}
PRETRAINED = "dpt_dinov2"
ENCODER = "vit_small_patch14_dinov2.lvd142m"  # of that model
_PIXELS = {"cpu": 192 * 256, "cuda": 384 * 512}  # of training images
_SCALE = 1.25  # of whole images in evaluation, as a multiple of that at which they fit a crop
_FINE_SECONDS = 600.0  # on a CPU, below which a model from scratch is better
_FINE_SCALE = 1.8  # the same of a pretrained encoder
_ZOOM = 0.6, 1.6  # of training crops, as multiples of the scale in evaluation
_EVAL_PIXELS = 1_500_000  # of a whole image in evaluation
_EVAL_PIXELS_PER_SECOND = {"cpu": 150_000, "cuda": 15_000_000}  # of all, by the time limit
_THIN = 4.0  # pixels: structures are enlarged to this width, but not beyond their size in the file
_WEIGHT_POWER = 0.5  # of class weights
_UPRIGHT = 0.1  # of LabelStatistics.uprightness: flips and turns are used below
_CACHE_BYTES = 2 << 30  # largest cache of decoded samples
_RATE = 0.001  # of learning
_LONG_RUN = 1000  # steps, below which the rate is larger
MIN_STEPS = 10
_FEW_IMAGES = 20  # of val, of which the best of several checkpoints would be chance


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
    write_bytes(plan.table, plan.detected.table().encode())
    _check(plan)
    of_classes = plan.of_classes()
    if of_classes is None:
        _train(plan)
        return _finish(plan)
    say("two models are trained: of objects, and of classes, whose connected areas are objects")
    _train(of_classes, fraction=0.45)
    _train(plan, fraction=0.9)
    run, val = _finish(plan), plan.config.data.make("val")
    objects, areas = run.scores["val/ap"], precision_of_areas(Run(of_classes.folder).model, val)
    if areas > objects:
        run = _finish(of_classes)
    say(f"AP on {len(val)} held-out images: objects {objects:.3f}, connected areas {areas:.3f}")
    say(f"the better model is kept in {run.folder}")
    return run


def _train(plan: "Plan", *, fraction: float = 1.0) -> None:
    """Trains the model of a plan in a fraction of the time that is left."""
    plan.measure()
    if "steps" not in plan.given and not any(k.startswith("trainer.max_") for k in plan.given):
        plan.change(plan.length_settings(time_steps(plan.config), fraction))
    config = plan.config
    shutil.rmtree(plan.folder / "evaluation", ignore_errors=True)  # of a run that is overwritten
    for name in ("model.onnx", "model.pt2"):
        (plan.folder / name).unlink(missing_ok=True)
    say(f"training: {plan.command}")
    say(f"then: evaluation and export of {plan.folder} (dpt evaluate, dpt export)")
    with starting("train", config):
        train(config, with_baselines=False)  # the evaluation adds them


def _finish(plan: "Plan") -> Run:
    """Exports and evaluates the model of a plan."""
    run = Run(plan.folder, config=plan.config.values)
    has_onnx = all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript")))
    say(str(export(run, plan.folder / ("model.onnx" if has_onnx else "model.pt2"))))
    of_evaluation = [o for o in plan.overrides if o.startswith("trainer.accelerator=")]
    of_evaluation.append(f"run_dir={as_text(str(plan.folder / 'evaluation'))}")
    return Run(plan.folder, evaluate(run, *of_evaluation).scores, run.config)


def precision_of_areas(model: DPT, data: Dataset) -> float:
    """Returns the AP of the connected areas of the classes that a model predicts, as objects."""
    predictor = Predictor(model)
    objective = InstanceObjective(**InstanceObjective.from_data(data, {}))
    for index in range(len(data)):
        sample = data[index]
        height, width = sample["labels"].shape
        (logits,) = predictor.run([predictor.prepare(sample["image"]).input])[0].values()
        probabilities = resize(logits, (height, width))[0].softmax(0)
        areas = connected_areas(probabilities, data.info.things)
        objects = Objects(*(tensor[None] for tensor in areas))
        objective.update(HeadOutput(objects), collate_eval([sample], ["objects"]))
    return objective.compute()["ap"]


class Plan:
    """A run of ``dpt train`` on a folder: what is detected, and the settings that follow from it.

    Args:
        root: the folder.
        overrides: the user's; their keys are not chosen here.
        time: the limit for everything, such as ``15m``.

    Attributes:
        folder: of the run.
        seconds: the limit.
        table: of the pairs and their splits, which ``fit`` writes.
        given: values of the user's overrides.
        chosen: settings by key, which the user's overrides leave open.
    """

    def __init__(self, root: Path, overrides: Sequence[str], time: str) -> None:
        load_plugins()
        self._started = clock.monotonic()
        self.seconds = seconds_of(time)
        self.root, self.overrides = real_path(root), overrides
        if not self.root.is_dir():
            raise missing_path(self.root, what="folder", remedy="check the path")
        self.given = {override.key: override.value for override in parse(overrides)}
        _refuse_fixed(self.given)
        self.folder = _free_folder(self.root, self.given)
        say(f"{self.root}: looking for images and labels; the run will be in {self.folder}")
        self.detected = _detected(self.root, self.given)
        self.table = self.folder / "pairs.csv"
        is_chosen = any(re.match(r"model($|[./]encoder|\.weights)", key) for key in self.given)
        is_tuned = not is_chosen and can_fine_tune(self.detected.task, self.seconds)
        self._model: Plain = {"model": PRETRAINED} if is_tuned else {}
        self._is_fine_tuned = (self.given | self._model).get("model") == PRETRAINED
        if self._is_fine_tuned:
            self._model["optim.layer_decay"] = 0.8
        self.chosen = self.settings()
        self._composition = compose("train", self.arguments)

    def of_classes(self) -> "Plan | None":
        """Returns the plan of a model of classes for the same objects; None if these are not what
        is trained, or the user has chosen something of the task."""
        is_chosen = any(key.startswith("task") for key in self.given)
        if self.detected.task != "instance" or is_chosen:
            return None
        plan = copy.copy(self)
        plan.detected = replace(self.detected, task="segmentation")
        plan.folder = self.folder / "classes"
        plan.overrides = [*self.overrides, f"run_dir={as_text(str(plan.folder))}"]
        plan.chosen = plan.settings()
        plan._composition = compose("train", plan.arguments)
        return plan

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

    def measure(self) -> None:
        """Adds the settings that follow from the values of training masks and depth maps."""
        task, train = self.detected.task, self.config.data.changed(cache=False).make("train")
        if task in ("segmentation", "joint"):
            self.change(self.settings(measure_labels(train)))
        is_metric = task in ("depth", "joint") and train.info.has_metres
        if is_metric and _PRIOR_DEPTH not in self.given:
            self.change({_PRIOR_DEPTH: float(f"{typical_depth(train):.3g}")})

    def settings(self, labels: LabelStatistics | None = None) -> Plain:
        """Returns the settings that follow from the folder and from its masks, if measured."""
        task = self.detected.task
        settings: Plain = {"task": task, "data": "folder", "data.root": str(self.root)}
        settings |= {f"data.{key}": value for key, value in self.detected.settings.items()}
        if self.detected.settings.get("depth_kind") == "inverse":
            settings["task.kind"] = "relative"
        table = str(self.table)
        settings |= {f"data.split_files.{split}": table for split in ("train", "val", "test")}
        settings |= {"trainer.precision": "auto", "optim.weight_decay": 0.05, "optim.lr": _RATE}
        settings |= RECIPES.get(task, {}) | self._size_settings(labels) | self._model
        settings |= label_settings(labels) if labels else {}
        if steps := self.given.get("steps", self.given.get("trainer.max_steps")):
            of_model = self.given | self._model
            settings |= rate_settings(task, of_model, validate(Count, steps, "steps"))
        settings |= {"logger": "csv", "run_dir": str(self.folder)}
        if "model.weights" in self.given:  # its decoder may have no batch norm
            settings.pop("model.decoder.batch_norm", None)
        keys = keys_of(self.overrides)
        chosen: Plain = to_plain({k: v for k, v in settings.items() if not is_below(keys, k)})
        return chosen

    def _size_settings(self, labels: LabelStatistics | None) -> Plain:
        """Returns the settings that follow from the size of images and of structures in masks."""
        detected, device = self.detected, "cuda" if torch.cuda.is_available() else "cpu"
        height, width = read_size(self.root / detected.image)
        multiple = 14 if self._is_fine_tuned else 32
        sizes = self.given.get("data.image_size")
        sizes = sizes or crop_size((height, width), _PIXELS[device], multiple)
        size = validate(tuple[int, int], sizes, "data.image_size")
        enlarged = _SCALE
        if labels is not None:
            val_images = sum(row.split == "val" for row in detected.rows)
            limit = self.seconds * _EVAL_PIXELS_PER_SECOND[device] / max(1, val_images)
            usual = _FINE_SCALE if self._is_fine_tuned else _SCALE
            enlarged = enlargement(labels.thickness, (height, width), size, limit, usual)
        cache_size = [round(side * 1.2 * enlarged) for side in size]  # enough for most zooms
        sample_bytes = 9 * max(math.prod(cache_size), height * width // 4)
        is_cached = sample_bytes * len(detected.rows) < _CACHE_BYTES
        settings: Plain = {
            "data.image_size": size,
            "data.num_workers": 0 if is_cached or device == "cpu" else 4,
            "data.cache": is_cached,
            "data.cache_size": cache_size if is_cached else None,
        }
        if detected.task in ("segmentation", "joint"):
            settings["data.eval_size"] = [round(side * enlarged) for side in size]
            settings["augment.zoom"] = [round(factor * enlarged, 3) for factor in _ZOOM]
        return settings

    def length_settings(self, times: Times, fraction: float = 1.0) -> Plain:
        """Returns the time of training, in a fraction of what is left, the largest number of steps
        and the interval of validations, and the rate that suits the number of steps."""
        # a machine with other work takes longer than it computes
        slowness = max(1.0, (clock.monotonic() - self._started) / clock.process_time())
        remaining = fraction * (self._started + self.seconds - clock.monotonic())
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
        say(f"nothing is written: dpt fit without --plan writes {self.table} and trains")


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
        raise ValueError(f"run_dir={folder} holds files already: give another, or overwrite=true")
    return folder


def _detected(root: Path, given: PlainMapping) -> Detected:
    """Returns what the folder holds, with the user's task."""
    types = get_type_hints(FolderDataset, include_extras=True)
    data = {k.removeprefix("data."): v for k, v in given.items() if k.startswith("data.")}
    checked = {k: validate(types[k], v, f"data.{k}") if k in types else v for k, v in data.items()}
    unused = {"joint": (), "depth": ("labels", "objects")}
    left_out = unused.get(str(given.get("task", "joint")), ("depth",))
    detected = detect(root, dict.fromkeys(left_out) | checked, say)
    if "task" in given:
        detected.choose_task(str(given["task"]))
    elif detected.other_tasks:
        say(f"task: {detected.task}; or task={' or task='.join(detected.other_tasks)}")
    return detected


def _check(plan: Plan) -> None:
    """Raises ValueError if the data of a run have errors; its folder gets the report."""
    folder = plan.folder / "data_check"
    options = {"run_dir": str(folder), "split": ["train", "val"]}
    with held(folder):
        config = CheckConfig.read(plan.config.values | options)
        findings = check_data(config, seconds=min(_CHECK_SECONDS, _CHECK_PART * plan.seconds))
    if has_errors(findings):
        raise ValueError(f"the data have errors, which are listed above and in {folder}")
    start_log(None)


def seconds_of(text: str) -> float:
    """Returns the seconds in ``90s``, ``15m`` or ``2h``; ValueError for other texts."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"--time {text}: must be a number and its unit, as in 90s, 15m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def crop_size(image: tuple[int, int], pixels: int, multiple: int) -> list[int]:
    """Returns the size [H, W] of training crops of about so many pixels, in steps of a number of
    pixels."""
    scale = min(1.0, math.sqrt(pixels / math.prod(image)))
    return [multiple * max(1, round(side * scale / multiple)) for side in image]


def enlargement(
    thickness: float,
    image: tuple[int, int],
    crop: tuple[int, int],
    limit: float = math.inf,
    usual: float = _SCALE,
) -> float:
    """Returns the scale of whole images in evaluation as a multiple of that at which they cover a
    training crop: larger where structures would be thinner than ``_THIN`` pixels.

    Args:
        thickness: of the structures, in pixels of the file.
        image, crop: sizes (H, W).
        limit: of the pixels of an image in evaluation.
        usual: what suits the model, if structures are thick; smaller images keep their size.
    """
    covering = max(crop[0] / image[0], crop[1] / image[1])
    largest = min(1.0, math.sqrt(min(_EVAL_PIXELS, limit) / math.prod(image)))
    return max(_SCALE, min(largest, max(_THIN / thickness, usual * covering)) / covering)


def label_settings(labels: LabelStatistics) -> Plain:
    """Returns the settings of the loss, of the head and of the augmentation that follow from the
    masks. The head starts at the constant prediction with the smallest loss."""
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


def can_fine_tune(task: str, seconds: float) -> bool:
    """Returns whether the pretrained encoder is expected to be better than a model from scratch in
    so many seconds, and can be fetched; prints the choice."""
    is_slow = not torch.cuda.is_available()
    if is_slow and (task == "depth" or seconds < _FINE_SECONDS or not has_bf16("cpu")):
        say("model: from scratch (better on a CPU for depth, without bf16, or below ten minutes)")
        return False
    if not has_hub_file(f"timm/{ENCODER}", "model.safetensors"):
        remedy = f"model={PRETRAINED} model.encoder.weights=FILE"
        say(f"model: from scratch (the encoder timm/{ENCODER} cannot be fetched: {remedy})")
        return False
    say("model: from the encoder DINOv2 ViT-S (model=dpt_stem trains from scratch)")
    return True


def rate_settings(task: str, given: PlainMapping, steps: int) -> Plain:
    """Returns a larger learning rate, if a run of segmentation from random weights is short.

    Args:
        given: keys that the user or a pretrained encoder decides.
    """
    is_chosen = any(re.match(r"optim|model[./]?(encoder|weights|$)", key) for key in given)
    if is_chosen or steps >= _LONG_RUN or task != "segmentation":
        return {}
    return {"optim.lr": float(f"{_RATE * min(4.0, math.sqrt(_LONG_RUN / steps)):.2g}")}


@dataclass(frozen=True)
class Length:
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
    seconds = max(MIN_STEPS * times.step, remaining - after)
    training = seconds - (validations - 1) * times.validation
    return Length(seconds, max(MIN_STEPS, int(training / times.step)), validations)
