"""The model of a run, from its part of the configuration: by the size table, or as a file's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dpt.config.objects import check_arguments, convert
from dpt.model import DPT, create_model
from dpt.nn import Decoder
from dpt.types import Preprocessing
from dpt.weights import load_encoder_weights, load_model_weights
from dpt.weights.formats import read
from dpt.zoo import ENCODERS, find_part, is_linear, takes

log = logging.getLogger("dpt")

SWITCHES = ("compile", "checkpoint_activations", "channels_last")

Size = Sequence[int]
Heads = Mapping[str, Mapping[str, Any]]


def make_model(model: Mapping[str, Any], *, heads: Heads, image_size: Size, eval_size: Size) -> DPT:
    """The model with these heads, its weights from a file if one is set.

    Null values are left to the size table, or to the model that it goes on from.

    Args:
        model: plain data (``conf/model``).
        heads: arguments of each head by its name.
        image_size: [H, W] of training images.
        eval_size: [H, W] that whole images are resized to cover.
    """
    given = check_arguments(
        Preprocessing, _set_values(model.get("preprocessing") or {}), "model.preprocessing",
        is_partial=True,
    )  # fmt: skip
    preprocessing = {**given, "image_size": list(eval_size)}
    make = _from_table if model.get("weights") is None else _from_weights
    net = make(model, heads, image_size, preprocessing)
    set_switches(net, model)
    return net


def _from_table(
    model: Mapping[str, Any], heads: Heads, image_size: Size, preprocessing: dict[str, Any]
) -> DPT:
    encoder = _set_values(model["encoder"])
    weights = encoder.pop("weights", None)
    encoder_class = find_part(ENCODERS, encoder["kind"], "encoder kind")
    encoder |= _converted(encoder_class, encoder, "model.encoder")
    decoder = _set_values(model["decoder"])
    decoder |= _converted(Decoder, decoder, "model.decoder")
    if takes(encoder_class, "image_size"):
        encoder.setdefault("image_size", list(image_size))
    net = create_model(
        model["name"],
        heads=heads,
        encoder=encoder,
        decoder=decoder,
        preprocessing=preprocessing,
    )
    if weights is not None:
        log.info("encoder weights: %s", load_encoder_weights(net.encoder, weights))
    return net


def _from_weights(
    model: Mapping[str, Any], heads: Heads, image_size: Size, preprocessing: dict[str, Any]
) -> DPT:
    """A model like the one in ``model.weights``, but for its heads and what is set beside it."""
    path = model["weights"]
    encoder, decoder = _set_values(model["encoder"]), _set_values(model["decoder"])
    if encoder.pop("weights", None) is not None:
        raise ValueError("model.weights and model.encoder.weights: give one of the two")
    other, state = read(path)
    kind = other["encoder"]["kind"]
    if encoder.pop("kind") != kind and encoder:
        raise ValueError(
            f"model.weights={path} has an encoder of kind {kind}: leave model/encoder out, or set "
            f"model/encoder={kind}"
        )
    encoder_class = find_part(ENCODERS, kind, "encoder kind")
    sizes = {"image_size": list(image_size)} if takes(encoder_class, "image_size") else {}
    fetched = {k: v for k, v in other["encoder"].items() if k != "pretrained"}
    normalization = {
        k: v for k, v in other.get("preprocessing", {}).items() if k in ("mean", "std")
    }
    net = DPT(
        {
            "name": other["name"],
            "encoder": fetched | sizes | _converted(encoder_class, encoder, "model.encoder"),
            "decoder": other["decoder"] | _converted(Decoder, decoder, "model.decoder"),
            "heads": {k: _like(k, v, other["heads"].get(k, {})) for k, v in heads.items()},
            "preprocessing": normalization | preprocessing,
        }
    )
    report = load_model_weights(net, other, state, source=str(path))
    log.info("weights of a %s: %s", other["name"], report)
    return net


def _like(name: str, options: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """A head's options, and what another model's head of this name has besides, if of one kind."""
    return {**other, **options} if is_linear(name, options) == is_linear(name, other) else options


def set_switches(net: DPT, model: Mapping[str, Any]) -> None:
    """How the model is computed, which changes what it costs and not what it gives."""
    switches = {k: convert(model.get(k, False), bool, f"model.{k}") for k in SWITCHES}
    if switches["checkpoint_activations"]:
        if not hasattr(net.encoder, "set_grad_checkpointing"):
            kind = net.spec["encoder"]["kind"]
            raise ValueError(f"model.checkpoint_activations: the {kind} encoder does not offer it")
        net.encoder.set_grad_checkpointing()
    if switches["channels_last"]:
        net.to(memory_format=torch.channels_last)
    if switches["compile"]:
        net.compile(dynamic=None)


def _set_values(node: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in node.items() if v is not None}


def _converted(cls: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values as the types that ``cls`` or its parents declare; what none declares is left out."""
    converted: dict[str, Any] = {}
    for owner in cls.__mro__:
        declared = inspect.signature(owner).parameters if "__init__" in vars(owner) else {}
        known = {k: v for k, v in values.items() if k in declared and k not in converted}
        converted |= check_arguments(owner, known, where, is_partial=True)
    return converted
