"""This project's own checkpoints: a folder written by ``save_pretrained``, or a run's ``.ckpt``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from dpt.weights.files import CONFIG_FILE, WEIGHTS_FILE, Source, open_source

NAME = "dpt"
SPEC_KEY = "dpt_spec"
"""Under this key a Lightning checkpoint of ours holds the model's spec."""
PREFIX = "model."
PARTS = {"encoder", "decoder", "heads", "preprocessing"}


def is_native(content: dict[str, Any]) -> bool:
    return SPEC_KEY in content


def matches(source: Source) -> bool:
    if source.config is None:
        return is_native(source.content)
    return "model_type" not in source.config and len(PARTS & set(source.config)) >= 2


def model_state(content: dict[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The model's tensors of a Lightning checkpoint of ours, which was read from ``path``."""
    state = content.get("state_dict")
    if not isinstance(state, dict):
        raise ValueError(f"{path}: has a {SPEC_KEY!r} but no 'state_dict'; is it complete?")
    return {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}


def read(source: Source) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if source.config is not None:
        return source.config, source.content
    return source.content[SPEC_KEY], model_state(source.content, source.path)


def read_native(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(spec, state dict) of a folder, or of a ``.ckpt`` written by a run.

    Raises:
        ValueError: not a checkpoint of this project, or a damaged one.
    """
    source = open_source(path)
    if not matches(source):
        raise ValueError(
            f"{path}: not a checkpoint of this project (it has no {SPEC_KEY!r}; found "
            f"{sorted(source.config or source.content)[:5]})"
        )
    return read(source)


def write(spec: dict[str, Any], state: dict[str, Tensor], path: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors`` into the folder ``path``."""
    write_folder(Path(path), spec, state)


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """A folder of ``config.json`` and ``model.safetensors``."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # clones: safetensors refuses tensors that share memory
    state = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    try:
        save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:  # a full disk, which is no OSError there
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder / WEIGHTS_FILE}: cannot be written ({reason})") from error
