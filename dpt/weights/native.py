"""This project's own checkpoints: a folder written by ``save_pretrained``, or a run's ``.ckpt``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from dpt.weights.files import read_tensors

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SPEC_KEY = "dpt_spec"
"""Under this key a Lightning checkpoint of ours holds the model's spec."""
PREFIX = "model."


def is_native(content: dict[str, Any]) -> bool:
    return SPEC_KEY in content


def model_state(content: dict[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The model's tensors of a Lightning checkpoint of ours, which was read from ``path``."""
    state = content.get("state_dict")
    if not isinstance(state, dict):
        raise ValueError(f"{path}: has a {SPEC_KEY!r} but no 'state_dict'; is it complete?")
    return {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}


def read_native(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(spec, state dict) of a folder, or of a ``.ckpt`` written by a run.

    Raises:
        ValueError: not a checkpoint of this project, or a damaged one.
    """
    path = Path(path)
    if not path.is_dir():
        content = read_tensors(path)
        if not is_native(content):
            raise ValueError(
                f"{path}: not a checkpoint of this project (it has no {SPEC_KEY!r}; found "
                f"{sorted(content)[:5]})"
            )
        return content[SPEC_KEY], model_state(content, path)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (path / name).is_file():
            raise ValueError(f"{path}: no {name} in this folder; a saved model has both")
    try:
        spec = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{path / CONFIG_FILE}: not valid JSON ({error})") from error
    return spec, read_tensors(path / WEIGHTS_FILE)
