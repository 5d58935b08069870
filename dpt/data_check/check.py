"""What checks get (:class:`Scan`), what they yield (:class:`Finding`), and the list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dpt.data.base import Dataset
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data_check.measure import Depth, Labels, Photo
from dpt.data_check.registration import MapKind

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
        """Message and remedy in one line."""
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


Fault = tuple[str, str]
"""Why a sample cannot be used: a code and a message."""


@dataclass(slots=True, eq=False)
class Record:
    """Measurements of one sample. A part that it lacks, or that was not wanted, is None."""

    index: int
    name: str
    faults: Sequence[Fault] = ()
    photo: Photo | None = None
    labels: Labels | None = None
    depth: Depth | None = None
    class_id: int | None = None
    value: float | None = None
    edge_scores: dict[MapKind, np.ndarray | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Scan:
    """A split that was read."""

    split: str
    dataset: Dataset
    records: Sequence[Record]
    image_size: tuple[int, int] = (0, 0)  # (H, W) of training crops
    missing: str = "raise"  # or "skip": what training does with photos without labels
    earlier: tuple[Scan, ...] = ()  # the splits that were read before

    @property
    def photos(self) -> list[tuple[Record, Photo]]:
        return [(record, record.photo) for record in self.records if record.photo]

    @property
    def masks(self) -> list[tuple[Record, Labels]]:
        return [(record, record.labels) for record in self.records if record.labels]

    @property
    def maps(self) -> list[tuple[Record, Depth]]:
        return [(record, record.depth) for record in self.records if record.depth]

    @property
    def depth_rule(self) -> DepthRule | None:
        """How depth files become metres; None if unknown or not proportional to it."""
        rule = self.dataset.depth_rule
        return rule if rule is not None and rule.decode is None else None

    def finding(
        self,
        severity: Severity,
        code: str,
        message: str,
        remedy: str = "",
        records: Iterable[Record] = (),
        examples: Iterable[object] | None = None,
    ) -> Finding:
        """A finding about ``records``; ``examples`` replace their names."""
        records = list(records)
        lines = [record.name for record in records] if examples is None else examples
        names = tuple(shorten(self.dataset, str(line)) for line in lines)
        indices = tuple(record.index for record in records)
        message = shorten(self.dataset, message)
        return Finding(severity, code, self.split, message, remedy, names, indices)

    def affected(
        self,
        flags: Sequence[tuple[Record, bool]],
        code: str,
        what: str,
        remedy: str,
        severity: Severity | None = None,
    ) -> Iterable[Finding]:
        """A finding ``COUNT of TOTAL what`` if any of ``flags`` is true.

        Without a ``severity`` it is an error if more than half of them are, else a warning.
        """
        if records := [record for record, flag in flags if flag]:
            severity = severity or ("error" if 2 * len(records) > len(flags) else "warning")
            message = f"{len(records)} of {len(flags)} {what}"
            yield self.finding(severity, code, message, remedy, records)


Check = Callable[[Scan], Iterable[Finding]]
"""Judges the measurements of a split. Gives nothing where what it judges is absent."""
CHECKS: list[Check] = []
QUICK_CHECKS: list[Check] = []
"""Made at the start of every training run too, on a few samples and without photos."""


def check(function: Check) -> Check:
    """Decorator that adds a check to ``CHECKS``."""
    CHECKS.append(function)
    return function


def quick_check(function: Check) -> Check:
    """Decorator that adds a check to ``CHECKS`` and ``QUICK_CHECKS``."""
    QUICK_CHECKS.append(function)
    return check(function)


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def shorten(dataset: Dataset, text: str) -> str:
    """A name or message without the folder that all files share."""
    return text.replace(f"{dataset.root}/", "") if dataset.root else text


def plural(count: int, noun: str) -> str:
    """``1 photo``, ``3 photos``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def summary(findings: Sequence[Finding]) -> str:
    """``2 errors, 1 warning, 0 notes``."""
    counts = {s: sum(f.severity == s for f in findings) for s in SEVERITIES}
    return ", ".join(plural(count, name) for name, count in counts.items())
