"""The model of a run: a named model, or one like the model in a file."""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from dpt import functional
from dpt.config.data import LoaderSettings
from dpt.config.objectives import refuse_decided
from dpt.config.overrides import is_below, keys_of
from dpt.data import Dataset
from dpt.data.statistics import measure_bands
from dpt.model import DPT
from dpt.model_config import ModelConfig, model_dict, require_effect
from dpt.objectives import Objective
from dpt.process import is_first_rank
from dpt.validation import Count, Plain, PlainMapping, unknown_key, validate
from dpt.weights import load_encoder_weights, load_model_weights
from dpt.weights.formats import read

log = logging.getLogger("dpt")

SWITCHES = ("compile", "checkpoint_activations", "channels_last")
PARTS = ("encoder", "decoder", "preprocessing")

Heads = Mapping[str, PlainMapping]


def image_settings(model: PlainMapping, dataset: Dataset) -> Plain:
    """Returns what the images of a data set decide of a model's preprocessing.

    These are number and statistics of bands, unless ``model.preprocessing.mean`` gives them, and
    how files are read; nothing for 8-bit RGB.
    """
    given = validate(Plain | None, model.get("preprocessing"), "model.preprocessing") or {}
    part = dataset.part
    settings: Plain = {"image_max": part.image_max, "nodata": part.nodata}
    if part.bands is not None and part.bands != "all":
        settings["bands"] = [*part.bands]
    settings = {key: value for key, value in settings.items() if value is not None}
    if given.get("pixels") == "bands" and "mean" in given:  # such as those of a resumed run
        return {**settings, **given}
    measured = measure_bands(dataset)
    count = 3 if measured is None else len(measured.mean)
    channels = validate(Count | None, model.get("in_channels"), "model.in_channels")
    if channels not in (None, count):
        raise ValueError(f"model.in_channels={channels}: the images have {count}: leave it out")
    if measured is None:
        return settings
    if is_first_rank():
        log.info("%d bands: mean %s, std %s", count, [*measured.mean], [*measured.std])
    statistics = {"pixels": "bands", "mean": [*measured.mean], "std": [*measured.std]}
    return {**settings, **statistics, **{k: given[k] for k in ("mean", "std") if k in given}}


def make_model(
    model: PlainMapping,
    objectives: Mapping[str, Objective],
    settings: LoaderSettings,
    overrides: Sequence[str] = (),
    images: PlainMapping = MappingProxyType({}),
) -> DPT:
    """Makes the model with a head for each objective, its weights from a file if one is set.

    Args:
        model: plain data (``conf/model``).
        objectives: by name.
        settings: sizes of training images, and those that whole images are resized to.
        overrides: what the command line set. With ``model.weights`` these keys, and those that
            differ from the named model, replace the settings of the file.
        images: see :func:`image_settings`.
    """
    heads = _heads(model, objectives, overrides)
    for key, other in {"preprocessing": "data.eval_size", "encoder": "data.image_size"}.items():
        if f"model.{key}.image_size" in keys_of(overrides):
            raise ValueError(f"model.{key}.image_size has no effect: set {other}")
    configured = {p: dict(validate(Plain | None, model.get(p), f"model.{p}") or {}) for p in PARTS}
    configured["preprocessing"]["image_size"] = list(settings.eval_size)
    if images.get("pixels") == "bands":
        configured["encoder"]["in_channels"] = len(images["mean"])
    encoder_weights = configured["encoder"].pop("weights", None)
    if model.get("weights") is not None:
        if encoder_weights is not None:
            raise ValueError("model.weights and model.encoder.weights: give one of the two")
        image_size = list(settings.image_size)
        net = _from_weights(model, configured, heads, image_size, overrides, images)
    else:
        configured["preprocessing"] = {**images, **configured["preprocessing"]}
        if "image_size" in configured["encoder"]:
            configured["encoder"]["image_size"] = list(settings.image_size)
        net = DPT(ModelConfig.from_dict({"name": model["name"], **configured, "heads": heads}))
        if encoder_weights is not None:
            log.info("encoder weights: %s", load_encoder_weights(net.encoder, encoder_weights))
    require_effect(net.config, _typed_heads(model, overrides))
    for name, settings_of_head in heads.items():
        limits, most = net.outputs[name].value_range, settings_of_head.get("max_depth")
        if limits is not None and most is not None and limits[1] < most:
            text = "model.heads.%s.bins.max_depth=%g: depth above, up to %g m, is not predicted"
            log.warning(text, name, limits[1], most)
    set_switches(net, model)
    return net


def _heads(
    model: PlainMapping, objectives: Mapping[str, Objective], overrides: Sequence[str]
) -> Heads:
    """Returns the settings of the head of each objective; ValueError for those without effect."""
    given_heads = validate(Plain | None, model.get("heads"), "model.heads") or {}
    decided = {objective.head: objective.head_settings for objective in objectives.values()}
    for name in given_heads:
        if name not in decided:
            raise ValueError(unknown_key(f"model.heads.{name}", name, list(decided)))
    for name, typed in _typed_heads(model, overrides).items():
        refuse_decided(typed, decided[name], f"model.heads.{name}")
    heads = {name: _like(used, given_heads.get(name) or {}) for name, used in decided.items()}
    for objective in objectives.values():
        given = given_heads.get(objective.head) or {}  # of a resumed run
        heads[objective.head] |= {k: given[k] for k in objective.measured if k in given}
    return heads


