"""The configuration of a model: typed dataclasses, stored in files as plain data.

The sizes of the named models are in ``conf/model/*.yaml``, which both Hydra and
:func:`dpt.create_model` read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cache
from typing import Any, TypeVar

import torch
import yaml
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dpt.files import config_dir, reason
from dpt.nn import ENCODERS, HEADS, Decoder, DecoderConfig, EncoderConfig, HeadConfig, Network
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.validation import Plain, PlainMapping, to_plain, unknown_key, validate

log = logging.getLogger("dpt")

T = TypeVar("T")
HeadSettings = Mapping[str, PlainMapping]
"""The settings of each head by its name."""

MAX_PARAMETERS = 10**10  # the largest published DPT, over DINOv3's ViT-7B, has 7 billion
MAX_TENSORS = 20_000  # of parameters; the largest known models have a tenth of them


@dataclass
class ModelConfig:
    """What a model is made of.

    Attributes:
        name: of the model in logs and tables.
        encoder: its class is chosen by ``kind``.
        decoder: of heads without one of their own; present even if there is no such head.
        heads: by name, one of ``dpt.nn.HEADS``.
        preprocessing: how images become inputs of the network.
        calibration: how predicted depth becomes metres for :class:`dpt.Predictor`, or None.
        multiple_from_encoder: whether :meth:`build` sets ``preprocessing.multiple_of`` to the
            encoder's ``pad_multiple``.
    """

    name: str
    encoder: EncoderConfig
    decoder: DecoderConfig
    heads: dict[str, HeadConfig]
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    calibration: Calibration | None = None
    multiple_from_encoder: bool = field(default=True, repr=False, compare=False)

    @classmethod
    def from_dict(cls, values: PlainMapping, *, where: str = "model") -> ModelConfig:
        """Returns the typed form of plain data.

        Raises:
            ValueError: one line that names the key, what was found and what is allowed.
        """
        keys = [f.name for f in fields(cls) if f.compare]
        for key in values:
            if key not in keys:
                raise ValueError(unknown_key(f"{where}.{key}", str(key), keys))
        missing = [key for key in ("encoder", "heads", "preprocessing") if key not in values]
        if missing:
            raise ValueError(f"{where} has no {', '.join(missing)}")
        encoder, heads = values["encoder"], values["heads"]
        if not isinstance(heads, Mapping) or not heads:
            raise ValueError(f"{where}.heads={heads!r}: name at least one of {', '.join(HEADS)}")
        if not isinstance(encoder, Mapping):
            raise ValueError(f"{where}.encoder={encoder!r}: must be a mapping with `kind`")
        encoder_config = _choose(ENCODERS, encoder.get("kind"), f"{where}.encoder.kind")
        if "in_chans" in encoder:  # timm's name
            raise ValueError(f"{where}.encoder.in_chans: set {where}.encoder.in_channels instead")
        channels = encoder.get("in_channels", 3)
        preprocessing = values["preprocessing"] or {}
        if channels != 3 and not {"mean", "pixels"} & preprocessing.keys():
            preprocessing = {**preprocessing, **_as_they_are(channels)}
        calibration = values.get("calibration")
        config = cls(
            name=str(values.get("name", "dpt")),
            encoder=validate(encoder_config, encoder, f"{where}.encoder"),
            decoder=validate(DecoderConfig, values.get("decoder") or {}, f"{where}.decoder"),
            heads={
                name: _head_config(name, options, values.get("decoder") or {}, f"{where}.heads")
                for name, options in heads.items()
            },
            preprocessing=validate(Preprocessing, preprocessing, f"{where}.preprocessing"),
            calibration=calibration and validate(Calibration, calibration, f"{where}.calibration"),
            multiple_from_encoder="multiple_of" not in preprocessing,
        )
        if len(config.preprocessing.mean) != channels:
            count = len(config.preprocessing.mean)
            fault = f"{where}.preprocessing.mean has {count} numbers for {channels} channels"
            raise ValueError(f"{fault}: give one for each of {where}.encoder.in_channels")
        return config

    def to_dict(self) -> Plain:
        """Returns the plain data that checkpoints store."""
        values = {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if f.compare}
        values["encoder"] = to_plain(vars(self.encoder))  # with timm's arguments
        if self.calibration is None:
            del values["calibration"]
        return values

    def build(self) -> Network:
        """Returns the model, randomly initialised; every ``auto`` becomes its value."""
        self.outline()
        return self._build()

    def outline(self) -> Network:
        """Returns the model on the meta device: tensors without values, nothing is allocated.

        Raises:
            ValueError: it cannot be built, or exceeds ``MAX_PARAMETERS`` or ``MAX_TENSORS``.
        """
        parameters = tensors = 0

        def count(module: nn.Module, name: str, parameter: Tensor) -> None:
            nonlocal parameters, tensors
            parameters, tensors = parameters + parameter.numel(), tensors + 1
            if parameters > MAX_PARAMETERS or tensors > MAX_TENSORS:
                raise ValueError(
                    f"model: {parameters:,} parameters in the first {tensors:,} tensors, at most "
                    f"{MAX_PARAMETERS:,} in {MAX_TENSORS:,}: check the sizes of model.encoder and "
                    "model.decoder"
                )

        hook = register_module_parameter_registration_hook(count)
        try:
            with torch.device("meta"):
                return self._build()
        except (RuntimeError, TypeError) as error:  # of torch, such as sizes beyond 63 bits
            raise ValueError(f"its configuration describes no model ({reason(error)})") from error
        finally:
            hook.remove()

    def _build(self) -> Network:
        encoder = self.encoder.build()
        sharing = [head for head in self.heads.values() if head.decoder is None]
        self.decoder.resolve(encoder, batch_norm=any(head.batch_norm for head in sharing))
        own = {name: head.decoder for name, head in self.heads.items() if head.decoder is not None}
        for name, decoder in own.items():
            decoder.resolve(encoder, batch_norm=self.heads[name].batch_norm)
        if self.multiple_from_encoder:
            self.preprocessing = replace(self.preprocessing, multiple_of=encoder.pad_multiple)
            self.multiple_from_encoder = False
        heads = {
            name: head.build(encoder, (head.decoder or self.decoder).fusion_channels)
            for name, head in self.heads.items()
        }
        for name, head in heads.items():
            if head.output.name != name:
                raise ValueError(
                    f"model.heads.{name}: its OutputSpec has the name {head.output.name!r}, where "
                    f"register_head has {name!r}: use the same one"
                )
            if name in own and not head.uses_decoder:
                fault = "this head reads the encoder's tokens, and no decoder"
                raise ValueError(f"model.heads.{name}.decoder: {fault}: leave it out")
        focals = {head.output.canonical_focal for head in heads.values() if head.output.has_metres}
        if len(focals) > 1 and any(d.prompts for d in (self.decoder, *own.values())):
            raise ValueError(
                f"model.heads: canonical_focal is {' and '.join(map(str, focals))}, and prompts "
                "have one: give every metric depth the same, or leave out model.decoder.prompts"
            )
        sharing_heads = [head for name, head in heads.items() if name not in own]
        has_metres = any(head.output.has_metres for head in sharing_heads)
        shared_decoder = None
        if any(head.uses_decoder for head in sharing_heads):
            shared_decoder = Decoder(self.decoder, encoder, has_metres=has_metres)
        decoders = {
            name: Decoder(config, encoder, has_metres=heads[name].output.has_metres)
            for name, config in own.items()
        }
        return Network(encoder=encoder, decoder=shared_decoder, heads=heads, decoders=decoders)


def check_parts(encoder: PlainMapping, decoder: PlainMapping, preprocessing: PlainMapping) -> None:
    """Raises ValueError for an unknown key or a wrong value of a part of a model."""
    validate(_choose(ENCODERS, encoder.get("kind"), "model.encoder.kind"), encoder, "model.encoder")
    validate(DecoderConfig, decoder, "model.decoder")
    validate(Preprocessing, preprocessing, "model.preprocessing")


def _head_config(name: str, options: object, shared: PlainMapping, where: str) -> HeadConfig:
    """Returns a head's typed settings; settings that its own decoder lacks are the shared one's."""
    config = _choose(HEADS, name, where)
    own = options.get("decoder") if isinstance(options, Mapping) else None
    if isinstance(options, Mapping) and isinstance(own, Mapping):
        settings = validate(DecoderConfig, {**shared, **own}, f"{where}.{name}.decoder")
        options = {**options, "decoder": settings}
    return validate(config, options, f"{where}.{name}")


def _as_they_are(channels: object) -> Plain:
    """Returns the preprocessing of bands whose statistics are unknown."""
    if not isinstance(channels, int):
        return {}  # an error of the encoder's settings
    return {"pixels": "bands", "mean": [0.0] * channels, "std": [1.0] * channels}


def _choose(table: Mapping[str, T], name: object, where: str) -> T:
    if not isinstance(name, str) or name not in table:
        raise ValueError(
            f"{where}={name!r}: choose from {', '.join(table)}; a class of your own is known once "
            "its module is imported (DPT_PLUGINS=MODULE for commands)"
        )
    return table[name]


# --- Models by name


@cache
def _tables() -> dict[str, Plain]:
    """Returns the encoder and decoder settings of each named model."""
    folder, tables = config_dir() / "model", {}
    for file in sorted(folder.glob("[!_]*.yaml")):
        values = yaml.safe_load(file.read_text())
        (name,) = (d["override encoder"] for d in values["defaults"] if "override encoder" in d)
        sizes = yaml.safe_load((folder / "encoder" / f"{name}.yaml").read_text())
        for key in ("defaults", "weights", "image_size"):
            sizes.pop(key, None)
        tables[values["name"]] = {"encoder": sizes, "decoder": values["decoder"]}
    return tables


def list_models(pattern: str = "*") -> list[str]:
    """Lists the names that :func:`dpt.create_model` accepts, filtered by a glob like ``dpt_*``."""
    return [name for name in _tables() if fnmatch(name, pattern)]


def model_dict(
    name: str,
    *,
    heads: HeadSettings,
    encoder: PlainMapping | None = None,
    decoder: PlainMapping | None = None,
    preprocessing: PlainMapping | None = None,
    **overrides: Any,
) -> Plain:
    """Returns the plain data of a named model with overrides.

    Args:
        name: one of :func:`list_models`.
        heads: settings of each head by its name, see ``dpt.nn.HEADS``.
        encoder, decoder, preprocessing: overrides of each part. An encoder of another ``kind``
            replaces that of the table.
        **overrides: of encoder or decoder, such as ``patch_size=8`` or ``readout="add"``.
    """
    if not isinstance(name, str) or name not in _tables():
        raise ValueError(f"no model {name!r}; there are {', '.join(list_models())}")
    sections = {"encoder": encoder, "decoder": decoder, "preprocessing": preprocessing}
    for section, settings in sections.items():
        if settings is not None and not isinstance(settings, Mapping):
            raise ValueError(f"model.{section}={settings!r}: must be a mapping of settings")
    table = deepcopy(_tables()[name])
    encoder = {"kind": table["encoder"]["kind"], **(encoder or {})}
    config: Any = _choose(ENCODERS, encoder["kind"], "model.encoder.kind")
    encoder_keys = {f.name for f in fields(config)}
    decoder_keys = {f.name for f in fields(DecoderConfig)}
    for key in overrides:
        if key not in encoder_keys | decoder_keys:
            raise ValueError(unknown_key(key, key, sorted(encoder_keys | decoder_keys)))
    encoder |= {k: v for k, v in overrides.items() if k in encoder_keys}
    of_decoder = {k: v for k, v in overrides.items() if k not in encoder_keys}
    if encoder["kind"] == table["encoder"]["kind"]:
        encoder = {**table["encoder"], **encoder}
    size = encoder.get("image_size")
    return {
        "name": name,
        "encoder": encoder,
        "decoder": {**table["decoder"], **(decoder or {}), **of_decoder},
        "heads": heads,
        "preprocessing": {**({"image_size": size} if size else {}), **(preprocessing or {})},
    }


def make_config(name: str, *, heads: HeadSettings, **overrides: Any) -> ModelConfig:
    """Returns the configuration of a named model; arguments as for :func:`model_dict`."""
    config = ModelConfig.from_dict(model_dict(name, heads=heads, **overrides))
    warn_without_effect(config, heads)
    return config


def warn_without_effect(config: ModelConfig, heads: HeadSettings) -> None:
    """Logs the settings in ``heads`` of which a head of ``config`` has another value."""
    for head, settings in heads.items():
        for key, value in settings.items():
            used = getattr(config.heads[head], key)
            is_same_kind = isinstance(value, str) == isinstance(used, str)  # "10" counts as 10
            if isinstance(value, str | int | float) and is_same_kind and value != used:
                text = "model.heads.%s.%s=%r has no effect: its other settings allow only %r"
                log.warning(text, head, key, value, used)
