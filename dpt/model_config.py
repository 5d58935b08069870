"""The configuration of a model: typed dataclasses, stored in files as plain data.

The sizes of the named models are in ``conf/model/*.yaml``, which both Hydra and
:func:`dpt.create_model` read.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cache
from typing import Annotated, Any, Self, TypeVar

import torch
import yaml
from pydantic import Field, PlainValidator, ValidationInfo
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dpt.files import config_dir, reason
from dpt.nn import ENCODERS, HEADS, Decoder, DecoderConfig, EncoderConfig, HeadConfig, Network
from dpt.process import log
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.validation import Plain, PlainMapping, Settings, to_plain, unknown_key, validate

T = TypeVar("T")
HeadSettings = Mapping[str, PlainMapping]
"""The settings of each head by its name."""

MAX_PARAMETERS = 10**10  # the largest published DPT, over DINOv3's ViT-7B, has 7 billion
MAX_TENSORS = 20_000  # of parameters; the largest known models have a tenth of them


def read_encoder(values: object) -> EncoderConfig:
    """Types the settings of an encoder; ``kind`` chooses their class."""
    settings: Plain = validate(Plain, values, "model.encoder")
    config = _choose(ENCODERS, settings.get("kind"), "model.encoder.kind")
    encoder: EncoderConfig = validate(config, settings, "model.encoder")
    return encoder


def _read_heads(values: object, info: ValidationInfo) -> dict[str, HeadConfig]:
    """Types the settings of heads; what a head's own decoder lacks is as in the shared one."""
    heads: Plain = validate(Annotated[Plain, Field(min_length=1)], values, "model.heads")
    shared = to_plain(info.data.get("decoder", DecoderConfig()))
    configs = {}
    for name, settings in heads.items():
        config = _choose(HEADS, name, "model.heads")
        if isinstance(settings, Mapping) and isinstance(settings.get("decoder"), Mapping):
            settings = {**settings, "decoder": {**shared, **settings["decoder"]}}
        configs[name] = validate(config, settings, f"model.heads.{name}")
    return configs


def _read_preprocessing(values: object, info: ValidationInfo) -> Preprocessing:
    """Types the preprocessing; bands whose statistics are not given stay as they are."""
    settings: Plain = validate(Plain, values, "model.preprocessing")
    encoder = info.data.get("encoder")
    channels = vars(encoder).get("in_channels", 3) if encoder else 3
    if channels != 3 and not {"mean", "pixels"} & settings.keys():
        settings |= {"pixels": "bands", "mean": [0.0] * channels, "std": [1.0] * channels}
    preprocessing: Preprocessing = validate(Preprocessing, settings, "model.preprocessing")
    count = len(preprocessing.mean)
    if encoder and count != channels:
        fault = f"model.preprocessing.mean has {count} numbers for {channels} channels"
        raise ValueError(f"{fault}: give one for each of model.encoder.in_channels")
    return preprocessing


@dataclass(kw_only=True)
class ModelConfig(Settings):
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

    name: str = "dpt"
    encoder: Annotated[EncoderConfig, PlainValidator(read_encoder)]
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    heads: Annotated[dict[str, HeadConfig], PlainValidator(_read_heads)]
    preprocessing: Annotated[Preprocessing, PlainValidator(_read_preprocessing)]
    calibration: Calibration | None = None
    multiple_from_encoder: bool = field(default=True, init=False, repr=False, compare=False)

    @classmethod
    def from_dict(cls, values: PlainMapping) -> Self:
        """Returns the typed form of plain data.

        Raises:
            ValueError: one line that names the key, what was found and what is allowed.
        """
        config: Self = validate(cls, values, "model")
        config.multiple_from_encoder = "multiple_of" not in values["preprocessing"]
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
                most = f"at most {MAX_PARAMETERS:,} in {MAX_TENSORS:,}"
                raise ValueError(f"model: {parameters:,} parameters in {tensors:,} tensors, {most}")

        hook = register_module_parameter_registration_hook(count)
        try:
            with torch.device("meta"):
                return self._build()
        except (RuntimeError, TypeError) as error:  # of torch, such as sizes beyond 63 bits
            raise ValueError(f"its configuration describes no model ({reason(error)})") from error
        finally:
            hook.remove()

    def _build(self) -> Network:
        """Builds the modules, and replaces every ``auto`` by its value."""
        encoder = self.encoder.build()
        if self.multiple_from_encoder:
            self.preprocessing = replace(self.preprocessing, multiple_of=encoder.pad_multiple)
            self.multiple_from_encoder = False
        sharing = [name for name, head in self.heads.items() if head.decoder is None]
        has_batch_norm = any(self.heads[name].batch_norm for name in sharing)
        self.decoder.resolve(encoder, batch_norm=has_batch_norm)
        heads = {}
        for name, config in self.heads.items():
            if config.decoder is not None:
                config.decoder.resolve(encoder, batch_norm=config.batch_norm)
            heads[name] = config.build(encoder, (config.decoder or self.decoder).fusion_channels)
        shared_decoder = None
        if any(heads[name].uses_decoder for name in sharing):
            has_metres = any(heads[name].output.has_metres for name in sharing)
            shared_decoder = Decoder(self.decoder, encoder, has_metres=has_metres)
        decoders = {
            name: Decoder(config.decoder, encoder, has_metres=heads[name].output.has_metres)
            for name, config in self.heads.items()
            if config.decoder is not None
        }
        network = Network(encoder=encoder, decoder=shared_decoder, heads=heads, decoders=decoders)
        self._check_heads(network)
        return network

    def _check_heads(self, network: Network) -> None:
        """Raises ValueError for heads that contradict their names, decoders or each other."""
        for name, head in network.heads.items():
            if head.output.name != name:
                fault = f"its OutputSpec has the name {head.output.name!r}"
                raise ValueError(f"model.heads.{name}: {fault}: use the name of register_head")
            if name in network.decoders and not head.uses_decoder:
                fault = "this head reads the encoder's tokens, and no decoder"
                raise ValueError(f"model.heads.{name}.decoder: {fault}: leave it out")
        outputs = [head.output for head in network.heads.values() if head.output.has_metres]
        focals = {output.canonical_focal for output in outputs}
        if len(focals) > 1 and network.takes_prompts:
            fault = f"canonical_focal is {' and '.join(map(str, focals))}, and prompts have one"
            raise ValueError(f"model.heads: {fault}: give every metric depth the same")


