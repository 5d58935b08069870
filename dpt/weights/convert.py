"""From one format to another, exactly; what a format cannot express is refused with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpt.weights.files import open_source
from dpt.weights.formats import FORMATS, recognise
from dpt.weights.naming import check_tensors
from dpt.weights.native import NAME as NATIVE


@dataclass(frozen=True)
class Conversion:
    """What became of a checkpoint.

    Attributes:
        source, target: where it was and where it is now.
        source_format, target_format: names of their formats.
        tensors: number of tensors that the network uses.
        unused: tensors of the source that take no part in a prediction; they are left out.
        notes: what a user of the result should know.
    """

    source: str
    target: str
    source_format: str
    target_format: str
    tensors: int
    unused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{self.source} ({self.source_format}) -> {self.target} ({self.target_format}): "
            f"{self.tensors} tensors"
        ]
        if self.unused:
            few = ", ".join(self.unused[:4]) + (", ..." if len(self.unused) > 4 else "")
            lines.append(f"{len(self.unused)} tensors that never run were left out: {few}")
        return "\n".join([*lines, *self.notes])


def writable() -> list[str]:
    """Names of the formats that models can be written in."""
    return [f.NAME for f in FORMATS if hasattr(f, "write")]


def convert(src: str | Path, dst: str | Path, *, to: str) -> Conversion:
    """Reads ``src`` in any known format and writes it to ``dst`` in the format ``to``.

    Raises:
        ValueError: ``src`` cannot be read, or its model cannot be expressed in ``to``.
    """
    target: Any = next((f for f in FORMATS if to == f.NAME and hasattr(f, "write")), None)
    if target is None:
        raise ValueError(f"nothing is written as {to!r}; choose from {', '.join(writable())}")
    if Path(src).resolve() == Path(dst).resolve():
        raise ValueError(f"{dst}: is the source itself; give another place to write to")
    source = open_source(src)
    found: Any = recognise(source)
    spec, state = found.read(source)
    check_tensors(spec, state, where=str(src))
    if spec.get("calibration") and target.NAME != NATIVE:
        raise ValueError(
            f"the {to} format has no place for a calibration, so depth would no longer come in "
            "metres: convert the checkpoint that was calibrated"
        )
    notes = target.write(spec, state, dst) or []
    return Conversion(
        source=str(src),
        target=str(dst),
        source_format=found.NAME,
        target_format=to,
        tensors=len(state),
        unused=list(found.unused(source)) if hasattr(found, "unused") else [],
        notes=list(notes),
    )
