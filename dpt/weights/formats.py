"""The registry of checkpoint formats: reading in any of them, converting between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dpt.weights.depth_anything import DepthAnything
from dpt.weights.dinov2 import Dinov2
from dpt.weights.files import Source, open_source
from dpt.weights.format import Config, Format, few, list_faults, naming, own_shapes
from dpt.weights.midas31 import Midas31
from dpt.weights.native import Native
from dpt.weights.official import Official
from dpt.weights.smp import Smp
from dpt.weights.transformers import Transformers

FORMATS: tuple[Format, ...] = (
    Native(),
    Midas31(),  # before Official, of which it has the decoder
    Official(),
    Transformers(),
    DepthAnything(),
    Dinov2(),
    Smp(),
)
"""Every format. A new one is a module with its class, and an entry here."""


def writable() -> list[str]:
    """Names of the formats that models can be written in."""
    return [f.name for f in FORMATS if f.writable]


def recognise(source: Source) -> Format:
    """The format of ``source``.

    Raises:
        ValueError: it is in none; the message lists its content.
    """
    for candidate in FORMATS:
        if candidate.recognises(source):
            return candidate
    found = sorted(map(str, source.content))
    config = f"model_type {source.config.get('model_type')!r}, " if source.config else ""
    raise ValueError(
        f"{source.path}: of no known format ({', '.join(f.name for f in FORMATS)}); found {config}"
        f"{len(found)} entries: {few(found)}"
    )


def read(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """Model configuration, and state dict with our names, of a file or folder in any format.

    Raises:
        ValueError: missing, damaged, of no known format, or of a model that is not supported.
    """
    source = open_source(path)
    checkpoint = recognise(source).read(source)
    return checkpoint.config, checkpoint.tensors


@dataclass(frozen=True)
class Conversion:
    """Report of a conversion.

    Attributes:
        source_format, target_format: names of the formats.
        tensors: number of tensors of the model.
        unused: tensors of the source that take no part in a prediction; they are left out.
        notes: for the user of the result.
    """

    source_format: str
    target_format: str
    tensors: int
    unused: list[str]
    notes: list[str]

    def __str__(self) -> str:
        lines = [f"{self.source_format} -> {self.target_format}: {self.tensors} tensors"]
        if self.unused:
            lines.append(
                f"{len(self.unused)} tensors that never run were left out: {few(self.unused)}"
            )
        return "\n".join([*lines, *self.notes])


def convert(src: str | Path, dst: str | Path, *, to: str) -> Conversion:
    """Reads ``src`` in any format and writes it to ``dst`` in the format ``to``.

    Raises:
        ValueError: ``src`` cannot be read, or ``to`` cannot express its model.
    """
    target = next((f for f in FORMATS if f.name == to and f.writable), None)
    if target is None:
        raise ValueError(f"nothing is written as {to!r}; choose from {', '.join(writable())}")
    if Path(src).resolve() == Path(dst).resolve():
        raise ValueError(f"{dst}: is the source itself; give another path")
    source = open_source(src)
    found = recognise(source)
    checkpoint = found.read(source)
    with naming(src):
        shapes = own_shapes(checkpoint.config)
    if faults := list_faults(shapes, checkpoint.tensors):
        raise ValueError(f"{src} does not fit its own configuration: {faults}")
    if checkpoint.config.get("calibration") and not isinstance(target, Native):
        raise ValueError(
            f"the {to} format has no place for a calibration, so depth would no longer be in "
            "metres: convert the checkpoint that was calibrated"
        )
    notes = target.write(checkpoint.config, checkpoint.tensors, dst)
    return Conversion(found.name, to, len(checkpoint.tensors), checkpoint.unused, notes)