def check_parts(encoder: PlainMapping, decoder: PlainMapping, preprocessing: PlainMapping) -> None:
    """Raises ValueError for an unknown key or a wrong value of a part of a model."""
    read_encoder(encoder)
    validate(DecoderConfig, decoder, "model.decoder")
    validate(Preprocessing, preprocessing, "model.preprocessing")


def _choose(table: Mapping[str, T], name: object, where: str) -> T:
    if not isinstance(name, str) or name not in table:
        remedy = f"choose from {', '.join(table)}, or name your own classes by DPT_PLUGINS=MODULE"
        raise ValueError(f"{where}={name!r}: {remedy}")
    return table[name]


# --- Models by name


@cache
def _tables() -> dict[str, Plain]:
    """Returns the settings of the parts of each named model."""
    folder, tables = config_dir() / "model", {}
    for file in sorted(folder.glob("[!_]*.yaml")):
        values = yaml.safe_load(file.read_text())
        (name,) = (d["override encoder"] for d in values["defaults"] if "override encoder" in d)
        sizes = yaml.safe_load((folder / "encoder" / f"{name}.yaml").read_text())
        sizes = {k: v for k, v in sizes.items() if k not in ("defaults", "weights", "image_size")}
        parts = {key: values.get(key, {}) for key in ("decoder", "preprocessing")}
        tables[values["name"]] = {"encoder": sizes, **parts}
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
    if name not in _tables():
        raise ValueError(f"no model {name!r}; there are {', '.join(list_models())}")
    table = deepcopy(_tables()[name])
    of_encoder, of_images = {**(encoder or {})}, {**table["preprocessing"], **(preprocessing or {})}
    of_decoder = {**table["decoder"], **(decoder or {})}
    if of_encoder.setdefault("kind", table["encoder"]["kind"]) == table["encoder"]["kind"]:
        of_encoder = {**table["encoder"], **of_encoder}
    config: Any = _choose(ENCODERS, of_encoder["kind"], "model.encoder.kind")
    encoder_keys, decoder_keys = ([f.name for f in fields(c)] for c in (config, DecoderConfig))
    for key, value in overrides.items():
        if key not in encoder_keys + decoder_keys:
            raise ValueError(unknown_key(key, key, encoder_keys + decoder_keys))
        section = of_encoder if key in encoder_keys else of_decoder
        section[key] = value
    if "image_size" in of_encoder:
        of_images.setdefault("image_size", of_encoder["image_size"])
    return {
        "name": name,
        "encoder": of_encoder,
        "decoder": of_decoder,
        "heads": heads,
        "preprocessing": of_images,
    }


def make_config(name: str, *, heads: HeadSettings, **overrides: Any) -> ModelConfig:
    """Returns the configuration of a named model; arguments as for :func:`model_dict`."""
    config = ModelConfig.from_dict(model_dict(name, heads=heads, **overrides))
    for head, settings in heads.items():
        for key, value in settings.items():
            used = getattr(config.heads[head], key)
            is_same_kind = isinstance(value, str) == isinstance(used, str)  # "10" counts as 10
            if isinstance(value, str | int | float) and is_same_kind and value != used:
                text = "model.heads.%s.%s=%r has no effect: its other settings allow only %r"
                log.warning(text, head, key, value, used)
    return config
