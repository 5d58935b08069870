"""The list of checkpoint formats with this project's own: reading any, converting between them."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from dpt.files import few
from dpt.validation import Plain
from dpt.weights.base import Checkpoint, Format, StoredModel, naming
from dpt.weights.depth_anything import DepthAnything, DepthAnything3
from dpt.weights.dinov import Dinov2, Dinov3
from dpt.weights.eomt import Eomt
from dpt.weights.files import CONFIG_FILE, CheckpointFiles, open_checkpoint
from dpt.weights.hub import Card, locate, write_card
from dpt.weights.names import Tensors
from dpt.weights.official import Official
from dpt.weights.smp import Smp
from dpt.weights.transformers import Transformers

CONFIG_KEY = "dpt_config"
"""Key of the model configuration in a Lightning checkpoint."""
_PREFIX = "model."
_PARTS = {"encoder", "decoder", "heads", "preprocessing"}


class Native(Format):
    name = "dpt"
    encoders = ("any",)

    def recognises(self, files: CheckpointFiles) -> bool:
        if not files.config:
            return CONFIG_KEY in files.content
        return "model_type" not in files.config and len(_PARTS & set(files.config)) >= 2

    def read(self, files: CheckpointFiles) -> StoredModel:
        if files.config:
            return StoredModel(files.config, files.tensors)
        if "state_dict" not in files.content:
            raise ValueError(f"has {CONFIG_KEY!r} but no 'state_dict'; is it complete?")
        tensors = {k: v for k, v in files.tensors.items() if k.startswith(_PREFIX)}
        return StoredModel(files.content[CONFIG_KEY], tensors, [("*", f"{_PREFIX}*")])

    def write(self, config: Plain, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a folder with ``config.json``, ``model.safetensors`` and a model card."""
        checkpoint = Checkpoint(StoredModel(config, tensors))
        faults, folder = checkpoint.list_faults(), Path(path)
        if faults:
            raise ValueError(f"could not be loaded again: does not fit model.config: {faults}")
        CheckpointFiles(folder, tensors, config).save()
        write_card(folder, Card(folder.absolute().name).text(checkpoint.network, checkpoint.config))
        return []


FORMATS: tuple[Format, ...] = (
    Native(),
    Official(),
    Transformers(),
    Eomt(),
    DepthAnything(),
    DepthAnything3(),
    Dinov2(),
    Dinov3(),
    Smp(),
)
"""Every format. A new one is a module with its class, and an entry here."""
WRITABLE = {f.name: f for f in FORMATS if f.encoders}


def find_format(files: CheckpointFiles) -> Format | None:
    """Returns the format of a file or folder; None if it is unknown."""
    return next((f for f in FORMATS if f.recognises(files)), None)


def read(path: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Reads the model in a file or folder of any format.

    ``path`` may be ``user/name`` on the Hugging Face hub, at ``revision``.

    Raises:
        ValueError: the file is missing or damaged, its format is unknown, its model is not
            supported, or its tensors do not fit its configuration: each missing, unexpected or
            unfit tensor is listed.
    """
    files = open_checkpoint(locate(path, revision))
    source_format = find_format(files)
    if source_format is not None:
        with naming(files.path):
            checkpoint = Checkpoint(source_format.read(files), source_format.name)
            if faults := checkpoint.list_faults():
                raise ValueError(f"does not fit its own configuration: {faults}")
        return checkpoint
    if not files.config and (files.path.parent / CONFIG_FILE).is_file():
        raise ValueError(f"{path}: holds the weights alone: give its folder {files.path.parent}")
    known, names = ", ".join(f.name for f in FORMATS), sorted(map(str, files.content))
    config = f"model_type {files.config.get('model_type')!r} and " if files.config else ""
    raise ValueError(f"{path}: of no known format ({known}); found {config}{few(names, 8)}")


@dataclass(frozen=True)
class Conversion:
    """Report of a conversion.

    Attributes:
        source_format, target_format: names of the formats.
        tensors: number of tensors of the model.
        unused: tensors of the source that never run, and were left out.
        notes: what the target expresses differently.
    """

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
    if os.path.lexists(dst) and not (dst.is_dir() and not any(dst.iterdir())):
        raise ValueError(f"{dst}: exists already; give a new path")
    checkpoint = read(src)
    if checkpoint.config.calibration and to != "dpt":
        fault = "has no place for a calibration, so depth would no longer be in metres"
        raise ValueError(f"the {to} format {fault}: convert the checkpoint that was calibrated")
    notes = WRITABLE[to].write(checkpoint.config.to_dict(), checkpoint.tensors, dst)
    return Conversion(checkpoint.format, to, len(checkpoint.tensors), checkpoint.unused, notes)


def fingerprint(config: Plain, state: Tensors) -> str:
    """Returns a short code of a configuration and weights, equal for every copy of a model."""
    code = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(state.items()):
        code.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        code.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
