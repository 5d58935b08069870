"""``Finding``: what a check reports."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem of one split, however many files have it.

    An ``error`` stops training or makes its result wrong, a ``warning`` is probably a mistake, a
    ``note`` is information.
    """

    severity: Severity
    code: str  # a short fixed name, for tests and scripts
    split: str
    message: str  # one line: what was found
    remedy: str = ""  # one line: what to do about it
    examples: tuple[str, ...] = ()  # the affected files, or a line about each of them
    indices: tuple[int, ...] = ()  # affected samples, of which the report shows some

    @property
    def line(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def plural(count: int, noun: str) -> str:
    """Returns ``1 photo`` or ``3 photos``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
