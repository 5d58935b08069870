"""The result of a data check: an HTML page, and text for the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from dpt import html
from dpt.data.base import Augmented
from dpt.data.resize import resize_image
from dpt.data_check.checks import class_counts, plural
from dpt.data_check.scan import SEVERITIES, Finding, Scan, has_errors, read, shorten
from dpt.run_log import log_rows
from dpt.segments import OBJECT_IDS
from dpt.types import IGNORE_INDEX, Sample
from dpt.viz import colorize_depth, colorize_labels, colorize_segments, overlay

Picture = tuple[str, np.ndarray]  # a caption and a uint8 RGB picture
Table = tuple[str, str, list[str], list[list[html.Cell]]]  # heading, note, header, rows

CELL = 256  # width of a cell in a row of pictures, in pixels
ROWS = 40  # of a table in the terminal
EPOCHS = 4  # augmented versions that are shown of each sample


def summary(findings: Sequence[Finding]) -> str:
    """``2 errors, 1 warning, 0 notes``."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(plural(counts[severity], severity) for severity in SEVERITIES)


def text(findings: Sequence[Finding]) -> str:
    """The findings with a few examples each, as lines for a terminal."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.code} ({finding.split}): {finding.line}")
        lines += [f"    {example}" for example in _few(finding.examples, 3)]
    return "\n".join(lines)


def log_tables(scans: Sequence[Scan]) -> None:
    for heading, _, header, rows in _tables(scans):
        cells = [[html.number(cell) for cell in row] for row in rows[:ROWS]]
        rest = f" (the first {ROWS} of {len(rows)}, see report.html)" if len(rows) > ROWS else ""
        log_rows(heading + rest, header, cells)


def _tables(scans: Sequence[Scan]) -> list[Table]:
    return [_overview(scans), _sizes(scans), *_classes(scans), *_objects(scans), *_depth(scans)]


def write_page(
    path: Path, title: str, findings: Sequence[Finding], scans: Sequence[Scan], augmented: Augmented
) -> None:
    """Writes the page; ``augmented`` is the data set of the first scan, as training gets it."""
    by_split = {scan.split: scan for scan in scans}

    def affected(f: Finding) -> list[Picture]:
        return _sample_rows(by_split[f.split], _spread(f.indices, 3)) if f.indices else []

    indices = _spread([r.index for r in scans[0].records if not r.faults], 4)
    html.write_report(
        path,
        "data_check.html",
        title=title,
        failed=has_errors(findings),
        summary=summary(findings),
        tables=_tables(scans),
        findings=[(f, _few(f.examples, 8), affected(f)) for f in findings],
        samples=_sample_rows(scans[0], indices),
        augmented=list(_augmented_rows(augmented, scans[0], indices)),
    )


def _few(examples: Sequence[str], most: int) -> list[str]:
    rest = len(examples) - most
    return [*examples[:most], *([f"... and {rest} more in report.json"] if rest > 0 else [])]


def _spread(indices: Sequence[int], count: int) -> Sequence[int]:
    """Up to ``count`` of them, evenly spread."""
    return indices[:: max(1, len(indices) // count)][:count]


def _overview(scans: Sequence[Scan]) -> Table:
    rows: list[list[html.Cell]] = [
        [s.split, len(s.records), sum(bool(r.faults) for r in s.records), len(s.masks), len(s.maps)]
        for s in scans
    ]
    return "Samples", "", ["split", "samples", "unusable", "with mask", "with depth"], rows


def _classes(scans: Sequence[Scan]) -> Iterator[Table]:
    """Shares of the classes in each split: of pixels, and of images for image-level classes."""
    for unit in ("pixels", "images"):
        counted = [(scan.split, *class_counts(scan)[unit]) for scan in scans]
        counted = [(split, names, counts) for split, names, counts in counted if counts]
        if counted:
            names = [*enumerate(counted[0][1])]
            names += [(IGNORE_INDEX, "(ignored)")] if unit == "pixels" else []
            rows: list[list[html.Cell]] = [
                [name, *(100 * counts[i] / counts.total() for _, _, counts in counted)]
                for i, name in names
            ]
            header = ["class", *(f"{split}, % of {unit}" for split, _, _ in counted)]
            yield f"Classes by {unit}", "", header, rows


def _objects(scans: Sequence[Scan]) -> Iterator[Table]:
    """Objects of each class, and the most segments in an image (a bound of num_queries)."""
    rows: list[list[html.Cell]] = []
    for scan in scans:
        if measured := [record.objects for record in scan.records if record.objects]:
            counted = [each.counts for each in measured]
            for k, name in enumerate(scan.dataset.info.class_names):
                if scan.dataset.info.things[k]:
                    number = sum(counts.get(k, 0) for counts in counted)
                    rows.append([scan.split, name, number, number / len(counted)])
            most = max(each.segments for each in measured)
            rows.append([scan.split, "most segments in an image", most, None])
    if rows:
        yield "Objects", "", ["split", "class", "objects", "per image"], rows


def _depth(scans: Sequence[Scan]) -> Iterator[Table]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        if maps := [depth for _, depth in scan.maps]:
            quantiles = [depth.quantiles for depth in maps if depth.valid] or [(np.nan,) * 3]
            invalid = 100 * mean(1 - depth.valid for depth in maps)
            rows.append([scan.split, len(maps), invalid, *np.mean(quantiles, axis=0).tolist()])
    if rows:
        note = "Quantiles of each map's valid depths in metres, averaged over the maps."
        yield "Depth", note, ["split", "maps", "invalid, %", "1 %", "median", "99 %"], rows


def _sizes(scans: Sequence[Scan]) -> Table:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        for (height, width), count in Counter(p.size for _, p in scan.photos).most_common(10):
            rows.append([scan.split, f"{width} x {height}", count])
    note = "The ten most frequent sizes of each split."
    return "Sizes", note, ["split", "width x height", "photos"], rows


def _sample_rows(scan: Scan, indices: Iterable[int]) -> list[Picture]:
    """Photo, labels and depth of samples as they are on disk."""
    samples = [read(scan.dataset, index).sample for index in indices]
    shown = [(_name(scan, sample), [*_layers(sample, scan).values()]) for sample in samples]
    return [(name, _row(pictures)) for name, pictures in shown if pictures]


def _augmented_rows(augmented: Augmented, scan: Scan, indices: Iterable[int]) -> Iterator[Picture]:
    """The photo and its augmented versions in the first epochs; depth in a second row."""
    for index in indices:
        original = scan.dataset[index]
        layers = [_layers(augmented[epoch, index], scan) for epoch in range(EPOCHS)]
        first = [
            overlay(shown["image"], shown["labels"], 0.55) if "labels" in shown else shown["image"]
            for shown in layers
        ]
        yield _name(scan, original), _row([original["image"], *first])
        if "depth" in original:
            yield _name(scan, original), _row([original["image"], *(s["depth"] for s in layers)])


def _name(scan: Scan, sample: Sample) -> str:
    return shorten(scan.dataset, sample.get("name") or f"sample {sample.get('index', '?')}")


def _layers(sample: Sample, scan: Scan) -> dict[str, Any]:
    """Photo, labels and depth of a sample as pictures, if it has them."""
    info = scan.dataset.info
    shown: dict[str, Any] = {"image": sample["image"]} if "image" in sample else {}
    if "labels" in sample:
        shown["labels"] = colorize_labels(sample["labels"], info.palette or None)
    if "objects" in sample:
        codes = sample["labels"].astype(int) * OBJECT_IDS + sample["objects"]
        codes[sample["labels"] == IGNORE_INDEX] = -1
        shown["labels"] = colorize_segments(codes, info.palette, info.things)
    if "depth" in sample:
        shown["depth"] = colorize_depth(sample["depth"], sample["valid"])
    return shown


def _row(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures side by side, with the height that makes the first one ``CELL`` wide."""
    rows = max(1, round(CELL * pictures[0].shape[0] / pictures[0].shape[1]))
    cells = []
    for picture in pictures:
        columns = max(1, round(rows * picture.shape[1] / picture.shape[0]))
        cell = resize_image(picture, (rows, columns), rule="area")
        cells.append(np.pad(cell, ((0, 0), (0, 4), (0, 0)), constant_values=255))
    return np.concatenate(cells, axis=1)
