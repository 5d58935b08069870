"""Reading tensors from a file: safetensors, or torch files without running any pickle code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch


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
