"""``dpt fit DIR``: from a folder to a trained, scored and exported model."""

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
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpt.files import real_path
from dpt.process import say

if TYPE_CHECKING:
    from dpt.data_check.detect import Detected

DETAILS = """Prints its assumptions and the train.py command. If the files can be interpreted in
two ways, it lists the settings that decide and does not train. run_dir (runs/fit/DIR_DATE) holds
the run, pairs.csv, data_check/, evaluation/ and model.onnx (model.pt2 if the extra onnx is not
installed)."""
_HEAD = "task.objectives.segmentation."
_SEGMENTATION = {"augment": "strong", f"{_HEAD}dropout": 0.0, f"{_HEAD}auxiliary_weight": 0.0}
RECIPES: dict[str, dict[str, Any]] = {  # as experiment=camvid and experiment=rgbd
    "segmentation": _SEGMENTATION,
    "joint": _SEGMENTATION,
    "depth": {"augment.zoom": [1, 1.5], "augment.color": 0.4, "model.decoder.batch_norm": True},
}
ENCODER = "vit_small_patch14_dinov2.lvd142m"  # DINOv2 (Oquab et al. 2023), Apache-2.0
PRETRAINED: dict[str, Any] = {
    "model": "dpt_small",
    "model.encoder.weights": f"timm:{ENCODER}",
    "model.encoder.layer_scale": 1.0,
    "model.encoder.final_norm": True,
    "model.encoder.position_resize": "dinov2",
    "model.preprocessing.mean": [0.485, 0.456, 0.406],
    "model.preprocessing.std": [0.229, 0.224, 0.225],
    "optim.encoder_lr": 0.0001,
}
_FIXED = r"data\.(split_files|split_names|fractions|missing|\w+_name|objects|things)\b"
_PIXELS = {"cpu": 192 * 256, "cuda": 384 * 512}  # of training images
_CHECKED_PIXELS = 200_000_000  # largest number of pixels per split that the data check reads
_CACHE_BYTES = 2 << 30  # largest cache of decoded samples
_EXPORT_SECONDS = 30.0
_FEWEST_STEPS = 10
_TIMING_SECONDS = 20.0  # for timing steps; four steps are timed in any case


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dpt fit", description="Trains a model on a folder of photos with labels.",
        epilog=DETAILS)  # fmt: skip
    parser.add_argument("folder", metavar="DIR", type=Path, help="photos, and masks or depth maps")
    parser.add_argument("--time", default="15m", help="for everything: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as for train.py")
    options = parser.parse_intermixed_args(arguments)
    from dpt.atomic import write_bytes
    from dpt.commands import export
    from dpt.config.compose import run_configured
    from dpt.config.overrides import as_argument, as_text, is_below, keys_of, parse
    from dpt.data.formats.pictures import read_size
    from dpt.data_check.detect import detect

    start, limit = time.monotonic(), seconds_of(options.time)
    given = {override.key: override.value for override in parse(options.overrides)}
    if {"data", "data.root", "task"} & given.keys():
        raise ValueError("data and task follow from DIR: leave out data=, data.root= and task=")
    if "resume" in given:
        raise ValueError("a run is continued by python train.py resume=RUN: leave out resume=")
    if fixed := [key for key in given if re.match(_FIXED, key)]:  # pairs.csv defines the samples
        raise ValueError(f"{fixed[0]} needs python train.py: dpt fit finds the files and splits by "
                         "their names, by a CSV table, or by train.txt and val.txt")  # fmt: skip
    root = real_path(options.folder)
    own = {key.removeprefix("data."): v for key, v in given.items() if key.startswith("data.")}
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = Path(str(given.get("run_dir") or f"runs/fit/{root.name}_{now}")).absolute()
    if folder.is_dir() and any(folder.iterdir()) and not given.get("overwrite"):
        raise ValueError(
            f"run_dir={folder} holds files already: give another, or overwrite=true, which "
            f"replaces evaluation and model.*; if it is a run, python train.py "
            f"{as_argument('resume', folder)} continues it, then dpt evaluate and dpt export "
            "complete it"
        )
    found = detect(root, own)
    say("\n".join(found.notes))
    table, checked = folder / "pairs.csv", _CHECKED_PIXELS // (480 * 640)
    if found.rows:
        write_bytes(table, table_text(found.rows).encode())
        height, width = read_size(root / found.rows[0]["image"])
        checked = max(32, _CHECKED_PIXELS // (height * width))
    size = given.get("data.image_size")
    keys = keys_of(options.overrides)
    settings = {**settings_of(found, root, table, size), "logger": "csv", "run_dir": str(folder)}
    if "model.weights" in given:  # its decoder may have no batch norm
        settings.pop("model.decoder.batch_norm", None)
    if not any(re.match(r"model($|[./]encoder|\.weights)", key) for key in given):
        settings |= pretrained_settings()
    training = [f"{k}={as_text(v)}" for k, v in settings.items() if not is_below(keys, k)]
    training += options.overrides

    def step(command: str, job: str, name: str, base: Sequence[str]) -> Path:
        target = folder / name
        kept = [o for o in base if not o.startswith("run_dir=")]
        run_configured(command, job, [*kept, f"run_dir={as_text(str(target))}"])
        return target

    of_data = [o for o in training if re.match(r"data[.=]", o)]
    with redirect_stdout(io.StringIO()):  # refuses unknown keys before photos are read
        run_configured("train", "", ["--cfg=job", *training])
    step("data check", "dpt.data_check:check_data", "data_check", [*of_data, f"limit={checked}"])
    if "steps" not in given and not any(key.startswith("trainer.max_") for key in given):
        place = tempfile.mkdtemp(prefix="timing-", dir=folder)
        timing = step("train", "dpt.commands.fit:time_steps", place, training)
        times = json.loads((timing / "times.json").read_text())
        shutil.rmtree(timing)
        batches = times.pop("batches")
        steps, count = length_of(limit - (time.monotonic() - start), **times)
        print(f"steps: {steps}, as one takes {times['step']:.2f} s")
        if steps == _FEWEST_STEPS:
            print(f"--time {options.time} is too short here: this minimum of steps takes longer")
        training.append(f"steps={steps}")
        if "trainer.val_check_interval" not in given:
            training.append(f"trainer.val_check_interval={math.ceil(steps / count) * batches}")
    command = shlex.join(o for o in training if not o.startswith("run_dir="))
    for name in ("evaluation", "model.onnx", "model.pt2"):  # of a run that overwrite=true replaces
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    say(f"training: python train.py {command}")
    say(f"then: evaluation and export of {folder} (dpt evaluate, dpt export)")
    run_configured("train", "dpt.training.fit:fit", training)
    of_device = [o for o in options.overrides if o.startswith("trainer.accelerator=")]
    step("evaluate", "dpt.evaluation.evaluate:evaluate", "evaluation",
         [f"checkpoint={as_text(str(folder))}", *of_device])  # fmt: skip
    has_onnx = all(map(importlib.util.find_spec, ("onnx", "onnxruntime", "onnxscript")))
    export.run([str(folder), str(folder / ("model.onnx" if has_onnx else "model.pt2"))])


def seconds_of(text: str) -> float:
    """Seconds in ``90s``, ``15m`` or ``2h``; ValueError for other texts."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"--time {text}: must be a number and its unit, as in 90s, 15m or 2h")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def settings_of(found: Detected, root: Path, table: Path, size: Any = None) -> dict[str, Any]:
    """The arguments of ``train.py`` for the folder and this machine, by key. ``size`` is the user's
    ``data.image_size``, [H, W]; None: it is derived from the photos' size."""
    import torch

    from dpt.data.formats import pictures
    from dpt.validation import validate

    device = "cuda" if torch.cuda.is_available() else "cpu"
    values = {"task": found.task, "data": found.data, **RECIPES.get(found.task, {})}
    values |= {"data.root": str(root)} | {f"data.{k}": v for k, v in found.settings.items()}
    height, width = pictures.read_size(root / found.photo)
    if found.rows:
        values |= {f"data.split_files.{split}": str(table) for split in ("train", "val", "test")}
    scale = min(1.0, math.sqrt(_PIXELS[device] / (height * width)))
    size = size or [max(32, 32 * round(side * scale / 32)) for side in (height, width)]
    size = validate(tuple[int, int], size, "data.image_size")
    kept = [side * 3 // 2 for side in size]  # enough for the largest zoom
    cached = 0 < 9 * len(found.rows) * max(kept[0] * kept[1], height * width // 4) < _CACHE_BYTES
    values |= {"data.image_size": size, "trainer.precision": "auto", "optim.weight_decay": 0.05,
               "optim.lr": 0.0005 if found.data == "coco" else 0.001,
               "data.num_workers": 0 if cached or device == "cpu" else 4}  # fmt: skip
    if cached:
        values |= {"data.cache": True, "data.cache_size": kept}
    if found.task in ("segmentation", "joint"):
        values["data.eval_size"] = [side * 5 // 4 for side in size]  # the middle of the zooms
    if found.weights:
        values["task.segmentation_loss.class_weights"] = found.weights
    return values


def pretrained_settings() -> dict[str, Any]:
    """The arguments of ``train.py`` for a pretrained encoder. If it cannot be fetched or is too
    slow on this machine, prints the reason and returns no arguments."""
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


def time_steps(cfg: Mapping[str, Any]) -> None:
    """Times a few training steps, and writes ``times.json``: batches per step, seconds per step,
    and the estimated seconds per validation."""
    import numpy as np
    from lightning.pytorch.callbacks import LambdaCallback

    from dpt.config import build
    from dpt.run_log import write_json
    from dpt.training.trainer import short_run, validation_cost

    cfg, times = {**cfg, "data": {**cfg["data"], "cache": False}}, []
    settings = build.loader_settings(cfg["data"])

    def note_time(trainer: Any, *_: Any) -> None:
        times.append(time.monotonic())
        trainer.should_stop = len(times) > 3 and times[-1] - times[0] > _TIMING_SECONDS

    parts = {**cfg, "trainer": {**cfg["trainer"], "accumulate_grad_batches": 1}}
    short_run(parts, LambdaCallback(on_train_batch_end=note_time), steps=10)
    step = float(np.median(np.diff(times[2:])))
    images = len(build.make_dataset(cfg["data"], "val"))
    validation = validation_cost(settings) * step * images / settings.batch_size
    batches = cfg["trainer"]["accumulate_grad_batches"]
    found = {"batches": batches, "step": batches * step, "validation": validation}
    write_json(Path(cfg["run_dir"]) / "times.json", found)


def length_of(left: float, *, step: float, validation: float) -> tuple[int, int]:
    """Steps and validations that fit into ``left`` seconds, besides scoring and export."""
    count = 10 if left > 600 else 3
    count = max(1, min(count, int(0.1 * left / validation)))
    others = min((count + 2) * validation + _EXPORT_SECONDS, 0.5 * left)
    return max(_FEWEST_STEPS, int((left - others) / step)), count


def table_text(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows as a CSV table that ``data.split_files`` reads."""
    names, target = ("split", "image", "labels", "depth"), io.StringIO()
    table = [[row.get(name, "") for name in names] for row in rows]
    csv.writer(target).writerows([("split", "image", "mask", "depth"), *table])
    return target.getvalue()
