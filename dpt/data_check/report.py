"""The result of a data check: an HTML page, and text for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from dpt import html
from dpt.data.base import Augmented
from dpt.data.resize import resize_image, resize_map
from dpt.data_check.check import Finding, Scan, has_errors, shorten, summary
from dpt.data_check.checks.labels import class_counts
from dpt.data_check.checks.photos import moves
from dpt.data_check.registration import edge_map, moved
from dpt.data_check.scan import read
from dpt.types import IGNORE_INDEX, Sample
from dpt.viz import colorize_depth, colorize_labels, overlay

Picture = tuple[str, np.ndarray]  # a caption and a uint8 RGB picture
Table = tuple[str, str, list[str], Sequence[Sequence[html.Cell]]]  # heading, note, header, rows

CELL = 256  # width of a cell in a row of pictures, in pixels
EPOCHS = 4  # augmented versions that are shown of each sample
_RED, _GREEN = np.array((255, 40, 40), np.uint8), np.array((60, 255, 60), np.uint8)


def text(findings: Sequence[Finding]) -> str:
    """The findings with a few examples each, as lines for a terminal."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.code} ({finding.split}): {finding.line}")
        lines += [f"    {example}" for example in _few(finding.examples, 3)]
    return "\n".join(lines)


def write_page(
    path: Path, title: str, findings: Sequence[Finding], scans: Sequence[Scan], augmented: Augmented
) -> None:
    """Writes the page; ``augmented`` is the data set of the first scan, as training gets it."""
    by_split = {scan.split: scan for scan in scans}
    indices = _spread([r.index for r in scans[0].records if not r.faults], 4)
    html.write_report(
        path,
        "data_check.html",
        title=title,
        failed=has_errors(findings),
        summary=summary(findings),
        overview=_overview(scans),
        findings=[(f, _few(f.examples, 8), _finding_rows(f, by_split)) for f in findings],
        tables=[*_classes(scans), *_depth(scans), *_sizes(scans)],
        samples=_sample_rows(scans[0], indices),
        augmented=list(_augmented_rows(augmented, scans[0], indices)),
    )


def _few(examples: Sequence[str], most: int) -> list[str]:
    rest = len(examples) - most
    return [*examples[:most], *([f"... and {rest} more in report.json"] if rest > 0 else [])]


def _spread(indices: Sequence[int], count: int) -> Sequence[int]:
    """Up to ``count`` of them, evenly spread."""
    return indices[:: max(1, len(indices) // count)][:count]


def _overview(scans: Sequence[Scan]) -> tuple[list[str], list[list[html.Cell]]]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        good = [record for record in scan.records if not record.faults]
        parts = ("labels", "depth", "class_id", "value")
        counts = [sum(getattr(r, part) is not None for r in good) for part in parts]
        rows.append([scan.split, len(scan.records), len(scan.records) - len(good), *counts])
    header = ["split", "samples", "unusable", "with mask", "with depth", "with class", "with value"]
    return header, rows


def _classes(scans: Sequence[Scan]) -> Iterator[Table]:
    """Shares of the classes in each split: of pixels, and of images for image-level classes."""
    for unit in ("pixels", "images"):
        header, rows = ["class"], dict[str, list[html.Cell]]()
        for scan in scans:
            counts = images = Counter(r.class_id for r in scan.records if r.class_id is not None)
            names = [*enumerate(scan.dataset.class_id_names)]
            if unit == "pixels":
                counts, names = class_counts(scan), [*enumerate(scan.dataset.info.class_names)]
                names.append((IGNORE_INDEX, "(ignored)"))
                images = Counter(i for _, labels in scan.masks for i in labels.counts)
            if counts:
                header += [f"{scan.split}, % of {unit}", f"{scan.split}, images"]
                for i, name in names:
                    cells = [100 * counts[i] / counts.total(), images[i]]
                    rows.setdefault(name, [name]).extend(cells)
        if rows:
            yield f"Classes by {unit}", "", header, list(rows.values())


def _depth(scans: Sequence[Scan]) -> Iterator[Table]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        if maps := [depth for _, depth in scan.maps]:
            invalid = [100 * (1 - depth.valid) for depth in maps]
            quantiles = [depth.quantiles for depth in maps if depth.valid] or [(np.nan,) * 3]
            means = [mean(invalid), max(invalid), *np.mean(quantiles, axis=0).tolist()]
            rows.append([scan.split, len(maps), *means, ", ".join({depth.dtype for depth in maps})])
    if rows:
        note = "Quantiles of each map's valid depths in metres, averaged over the maps."
        header = ["split", "maps", "invalid, %", "at most, %", "1 %", "median", "99 %", "type"]
        yield "Depth", note, header, rows


def _sizes(scans: Sequence[Scan]) -> Iterator[Table]:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        for (height, width), count in Counter(p.size for _, p in scan.photos).most_common(10):
            rows.append([scan.split, f"{width} x {height}", count, width / height])
    header = ["split", "width x height", "photos", "aspect"]
    yield "Sizes", "The ten most frequent sizes of each split.", header, rows


def _finding_rows(finding: Finding, scans: Mapping[str, Scan]) -> list[Picture]:
    """Some of the samples that a finding is about."""
    indices = _spread(finding.indices, 3)
    kind, found, _ = finding.code.partition("_misregistered")
    if found:
        return list(_move_rows(scans[finding.split], indices, kind))
    return _sample_rows(scans[finding.split], indices) if indices else []


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


def _move_rows(scan: Scan, indices: Iterable[int], kind: str) -> Iterator[Picture]:
    """Label edges over the photo: red as they are, green where they would fit."""
    key, move = next((key, move) for key, move in moves(scan).items() if key == kind)
    for index in indices:
        sample = scan.dataset[index]
        edges = edge_map(sample, key)
        size = (round(2 * CELL * edges.shape[0] / edges.shape[1]), 2 * CELL)
        shown = []
        for lines, color in ((edges, _RED), (moved(edges, move), _GREEN)):
            picture = resize_image(sample["image"], size, rule="area") // 2
            picture[resize_map(lines, size)] = color
            shown.append(picture)
        yield f"{_name(scan, sample)}: edges as they are, and moved", np.concatenate(shown, axis=1)


def _name(scan: Scan, sample: Sample) -> str:
    return shorten(scan.dataset, sample.get("name") or f"sample {sample.get('index', '?')}")


def _layers(sample: Sample, scan: Scan) -> dict[str, Any]:
    """Photo, labels and depth of a sample as pictures, if it has them."""
    shown: dict[str, Any] = {"image": sample["image"]} if "image" in sample else {}
    if "labels" in sample:
        shown["labels"] = colorize_labels(sample["labels"], scan.dataset.info.palette or None)
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
