"""Joins models that were trained on one frozen encoder into one model with all of their heads."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpt.files import few
from dpt.model_config import HeadConfig, ModelConfig
from dpt.types.outputs import prompt_focal
from dpt.validation import Plain
from dpt.weights.base import Checkpoint
from dpt.weights.formats import Native, read

ONLY_TRAINING = {"drop_path"}  # settings of encoders that change no prediction
REMEDY = "train both with callbacks.freeze.parts=[encoder] from the same model.weights"


@dataclass(frozen=True)
class Merged:
    """A merged model.

    Attributes:
        config: its complete configuration.
        tensors: by name.
        sources: the file of each head.
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    sources: dict[str, str]

    def save(self, folder: str | Path) -> None:
        """Writes a folder as :meth:`dpt.DPT.save_pretrained` does."""
        Native().write(self.config.to_dict(), self.tensors, folder)


def merge(paths: Sequence[str | Path]) -> Merged:
    """Returns one model with the heads of several; each head's predictions stay equal to the bit.

    A decoder that a model's heads share becomes each head's own, except the first that several
    heads share: it stays the shared one.

    Args:
        paths: two or more, each as for :meth:`dpt.DPT.from_pretrained`.

    Raises:
        ValueError: encoders, preprocessing or the cameras of sparse depth differ, or two models
            have a head of the same name.
    """
    if len(paths) < 2:
        raise ValueError(f"{few([str(path) for path in paths])}: give two or more models to merge")
    models = [_Source(str(path), read(path)) for path in paths]
    first, sources = models[0], dict.fromkeys(models[0].config.heads, models[0].path)
    for model in models[1:]:
        model.require_same_settings(first)
        model.require_same_encoder(first)
        for name in model.config.heads:
            if name in sources:
                fault = f"{model.path}: has a head {name}, as {sources[name]} has"
                raise ValueError(f"{fault}: merge models of different heads")
            sources[name] = model.path
    _require_same_prompts(models)
    kept = next((model for model in models if len(model.sharing_heads()) > 1), None)
    config, tensors = deepcopy((kept or first).config), first.encoder_tensors()
    config.heads, config.calibration = {}, None
    for model in models:
        config.heads |= model.heads(shares=model is kept)
        config.calibration = config.calibration or model.config.calibration
        tensors |= model.other_tensors(shares=model is kept)
    return Merged(config, tensors, sources)


def _require_same_prompts(models: Sequence["_Source"]) -> None:
    """Raises ValueError if models take sparse depth for cameras of different focal lengths."""
    networks = {m.path: m.checkpoint.network for m in models if m.checkpoint.network.takes_prompts}
    focals = {path: prompt_focal(network.outputs) for path, network in networks.items()}
    if len({*focals.values()}) > 1:
        listed = few([f"{focal} in {path}" for path, focal in focals.items()])
        raise ValueError(f"prompts are for the canonical_focal {listed}: train both with the same")


@dataclass(frozen=True)
class _Source:
    """A model to be merged, and its file."""

    path: str
    checkpoint: Checkpoint

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def require_same_settings(self, other: "_Source") -> None:
        for part in ("encoder", "preprocessing"):
            ours, theirs = self._settings(part), other._settings(part)
            for key in ours | theirs:
                if ours.get(key) != theirs.get(key):
                    raise ValueError(
                        f"{self.path}: {part}.{key}={ours.get(key)!r}, but {theirs.get(key)!r} in "
                        f"{other.path}: {REMEDY}, and with the same settings"
                    )

    def _settings(self, part: str) -> Plain:
        settings: Plain = self.config.to_dict()[part]
        return {key: value for key, value in settings.items() if key not in ONLY_TRAINING}

    def require_same_encoder(self, other: "_Source") -> None:
        ours, theirs = self.encoder_tensors(), other.encoder_tensors()
        differing = [name for name in ours if not torch.equal(ours[name], theirs[name])]
        if differing:
            raise ValueError(
                f"{self.path}: its encoder differs from that of {other.path} in {len(differing)} "
                f"of {len(ours)} tensors, first in {differing[0]}: {REMEDY}"
            )

    def sharing_heads(self) -> list[str]:
        """Returns the names of heads that read the shared decoder."""
        heads = self.checkpoint.network.heads.items()
        return [n for n, h in heads if h.uses_decoder and self.config.heads[n].decoder is None]

    def heads(self, *, shares: bool) -> dict[str, HeadConfig]:
        """Returns the settings of each head, with a decoder of its own unless it ``shares`` one."""
        heads = deepcopy(self.config.heads)
        for name in [] if shares else self.sharing_heads():
            heads[name].decoder = deepcopy(self.config.decoder)
        return heads

    def encoder_tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.checkpoint.tensors.items() if k.startswith("encoder.")}

    def other_tensors(self, *, shares: bool) -> dict[str, Tensor]:
        """Returns the tensors of decoders and heads by their names in a model of :meth:`heads`."""
        tensors: dict[str, Tensor] = {}
        for name, tensor in self.checkpoint.tensors.items():
            part, _, rest = name.partition(".")
            if part == "decoder" and not shares:
                tensors |= {f"decoders.{head}.{rest}": tensor for head in self.sharing_heads()}
            elif part != "encoder":
                tensors[name] = tensor
        return tensors
