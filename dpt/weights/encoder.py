"""Weights for the encoder alone: a run of ours, timm's or DINO's files, any dense checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dpt.weights import native
from dpt.weights.encoder_fit import (
    EMBED,
    Grid,
    fit_codes,
    fit_distillation,
    fit_gains,
    fit_tables,
    resize_patches,
    strip_prefix,
    to_timm_names,
)
from dpt.weights.files import Source, open_source, unwrap

TRAINING_WRAPPERS = ("teacher", "model_ema", "encoder")
TIMM, HUB = "timm:", "hf:"


@dataclass(frozen=True)
class LoadReport:
    """What of a file went into the encoder."""

    source: str
    loaded: int
    resized: list[str]
    moved: list[str]
    missing: list[str]
    unused: list[str]

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.loaded} encoder tensors loaded"]
        if self.resized:
            lines.append(f"resized to this grid: {', '.join(self.resized)}")
        if self.moved:
            lines.append(f"moved, for the same function: {', '.join(self.moved)}")
        if self.missing:
            lines.append(f"not in the file, left at random: {few(self.missing)}")
        if self.unused:
            lines.append(f"in the file, not used: {few(self.unused)}")
        return "; ".join(lines)


def few(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def encoder_state(path: str | Path) -> tuple[dict[str, Tensor], Grid | None]:
    """Encoder tensors under timm's names, from any file or folder that is understood.

    With them the grid of the position codes, where the file knows it: 36 codes may be 6x6 or 4x9.

    Args:
        path: a file or folder; ``timm:NAME`` for a timm model's released weights, ``hf:ID`` for a
            repository on the Hugging Face hub.
    """
    name = str(path)
    if name.startswith(TIMM):
        return _from_timm(name.removeprefix(TIMM)), None
    source = open_source(_from_hub(name.removeprefix(HUB)) if name.startswith(HUB) else path)
    content = source.content
    if not native.matches(source):
        for key in TRAINING_WRAPPERS:
            if isinstance(content.get(key), dict):
                content = content[key]
        tensors = unwrap(content)
        if any(k.endswith(EMBED) for k in tensors):
            return strip_prefix(tensors), None
    known = _known_format(source)
    if known is None:
        return tensors, None
    spec, state = known
    return only_encoder(state), saved_grid(spec)


def _known_format(source: Source) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """What a whole model's format makes of the source."""
    from dpt.weights.formats import FORMATS  # imports every module of this package

    for candidate in FORMATS:
        if candidate.matches(source):
            return candidate.read(source)
    return None


def _from_timm(name: str) -> dict[str, Tensor]:
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"{TIMM}{name}: timm has no such model")
    try:
        return dict(timm.create_model(name, pretrained=True, num_classes=0).state_dict())
    except Exception as error:  # no such tag, no released weights, no network
        reason = " ".join(str(error).split())[:160]
        raise ValueError(
            f"{TIMM}{name}: its weights cannot be fetched ({type(error).__name__}: {reason})"
        ) from error


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.bin"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # of many libraries: no network, no such name, no permission
        reason = " ".join(str(error).split())[:160]
        raise ValueError(
            f"{HUB}{name}: cannot be fetched from the hub ({type(error).__name__}: {reason})"
        ) from error


def only_encoder(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's tensors of a whole model of ours, under its own names."""
    prefix = "encoder."
    tensors = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return {k.removeprefix("model."): v for k, v in tensors.items()}  # timm's, inside ours


def saved_grid(spec: Any) -> Grid | None:
    """The grid that a saved model of ours made its learned codes for."""
    encoder = spec.get("encoder") if isinstance(spec, dict) else None
    if not isinstance(encoder, dict) or encoder.get("kind") == "timm":
        return None
    height, width = encoder.get("image_size", (384, 384))
    patch = encoder.get("patch_size", 16)
    return height // patch, width // patch


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> LoadReport:
    """Loads what fits into ``encoder``.

    Position codes are resized to its grid and patch embeddings to its patch size; codes of tokens
    that have no slot of their own move into the tokens.

    Raises:
        ValueError: nothing fits, or a tensor has the wrong shape; the encoder is then untouched.
    """
    state, grid = encoder_state(path)
    return fit_encoder(encoder, state, grid, path)


def fit_encoder(
    encoder: nn.Module, state: dict[str, Tensor], grid: Grid | None, path: str | Path
) -> LoadReport:
    """Loads what fits of ``state``, which came from ``path``; see :func:`load_encoder_weights`.

    Args:
        grid: of the position codes in ``state``; None where nothing tells.
    """
    target: nn.Module = getattr(encoder, "model", encoder)  # a timm backbone keeps its own names
    wanted = target.state_dict()
    resized = resize_patches(state, wanted)
    state = to_timm_names(state, target, path)
    resized += fit_tables(target, state, grid)
    moved = fit_distillation(state, wanted)
    codes, shifted, dropped = fit_codes(target, state, grid, path)
    moved += shifted + fit_gains(state, wanted)
    fitting = {k: v for k, v in state.items() if k in wanted and not _other_number(k, v, wanted)}
    wrong = [
        f"{k} {tuple(v.shape)} instead of {tuple(wanted[k].shape)}"
        for k, v in fitting.items()
        if v.shape != wanted[k].shape
    ]
    if wrong:
        raise ValueError(f"{path}: another architecture: {few(wrong)}")
    if not any("blocks" in k or "stages" in k or "layer" in k for k in fitting):
        raise ValueError(
            f"{path}: no tensor of this encoder found; the file has {few(sorted(state))}"
        )
    target.load_state_dict(fitting, strict=False)
    return LoadReport(
        source=str(path),
        loaded=len(fitting),
        resized=codes + resized,
        moved=moved,
        missing=sorted(set(wanted) - set(fitting)),
        unused=dropped + sorted(set(state) - set(fitting)),
    )


def _other_number(name: str, value: Tensor, wanted: dict[str, Tensor]) -> bool:
    """Whether these are registers, of another number than the encoder's: of no use."""
    return name == "reg_token" and value.shape[1] != wanted[name].shape[1]
