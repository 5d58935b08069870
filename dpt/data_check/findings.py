"""What the doctor says: one finding for each thing that is wrong, however many files have it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found in one split.

    Attributes:
        severity: ``error`` where training would stop or its result be wrong; ``warning`` what is
            probably a mistake; ``note`` what is good to know.
        code: a short fixed name, for tests and scripts.
        split: the split it was found in.
        message: one line: what was found.
        remedy: one line: what to do about it.
        examples: the files, or what is said of each of them.
        indices: samples that show it, for the pictures.
    """

    severity: Severity
    code: str
    split: str
    message: str
    remedy: str = ""
    examples: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()

    @property
    def line(self) -> str:
        """Message and remedy in one line."""
        return f"{self.message}: {self.remedy}" if self.remedy else self.message

    def rank(self) -> int:
        """Sorts errors before warnings before notes."""
        return SEVERITIES.index(self.severity)

    def to_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "indices"}


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def plural(count: int, noun: str) -> str:
    """``1 photo``, ``3 photos``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count_line(findings: Sequence[Finding]) -> str:
    """``2 errors, 1 warning, 0 notes``."""
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    return ", ".join(plural(count, name) for name, count in counts.items())


def write_findings(path: Path, findings: Sequence[Finding]) -> None:
    """A JSON list with an object for each finding, written whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps([f.to_dict() for f in findings], indent=2) + "\n")
    os.replace(temporary, path)
