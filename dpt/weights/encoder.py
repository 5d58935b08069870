"""Weights for the encoder alone: from a run of ours, a timm file, or any file in timm's names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpt.nn.positions import ResizePolicy, resize_positions
from dpt.weights.files import read_tensors
from dpt.weights.native import is_native, model_state, read_native

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


def encoder_state(path: str | Path) -> dict[str, Tensor]:
    """Encoder tensors under timm's names, from any file or folder that is understood."""
    path = Path(path)
    if path.is_dir():
        return _only_encoder(read_native(path)[1])
    content = read_tensors(path)
    if is_native(content):
        return _only_encoder(model_state(content))
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    return {k: v for k, v in content.items() if isinstance(v, Tensor)}


def _only_encoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = "encoder."
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> LoadReport:
    """Loads what fits into ``encoder``; position codes are resized to its grid.

    Raises:
        ValueError: nothing fits, or a tensor has the wrong shape; the encoder is then untouched.
    """
    target: nn.Module = getattr(encoder, "model", encoder)  # a timm backbone keeps its own names
    state = encoder_state(path)
    wanted = target.state_dict()
    resized = _resize_codes(target, state)
    fitting = {k: v for k, v in state.items() if k in wanted}
    wrong = [
        f"{k} {tuple(v.shape)} instead of {tuple(wanted[k].shape)}"
        for k, v in fitting.items()
        if v.shape != wanted[k].shape
    ]
    if wrong:
        raise ValueError(f"{path}: another architecture: {_few(wrong)}")
    if not any("blocks" in k or "stages" in k or "layers" in k for k in fitting):
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


def _resize_codes(encoder: Any, state: dict[str, Tensor]) -> list[str]:
    """Resizes ``pos_embed`` in ``state`` to the encoder's grid, in place; names what it changed."""
    codes = state.get("pos_embed")
    own = getattr(encoder, "pos_embed", None)
    if codes is None or own is None or codes.shape == own.shape or not hasattr(encoder, "grid"):
        return []
    slot = int(encoder.cls_position)
    grid, count = encoder.grid, codes.shape[1] - slot
    side = round(count**0.5)
    if side * side != count:
        raise ValueError(f"pos_embed has {count} codes: not a square grid, so its shape is unknown")
    policy: ResizePolicy = encoder.position_resize
    cells = resize_positions(codes[:, slot:], (side, side), grid, policy=policy)
    state["pos_embed"] = torch.cat((codes[:, :slot], cells), dim=1)
    return [f"pos_embed {side}x{side} to {grid[0]}x{grid[1]}"]
