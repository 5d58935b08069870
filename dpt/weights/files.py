"""Reading tensors from a file: safetensors, or torch files without running any pickle code."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
WRAPPERS = ("model", "state_dict", "model_state_dict", "teacher")


@dataclass(frozen=True)
class Source:
    """What lies at a path, read once.

    Attributes:
        path: the folder or file.
        config: ``config.json`` of a folder.
        processor: ``preprocessor_config.json`` or ``processor_config.json`` of a folder.
        content: what the weight file holds, still wrapped as it was found.
    """

    path: Path
    config: dict[str, Any] | None
    processor: dict[str, Any] | None
    content: dict[str, Any]


def open_source(path: str | Path) -> Source:
    """Reads a file, or a folder with ``config.json`` and weights (one file or shards).

    Raises:
        ValueError: something is missing, damaged, or asks to run code.
    """
    path = Path(path)
    if not path.is_dir():
        return Source(path, None, None, read_tensors(path))
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(f"{path}: no {CONFIG_FILE} in this folder; a saved model has one")
    config = read_json(path / CONFIG_FILE)
    processor = next((read_json(path / n) for n in PROCESSOR_FILES if (path / n).is_file()), None)
    for name in (WEIGHTS_FILE, "pytorch_model.bin"):
        if (path / name).is_file():
            return Source(path, config, processor, read_tensors(path / name))
        index = path / f"{name}.index.json"
        if index.is_file():
            return Source(path, config, processor, _read_shards(index))
    raise ValueError(f"{path}: no {WEIGHTS_FILE} in this folder; a saved model has one")


def _read_shards(index: Path) -> dict[str, Any]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict):
        raise ValueError(f"{index}: no 'weight_map' that says where the tensors are")
    content: dict[str, Any] = {}
    for name in sorted(set(map(str, where.values()))):
        if Path(name).name != name:
            raise ValueError(f"{index}: names {name!r}, which lies outside of the folder")
        content.update(read_tensors(index.parent / name))
    return content


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds a {type(values).__name__}, not an object")
    return values


def unwrap(content: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a file, without a wrapper such as ``{"model": ..., "optimizer": ...}``."""
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)}
    if tensors and all(k.startswith("module.") for k in tensors):  # saved under DataParallel
        tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
    return tensors


def read_tensors(path: str | Path) -> dict[str, Any]:
    """What a ``.safetensors``, ``.pt``, ``.pth``, ``.ckpt`` or ``.bin`` file holds.

    Raises:
        ValueError: the file is missing, truncated, or asks to run code.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path}: holds more than tensors and plain data, or is damaged, and was not loaded "
            f"({_first_line(error)})"
        ) from error
    except Exception as error:
        raise ValueError(
            f"{path}: cannot be read as a checkpoint; is it complete? "
            f"({type(error).__name__}: {_first_line(error)})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}, not a checkpoint")
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:120]
