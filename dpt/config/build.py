"""From typed settings to objectives, loaders and the model of a run."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch.utils.data import DataLoader

from dpt import functional
from dpt.config.objects import Part
from dpt.config.overrides import is_below, keys_of, parse
from dpt.config.resumed_config import DIVIDING, refuse_foreign, run_in, with_overrides
from dpt.config.schema import LoaderSettings, ModelSettings, TaskConfig
from dpt.data import Dataset, EvalTransform, TrainTransform, make_loader
from dpt.data.statistics import measure_bands
from dpt.files import few, missing_path, run_folder
from dpt.metrics import SumMetric
from dpt.model import DPT
from dpt.model_config import ModelConfig, warn_without_effect
from dpt.nn import ENCODERS, HEADS
from dpt.objectives import Objective
from dpt.process import is_first_rank
from dpt.types.preprocessing import Preprocessing
from dpt.validation import Plain, PlainMapping, unknown_key, validate
from dpt.weights import load_encoder_weights, load_model_weights
from dpt.weights.formats import read

log = logging.getLogger("dpt")

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
_REMEDIES = {
    "caption": "data=imagetable data.caption_column=NAME reads them from a CSV",
    "K": "data=scenes has them; data=folder: set data.intrinsics or data.fov",
}
NOTHING: PlainMapping = MappingProxyType({})


# --- Data


def data_of_evaluation(values: PlainMapping) -> Plain:
    """Returns ``data`` of ``dpt evaluate``: as given, or that of the checkpoint's run.

    Args:
        values: plain data (``conf/evaluate.yaml``). Keys such as ``data.batch_size`` on the command
            line change the run's data.
    """
    if "data" in keys_of(values["overrides"]):
        return dict(values["data"])
    key = "checkpoint" if values["checkpoint"] is not None else "predictions"
    source: str = validate(str, values[key] or "", key)
    path = Path(source).expanduser()
    folder = run_folder(path)
    if not path.exists():
        remedy = "check the path, and give data=NAME for a name on the Hugging Face hub"
        raise missing_path(path, what="checkpoint", remedy=remedy)
    if not (values["checkpoint"] and (folder / "config.yaml").is_file()):
        raise ValueError(
            "data=NAME must be given with checkpoint=FILE or predictions=DIR; the folder of a run "
            f"names its data (given: {source or 'nothing'})"
        )
    typed = parse(values["overrides"])
    overrides = [o for o in typed if re.match(r"data\.|paths\.data_dir$", o.key)]
    divides = [o.key for o in overrides if o.key.partition(".")[2] in DIVIDING]
    if divides:
        log.warning("%s: the run may have been trained on images of this split", few(divides))
    log.info("data: of the run %s", folder)
    data: Plain = with_overrides(run_in(folder), overrides)["data"]
    foreign = {"data": data, "callbacks": {}, "logger": {}}
    refuse_foreign(foreign, folder, {override.key for override in overrides})
    return data


def make_train_loader(
    dataset: Dataset,
    settings: LoaderSettings,
    augment: Part[TrainTransform],
    seed: int,
    targets: Sequence[str | None],
    *,
    prompts: bool = False,
) -> DataLoader:
    """Returns the loader of training; with ``prompts`` the model takes sparse depth."""
    transform = augment.build(
        image_size=settings.image_size, targets=list(targets), prompts=prompts
    )
    batches = _batches(settings, targets)
    return make_loader(dataset, transform, **batches, training=True, seed=seed)


def make_eval_loader(
    dataset: Dataset,
    settings: LoaderSettings,
    preprocessing: Preprocessing,
    targets: Sequence[str | None],
    *,
    prompts: bool = False,
    part: Sequence[int] | None = None,
) -> DataLoader:
    """Returns the loader of evaluation, of all samples or ``part`` of them; with ``prompts`` the
    model takes sparse depth."""
    batches = _batches(settings, targets)
    transform = EvalTransform(preprocessing, settings.prompt_points if prompts else 0)
    return make_loader(dataset, transform, **batches, training=False, seed=0, part=part)


def _batches(settings: LoaderSettings, targets: Sequence[str | None]) -> Plain:
    return {
        "batch_size": settings.batch_size,
        "num_workers": settings.num_workers,
        "targets": targets,
        "skip_broken": settings.on_error == "skip",
    }


# --- Objectives


def make_objectives(task: TaskConfig, data: Dataset) -> dict[str, Objective]:
    """Makes the objective of each head. The data give class counts and depth range if not set."""
    objectives = {}
    for name, part in task.objectives.items():
        _require_labels(part.target, task.name, data)
        objectives[name] = _make_objective(part, data)
    return objectives


def _require_labels(objective: Any, task: str, data: Dataset) -> None:
    target, targets = objective.target, data.info.targets
    if not target or target in targets:
        return
    remedy = "data=scenes has all; data=folder: set data.labels, depth or objects"
    if target == "labels":
        remedy = data.labels_remedy or remedy
    given = ", ".join(LABEL_NAMES[t] for t in targets) or "pictures"
    raise ValueError(
        f"task={task} needs {LABEL_NAMES[target]}, and this data gives only {given}. Choose data "
        f"that has them ({_REMEDIES.get(target, remedy)})"
    )


def _make_objective(part: Part[Objective], data: Dataset) -> Objective:
    """Returns the objective of a part, with the settings of its head."""
    cls: Any = part.target
    settings = {**part.settings, **cls.from_data(data, part.settings)}
    head: Any = HEADS.get(cls.head)  # a dataclass
    keys = {f.name for f in fields(head)} if head else set()
    of_head = {k: v for k, v in settings.items() if k in keys}
    arguments = {k: v for k, v in settings.items() if k in part.arguments or k not in keys}
    objective = replace(part, settings=arguments).build()
    if not isinstance(objective.metrics, SumMetric):
        raise ValueError(
            f"{part.where}: its metrics are a {type(objective.metrics).__name__}, which cannot be "
            f"scored image by image: derive it from dpt.metrics.SumMetric"
        )
    of_user = {k: v for k, v in part.settings.items() if k not in arguments}
    _warn_of_decided(of_user, objective.head_settings, part.where)
    objective.head_settings = {**of_head, **objective.head_settings}
    if head:
        validate(head, objective.head_settings, part.where)
    return objective


def _warn_of_decided(settings: PlainMapping, decided: PlainMapping, where: str) -> None:
    """Logs settings of a head that its objective decides otherwise."""
    for key in settings.keys() & decided.keys():
        if settings[key] != decided[key]:
            text = "%s.%s=%s has no effect: task and data decide that it is %s"
            log.warning(text, where, key, settings[key], decided[key])


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
    count = 3 if measured is None else len(measured.mean)
    if model.in_channels not in (None, count):
        raise ValueError(
            f"model.in_channels={model.in_channels}: the images have {count}: leave it out"
        )
    if measured is None:
        return settings
    if is_first_rank():
        log.info("%d bands: mean %s, std %s", count, [*measured.mean], [*measured.std])
    statistics = {"pixels": "bands", "mean": [*measured.mean], "std": [*measured.std]}
    return {**settings, **statistics, **{k: given[k] for k in ("mean", "std") if k in given}}


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
    heads = _heads(model, objectives, typed)
    if model.weights is not None:
        net = _from_weights(model, heads, settings, typed, images)
    else:
        encoder = {key: value for key, value in model.encoder.items() if key != "weights"}
        preprocessing = {**images, **model.preprocessing}
        net = DPT(_model_config(model.name, encoder, model.decoder, heads, preprocessing, settings))
        if weights := model.encoder_weights:
            log.info("encoder weights: %s", load_encoder_weights(net.encoder, weights))
    warn_without_effect(net.config, _typed_heads(model, typed))
    for name, of_head in heads.items():
        limits, most = net.outputs[name].value_range, of_head.get("max_depth")
        if limits is not None and most is not None and limits[1] < most:
            text = "model.heads.%s.bins.max_depth=%g: depth above, up to %g m, is not predicted"
            log.warning(text, name, limits[1], most)
    set_switches(net, model)
    return net


def _heads(
    model: ModelSettings, objectives: Mapping[str, Objective], typed: set[str]
) -> dict[str, Plain]:
    """Returns the settings of the head of each objective."""
    decided = {objective.head: objective for objective in objectives.values()}
    for name in model.heads:
        if name not in decided:
            raise ValueError(unknown_key(f"model.heads.{name}", name, list(decided)))
    heads = {}
    for name, objective in decided.items():
        given = model.heads.get(name, {})
        of_user = _typed_heads(model, typed).get(name, {})
        _warn_of_decided(of_user, objective.head_settings, f"model.heads.{name}")
        measured = {k: given[k] for k in objective.measured if k in given}  # of a resumed run
        heads[name] = _like(objective.head_settings, given) | measured
    return heads


def _typed_heads(model: ModelSettings, typed: set[str]) -> dict[str, Plain]:
    """Returns those settings of heads that are on the command line."""
    # without `model`, the choice of its file: a resumed run has all settings of its heads
    keys = {key for key in typed if key.startswith("model.heads")}
    return {
        name: {k: v for k, v in given.items() if is_below(keys, f"model.heads.{name}.{k}")}
        for name, given in model.heads.items()
    }


def _model_config(
    name: str,
    encoder: PlainMapping,
    decoder: PlainMapping,
    heads: PlainMapping,
    preprocessing: PlainMapping,
    settings: LoaderSettings,
) -> ModelConfig:
    """Returns a model's configuration for images of the sizes of ``settings``."""
    encoder, mean = {**encoder}, preprocessing.get("mean")
    kind: Any = ENCODERS[encoder["kind"]]  # a dataclass
    if any(f.name == "image_size" for f in fields(kind)):
        encoder["image_size"] = list(settings.image_size)
    if preprocessing.get("pixels") == "bands" and mean is not None:
        encoder["in_channels"] = len(mean)
    return ModelConfig.from_dict(
        {
            "name": name,
            "encoder": encoder,
            "decoder": decoder,
            "heads": heads,
            "preprocessing": {**preprocessing, "image_size": list(settings.eval_size)},
        }
    )


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
    if model.name != source["name"] and "model" in typed:
        raise ValueError(
            f"model={model.name}: the sizes are those of model.weights={model.weights}, a "
            f"{source['name']}: leave one of the two out"
        )
    kind = source["encoder"]["kind"]
    if model.encoder["kind"] != kind and "model.encoder" in typed:
        raise ValueError(
            f"model.weights={model.weights} has an encoder of kind {kind}: leave model/encoder out"
        )
    of_user = {
        part: {k: v for k, v in values.items() if f"model.{part}.{k}" in typed and k != "weights"}
        for part, values in {
            "encoder": model.encoder,
            "decoder": model.decoder,
            "preprocessing": model.preprocessing,
        }.items()
    }
    stored = source["preprocessing"]
    normalization = {k: stored[k] for k in ("mean", "std", "pixels")}
    is_alike = stored["pixels"] == images.get("pixels", "rgb")
    if is_alike and len(stored["mean"]) == len(images.get("mean", stored["mean"])):
        preprocessing = {**images, **normalization}
    else:
        preprocessing = {**normalization, **images}
    config = _model_config(
        source["name"],
        source["encoder"] | of_user["encoder"],
        source["decoder"] | of_user["decoder"],
        {k: _like(v, source["heads"].get(k, {})) for k, v in heads.items()},
        preprocessing | of_user["preprocessing"],
        settings,
    )
    net = DPT(config)
    report = load_model_weights(net, net.config, checkpoint, source=str(model.weights))
    log.info("weights of a %s: %s", source["name"], report)
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
