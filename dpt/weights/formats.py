"""The registry of checkpoint formats: reading in any of them, converting between them.

This project's own is a folder written by ``save_pretrained``, or a run's ``.ckpt``.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpt.files import few, real_path
from dpt.weights.depth_anything import DepthAnything, Dinov2
from dpt.weights.eomt import Eomt
from dpt.weights.files import CONFIG_FILE, WEIGHTS_FILE, Source, locate, open_source
from dpt.weights.format import Checkpoint, Config, Format, Tensors, list_faults, naming, resolve
from dpt.weights.official import Official
from dpt.weights.smp import Smp
from dpt.weights.transformers import Transformers

CONFIG_KEY = "dpt_config"
"""Key of the model configuration in a Lightning checkpoint."""
PREFIX = "model."
PARTS = {"encoder", "decoder", "heads", "preprocessing"}


class Native(Format):
    name = "dpt"
    encoders = ("any",)

    def recognises(self, source: Source) -> bool:
        if not source.config:
            return CONFIG_KEY in source.content
        return "model_type" not in source.config and len(PARTS & set(source.config)) >= 2

    def read(self, source: Source) -> Checkpoint:
        if source.config:
            return Checkpoint(source.config, source.tensors)
        if "state_dict" not in source.content:
            raise ValueError(f"has {CONFIG_KEY!r} but no 'state_dict'; is it complete?")
        state = source.tensors.items()
        tensors = {k.removeprefix(PREFIX): v for k, v in state if k.startswith(PREFIX)}
        return Checkpoint(source.content[CONFIG_KEY], tensors)

    def write(self, config: Config, tensors: Tensors, path: str | Path) -> list[str]:
        if faults := list_faults(resolve(config)[1], tensors):
            raise ValueError(f"could not be loaded again: does not fit model.config: {faults}")
        Source(Path(path), config, {}, dict(tensors)).save()
        return []


FORMATS: list[Format] = [
    Native(), Official(), Transformers(), Eomt(), DepthAnything(), Dinov2(), Smp(),
]  # fmt: skip
"""Every format. A new one is a module with its class, and an entry here."""
WRITABLE = {f.name: f for f in FORMATS if f.encoders}


def find_format(source: Source) -> Format | None:
    """The format of a file or folder; None if it is of no known one."""
    return next((f for f in FORMATS if f.recognises(source)), None)


def _open(path: str | Path, revision: str | None = None) -> tuple[Format, Checkpoint]:
    source = open_source(locate(path, revision))
    if known := find_format(source):
        with naming(source.path):
            checkpoint = known.read(source)
            full, wanted = resolve(checkpoint.config)
            if faults := list_faults(wanted, checkpoint.tensors):
                raise ValueError(f"does not fit its own configuration: {faults}")
        return known, Checkpoint(full, checkpoint.tensors, checkpoint.unused)
    if not source.config and (source.path.parent / CONFIG_FILE).is_file():
        raise ValueError(f"{path}: holds the weights alone: give its folder {source.path.parent}")
    found = sorted(map(str, source.content))
    config = f"model_type {source.config.get('model_type')!r}, " if source.config else ""
    raise ValueError(
        f"{path}: of no known format ({', '.join(f.name for f in FORMATS)}); found {config}"
        f"{len(found)} entries: {few(found, 8)}"
    )


def read(path: str | Path, *, revision: str | None = None) -> tuple[Config, dict[str, Tensor]]:
    """Complete configuration, and state dict with our names, of a file or folder in any format.

    ``path`` may be ``user/name`` on the Hugging Face hub, at ``revision``.

    Raises:
        ValueError: missing, damaged, of no known format, of a model that is not supported, or the
            tensors do not fit its configuration; every missing, unexpected or unfit one is listed.
    """
    _, checkpoint = _open(path, revision)
    return checkpoint.config, checkpoint.tensors


@dataclass(frozen=True)
class Conversion:
    """Report; ``unused`` are tensors of the source that never run, and were left out."""

    source_format: str
    target_format: str
    tensors: int
    unused: list[str]
    notes: list[str]

    def __str__(self) -> str:
        text = f"{self.source_format} -> {self.target_format}: {self.tensors} tensors"
        if self.unused:
            text += f"\n{len(self.unused)} unused tensors are left out: {few(self.unused, 8)}"
        return "\n".join([text, *self.notes])


def convert(src: str | Path, dst: str | Path, *, to: str) -> Conversion:
    """Reads ``src`` in any format and writes it to ``dst`` in the format ``to``.

    Raises:
        ValueError: ``src`` cannot be read, or ``to`` cannot express its model.
    """
    if to not in WRITABLE:
        raise ValueError(f"cannot write the format {to!r}; choose from {', '.join(WRITABLE)}")
    dst = Path(dst).expanduser()
    source, target = map(real_path, (Path(src).expanduser(), dst))
    if source in (target, target / WEIGHTS_FILE) or (target.is_file() and source in target.parents):
        raise ValueError(f"{dst}: is the source itself or a part of it; give another path")
    if os.path.lexists(dst) and not (dst.is_dir() and not any(dst.iterdir())):
        raise ValueError(f"{dst}: exists already; give a new path")
    found, checkpoint = _open(src)
    if checkpoint.config.get("calibration") and to != "dpt":
        raise ValueError(
            f"the {to} format has no place for a calibration, so depth would no longer be in "
            "metres: convert the checkpoint that was calibrated"
        )
    notes = WRITABLE[to].write(checkpoint.config, checkpoint.tensors, dst)
    return Conversion(found.name, to, len(checkpoint.tensors), checkpoint.unused, notes)


def fingerprint(config: Config, state: Tensors) -> str:
    """A short code of a model's configuration and weights, the same for every copy of the model."""
    code = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(state.items()):
        code.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        code.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