def _typed_heads(model: PlainMapping, overrides: Sequence[str]) -> Heads:
    """Returns those settings of heads that are on the command line."""
    # without `model`, the choice of its file: a resumed run has all settings of its heads
    keys, typed = {k for k in keys_of(overrides) if k.startswith("model.heads")}, {}
    for name, given in (model.get("heads") or {}).items():
        where = f"model.heads.{name}"
        given = validate(Plain | None, given, where) or {}
        typed[name] = {k: v for k, v in given.items() if is_below(keys, f"{where}.{k}")}
    return typed


def _from_weights(
    model: PlainMapping,
    configured: Mapping[str, Plain],
    heads: Heads,
    image_size: list[int],
    overrides: Sequence[str],
    images: PlainMapping,
) -> DPT:
    """Makes a model as in ``model.weights``, except for its heads and the user's settings."""
    path = validate(str, model["weights"], "model.weights")
    checkpoint = read(path)
    source = checkpoint.config.to_dict()
    if model["name"] != source["name"] and "model" in keys_of(overrides):
        raise ValueError(
            f"model={model['name']}: the sizes are those of model.weights={path}, a "
            f"{source['name']}: leave one of the two out"
        )
    chosen = _set_by_user(model, configured, heads, overrides)
    kind = source["encoder"]["kind"]
    if configured["encoder"]["kind"] != kind:
        typed = keys_of(overrides)
        if "model.encoder" in typed:
            raise ValueError(
                f"model.weights={path} has an encoder of kind {kind}: leave model/encoder out"
            )
        chosen["encoder"] = {  # other settings are of the configured kind
            k: v for k, v in chosen["encoder"].items() if f"model.encoder.{k}" in typed
        }
    if "image_size" in source["encoder"]:
        chosen["encoder"]["image_size"] = image_size
    stored = source["preprocessing"]
    normalization = {k: stored[k] for k in ("mean", "std", "pixels")}
    is_alike = stored["pixels"] == images.get("pixels", "rgb")
    if is_alike and len(stored["mean"]) == len(images.get("mean", stored["mean"])):
        preprocessing = {**images, **normalization}
    else:
        preprocessing = {**normalization, **images}
    settings = {
        "name": source["name"],
        "encoder": source["encoder"] | chosen["encoder"],
        "decoder": source["decoder"] | chosen["decoder"],
        "heads": {k: _like(v, source["heads"].get(k, {})) for k, v in heads.items()},
        "preprocessing": preprocessing | chosen["preprocessing"],
    }
    net = DPT(ModelConfig.from_dict(settings))
    report = load_model_weights(net, net.config, checkpoint, source=str(path))
    log.info("weights of a %s: %s", source["name"], report)
    return net


def _set_by_user(
    model: PlainMapping, configured: Mapping[str, Plain], heads: Heads, overrides: Sequence[str]
) -> dict[str, Plain]:
    """Returns the settings of each part that differ from the named model or are on the command
    line."""
    keys = keys_of(overrides)
    encoder = {"kind": configured["encoder"]["kind"]}
    named = ModelConfig.from_dict(model_dict(model["name"], heads=heads)).to_dict()
    if named["encoder"]["kind"] != encoder["kind"]:
        named["encoder"] = encoder  # all settings of another kind of encoder count as set
    named["preprocessing"].pop("image_size", None)
    return {
        part: {
            k: v
            for k, v in configured[part].items()
            if k not in named[part] or named[part][k] != v or f"model.{part}.{k}" in keys
        }
        for part in PARTS
    }


def _like(options: PlainMapping, source: PlainMapping) -> Plain:
    """Returns a head's settings, completed by those of a head of another model if it is of the same
    kind."""
    same = options.get("kind", "dpt") == source.get("kind", "dpt") or "num_classes" not in source
    return {**source, **options} if same else dict(options)


def complete(model: PlainMapping, net: DPT) -> Plain:
    """Returns the model's part of the configuration with the values that were used."""
    used = net.config.to_dict()
    encoder = {**used["encoder"], "weights": model["encoder"].get("weights")}
    return {**model, **used, "encoder": encoder}


def set_switches(net: DPT, model: PlainMapping) -> None:
    """Sets how the model is computed: this changes its costs and not its outputs."""
    memory = validate(bool | Literal["auto"], model.get("save_memory", "auto"), "model.save_memory")
    functional.save_memory = None if memory == "auto" else memory
    switches = {k: validate(bool, model.get(k, False), f"model.{k}") for k in SWITCHES}
    if switches["checkpoint_activations"]:
        net.encoder.set_grad_checkpointing()
    if switches["channels_last"]:
        functional.to_channels_last(net)
    if switches["compile"]:
        # one graph for each size: TorchInductor fails on gradients at sizes that vary
        net.compile(dynamic=False)
