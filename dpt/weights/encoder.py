"""Weights for the encoder alone: from a run of ours, a timm file, or any file in timm's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpt.nn.positions import ResizePolicy, resize_positions
from dpt.weights.files import read_tensors
from dpt.weights.native import SPEC_KEY, is_native, model_state, read_native

Grid = tuple[int, int]
WRAPPERS = ("model", "state_dict", "model_state_dict", "teacher")


@dataclass(frozen=True)
class LoadReport:
    """What of a file went into the encoder."""

    source: str
    loaded: int
    resized: list[str]
    missing: list[str]
    unused: list[str]

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.loaded} encoder tensors loaded"]
        if self.resized:
            lines.append(f"resized to this grid: {', '.join(self.resized)}")
        if self.missing:
            lines.append(f"not in the file, left at random: {_few(self.missing)}")
        if self.unused:
            lines.append(f"in the file, not used: {_few(self.unused)}")
        return "; ".join(lines)


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def encoder_state(path: str | Path) -> tuple[dict[str, Tensor], Grid | None]:
    """Encoder tensors under timm's names, from any file or folder that is understood.

    With them the grid of the position codes, where the file knows it: 36 codes may be 6x6 or 4x9.
    """
    path = Path(path)
    content = {} if path.is_dir() else read_tensors(path)
    if path.is_dir() or is_native(content):
        spec, state = (
            read_native(path) if path.is_dir() else (content[SPEC_KEY], model_state(content, path))
        )
        return _only_encoder(state), _saved_grid(spec)
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    return {k: v for k, v in content.items() if isinstance(v, Tensor)}, None


def _only_encoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = "encoder."
    tensors = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return {k.removeprefix("model."): v for k, v in tensors.items()}  # timm's, inside ours


def _saved_grid(spec: Any) -> Grid | None:
    """The grid that a saved model of ours made its learned codes for."""
    encoder = spec.get("encoder") if isinstance(spec, dict) else None
    if not isinstance(encoder, dict) or encoder.get("kind") == "timm":
        return None
    height, width = encoder.get("image_size", (384, 384))
    patch = encoder.get("patch_size", 16)
    return height // patch, width // patch


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> LoadReport:
    """Loads what fits into ``encoder``; position codes are resized to its grid.

    Raises:
        ValueError: nothing fits, or a tensor has the wrong shape; the encoder is then untouched.
    """
    target: nn.Module = getattr(encoder, "model", encoder)  # a timm backbone keeps its own names
    state, grid = encoder_state(path)
    wanted = target.state_dict()
    resized = _resize_codes(target, state, grid, path)
    fitting = {k: v for k, v in state.items() if k in wanted}
    wrong = [
        f"{k} {tuple(v.shape)} instead of {tuple(wanted[k].shape)}"
        for k, v in fitting.items()
        if v.shape != wanted[k].shape
    ]
    if wrong:
        raise ValueError(f"{path}: another architecture: {_few(wrong)}")
    if not any("blocks" in k or "stages" in k or "layer" in k for k in fitting):
        raise ValueError(
            f"{path}: no tensor of this encoder found; the file has {_few(sorted(state))}"
        )
    target.load_state_dict(fitting, strict=False)
    return LoadReport(
        source=str(path),
        loaded=len(fitting),
        resized=resized,
        missing=sorted(set(wanted) - set(fitting)),
        unused=sorted(set(state) - set(fitting)),
    )


def _code_layout(encoder: Any) -> tuple[int, Grid, ResizePolicy] | None:
    """Slots before the patch codes, their grid, and the policy of ``encoder``; None without any."""
    own = getattr(encoder, "pos_embed", None)
    if own is None or own.ndim != 3:
        return None
    if hasattr(encoder, "position_resize"):
        return int(encoder.cls_position), encoder.grid, encoder.position_resize
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    if grid is None:
        return None
    return own.shape[1] - grid[0] * grid[1], (grid[0], grid[1]), "bicubic_antialias"  # timm


def _resize_codes(
    encoder: nn.Module, state: dict[str, Tensor], old: Grid | None, path: str | Path
) -> list[str]:
    """Resizes ``pos_embed`` in ``state`` to the encoder's grid, in place; names what it changed.

    Args:
        old: grid of the codes in ``state``; None takes a square one, or the encoder's own.
    """
    codes = state.get("pos_embed")
    layout = _code_layout(encoder)
    if codes is None or codes.ndim != 3 or layout is None:
        return []
    slots, new, policy = layout
    count = codes.shape[1] - slots
    if old is None:
        side = round(max(count, 0) ** 0.5)
        old = new if count == new[0] * new[1] else (side, side)
    if old[0] * old[1] != count:
        raise ValueError(
            f"{path}: pos_embed has {count} codes beside {slots} for CLS, not {old[0]}x{old[1]}"
        )
    if old == new:
        return []
    cells = resize_positions(codes[:, slots:], old, new, policy=policy)
    state["pos_embed"] = torch.cat((codes[:, :slots], cells), dim=1)
    return [f"pos_embed {old[0]}x{old[1]} to {new[0]}x{new[1]}"]
