"""From typed settings to objectives, loaders, the model and the trainer of a run."""

import inspect
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch.utils.data import DataLoader

from dpt import functional
from dpt.config.objects import Part, complete
from dpt.config.overrides import as_text, keys_of, value_at
from dpt.config.schema import ModelSettings, RunConfig, TaskConfig
from dpt.data import Dataset, EvalTransform, make_loader
from dpt.data.loading import LoaderSettings
from dpt.data.statistics import measure_bands
from dpt.model import DPT
from dpt.model_config import ModelConfig
from dpt.nn import ENCODERS, HEADS
from dpt.objectives import Objective
from dpt.process import is_first_rank, log
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import Sample
from dpt.validation import Plain, PlainMapping, unknown_key, validate
from dpt.weights import load_encoder_weights, load_model_weights
from dpt.weights.formats import read
from dpt.weights.names import IMAGENET
from dpt.weights.transfer import LoadReport

LABEL_NAMES = {
    "depth": "depth maps",
    "normals": "surface normals",
    "labels": "class masks",
    "objects": "object masks",
    "class_id": "a class for each image",
    "value": "a number for each image",
    "caption": "a caption for each image",
    "K": "cameras",
}
_REMEDY = (
    "data=scenes has all but captions, which data=imagetable reads; data=folder: set data.labels, "
    "depth, objects or fov"
)
NOTHING: PlainMapping = MappingProxyType({})


# --- Data


def make_train_loader(
    config: RunConfig, dataset: Dataset, targets: Sequence[str | None], *, prompts: bool = False
) -> DataLoader[Sample]:
    """Returns the loader of training; with ``prompts`` the model takes sparse depth."""
    settings = config.data.loader
    _require_metres(dataset, prompts)
    transform = config.augment.build(
        image_size=settings.image_size,
        targets=list(targets),
        prompts=prompts,
        class_names=dataset.info.class_names,
    )
    return make_loader(dataset, transform, settings, targets, training=True, seed=config.seed)


def make_eval_loader(
    dataset: Dataset,
    settings: LoaderSettings,
    preprocessing: Preprocessing,
    targets: Sequence[str | None],
    *,
    prompts: bool = False,
) -> DataLoader[Sample]:
    """Returns the loader of evaluation; with ``prompts`` the model takes sparse depth."""
    _require_metres(dataset, prompts)
    transform = EvalTransform(preprocessing, settings.prompt_points if prompts else 0)
    return make_loader(dataset, transform, settings, targets, training=False)


def _require_metres(dataset: Dataset, prompts: bool) -> None:
    if prompts and not dataset.info.has_metres:
        fault = "sparse depth is in metres, and data.depth_kind=inverse has none"
        raise ValueError(f"model.decoder.prompts=true: {fault}: leave it out")


# --- Objectives


def make_objectives(task: TaskConfig, data: Dataset) -> dict[str, Objective]:
    """Makes the objective of each head. The data give class counts and depth range if not set."""
    for part in task.objectives.values():
        cls: Any = part.target
        if cls.target and cls.target not in data.info.targets:
            remedy = (data.labels_remedy if cls.target == "labels" else "") or _REMEDY
            given = ", ".join(LABEL_NAMES[t] for t in data.info.targets) or "pictures"
            fault = f"needs {LABEL_NAMES[cls.target]}, and this data gives only {given}"
            raise ValueError(f"task={task.name} {fault}. Choose data that has them ({remedy})")
    return {name: _make_objective(part, data) for name, part in task.objectives.items()}


def _make_objective(part: Part[Objective], data: Dataset) -> Objective:
    """Returns the objective of a part, with the settings of its head."""
    cls: Any = part.target
    settings = {**part.settings, **cls.from_data(data, part.settings)}
    head: Any = HEADS.get(cls.head)  # a dataclass
    keys = {f.name for f in fields(head)} if head else set()
    parameters = inspect.signature(part.target).parameters
    arguments = {k: v for k, v in settings.items() if k in parameters or k not in keys}
    objective = replace(part, settings=arguments).build()
    decided = objective.head_settings
    for key in (part.settings.keys() - arguments.keys()) & decided.keys():
        if part.settings[key] != decided[key]:
            text = "%s.%s=%s has no effect: task and data decide that it is %s"
            log.warning(text, part.where, key, part.settings[key], decided[key])
    objective.head_settings = {k: v for k, v in settings.items() if k in keys} | decided
    if head:
        validate(head, objective.head_settings, part.where)
    return objective


# --- The model


