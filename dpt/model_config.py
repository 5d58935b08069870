"""The configuration of a model: typed dataclasses, stored in files as plain data.

The sizes of the named models are in ``conf/model/*.yaml``, which both Hydra and
:func:`dpt.create_model` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cache
from typing import Any

import torch
import yaml
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dpt.files import config_dir, reason
from dpt.nn import (
    DPT,
    ENCODERS,
    HEADS,
    Decoder,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    Head,
    HeadConfig,
)
from dpt.types import Calibration, Preprocessing
from dpt.validation import Plain, to_plain, unknown_key, validate

MAX_PARAMETERS = 10**10  # the largest published DPT, over DINOv3's ViT-7B, has 7 billion
MAX_TENSORS = 20_000  # of parameters; the largest known models have a tenth of them


@dataclass
class ModelConfig:
    """What a model is made of.

    Attributes:
        name: of the model in logs and tables.
        encoder: its class is chosen by ``kind``.
        decoder: present even if no head uses it.
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
    def from_dict(cls, values: Mapping[str, Any], *, where: str = "model") -> ModelConfig:
        """The typed form of plain data.

        Raises:
            ValueError: one line that names the key, what was found and what is allowed.
        """
        parts = [f.name for f in fields(cls) if f.compare]
        for key in values:
            if key not in parts:
                raise ValueError(unknown_key(f"{where}.{key}", str(key), parts))
        if absent := [part for part in ("encoder", "heads", "preprocessing") if part not in values]:
            raise ValueError(f"{where} has no {', '.join(absent)}")
        encoder, heads = values["encoder"], values["heads"]
        if not isinstance(heads, Mapping) or not heads:
            raise ValueError(f"{where}.heads={heads!r}: name at least one of {', '.join(HEADS)}")
        if not isinstance(encoder, Mapping):
            raise ValueError(f"{where}.encoder={encoder!r}: must be a mapping with `kind`")
        config = _choose(ENCODERS, encoder.get("kind"), f"{where}.encoder.kind")
        preprocessing = values["preprocessing"] or {}
        calibration = values.get("calibration")

        for key in ("in_channels", "in_chans"):  # the latter is timm's
            if (channels := encoder.get(key, 3)) != 3:
                raise ValueError(f"{where}.encoder.{key}={channels}: must be 3, as images are RGB")

        def head(name: str, options: Any) -> HeadConfig:
            kind = _choose(HEADS, name, f"{where}.heads")
            return validate(kind, options, f"{where}.heads.{name}")

        return cls(
            name=str(values.get("name", "dpt")),
            encoder=validate(config, encoder, f"{where}.encoder"),
            decoder=validate(DecoderConfig, values.get("decoder") or {}, f"{where}.decoder"),
            heads={name: head(name, options) for name, options in heads.items()},
            preprocessing=validate(Preprocessing, preprocessing, f"{where}.preprocessing"),
            calibration=calibration and validate(Calibration, calibration, f"{where}.calibration"),
            multiple_from_encoder="multiple_of" not in preprocessing,
        )

    def to_dict(self) -> Plain:
        """The configuration as checkpoints store it: dictionaries, lists, numbers and strings."""
        values = {f.name: to_plain(getattr(self, f.name)) for f in fields(self) if f.compare}
        values["encoder"] = to_plain(vars(self.encoder))  # with timm's arguments
        if self.calibration is None:
            del values["calibration"]
        return values

    def build(self) -> tuple[Encoder, Decoder | None, dict[str, Head]]:
        """Encoder, decoder and heads, randomly initialised; every ``auto`` becomes its value."""
        self.outline()
        return self._build()

    def outline(self) -> DPT:
        """The model on the meta device: tensors without values, nothing is allocated.

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
                encoder, decoder, heads = self._build()
                return DPT(encoder=encoder, decoder=decoder, heads=heads)
        except (RuntimeError, TypeError) as error:  # of torch, such as sizes beyond 63 bits
            raise ValueError(f"its configuration describes no model ({reason(error)})") from error
        finally:
            hook.remove()

    def _build(self) -> tuple[Encoder, Decoder | None, dict[str, Head]]:
        encoder = self.encoder.build()
        norm = any(head.batch_norm for head in self.heads.values())
        self.decoder.resolve(encoder, batch_norm=norm)
        if self.multiple_from_encoder:
            self.preprocessing = replace(self.preprocessing, multiple_of=encoder.pad_multiple)
            self.multiple_from_encoder = False
        width = self.decoder.fusion_channels
        heads = {name: head.build(encoder, width) for name, head in self.heads.items()}
        for name, head in heads.items():
            if head.output.name != name:
                raise ValueError(
                    f"model.heads.{name}: its OutputSpec has the name {head.output.name!r}, where "
                    f"register_head has {name!r}: use the same one"
                )
        if not any(head.uses_decoder for head in heads.values()):
            return encoder, None, heads
        return encoder, Decoder(self.decoder, encoder), heads


def _choose(table: Mapping[str, Any], name: Any, where: str) -> Any:
    if not isinstance(name, str) or name not in table:
        raise ValueError(
            f"{where}={name!r}: choose from {', '.join(table)}; a class of your own is known once "
            "its module is imported (DPT_PLUGINS=MODULE for commands)"
        )
    return table[name]


# --- Models by name


@cache
def _tables() -> dict[str, Plain]:
    """Encoder and decoder settings of each named model."""
    folder, tables = config_dir() / "model", {}
    for file in sorted(folder.glob("[!_]*.yaml")):
        values = yaml.safe_load(file.read_text())
        (encoder,) = (d["override encoder"] for d in values["defaults"] if "override encoder" in d)
        sizes = yaml.safe_load((folder / "encoder" / f"{encoder}.yaml").read_text())
        encoder = {k: v for k, v in sizes.items() if k not in ("defaults", "weights", "image_size")}
        tables[values["name"]] = {"encoder": encoder, "decoder": values["decoder"]}
    return tables


def list_models(pattern: str = "*") -> list[str]:
    """Names that :func:`dpt.create_model` accepts, filtered by a glob such as ``dpt_*``."""
    return [name for name in _tables() if fnmatch(name, pattern)]


def model_dict(
    name: str,
    *,
    heads: Mapping[str, Mapping[str, Any]],
    encoder: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Plain:
    """The plain data of a named model with overrides.

    Args:
        name: one of :func:`list_models`.
        heads: settings of each head by its name, see ``dpt.nn.HEADS``.
        encoder, decoder, preprocessing: overrides of each part. An encoder of another ``kind``
            replaces that of the table.
        **overrides: of encoder or decoder, such as ``patch_size=8`` or ``readout="add"``.
    """
    if not isinstance(name, str) or name not in _tables():
        raise ValueError(f"no model {name!r}; there are {', '.join(list_models())}")
    parts = {"encoder": encoder, "decoder": decoder, "preprocessing": preprocessing}
    for part, options in parts.items():
        if options is not None and not isinstance(options, Mapping):
            raise ValueError(f"model.{part}={options!r}: must be a mapping of settings")
    table = deepcopy(_tables()[name])
    given = {"kind": table["encoder"]["kind"], **(encoder or {})}
    cls = _choose(ENCODERS, given["kind"], "model.encoder.kind")
    encoder_keys = {f.name for f in fields(cls)}
    decoder_keys = {f.name for f in fields(DecoderConfig)}
    decoder = dict(decoder or {})
    for key, value in overrides.items():
        if key not in encoder_keys | decoder_keys:
            raise ValueError(unknown_key(key, key, sorted(encoder_keys | decoder_keys)))
        (given if key in encoder_keys else decoder)[key] = value
    if given["kind"] == table["encoder"]["kind"]:
        given = {**table["encoder"], **given}
    size = given.get("image_size")
    return {
        "name": name,
        "encoder": given,
        "decoder": {**table["decoder"], **decoder},
        "heads": heads,
        "preprocessing": {**({"image_size": size} if size else {}), **(preprocessing or {})},
    }


def make_config(name: str, *, heads: Mapping[str, Mapping[str, Any]], **others: Any) -> ModelConfig:
    """The configuration of a named model; arguments as for :func:`model_dict`.

    Raises ValueError for a head's setting that has no effect with its other settings.
    """
    config = ModelConfig.from_dict(model_dict(name, heads=heads, **others))
    for head, options in heads.items():
        for key, value in options.items():
            used = getattr(config.heads[head], key)
            is_same_kind = isinstance(value, str) == isinstance(used, str)  # "10" counts as 10
            if isinstance(value, str | int | float) and is_same_kind and value != used:
                raise ValueError(
                    f"model.heads.{head}.{key}={value!r}: its other settings allow only {used!r}"
                )
    return config
