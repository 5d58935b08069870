"""The doctor's report: one HTML page, and the findings in short for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dpt import html
from dpt.data_check.findings import Finding, count_line, has_errors
from dpt.data_check.label_checks import class_counts
from dpt.data_check.scan import Scan
from dpt.types import IGNORE_INDEX

Row = tuple[str, np.ndarray]
"""A caption and a uint8 RGB picture."""

_EXAMPLES = {"terminal": 3, "page": 8}
_COLUMNS = 120


def terminal_table(findings: Sequence[Finding]) -> str:
    """The findings as a table of plain text."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("severity", "split", "code", "finding"):
        table.add_column(name, no_wrap=name != "finding", overflow="fold")
    for finding in findings:
        lines = [finding.line, *_few(finding.examples, _EXAMPLES["terminal"])]
        table.add_row(finding.severity, finding.split, finding.code, "\n  ".join(lines))
    text = StringIO()
    console = Console(
        file=text, width=_COLUMNS, color_system=None, highlight=False, markup=False, emoji=False,
        force_jupyter=False,
    )  # fmt: skip
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


class PageTable(NamedTuple):
    """A table of the page, with a heading and a note above it."""

    heading: str
    note: str
    header: list[str]
    rows: list[list[html.Cell]]


def write_page(
    path: Path,
    *,
    title: str,
    findings: Sequence[tuple[Finding, Sequence[Row]]],
    scans: Sequence[Scan],
    samples: Sequence[Row],
    augmented: Sequence[Row],
) -> None:
    """Writes the HTML page.

    Args:
        path: of the page.
        title: of the page.
        findings: in the order to show them, with pictures of some samples that have them.
        scans: of all splits.
        samples: of the first split, as they are read.
        augmented: of the first split, as training gets them.
    """
    only = [finding for finding, _ in findings]
    html.write_report(
        path,
        "data_check.html",
        title=title,
        failed=has_errors(only),
        summary=count_line(only),
        overview=_overview(scans),
        findings=[(f, _few(f.examples, _EXAMPLES["page"]), rows) for f, rows in findings],
        tables=[*_classes(scans), *_depth(scans), _sizes(scans)],
        samples=samples,
        augmented=augmented,
    )


def _few(examples: Sequence[str], most: int) -> list[str]:
    rest = len(examples) - most
    return [*examples[:most], *([f"... and {rest} more in report.json"] if rest > 0 else [])]


def _overview(scans: Sequence[Scan]) -> tuple[list[str], list[list[html.Cell]]]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        good = [record for record in scan.records if not record.faults]
        rows.append(
            [
                scan.split,
                len(scan.records),
                len(scan.records) - len(good),
                sum(record.labels is not None for record in good),
                sum(record.depth is not None for record in good),
                sum(record.class_id is not None for record in good),
                sum(record.value is not None for record in good),
            ]
        )
    header = ["split", "samples", "unusable", "with mask", "with depth", "with class", "with value"]
    return header, rows


def _classes(scans: Sequence[Scan]) -> Iterator[PageTable]:
    """How often each class occurs in each split: in pixels and images, or in images alone."""
    shares: dict[str, dict[str, list[html.Cell]]] = {"pixels": {}, "images": {}}
    header: dict[str, list[str]] = {"pixels": ["class"], "images": ["class"]}
    for scan in scans:
        counts, info = class_counts(scan), scan.facts.info
        known = counts.total() - counts[IGNORE_INDEX]
        if counts:
            header["pixels"] += [f"{scan.split}, % of labelled pixels", "images"]
            seen = Counter(i for r in scan.records if r.labels for i in r.labels.counts)
            for i, name in enumerate(info.class_names):
                cells = [100 * counts[i] / max(known, 1), seen[i]]
                shares["pixels"].setdefault(name, [name]).extend(cells)
            cells = [100 * counts[IGNORE_INDEX] / counts.total(), seen[IGNORE_INDEX]]
            name = "(no class, % of all pixels)"
            shares["pixels"].setdefault(name, [name]).extend(cells)
        ids = Counter(r.class_id for r in scan.records if r.class_id is not None)
        if ids:
            header["images"] += [f"{scan.split}, % of images", "images"]
            for i, name in enumerate(scan.facts.class_id_names):
                cells = [100 * ids[i] / ids.total(), ids[i]]
                shares["images"].setdefault(name, [name]).extend(cells)
    for unit, rows in shares.items():
        if rows:
            title = "Classes" if unit == "pixels" else "Classes of whole images"
            yield PageTable(title, "", header[unit], list(rows.values()))


def _depth(scans: Sequence[Scan]) -> Iterator[PageTable]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        maps = [record.depth for record in scan.records if record.depth]
        if maps:
            invalid = [100 * (1 - depth.valid) for depth in maps]
            quantiles = [depth.quantiles for depth in maps if depth.valid] or [(np.nan,) * 3]
            rows.append(
                [
                    scan.split,
                    len(maps),
                    mean(invalid),
                    f"{min(invalid):.1f} to {max(invalid):.1f}",
                    *np.mean(quantiles, axis=0).tolist(),
                    ", ".join(sorted({depth.dtype for depth in maps})),
                ]
            )
    if rows:
        note = "Quantiles of each map's valid depths in metres, averaged over the maps."
        header = ["split", "maps", "invalid, %", "of a map, %", "1 %", "median", "99 %", "numbers"]
        yield PageTable("Depth", note, header, rows)


def _sizes(scans: Sequence[Scan]) -> PageTable:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        sizes = Counter(record.photo.size for record in scan.records if record.photo)
        for (height, width), count in sizes.most_common(10):
            rows.append([scan.split, f"{width} x {height}", count, width / height])
        if len(sizes) > 10:
            rest = sizes.total() - sum(count for _, count in sizes.most_common(10))
            rows.append([scan.split, f"{len(sizes) - 10} others", rest, None])
    return PageTable("Sizes", "", ["split", "width x height", "photos", "aspect"], rows)