def image_settings(model: ModelSettings, dataset: Dataset) -> Plain:
    """Returns what the images of a data set decide of a model's preprocessing.

    These are number and statistics of bands, unless ``model.preprocessing.mean`` gives them, and
    how files are read; nothing for 8-bit RGB.
    """
    given, part = model.preprocessing, dataset.part
    settings: Plain = {"image_max": part.image_max, "nodata": part.nodata}
    if part.bands is not None and part.bands != "all":
        settings["bands"] = [*part.bands]
    settings = {key: value for key, value in settings.items() if value is not None}
    if given.get("pixels") == "bands" and "mean" in given:  # such as those of a resumed run
        return {**settings, **given}
    measured = measure_bands(dataset)
    if measured is None:
        return settings
    statistics = {"mean": [*measured.mean], "std": [*measured.std]}
    if is_first_rank():
        log.info("bands: mean %s, std %s", *statistics.values())
    statistics |= {key: given[key] for key in statistics if key in given}
    return {**settings, "pixels": "bands", **statistics}


def make_model(
    model: ModelSettings,
    objectives: Mapping[str, Objective],
    settings: LoaderSettings,
    overrides: Sequence[str] = (),
    images: PlainMapping = NOTHING,
) -> DPT:
    """Makes the model with a head for each objective, its weights from a file if one is set.

    Args:
        model: its sizes, or the file of a whole model.
        objectives: by name.
        settings: sizes of training images, and those that whole images are resized to.
        overrides: what the command line set. With ``model.weights`` these keys alone replace the
            settings of the file.
        images: see :func:`image_settings`.
    """
    typed = keys_of(overrides)
    heads = _heads(model, objectives)
    if model.weights is not None:
        net = _from_weights(model, heads, settings, typed, images)
    else:
        source = {
            "name": model.name,
            "encoder": {key: value for key, value in model.encoder.items() if key != "weights"},
            "decoder": model.decoder,
            "preprocessing": {**images, **model.preprocessing},
        }
        net = DPT(_model_config(source, heads, settings))
        if weights := model.encoder_weights:
            report = load_encoder_weights(net.encoder, weights)
            log.info("encoder weights: %s", report)
            for remark in _wasted(report, net):
                log.warning("pretrained weights lose quality: %s", remark)
    _warn_of_changed(typed, model, net.config.to_dict())
    for name, of_head in heads.items():
        limits, most = net.outputs[name].value_range, of_head.get("max_depth")
        if limits is not None and most is not None and limits[1] < most:
            text = "model.heads.%s.bins.max_depth=%g: depth above, up to %g m, is not predicted"
            log.warning(text, name, limits[1], most)
    set_switches(net, model)
    return net


def _wasted(report: LoadReport, net: DPT) -> Iterator[str]:
    """Yields the settings that make pretrained weights compute with what they were not made for."""
    if report.patch is not None:
        remedy = f"model.encoder.patch_size={report.patch} keeps them"
        yield f"their patches of {report.patch} pixels are resized: {remedy}"
    if report.has_layer_scale and net.preprocessing.mean == (0.5, 0.5, 0.5):
        keys = " ".join(f"model.preprocessing.{k}={as_text(v)}" for k, v in IMAGENET.items())
        yield f"DINOv2 and DINOv3 were trained with {keys}"


def _heads(model: ModelSettings, objectives: Mapping[str, Objective]) -> dict[str, Plain]:
    """Returns the settings of the head of each objective."""
    decided = {objective.head: objective for objective in objectives.values()}
    heads = {}
    for name, objective in decided.items():
        given = model.heads.get(name, {})
        measured = {k: given[k] for k in objective.measured if k in given}  # of a resumed run
        heads[name] = _like(objective.head_settings, given) | measured
    for name in model.heads.keys() - decided.keys():
        raise ValueError(unknown_key(f"model.heads.{name}", name, list(decided)))
    return heads


def _warn_of_changed(typed: set[str], model: ModelSettings, config: PlainMapping) -> None:
    """Logs values of the command line in place of which the model has others."""
    for key in sorted(typed):
        value, used = value_at({"model": vars(model)}, key), value_at({"model": config}, key)
        is_same_kind = isinstance(used, str) == isinstance(value, str) and value != "auto"
        is_leaf = used is not None and value is not None and not isinstance(used, dict)
        if is_leaf and is_same_kind and used != value:
            log.warning("%s=%s has no effect: other settings make it %s", key, value, used)


def _model_config(
    source: PlainMapping, heads: PlainMapping, settings: LoaderSettings
) -> ModelConfig:
    """Returns a model's configuration for images of the sizes of ``settings``."""
    encoder, preprocessing = {**source["encoder"]}, source["preprocessing"]
    kind: Any = ENCODERS[encoder["kind"]]  # a dataclass
    if any(f.name == "image_size" for f in fields(kind)):
        encoder["image_size"] = list(settings.image_size)
    if preprocessing.get("pixels") == "bands" and preprocessing.get("mean") is not None:
        encoder["in_channels"] = len(preprocessing["mean"])
    preprocessing = {**preprocessing, "image_size": list(settings.eval_size)}
    parts = {"encoder": encoder, "heads": heads, "preprocessing": preprocessing}
    return ModelConfig.from_dict({**source, **parts})


