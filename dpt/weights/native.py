"""This project's own checkpoints: a folder written by ``save_pretrained``, or a run's ``.ckpt``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from dpt.weights.files import Source, write_folder
from dpt.weights.format import Checkpoint, Config, Format, Tensors

CONFIG_KEY = "dpt_config"
"""Key of the model configuration in a Lightning checkpoint."""
PREFIX = "model."
PARTS = {"encoder", "decoder", "heads", "preprocessing"}


class Native(Format):
    name = "dpt"
    writable = True

    def recognises(self, source: Source) -> bool:
        if not source.config:
            return CONFIG_KEY in source.content
        return "model_type" not in source.config and len(PARTS & set(source.config)) >= 2

    def _read(self, source: Source) -> Checkpoint:
        if source.config:
            return Checkpoint(source.config, source.content)
        if "state_dict" not in source.content:
            raise ValueError(f"has {CONFIG_KEY!r} but no 'state_dict'; is it complete?")
        state = source.content["state_dict"]
        tensors = {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}
        return Checkpoint(source.content[CONFIG_KEY], tensors)

    def write(self, config: Config, tensors: Tensors, path: str | Path) -> list[str]:
        write_folder(Path(path), config, tensors)
        return []


def fingerprint(config: Config, state: Tensors) -> str:
    """A short code of a model's configuration and weights, the same for every copy of the model."""
    code = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(state.items()):
        code.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        code.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