def _from_weights(
    model: ModelSettings,
    heads: Mapping[str, Plain],
    settings: LoaderSettings,
    typed: set[str],
    images: PlainMapping,
) -> DPT:
    """Makes a model as in ``model.weights``, except for its heads and the keys that were typed."""
    checkpoint = read(str(model.weights))
    source = checkpoint.config.to_dict()
    chosen = {
        "model": (model.name, source["name"]),
        "model.encoder": (model.encoder["kind"], source["encoder"]["kind"]),
    }
    for key, (choice, of_file) in chosen.items():
        if key in typed and choice != of_file:
            raise ValueError(
                f"{key}={choice}: model.weights={model.weights} is a {of_file}: leave one out"
            )
    stored = source["preprocessing"]
    normalization = {k: stored[k] for k in ("mean", "std", "pixels")}
    is_alike = stored["pixels"] == images.get("pixels", "rgb")
    if is_alike and len(stored["mean"]) == len(images.get("mean", stored["mean"])):
        source["preprocessing"] = {**images, **normalization}
    else:
        source["preprocessing"] = {**normalization, **images}
    for part in ("encoder", "decoder", "preprocessing"):
        given = getattr(model, part).items()
        source[part] |= {k: v for k, v in given if f"model.{part}.{k}" in typed and k != "weights"}
    likened = {k: _like(v, source["heads"].get(k, {})) for k, v in heads.items()}
    net = DPT(_model_config(source, likened, settings))
    report = load_model_weights(net, net.config, checkpoint, source=str(model.weights))
    log.info("weights of a %s: %s", source["name"], report)
    if model.encoder_weights is not None:
        log.warning("model.encoder.weights has no effect beside model.weights")
    return net


def _like(options: PlainMapping, source: PlainMapping) -> Plain:
    """Returns a head's settings, completed by those of a head of another model if it is of the same
    kind."""
    same = options.get("kind", "dpt") == source.get("kind", "dpt") or "num_classes" not in source
    return {**source, **options} if same else dict(options)


def set_switches(net: DPT, model: ModelSettings) -> None:
    """Sets how the model is computed: this changes its costs and not its outputs."""
    functional.save_memory = None if model.save_memory == "auto" else model.save_memory
    if model.checkpoint_activations:
        net.encoder.set_grad_checkpointing()
    if model.channels_last:
        functional.to_channels_last(net)
    if model.compile:
        # one graph for each size: TorchInductor fails on gradients at sizes that vary
        net.compile(dynamic=False)


# --- The trainer


def with_precision(settings: PlainMapping) -> Plain:
    """Returns the settings of the Trainer with this machine's precision in place of ``auto``:
    ``bf16-mixed`` if the device has bf16 matrix instructions, otherwise ``32-true``.

    A run stores it, so that it is resumed in the same precision on another machine.
    """
    if settings.get("precision") != "auto":
        return {**settings}
    best = "bf16-mixed" if _has_bf16(str(settings.get("accelerator"))) else "32-true"
    log.info("trainer.precision=auto: %s on this machine", best)
    return {**settings, "precision": best}


def _has_bf16(accelerator: str) -> bool:
    """Returns whether the device of an accelerator has bf16 matrix instructions."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return functional.has_bf16("cuda")
    is_cpu = accelerator in ("auto", "cpu") and not torch.backends.mps.is_available()
    return is_cpu and functional.has_bf16("cpu")


def trainer_arguments(trainer: Part[L.Trainer]) -> Plain:
    """Returns the arguments of the Trainer, with a progress bar only in a terminal."""
    arguments = with_precision(complete(trainer))
    strategy = str(arguments["strategy"])
    if strategy.endswith(("_spawn", "_fork", "_notebook")):  # loggers cannot be sent to processes
        raise ValueError(f"trainer.strategy={strategy}: use {strategy.partition('_')[0]}")
    if arguments["enable_progress_bar"] is None:
        arguments["enable_progress_bar"] = sys.stdout.isatty()
    return arguments


def takes_bf16_weights(trainer: L.Trainer) -> bool:
    """Whether images are scored by a copy of the model with bf16 weights, which is faster than
    autocast: with ``bf16-mixed`` on devices that have bf16 instructions, unless FSDP shards the
    weights."""
    is_mixed = trainer.precision == "bf16-mixed" and not isinstance(trainer.strategy, FSDPStrategy)
    return is_mixed and functional.has_bf16(trainer.strategy.root_device.type)


def require_images(trainer: L.Trainer, val: int, train: int | None = None, batch: int = 1) -> None:
    """Raises ValueError if one of several ranks, for which the others would wait, has no image to
    validate on, or no whole batch of the ``train`` images."""
    ranks = trainer.world_size
    too_few = f"{val} images to validate on" if val < ranks else ""
    if train is not None and ranks > 1 and math.ceil(train / ranks) < batch:
        too_few = f"{train} images to train on"
    if too_few:
        remedy = "lower trainer.devices or data.batch_size"
        raise ValueError(f"{too_few} are too few for {ranks} processes: {remedy}")
